"""How a command reaches a MuJoCo model: factors on its parameters, pushes of its state."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from holdfast.gym.hosts.layout import PARAMETERS

if TYPE_CHECKING:
    import mujoco


class _Scaled(NamedTuple):
    """An array of the model, and what it was."""

    here: np.ndarray
    nominal: np.ndarray


class Physics:
    """A MuJoCo model whose parameters can be multiplied, again and again, by factors on what they were.

    Mass is that of all bodies, with their inertia. Friction is that of contacts, joints and tendons.
    Damping is that of joints and tendons. Gain makes an actuator as a whole stronger: of a position or
    velocity servo both what it wants and what holds it back; limits on forces stay.

    Arguments:
        model: the nominal physics.
        name: of the environment, for messages.
        in_place: change that very model, where an environment holds on to it; otherwise a copy.

    Attributes:
        model: what to step with.

    Example:
        >>> import mujoco
        >>> ball = '<body><freejoint/><geom size="1" mass="2"/></body>'
        >>> nominal = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{ball}</worldbody></mujoco>")
        >>> physics = Physics(nominal)
        >>> physics.set_factors(("mass",), [1.5])
        >>> float(physics.model.body_mass[1]), float(nominal.body_mass[1])
        (3.0, 2.0)
        >>> physics.adjustable
        ('mass', 'gravity')
    """

    def __init__(
        self, model: mujoco.MjModel, name: str = "the model", *, in_place: bool = False
    ) -> None:
        self.model = model if in_place else copy.copy(model)
        self.name = name
        self._scaled: dict[str, tuple[_Scaled, ...]] = {}
        self._factors: dict[str, float] = {}
        self._last: tuple[Sequence[str], list[float]] = ((), [])
        self._scratch: mujoco.MjData | None = None
        # A muscle's strength is given by it, and must not change with the masses that it moves.
        self._acceleration = self.model.actuator_acc0.copy()

    @property
    def adjustable(self) -> tuple[str, ...]:
        """The parameters that have something to act on."""
        return tuple(name for name in PARAMETERS if _why_not(self.model, name) is None)

    def check_parameters(self, names: Sequence[str]) -> None:
        """Says whether these parameters can be changed.

        Raises:
            ValueError: a name is unknown, or the model has nothing that it would change.
        """
        for name in names:
            if name not in PARAMETERS:
                known = ", ".join(PARAMETERS)
                raise ValueError(f"{name}: not a parameter of {self.name}, which has {known}")
            reason = _why_not(self.model, name)
            if reason is not None:
                known = ", ".join(self.adjustable) or "nothing"
                raise ValueError(
                    f"{name}: {self.name} has {reason}, so a factor on it changes nothing; "
                    f"one can change {known}"
                )

    def set_factors(
        self, names: Sequence[str], factors: ArrayLike, scratch: mujoco.MjData | None = None
    ) -> None:
        """Makes parameters so many times what they were in the nominal model; others stay.

        Arguments:
            names: of the parameters.
            factors: a number for each; only gravity's may be negative.
            scratch: that MuJoCo computes constants in, its contents lost; one is made if left out.

        Raises:
            ValueError: a factor is no physics: negative, not finite, or no mass at all.
        """
        wanted = np.asarray(factors, np.float64).tolist()
        if wanted == self._last[1] and names == self._last[0]:
            return
        self._last = ((), [])
        for name, factor in zip(names, wanted, strict=True):
            if factor == self._factors.get(name, 1.0):
                continue
            if not math.isfinite(factor) or (factor < 0 and name != "gravity"):
                raise ValueError(f"{name}: expected a finite factor of at least 0, got {factor}")
            if name == "mass" and factor == 0:
                raise ValueError("mass: a machine without mass cannot be simulated, got 0.0")
            self._factors[name] = factor
            for here, nominal in self._arrays(name):
                np.multiply(nominal, factor, out=here)
            if name == "mass":
                self._renew_constants(scratch)
        self._last = (names, wanted)

    def reset(self) -> None:
        """Makes all parameters nominal again."""
        if self._factors:
            self.set_factors(tuple(self._factors), [1.0] * len(self._factors))

    def push(self, data: mujoco.MjData, numbers: Float[np.ndarray, " twice_nv"]) -> None:
        """Moves positions along the velocities' axes and adds to the velocities.

        Arguments:
            data: whose state is pushed; what is derived from the state is not renewed.
            numbers: nv for the positions, then nv for the velocities.
        """
        import mujoco

        nv = self.model.nv
        numbers = np.asarray(numbers, np.float64)
        mujoco.mj_integratePos(self.model, data.qpos, numbers[:nv], 1.0)
        data.qvel[:] += numbers[nv:]

    def _arrays(self, name: str) -> tuple[_Scaled, ...]:
        if name not in self._scaled:
            self._scaled[name] = tuple(
                _Scaled(array, array.copy()) for array in _acted_on(self.model, name)
            )
        return self._scaled[name]

    def _renew_constants(self, scratch: mujoco.MjData | None) -> None:
        import mujoco

        # Of the parameters only mass enters what MuJoCo computes beforehand.
        if scratch is None:
            if self._scratch is None:
                self._scratch = mujoco.MjData(self.model)
            scratch = self._scratch
        mujoco.mj_setConst(self.model, scratch)
        self.model.actuator_acc0[:] = self._acceleration


def body_names(model: mujoco.MjModel) -> tuple[str, ...]:
    """The bodies that have a name, the world apart: those that a force can push."""
    return tuple(model.body(i).name for i in range(1, model.nbody) if model.body(i).name)


def body_ids(
    model: mujoco.MjModel, names: Sequence[str], env_name: str
) -> Int[np.ndarray, " bodies"]:
    """Where bodies are in MuJoCo's arrays.

    Raises:
        ValueError: there is no body of that name; the message has those that there are.
    """
    known = body_names(model)
    for name in names:
        if name not in known:
            raise ValueError(f"body: {env_name} has no {name!r}; it has {', '.join(known)}")
    return np.array([model.body(name).id for name in names], int)


def _acted_on(model: mujoco.MjModel, name: str) -> list[np.ndarray]:
    """Views of what a parameter multiplies."""
    if name == "mass":
        return [model.body_mass, model.body_inertia]
    if name == "friction":
        return [
            model.geom_friction,
            model.pair_friction,
            model.dof_frictionloss,
            model.tendon_frictionloss,
        ]
    if name == "damping":
        # The coefficients of higher powers of the velocity came late in MuJoCo's third version.
        each = ("dof_damping", "dof_dampingpoly", "tendon_damping", "tendon_dampingpoly")
        return [getattr(model, field) for field in each if hasattr(model, field)]
    if name == "gravity":
        return [model.opt.gravity]
    return _strengths(model)


def _falls(model: mujoco.MjModel) -> bool:
    """Whether gravity pulls at a joint in some position: what moves in a plane does not fall."""
    import mujoco

    data, generator = mujoco.MjData(model), np.random.default_rng(0)
    for _ in range(3):
        mujoco.mj_integratePos(model, data.qpos, generator.standard_normal(model.nv), 1.0)
        mujoco.mj_fwdPosition(model, data)
        mujoco.mj_fwdVelocity(model, data)
        if np.abs(data.qfrc_bias).max(initial=0.0) > 1e-9:
            return True
    return False


def _strengths(model: mujoco.MjModel) -> list[np.ndarray]:
    """Views of the numbers that an actuator's force is proportional to."""
    import mujoco

    muscle = (mujoco.mjtGain.mjGAIN_MUSCLE.value, mujoco.mjtBias.mjBIAS_MUSCLE.value)
    if muscle[0] not in model.actuator_gaintype and muscle[1] not in model.actuator_biastype:
        return [model.actuator_gainprm, model.actuator_biasprm]
    found = []
    for i in range(model.nu):
        for kind, numbers, of_muscle in (
            (model.actuator_gaintype[i], model.actuator_gainprm[i], muscle[0]),
            (model.actuator_biastype[i], model.actuator_biasprm[i], muscle[1]),
        ):
            if kind != of_muscle:
                found.append(numbers)
            else:
                # Its peak force, or where that is negative the scale that MuJoCo makes it from.
                found.append(numbers[2:3] if numbers[2] >= 0 else numbers[3:4])
    return found


def _why_not(model: mujoco.MjModel, name: str) -> str | None:
    """What the model lacks for a parameter to act on; None where it lacks nothing."""
    import mujoco

    flags = mujoco.mjtDisableBit

    def is_on(flag: mujoco.mjtDisableBit) -> bool:
        return not model.opt.disableflags & flag.value

    if name == "mass":
        return None if (model.body_mass > 0).any() else "no mass"
    if name == "friction":
        meets = np.bitwise_and.outer(model.geom_contype, model.geom_conaffinity).astype(bool)
        meets &= np.not_equal.outer(model.geom_bodyid, model.geom_bodyid)
        meets &= np.maximum.outer(model.geom_condim, model.geom_condim) > 1
        rubs = meets.any() or (model.pair_dim > 1).any()
        contacts = is_on(flags.mjDSBL_CONTACT) and rubs
        losses = is_on(flags.mjDSBL_FRICTIONLOSS) and (
            model.dof_frictionloss.any() or model.tendon_frictionloss.any()
        )
        return None if contacts or losses else "neither contacts nor joints with friction"
    if name == "damping":
        arrays = _acted_on(model, name)
        return None if any(array.any() for array in arrays) else "no damping"
    if name == "gravity":
        falls = is_on(flags.mjDSBL_GRAVITY) and model.opt.gravity.any() and _falls(model)
        return None if falls else "no gravity that moves it"
    if not model.nu or not is_on(flags.mjDSBL_ACTUATION):
        return "no actuators"
    plain = {
        "gain": (mujoco.mjtGain, model.actuator_gaintype, ("FIXED", "AFFINE", "MUSCLE")),
        "bias": (mujoco.mjtBias, model.actuator_biastype, ("NONE", "AFFINE", "MUSCLE")),
    }
    for prefix, (kinds, given, fine) in plain.items():
        known = {getattr(kinds, f"mj{prefix.upper()}_{kind}").value for kind in fine}
        if not known.issuperset(given.tolist()):
            return "actuators whose strength is not one number"
    return None
