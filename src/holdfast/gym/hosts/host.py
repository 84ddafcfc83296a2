"""The messages between a compiled program and a host, which steps many copies of an environment.

There are three hosts, with the same methods: `ThreadHost`, `SyncHost` and `AsyncHost`. `reset` starts
one episode for each seed, `step` steps every copy whose episode is not over, and `close` releases
processes and threads.

This module and the other modules that worker processes import do not import JAX, which would cost each
process seconds and hundreds of megabytes.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, UInt32

# Physical parameters that a command can scale; a factor of 1 is the nominal value.
PARAMETERS = ("mass", "friction", "damping", "gravity", "gain")


@dataclasses.dataclass(frozen=True)
class DisturbanceLayout:
    """The meaning of each number in a command, the vector that disturbs the physics of one step.

    A command contains a push of the state, then the forces, then the factors on parameters.

    Attributes:
        state: length of the push that is added to the state before the step. In MuJoCo: nv numbers for
            the positions, along the axes of the velocities, then nv for the velocities. Elsewhere: one
            for each number of the state.
        bodies: names of the bodies that a force acts on during the step. Each has three numbers, in
            newtons along the axes of the world, applied at the centre of mass.
        parameters: names of the physical parameters, with one factor on the nominal value each.

    Example:
        >>> layout = DisturbanceLayout(state=4, bodies=("torso",), parameters=("mass",))
        >>> layout.nominal
        array([0., 0., 0., 0., 0., 0., 0., 1.], dtype=float32)
        >>> layout.of_forces
        slice(4, 7, None)
    """

    state: int = 0
    bodies: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Length of a command."""
        return self.of_forces.stop + len(self.parameters)

    @property
    def of_state(self) -> slice:
        """Position of the push of the state."""
        return slice(0, self.state)

    @property
    def of_forces(self) -> slice:
        """Position of the forces."""
        return slice(self.state, self.state + 3 * len(self.bodies))

    @property
    def of_parameters(self) -> slice:
        """Position of the factors."""
        return slice(self.of_forces.stop, self.size)

    @property
    def nominal(self) -> Float[np.ndarray, " command"]:
        """The command that disturbs nothing."""
        command = np.zeros(self.size, np.float32)
        command[self.of_parameters] = 1
        return command


class HostReply(NamedTuple):
    """The result of a reset or a step, with one row for each copy.

    Attributes:
        place: saved state of the copy, in the host's own encoding.
        observations: input of the policy.
        features: input of critics and adversaries.
        rewards: rewards of the step; 0 after a reset and for copies whose episode is over.
        costs: costs of the step, one column for each.
        terminated: whether the episode is over.
    """

    place: UInt32[np.ndarray, "rows place"]
    observations: Float[np.ndarray, "rows observation"]
    features: Float[np.ndarray, "rows features"]
    rewards: Float[np.ndarray, " rows"]
    costs: Float[np.ndarray, "rows costs"]
    terminated: Bool[np.ndarray, " rows"]


class ReplySizes(NamedTuple):
    """The lengths of the parts of a `HostReply`, and whether a step can start from any earlier place."""

    place: int
    observation: int
    features: int
    costs: int
    is_replayable: bool
