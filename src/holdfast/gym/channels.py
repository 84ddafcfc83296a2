"""Channels: where a disturbance enters an environment, and how far one unit of it moves the quantity.

A channel is a record that the user writes. `Machine` lists the quantities of an environment that can be
disturbed. Together they define the numbers of a disturbance, which are independent and standard normal
under the nominal kernel.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np

from holdfast._support.arguments import check_choice
from holdfast.gym.hosts.host import PARAMETERS, DisturbanceLayout
from holdfast.simulators.environment import Box, Discrete

Scale = float | tuple[float, ...]
DELAY = "delay"
_DRAWABLE = (*PARAMETERS, DELAY)


@dataclasses.dataclass(frozen=True)
class Machine:
    """The quantities of an environment that can be disturbed.

    Attributes:
        name: name of the environment.
        actions: action space.
        observations: length of an observation.
        states: number of values that push the state; 0 if it cannot be set. In MuJoCo the first half
            pushes positions and the second half velocities.
        is_mujoco: whether the physics is MuJoCo's.
        bodies: names of the bodies that a force can act on.
        parameters: names of the physical parameters that can be changed.
        dt: duration of a step in seconds; None if the environment has no clock.
    """

    name: str
    actions: Box | Discrete
    observations: int
    states: int = 0
    is_mujoco: bool = False
    bodies: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    dt: float | None = None

    def layout(self, channels: tuple[Channel, ...]) -> DisturbanceLayout:
        """Return the layout of the commands for these channels.

        All parameters are part of it, since `with_parameters` can set each of them.

        Raises:
            ValueError: a channel does not fit this environment.
        """
        for channel in channels:
            channel.scales(self)
        return DisturbanceLayout(
            state=self.states if any(isinstance(c, States) for c in channels) else 0,
            bodies=tuple(c.body for c in channels if isinstance(c, Force)),
            parameters=tuple(name for name in self.parameters if name != DELAY),
        )


def _scale(name: str, value: object) -> Scale:
    """Return a finite number of at least 0, or a tuple of them."""
    if np.asarray(value, object).ndim == 0:
        return _number(name, value)
    each = tuple(_number(name, v) for v in np.asarray(value, object))
    if not each:
        raise ValueError(f"{name}: expected at least one number, got {value!r}")
    return each


def _number(name: str, value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise ValueError(f"{name}: expected a finite number of at least 0, got {value!r}")
    return number


def _spread(scale: Scale, size: int, of: str) -> tuple[float, ...]:
    """Return one scale for each of `size` numbers."""
    if isinstance(scale, tuple):
        if len(scale) != size:
            raise ValueError(f"std: {of} has {size} numbers, got {len(scale)} scales")
        return scale
    return (scale,) * size


class _Channel:
    """Base class of all channels.

    Each also has a method `scales`, which returns the distance by which one unit of each number of the
    disturbance moves its quantity, and raises a ValueError if the channel does not fit a machine.
    """

    def __post_init__(self) -> None:
        """Check all numbers, and convert them to float."""
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            if field.type in ("float", "Scale"):
                check = _number if field.type == "float" else _scale
                object.__setattr__(self, field.name, check(field.name, getattr(self, field.name)))

    def describe(self) -> dict[str, Any]:
        """Return the channel as JSON values, which `channel_from` reads."""
        assert dataclasses.is_dataclass(self)
        return {"kind": type(self).__name__, **dataclasses.asdict(self)}


@dataclasses.dataclass(frozen=True)
class Actions(_Channel):
    """Noise that is added to every action, before the action is clipped to the action space.

    Arguments:
        std: standard deviation in the units of the action space; one number, or one for each entry.

    Example:
        >>> import holdfast as hf
        >>> env = hf.disturb("Pendulum-v1", hf.Actions(0.1), cost={})
        >>> env.disturbance.channel, env.disturbance.scale
        ('actions', (0.1,))
    """

    std: Scale

    def scales(self, machine: Machine) -> tuple[float, ...]:
        """Return one scale for each entry of the action."""
        if not isinstance(machine.actions, Box):
            raise ValueError(
                f"channel: {machine.name} has discrete actions, to which no noise can be added"
            )
        return _spread(self.std, machine.actions.size, f"an action of {machine.name}")


@dataclasses.dataclass(frozen=True)
class Observations(_Channel):
    """Noise that is added to the observation after a step; critics and adversaries see no noise.

    Arguments:
        std: standard deviation in the units of the observation; one number, or one for each entry.

    Example:
        >>> import holdfast as hf
        >>> env = hf.disturb("CartPole-v1", hf.Observations((0.01, 0.1, 0.01, 0.1)), cost={})
        >>> env.disturbance.scale
        (0.01, 0.1, 0.01, 0.1)
    """

    std: Scale

    def scales(self, machine: Machine) -> tuple[float, ...]:
        """Return one scale for each entry of the observation."""
        return _spread(self.std, machine.observations, f"an observation of {machine.name}")


@dataclasses.dataclass(frozen=True)
class States(_Channel):
    """Noise that is added to the state before every step.

    Arguments:
        position: standard deviation in metres and radians; without MuJoCo, in the units of the state.
        velocity: standard deviation in metres and radians per second; only with MuJoCo, where positions
            and velocities are separate.

    Example:
        >>> import holdfast as hf
        >>> env = hf.disturb("CartPole-v1", hf.States(0.02), cost={})
        >>> env.disturbance.size
        4
    """

    position: float = 0.0
    velocity: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.position == 0 and self.velocity == 0:
            raise ValueError("position: expected a number over 0 for position or velocity")

    def scales(self, machine: Machine) -> tuple[float, ...]:
        """Return one scale for each value that pushes the state."""
        if not machine.states:
            raise ValueError(
                f"channel: the state of {machine.name} cannot be set; it does not use MuJoCo, and has "
                "neither the methods get_state and set_state nor a vector called state"
            )
        if machine.is_mujoco:
            axes = machine.states // 2
            return (self.position,) * axes + (self.velocity,) * axes
        if self.velocity:
            raise ValueError(
                f"velocity: the state of {machine.name} is one vector; use position for all of it"
            )
        return (self.position,) * machine.states


@dataclasses.dataclass(frozen=True)
class Force(_Channel):
    """A random force on a body during every step, at its centre of mass.

    Arguments:
        body: name of the body in the MuJoCo model.
        std: standard deviation in newtons, along each axis of the world.

    Example:
        >>> import holdfast as hf
        >>> env = hf.disturb("Hopper-v5", hf.Force("torso", 20.0), hf.speed_limit(1.0))
        >>> env.disturbance.scale
        (20.0, 20.0, 20.0)
    """

    body: str
    std: float

    def scales(self, machine: Machine) -> tuple[float, ...]:
        """Return one scale for each axis."""
        if not machine.is_mujoco:
            raise ValueError(f"channel: {machine.name} does not use MuJoCo, which a force needs")
        if self.body not in machine.bodies:
            known = ", ".join(machine.bodies)
            raise ValueError(f"body: {machine.name} has no {self.body!r}; it has {known}")
        return (self.std,) * 3


@dataclasses.dataclass(frozen=True)
class Parameters(_Channel):
    """Physical parameters that differ from those of the model.

    A parameter is multiplied by (1 + scale)^w: with a scale of 0.3, one standard deviation up multiplies
    it by 1.3, and one down divides it by 1.3. A delay is |w| times its scale, in seconds; the robot
    receives the action of that time ago, interpolated between the two nearest steps.

    With per="episode" each parameter is drawn once, in the first step, and kept. The radius then bounds
    the KL divergence of that one draw and not of every step: such a set is not rectangular, and the
    adversary chooses once for each episode.

    Arguments:
        mass: scale of the mass of all bodies, with their inertia.
        friction: scale of the friction of contacts and joints.
        damping: scale of the damping of joints.
        gravity: scale of gravity.
        gain: scale of the strength of actuators.
        delay: scale of the delay of actions, in seconds; without MuJoCo, in steps.
        per: "episode" or "step", how often the parameters are drawn.

    Example:
        >>> import holdfast as hf
        >>> channel = hf.Parameters(mass=0.3, friction=0.3)
        >>> env = hf.disturb("Hopper-v5", channel, hf.speed_limit(1.0))
        >>> env.with_parameters(mass=1.3).parameters["friction"]
        1.0
    """

    mass: float = 0.0
    friction: float = 0.0
    damping: float = 0.0
    gravity: float = 0.0
    gain: float = 0.0
    delay: float = 0.0
    per: Literal["episode", "step"] = "episode"

    def __new__(cls, *args: Any, **given: Any) -> Self:
        """Raise a ValueError that lists the parameters if a name is unknown."""
        del args
        for name in given:
            if name not in (*_DRAWABLE, "per"):
                known = ", ".join(_DRAWABLE)
                raise ValueError(f"{name}: not a physical parameter; there are {known}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("per", self.per, ("episode", "step"))
        if not self.drawn:
            raise ValueError(f"channel: expected a scale over 0 for one of {', '.join(_DRAWABLE)}")

    @property
    def drawn(self) -> dict[str, float]:
        """The scales of the parameters that vary."""
        every = {name: getattr(self, name) for name in _DRAWABLE}
        return {name: scale for name, scale in every.items() if scale > 0}

    def scales(self, machine: Machine) -> tuple[float, ...]:
        """Return one scale for each parameter that varies."""
        for name in self.drawn:
            if name not in machine.parameters:
                known = ", ".join(machine.parameters) or "none"
                raise ValueError(
                    f"{name}: not a parameter that {machine.name} can change; it can change: {known}"
                )
        return tuple(self.drawn.values())


Channel = Actions | Observations | States | Force | Parameters
KINDS: dict[str, type[Channel]] = {
    kind.__name__: kind for kind in (Actions, Observations, States, Force, Parameters)
}


def channels_of(given: Channel | Sequence[Channel] | None) -> tuple[Channel, ...]:
    """Return a tuple of channels from one channel, several or None.

    Raises:
        TypeError: an element is not a channel.
        ValueError: a kind of channel is given twice.
    """
    every = () if given is None else (given,) if isinstance(given, _Channel) else tuple(given)
    kinds = []
    for channel in every:
        if not isinstance(channel, _Channel):
            known = ", ".join(f"hf.{name}" for name in KINDS)
            raise TypeError(f"channel: expected one of {known}, got {channel!r}")
        kind = type(channel).__name__
        kinds.append(f"{kind} on {channel.body}" if isinstance(channel, Force) else kind)
        if kinds.count(kinds[-1]) > 1:
            raise ValueError(f"channel: {kinds[-1]} is given twice")
    return every


def channel_from(description: Mapping[str, Any]) -> Channel:
    """Return the channel that `describe` described.

    Example:
        >>> channel_from(Force("torso", 20).describe())
        Force(body='torso', std=20.0)
    """
    given: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in description.items()
    }
    return KINDS[given.pop("kind")](**given)


def from_text(texts: Sequence[str]) -> tuple[Channel, ...]:
    """Return channels from the command line: a kind, then numbers and name=number.

    Raises:
        ValueError: a text does not describe a channel.

    Example:
        >>> from_text(["parameters mass=0.3 per=step", "force torso 20"])[0].mass
        0.3
    """
    return channels_of([_one_from(text) for text in texts])


def _one_from(text: str) -> Channel:
    kind, *words = text.split() or [""]
    known = {name.lower(): each for name, each in KINDS.items()}
    if kind.lower() not in known:
        raise ValueError(f"channel: expected one of {', '.join(known)} first, got {text!r}")
    plain = [_word(word) for word in words if "=" not in word]
    named = dict(word.split("=", 1) for word in words if "=" in word)
    try:
        return known[kind.lower()](*plain, **{k: _word(v) for k, v in named.items()})
    except TypeError as error:
        fields = ", ".join(f.name for f in dataclasses.fields(known[kind.lower()]))
        raise ValueError(f"channel: {text!r} does not fit {kind}, which takes {fields}") from error


def _word(word: str) -> Any:
    try:
        return float(word)
    except ValueError:
        return word
