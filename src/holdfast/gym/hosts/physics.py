"""The effect of a command on a MuJoCo model: factors on its parameters and pushes of its state."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from holdfast.gym.hosts.host import PARAMETERS

if TYPE_CHECKING:
    import mujoco


class Physics:
    """A MuJoCo model whose parameters can be set to multiples of their nominal values.

    Mass is that of all bodies, with their inertia. Friction is that of contacts, joints and tendons.
    Damping is that of joints and tendons. Gain is the strength of an actuator: for a position or
    velocity servo both its gain and its bias; limits on forces stay.

    Arguments:
        model: the nominal physics.
        in_place: whether to change the given model instead of a copy.

    Attributes:
        model: the model to step.

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

    def __init__(self, model: mujoco.MjModel, *, in_place: bool = False) -> None:
        self.model = model if in_place else copy.copy(model)
        # For each parameter, views of arrays of the model and copies of their nominal values.
        self._scaled: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
        self._factors: dict[str, float] = {}
        self._scratch: mujoco.MjData | None = None
        # MuJoCo derives the strength of a muscle from it; a heavier load must not make a muscle
        # stronger.
        self._acceleration = self.model.actuator_acc0.copy()

    @property
    def adjustable(self) -> tuple[str, ...]:
        """Names of the parameters that have an effect on this model."""
        return tuple(name for name in PARAMETERS if _has_effect(self.model, name))

    def set_factors(
        self, names: Sequence[str], factors: ArrayLike, scratch: mujoco.MjData | None = None
    ) -> None:
        """Set parameters to multiples of their nominal values; the other parameters stay.

        Arguments:
            names: names of the parameters.
            factors: one number for each; only that of gravity may be negative.
            scratch: data that MuJoCo may overwrite while it computes constants.

        Raises:
            ValueError: a factor is negative or not finite, or the mass is 0.
        """
        import mujoco

        for name, factor in zip(names, np.asarray(factors, np.float64).tolist(), strict=True):
            if factor == self._factors.get(name, 1.0):
                continue
            if not math.isfinite(factor) or (factor < 0 and name != "gravity"):
                raise ValueError(f"{name}: expected a finite factor of at least 0, got {factor}")
            if name == "mass" and factor == 0:
                raise ValueError("mass: expected a factor over 0, got 0.0")
            self._factors[name] = factor
            if name not in self._scaled:
                self._scaled[name] = [(view, view.copy()) for view in _arrays_of(self.model, name)]
            for view, nominal in self._scaled[name]:
                np.multiply(nominal, factor, out=view)
            if name == "mass":
                # The constants of the model; of all parameters only mass enters them.
                if scratch is None:
                    self._scratch = scratch = self._scratch or mujoco.MjData(self.model)
                mujoco.mj_setConst(self.model, scratch)
                self.model.actuator_acc0[:] = self._acceleration

    def reset(self) -> None:
        """Set all parameters to their nominal values."""
        self.set_factors(tuple(self._factors), [1.0] * len(self._factors))

    def push(
        self,
        qpos: Float[np.ndarray, " nq"],
        qvel: Float[np.ndarray, " nv"],
        numbers: Float[np.ndarray, " twice_nv"],
    ) -> None:
        """Move positions along the axes of the velocities, and add to the velocities, in place.

        Arguments:
            qpos: the positions to push; quantities derived from the state are not updated.
            qvel: the velocities to push.
            numbers: nv values for the positions, then nv for the velocities.
        """
        import mujoco

        to_position, to_velocity = np.asarray(numbers, np.float64).reshape(2, -1)
        mujoco.mj_integratePos(self.model, qpos, to_position, 1.0)
        qvel += to_velocity


def body_names(model: mujoco.MjModel) -> tuple[str, ...]:
    """Return the names of the bodies that a force can act on: all but the world."""
    return tuple(model.body(i).name for i in range(1, model.nbody) if model.body(i).name)


# The arrays that a factor multiplies. MuJoCo 3.3 has no `dampingpoly`, the coefficients of higher
# powers.
_ARRAYS = {
    "mass": ("body_mass", "body_inertia"),
    "friction": ("geom_friction", "pair_friction", "dof_frictionloss", "tendon_frictionloss"),
    "damping": ("dof_damping", "dof_dampingpoly", "tendon_damping", "tendon_dampingpoly"),
}


def _arrays_of(model: mujoco.MjModel, name: str) -> list[np.ndarray]:
    """Return views of the arrays that a parameter multiplies."""
    if name == "gravity":
        return [model.opt.gravity]
    if name == "gain":
        return _strengths(model)
    return [getattr(model, field) for field in _ARRAYS[name] if hasattr(model, field)]


def _strengths(model: mujoco.MjModel) -> list[np.ndarray]:
    """Return views of the numbers that the force of an actuator is proportional to."""
    import mujoco

    muscle = (mujoco.mjtGain.mjGAIN_MUSCLE.value, mujoco.mjtBias.mjBIAS_MUSCLE.value)
    found = []
    for i in range(model.nu):
        for kind, numbers, of_muscle in (
            (model.actuator_gaintype[i], model.actuator_gainprm[i], muscle[0]),
            (model.actuator_biastype[i], model.actuator_biasprm[i], muscle[1]),
        ):
            if kind == of_muscle:
                # The peak force, or if that is negative the scale from which MuJoCo computes it.
                numbers = numbers[2:3] if numbers[2] >= 0 else numbers[3:4]
            found.append(numbers)
    return found


def _has_effect(model: mujoco.MjModel, name: str) -> bool:
    """Return whether a factor on a parameter changes how the model moves."""
    import mujoco

    flags = mujoco.mjtDisableBit

    def is_on(flag: mujoco.mjtDisableBit) -> bool:
        return not model.opt.disableflags & flag.value

    if name == "mass":
        return bool((model.body_mass > 0).any())
    if name == "friction":
        losses = model.dof_frictionloss.any() or model.tendon_frictionloss.any()
        contacts = is_on(flags.mjDSBL_CONTACT) and _has_friction_contacts(model)
        return bool(contacts or (is_on(flags.mjDSBL_FRICTIONLOSS) and losses))
    if name == "damping":
        return any(array.any() for array in _arrays_of(model, name))
    if name == "gravity":
        return bool(is_on(flags.mjDSBL_GRAVITY) and model.opt.gravity.any() and _falls(model))
    # Actuators of other kinds have no single number for their strength.
    gains, biases = mujoco.mjtGain, mujoco.mjtBias
    plain_gains = {gains.mjGAIN_FIXED, gains.mjGAIN_AFFINE, gains.mjGAIN_MUSCLE}
    plain_biases = {biases.mjBIAS_NONE, biases.mjBIAS_AFFINE, biases.mjBIAS_MUSCLE}
    return (
        model.nu > 0
        and is_on(flags.mjDSBL_ACTUATION)
        and plain_gains.issuperset(map(gains, model.actuator_gaintype))
        and plain_biases.issuperset(map(biases, model.actuator_biastype))
    )


def _has_friction_contacts(model: mujoco.MjModel) -> bool:
    """Return whether two geoms of different bodies can touch with friction."""
    meets = np.bitwise_and.outer(model.geom_contype, model.geom_conaffinity).astype(bool)
    meets &= np.not_equal.outer(model.geom_bodyid, model.geom_bodyid)
    # A contact of dimension 1 acts along the normal only.
    meets &= np.maximum.outer(model.geom_condim, model.geom_condim) > 1
    return bool(meets.any() or (model.pair_dim > 1).any())


def _falls(model: mujoco.MjModel) -> bool:
    """Return whether gravity acts on a joint; it does not in a robot that moves in a plane.

    Three random positions are enough: a joint that gravity acts on is unlikely to be balanced in all of
    them. Without gravity the forces are zero up to rounding, about 1e-15, and 1e-9 is far above that.
    """
    import mujoco

    data, generator = mujoco.MjData(model), np.random.default_rng(0)
    for _ in range(3):
        mujoco.mj_integratePos(model, data.qpos, generator.standard_normal(model.nv), 1.0)
        mujoco.mj_fwdPosition(model, data)
        mujoco.mj_fwdVelocity(model, data)
        if np.abs(data.qfrc_bias).max(initial=0.0) > 1e-9:
            return True
    return False
