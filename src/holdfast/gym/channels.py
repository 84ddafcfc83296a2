"""Where a disturbance enters a machine, and how far one unit of it moves what it moves.

A channel is a record that a user writes; a `Machine` says what there is to disturb. Together they say
what the numbers of a disturbance are, which are nominally independent and standard normal.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from holdfast.gym.hosts.layout import PARAMETERS
from holdfast.simulators.environment import Box, Discrete

Scale = float | tuple[float, ...]
DELAY = "delay"


@dataclasses.dataclass(frozen=True)
class Machine:
    """What of an environment can be disturbed.

    Attributes:
        name: of the environment.
        actions: its action space.
        observations: how many numbers it shows.
        states: how many numbers push its state; 0 where it cannot be set. With MuJoCo the first half
            pushes positions, the second velocities.
        is_mujoco: whether its physics is MuJoCo's.
        bodies: that a force can push, by name.
        parameters: physical parameters that can be changed, by name.
        dt: seconds of a step; None where it has no clock.
    """

    name: str
    actions: Box | Discrete
    observations: int
    states: int = 0
    is_mujoco: bool = False
    bodies: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    dt: float | None = None


def _scale(name: str, value: object) -> Scale:
    """A finite number of at least zero, or several of them."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str):
        each = tuple(_scale(name, v) for v in value)
        if not each:
            raise ValueError(f"{name}: expected at least one number, got {value!r}")
        return each  # type: ignore[return-value]
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise ValueError(f"{name}: expected a finite number of at least 0, got {value!r}")
    return number


def _spread(name: str, scale: Scale, size: int, of: str) -> tuple[float, ...]:
    """The scale of each of so many numbers."""
    if isinstance(scale, tuple):
        if len(scale) != size:
            raise ValueError(f"{name}: {of} has {size} numbers, got {len(scale)} scales")
        return scale
    return (scale,) * size


class _Channel:
    """What all channels have in common: numbers that are drawn, and their scales."""

    def scales(self, machine: Machine) -> tuple[float, ...]:
        """How far one unit of each number of the disturbance moves what it moves.

        Raises:
            ValueError: the machine cannot take this channel.
        """
        raise TypeError(f"{type(self).__name__} says no scales for {machine.name}")

    def describe(self) -> dict[str, Any]:
        """The channel as values that JSON can hold; `channel_from` reads them back."""
        assert dataclasses.is_dataclass(self)
        return {"kind": type(self).__name__, **dataclasses.asdict(self)}


@dataclasses.dataclass(frozen=True)
class Actions(_Channel):
    """Noise added to every action, before it is cut to the bounds of the action space.

    Arguments:
        std: in the units of the action space, one for all entries or one for each.

    Example:
        >>> Actions(0.1).std
        0.1
    """

    std: Scale

    def __post_init__(self) -> None:
        object.__setattr__(self, "std", _scale("std", self.std))

    def scales(self, machine: Machine) -> tuple[float, ...]:
        """One for each entry of the action."""
        if not isinstance(machine.actions, Box):
            raise ValueError(
                f"channel: the actions of {machine.name} are discrete, so nothing can be added"
            )
        return _spread("std", self.std, machine.actions.size, f"an action of {machine.name}")


@dataclasses.dataclass(frozen=True)
class Observations(_Channel):
    """Noise added to what the policy sees after a step; critics and adversaries see what is there.

    Arguments:
        std: in the units of the observation, one for all numbers or one for each.
    """

    std: Scale

    def __post_init__(self) -> None:
        object.__setattr__(self, "std", _scale("std", self.std))

    def scales(self, machine: Machine) -> tuple[float, ...]:
        """One for each number that is seen."""
        return _spread("std", self.std, machine.observations, f"an observation of {machine.name}")


@dataclasses.dataclass(frozen=True)
class States(_Channel):
    """A push of the state itself before every step.

    Arguments:
        position: in metres and radians; for an environment without MuJoCo, in the units of its state.
        velocity: in metres and radians a second; only with MuJoCo, where positions and velocities are
            apart.
    """

    position: float = 0.0
    velocity: float = 0.0

    def __post_init__(self) -> None:
        for name in ("position", "velocity"):
            object.__setattr__(self, name, float(_number(name, getattr(self, name))))
        if self.position == 0 and self.velocity == 0:
            raise ValueError("position: expected a number over 0 for position or velocity")

    def scales(self, machine: Machine) -> tuple[float, ...]:
        """One for each axis."""
        if not machine.states:
            raise ValueError(
                f"channel: the state of {machine.name} cannot be set: it is not MuJoCo's, and the "
                "environment has neither get_state and set_state nor a vector called state"
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
    """A force on a body through every step, at its centre of mass, along the world's axes.

    Arguments:
        body: its name in the model.
        std: in newtons, along each axis.
    """

    body: str
    std: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "std", float(_number("std", self.std)))

    def scales(self, machine: Machine) -> tuple[float, ...]:
        """One for each axis."""
        if not machine.is_mujoco:
            raise ValueError(f"channel: {machine.name} is not MuJoCo's, so no force can push it")
        if self.body not in machine.bodies:
            known = ", ".join(machine.bodies)
            raise ValueError(f"body: {machine.name} has no {self.body!r}; it has {known}")
        return (self.std,) * 3


@dataclasses.dataclass(frozen=True)
class Parameters(_Channel):
    """Physical parameters that differ from the model's.

    A scale of 0.3 says that one standard deviation up multiplies the parameter by 1.3, and one down
    divides it by that: factors are (1 + scale)^w. A delay is |w| times its scale, in seconds; the action
    of that long ago is what reaches the machine, a mixture of two where it lies between them.

    With per="episode" each is drawn once, with the first step, and stays. Then the radius bounds the KL
    of that one draw and not of every step: such a set is not rectangular, and nature has one say instead
    of hundreds.

    Arguments:
        mass: of all bodies, with their inertia.
        friction: of contacts and joints.
        damping: of joints.
        gravity: all of it.
        gain: of actuators.
        delay: of actions, in seconds; without MuJoCo, in steps.
        per: "episode" or "step".

    Example:
        >>> Parameters(mass=0.3, friction=0.3).drawn
        {'mass': 0.3, 'friction': 0.3}
    """

    mass: float = 0.0
    friction: float = 0.0
    damping: float = 0.0
    gravity: float = 0.0
    gain: float = 0.0
    delay: float = 0.0
    per: Literal["episode", "step"] = "episode"

    def __new__(cls, *args: Any, **given: Any) -> Self:
        """Refuses a name that is none of these, with those that there are."""
        del args
        for name in given:
            if name not in (*PARAMETERS, DELAY, "per"):
                known = ", ".join((*PARAMETERS, DELAY))
                raise ValueError(f"{name}: not a physical parameter; there are {known}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name in (*PARAMETERS, DELAY):
            object.__setattr__(self, name, float(_number(name, getattr(self, name))))
        if self.per not in ("episode", "step"):
            raise ValueError(f"per: expected 'episode' or 'step', got {self.per!r}")
        if not self.drawn:
            raise ValueError(
                f"channel: expected a scale over 0 for one of {', '.join((*PARAMETERS, DELAY))}"
            )

    @property
    def drawn(self) -> dict[str, float]:
        """The parameters that vary, and their scales."""
        every = {name: getattr(self, name) for name in (*PARAMETERS, DELAY)}
        return {name: scale for name, scale in every.items() if scale > 0}

    def scales(self, machine: Machine) -> tuple[float, ...]:
        """One for each parameter that varies."""
        for name in self.drawn:
            if name not in machine.parameters:
                known = ", ".join(machine.parameters) or "nothing"
                raise ValueError(
                    f"{name}: cannot be changed in {machine.name}, where one can change {known}"
                )
        return tuple(self.drawn.values())


Channel = Actions | Observations | States | Force | Parameters
KINDS: dict[str, type[Channel]] = {
    kind.__name__: kind for kind in (Actions, Observations, States, Force, Parameters)
}


def _number(name: str, value: object) -> float:
    scale = _scale(name, value)
    if isinstance(scale, tuple):
        raise ValueError(f"{name}: expected one number, got {value!r}")
    return scale


def channels_of(given: Channel | Sequence[Channel] | None) -> tuple[Channel, ...]:
    """Channels from one, several or none.

    Raises:
        TypeError: something is not a channel.
        ValueError: a kind comes twice.
    """
    every = () if given is None else (given,) if isinstance(given, _Channel) else tuple(given)
    for channel in every:
        if not isinstance(channel, _Channel):
            known = ", ".join(f"hf.{name}" for name in KINDS)
            raise TypeError(f"channel: expected one of {known}, got {channel!r}")
    kinds = [type(c).__name__ for c in every if not isinstance(c, Force)]
    kinds += [f"Force on {c.body}" for c in every if isinstance(c, Force)]
    for kind in kinds:
        if kinds.count(kind) > 1:
            raise ValueError(f"channel: {kind} is given twice")
    return every


def channel_from(description: Mapping[str, Any]) -> Channel:
    """The channel that `describe` wrote down.

    Example:
        >>> channel_from(Force("torso", 20).describe())
        Force(body='torso', std=20.0)
    """
    given: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in description.items()
    }
    return KINDS[given.pop("kind")](**given)


def from_text(texts: Sequence[str]) -> tuple[Channel, ...]:
    """Channels as the command line has them: a kind, then numbers and name=number.

    Raises:
        ValueError: a text says no channel; the message has it.

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
