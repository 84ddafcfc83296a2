"""A linear system with Gaussian noise, whose worst case is known in closed form."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from numpy.typing import ArrayLike

from holdfast._support import fields
from holdfast._support.arguments import check_choice, check_number
from holdfast._support.fields import constant, float32, parameter, plain_or_traced
from holdfast.simulators.environment import Box, Environment, GaussianNoise, Step

# A stable system: the spectral radius of the dynamics is 0.89.
DYNAMICS = ((0.9, 0.2, 0.0), (-0.2, 0.8, 0.1), (0.0, 0.1, 0.7))
CONTROL = ((0.1, 0.0), (0.0, 0.1), (0.05, -0.05))
NOISE = ((0.3, 0.0, 0.0), (0.1, 0.2, 0.0), (0.0, 0.05, 0.1))
REWARD = ((1.0, 0.5, -0.5), (0.1, 0.0))
COST = ((-0.3, 1.0, 0.4), (0.0, 0.2))
INITIAL_MEAN = (2.0, 1.0, -1.0)

# Full single precision, also on hardware whose default products have a shorter mantissa.
_product = functools.partial(jnp.matmul, precision="highest")


class LinearSignal(NamedTuple):
    """The signal state·s + action·a, paid for the state and action before the step.

    Example:
        >>> import numpy as np
        >>> upkeep = LinearSignal(np.array([0.0, 1.0]), np.array([0.5]))
        >>> float(upkeep.at(np.array([3.0, 2.0]), np.array([2.0])))
        3.0
    """

    state: Float[Array, " state"]
    action: Float[Array, " action"]

    def at(self, state: Float[Array, " state"], action: Float[Array, " action"]) -> Any:
        """Return the signal's value for a state and an action."""
        return (self.state * state).sum() + (self.action * action).sum()


@dataclasses.dataclass(frozen=True, eq=False)
class LinearWorstCase:
    """The worst case of one signal of a `LinearGaussian` under an affine policy.

    Attributes:
        nominal: discounted sum Σ_t γ^t·signal, t from 0 to ∞, from the initial distribution.
        worst: the same in the worst case.
        drop: distance between the two, never negative.
        shift: mean of the disturbance in the worst case, the same for every state and action.
        gradient: gradient v of the value V(s) = v·s + constant, nominally and in the worst case.
    """

    nominal: float
    worst: float
    drop: float
    shift: Float[np.ndarray, " state"]
    gradient: Float[np.ndarray, " state"]


def _signal(pair: tuple[ArrayLike, ArrayLike]) -> LinearSignal:
    return LinearSignal(*map(float32, pair))


class LinearGaussian(Environment):
    """The system s' = A·s + B·a + Σ^½·w with w ~ N(0, I), and linear reward and cost.

    Its purpose is to measure adversaries: `closed_form` returns the worst case that they approach.
    Actions are unbounded, and so is the reward of the best policy; use a small trust region. Signals
    are paid for the state and action before the step, so the disturbance of a step counts from the next
    step on. Nothing terminates, so an episode that is cut has to be bootstrapped. All numbers are ours.

    Arguments:
        dynamics: A, of shape (n, n).
        control: B, of shape (n, m).
        noise: Σ^½, of shape (n, n): any matrix whose product with its transpose is Σ.
        reward: vectors of the reward for the state (n,) and the action (m,).
        cost: the same for the cost.
        initial_mean: mean of the initial state, of shape (n,).
        initial_scale: standard deviation of each entry of the initial state.
        discount: discount, in [0, 1).
        horizon: steps after which an episode is cut.

    Example:
        >>> import holdfast as hf
        >>> env = hf.environments.LinearGaussian()
        >>> known = env.closed_form(gain=0.0, offset=0.0, radius=0.1)
        >>> round(known.nominal, 3), round(known.worst, 3)
        (8.409, -2.038)
    """

    dynamics: Float[Array, "state state"] = parameter(DYNAMICS)
    control: Float[Array, "state action"] = parameter(CONTROL)
    noise: Float[Array, "state state"] = parameter(NOISE)
    reward: LinearSignal = parameter(REWARD, _signal)
    cost: LinearSignal = parameter(COST, _signal)
    initial_mean: Float[Array, " state"] = parameter(INITIAL_MEAN)
    initial_scale: Float[Array, ""] = parameter(0.5)
    discount: float = constant(0.95, float)
    horizon: int = fields.horizon_field(200)

    name = "linear-gaussian"
    cost_names = ("cost",)

    def __check_init__(self) -> None:
        if not 0 <= self.discount < 1:
            raise ValueError(f"discount: expected a number in [0, 1), got {self.discount}")
        n, m = len(self.dynamics), self.control.shape[-1]
        for name, array, shape in (
            ("dynamics", self.dynamics, (n, n)),
            ("control", self.control, (n, m)),
            ("noise", self.noise, (n, n)),
            ("reward.state", self.reward.state, (n,)),
            ("reward.action", self.reward.action, (m,)),
            ("cost.state", self.cost.state, (n,)),
            ("cost.action", self.cost.action, (m,)),
            ("initial_mean", self.initial_mean, (n,)),
            ("initial_scale", self.initial_scale, ()),
        ):
            if array.shape != shape:
                raise ValueError(f"{name}: expected shape {shape}, got {array.shape}")

    @property
    def observation_size(self) -> int:
        """The size of the state, which the policy, critics and adversaries see."""
        return self.dynamics.shape[-1]

    feature_size = observation_size

    @property
    def action_space(self) -> Box:
        """Vectors without bounds."""
        size = self.control.shape[-1]
        return Box(low=(-np.inf,) * size, high=(np.inf,) * size)

    @property
    def disturbance(self) -> GaussianNoise:
        """Noise on the state; its scale is the distance by which one unit of each entry moves it."""
        scale = tuple(plain_or_traced(x) for x in jnp.linalg.norm(self.noise, axis=0))
        return GaussianNoise(self.dynamics.shape[-1], "state", scale)

    def description(self) -> dict[str, Any]:
        """Return everything that defines it as JSON values."""
        arrays = ("dynamics", "control", "noise", "initial_mean", "initial_scale")
        leaves = {name: getattr(self, name) for name in arrays}
        leaves |= {"reward": self.reward._asdict(), "cost": self.cost._asdict()}
        plain = jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), leaves)
        return {**super().description(), **plain, "discount": self.discount}

    def reset(
        self, key: PRNGKeyArray
    ) -> tuple[Float[Array, " state"], Float[Array, " observation"]]:
        """Return a normal initial state."""
        spread = jax.random.normal(key, self.initial_mean.shape, jnp.float32)
        state = self.initial_mean + self.initial_scale * spread
        return state, state

    def step(
        self,
        state: Float[Array, " state"],
        action: Float[Array, " action"],
        disturbance: Float[Array, " disturbance"],
    ) -> Step:
        """Return one step; its signals are those of the state before it."""
        new_state = (
            _product(self.dynamics, state)
            + _product(self.control, action)
            + _product(self.noise, disturbance)
        )
        return Step(
            state=new_state,
            observation=new_state,
            reward=self.reward.at(state, action),
            costs=self.cost.at(state, action)[None],
            terminated=jnp.zeros((), bool),
        )

    def features(self, state: Float[Array, " state"]) -> Float[Array, " features"]:
        """Return the state."""
        return state

    def closed_form(
        self,
        gain: ArrayLike = 0.0,
        offset: ArrayLike = 0.0,
        radius: float = 0.0,
        signal: Literal["reward", "cost"] = "reward",
    ) -> LinearWorstCase:
        """Return the value of an affine policy, nominally and over the KL balls of a radius.

        Under actions of mean K·s + k, with any noise, the value of the signal c·s + e·a is
        V(s) = v·s + u, with v = (I − γ(A + BK)ᵀ)⁻¹(c + Kᵀe) and u = (e·k + γ·v·Bk)/(1 − γ). The next
        state enters γV(s') through γ·v·Σ^½·w, which is linear in w. Its worst expectation over
        KL(q‖N(0, I)) ≤ R is that of a normal w with unchanged variance, whose mean is moved by √(2R)
        against (Σ^½)ᵀv. Every step loses γ√(2R)‖(Σ^½)ᵀv‖, so v is unchanged and the value drops by
        γ√(2R)‖(Σ^½)ᵀv‖/(1 − γ). For a cost the shift has the other sign and the value rises.

        Arguments:
            gain: K, of shape (m, n); a number fills the matrix.
            offset: k, of shape (m,); a number fills the vector.
            radius: radius R of the KL ball around the disturbance at every state and action.
            signal: "reward", whose worst case is the lowest, or "cost", whose worst case is the highest.

        Raises:
            ValueError: γ times the spectral radius of A + BK is not below one, so that the discounted
                sum diverges; or an argument is out of range.
        """
        check_choice("signal", signal, ("reward", "cost"))
        check_number("radius", radius)
        leaves = (self.dynamics, self.control, self.noise, self.initial_mean)
        A, B, root, mean = (np.asarray(leaf, np.float64) for leaf in leaves)
        c, e = (np.asarray(leaf, np.float64) for leaf in getattr(self, signal))
        K, k = np.broadcast_to(gain, B.T.shape), np.broadcast_to(offset, e.shape)
        discount, closed_loop = self.discount, A + B @ K
        growth = discount * np.abs(np.linalg.eigvals(closed_loop)).max()
        if growth >= 1:
            raise ValueError(
                f"gain: discount times the spectral radius of A + BK is {growth:.3g}, not under 1"
            )
        v = np.linalg.solve(np.eye(len(A)) - discount * closed_loop.T, c + K.T @ e)
        nominal = float(v @ mean + (e @ k + discount * v @ B @ k) / (1 - discount))
        pull = root.T @ v
        length = float(np.linalg.norm(pull))
        worse = -1.0 if signal == "reward" else 1.0
        reach = float(np.sqrt(2 * radius))
        drop = discount * reach * length / (1 - discount)
        return LinearWorstCase(
            nominal=nominal,
            worst=nominal + worse * drop,
            drop=drop,
            shift=worse * reach * (pull / length if length else pull),
            gradient=v,
        )
