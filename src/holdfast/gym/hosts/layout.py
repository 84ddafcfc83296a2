"""The numbers that tell a host how physics is disturbed in a step."""

from __future__ import annotations

import dataclasses

# Factors on what the model says, 1 being nominal.
PARAMETERS = ("mass", "friction", "damping", "gravity", "gain")


@dataclasses.dataclass(frozen=True)
class Layout:
    """What each number of a command is, in this order.

    Attributes:
        state: how many push the state before the step: for MuJoCo nv for the positions (along the
            velocities' axes) and then nv for the velocities; elsewhere one for each number of the state.
        bodies: names of the bodies that a force pushes through the step: three numbers each, in newtons
            along the world's axes, at the body's centre of mass.
        parameters: names of the physical parameters, a factor on the nominal value for each.
    """

    state: int = 0
    bodies: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Length of a command."""
        return self.state + 3 * len(self.bodies) + len(self.parameters)

    @property
    def of_state(self) -> slice:
        """Where the push of the state is."""
        return slice(0, self.state)

    @property
    def of_forces(self) -> slice:
        """Where the forces are."""
        return slice(self.state, self.state + 3 * len(self.bodies))

    @property
    def of_parameters(self) -> slice:
        """Where the factors are."""
        return slice(self.state + 3 * len(self.bodies), self.size)
