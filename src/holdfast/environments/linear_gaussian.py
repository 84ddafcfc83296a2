"""A linear system with Gaussian noise, whose worst case is known in closed form."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from numpy.typing import ArrayLike

from holdfast._support.arguments import check_whole_number
from holdfast.simulators.environment import Box, Environment, GaussianNoise, Step

DYNAMICS = ((0.9, 0.2, 0.0), (-0.2, 0.8, 0.1), (0.0, 0.1, 0.7))
CONTROL = ((0.1, 0.0), (0.0, 0.1), (0.05, -0.05))
NOISE = ((0.3, 0.0, 0.0), (0.1, 0.2, 0.0), (0.0, 0.05, 0.1))
REWARD = ((1.0, 0.5, -0.5), (0.1, 0.0))
COST = ((-0.3, 1.0, 0.4), (0.0, 0.2))
INITIAL_MEAN = (2.0, 1.0, -1.0)


class LinearSignal(NamedTuple):
    """A signal state·s + action·a, paid for the state and action before the step.

    Example:
        >>> import numpy as np
        >>> upkeep = LinearSignal(np.array([0.0, 1.0]), np.array([0.5]))
        >>> float(upkeep.at(np.array([3.0, 2.0]), np.array([2.0])))
        3.0
    """

    state: Float[Array, " state"]
    action: Float[Array, " action"]

    def at(self, state: Float[Array, " state"], action: Float[Array, " action"]) -> Any:
        """Its value for a state and an action."""
        return (self.state * state).sum() + (self.action * action).sum()


@dataclasses.dataclass(frozen=True, eq=False)
class LinearWorstCase:
    """The worst case of one signal of a `LinearGaussian` under an affine policy.

    Attributes:
        nominal: discounted sum Σ_t γ^t·signal, t from 0 to ∞, from the initial distribution.
        worst: the same in the worst case.
        drop: how far apart they are, never negative.
        shift: the mean that the worst case gives the disturbance, at every state and action.
        gradient: of the value, v: V(s) = v·s + constant, nominally and in the worst case.
    """

    nominal: float
    worst: float
    drop: float
    shift: Float[np.ndarray, " state"]
    gradient: Float[np.ndarray, " state"]


class LinearGaussian(Environment):
    """The system s' = A·s + B·a + Σ^½·w with w ~ N(0, I), and linear reward and cost.

    It is there to measure adversaries by: `closed_form` says what the worst one does. Actions are
    unbounded and so is the reward of the best policy: hold the policy, or its trust region, small.
    Signals are paid for the state and action before the step, so that the disturbance of a step
    counts from the next one on. Nothing terminates: whoever cuts an episode has to bootstrap there.

    Arguments:
        dynamics: A, (n, n).
        control: B, (n, m).
        noise: Σ^½, (n, n): any matrix whose product with its own transpose is Σ.
        reward: vectors for the state (n,) and the action (m,).
        cost: the same, for the cost.
        initial_mean: of the initial state, (n,).
        initial_scale: standard deviation of each entry of the initial state.
        discount: in [0, 1).
        horizon: steps after which an episode is cut.

    Example:
        >>> from holdfast.environments.linear_gaussian import LinearGaussian
        >>> env = LinearGaussian()
        >>> known = env.closed_form(gain=0.0, offset=0.0, radius=0.1)
        >>> round(known.nominal, 3), round(known.worst, 3)
        (8.409, -2.038)
    """

    dynamics: Float[Array, "state state"]
    control: Float[Array, "state action"]
    noise: Float[Array, "state state"]
    reward: LinearSignal
    cost: LinearSignal
    initial_mean: Float[Array, " state"]
    initial_scale: Float[Array, ""]
    _scale: tuple[float, ...] = eqx.field(static=True)
    _discount: float = eqx.field(static=True)
    _horizon: int = eqx.field(static=True)

    def __init__(
        self,
        *,
        dynamics: ArrayLike = DYNAMICS,
        control: ArrayLike = CONTROL,
        noise: ArrayLike = NOISE,
        reward: tuple[ArrayLike, ArrayLike] = REWARD,
        cost: tuple[ArrayLike, ArrayLike] = COST,
        initial_mean: ArrayLike = INITIAL_MEAN,
        initial_scale: float = 0.5,
        discount: float = 0.95,
        horizon: int = 200,
    ) -> None:
        check_whole_number("horizon", horizon, least=1)
        if not 0 <= discount < 1:
            raise ValueError(f"discount: expected a number in [0, 1), got {discount}")
        n, m = np.shape(dynamics)[0], np.shape(control)[-1]
        self.dynamics = _of_shape("dynamics", dynamics, (n, n))
        self.control = _of_shape("control", control, (n, m))
        self.noise = _of_shape("noise", noise, (n, n))
        self.reward = _signal("reward", reward, n, m)
        self.cost = _signal("cost", cost, n, m)
        self.initial_mean = _of_shape("initial_mean", initial_mean, (n,))
        self.initial_scale = _of_shape("initial_scale", initial_scale, ())
        self._scale = tuple(np.linalg.norm(np.asarray(noise, float), axis=0).tolist())
        self._discount = float(discount)
        self._horizon = int(horizon)

    @property
    def name(self) -> str:
        """What runs and messages call it."""
        return "linear-gaussian"

    @property
    def horizon(self) -> int:
        """Steps after which an episode is cut."""
        return self._horizon

    @property
    def observation_size(self) -> int:
        """The policy sees the state."""
        return self.dynamics.shape[-1]

    @property
    def feature_size(self) -> int:
        """Critics and adversaries see the state."""
        return self.dynamics.shape[-1]

    @property
    def action_space(self) -> Box:
        """Vectors without bounds."""
        size = self.control.shape[-1]
        return Box(low=(-np.inf,) * size, high=(np.inf,) * size)

    @property
    def disturbance(self) -> GaussianNoise:
        """Noise on the state; its scale is how far one unit of each entry moves the state."""
        return GaussianNoise(self.dynamics.shape[-1], "state", self._scale)

    @property
    def cost_names(self) -> tuple[str, ...]:
        """One cost, linear like the reward."""
        return ("cost",)

    @property
    def discount(self) -> float:
        """The discount of the closed form."""
        return self._discount

    def description(self) -> dict[str, Any]:
        """All that defines it, as values that JSON can hold."""
        leaves = {
            "dynamics": self.dynamics,
            "control": self.control,
            "noise": self.noise,
            "reward": self.reward._asdict(),
            "cost": self.cost._asdict(),
            "initial_mean": self.initial_mean,
            "initial_scale": self.initial_scale,
        }
        plain = jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), leaves)
        return {**super().description(), **plain, "discount": self.discount}

    def reset(
        self, key: PRNGKeyArray
    ) -> tuple[Float[Array, " state"], Float[Array, " observation"]]:
        """A normal initial state."""
        spread = jax.random.normal(key, self.initial_mean.shape, jnp.float32)
        state = self.initial_mean + self.initial_scale * spread
        return state, state

    def step(
        self,
        state: Float[Array, " state"],
        action: Float[Array, " action"],
        disturbance: Float[Array, " disturbance"],
    ) -> Step:
        """One step; the signals are those of the state before it."""
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
        """The state itself."""
        return state

    def closed_form(
        self,
        gain: ArrayLike = 0.0,
        offset: ArrayLike = 0.0,
        radius: float = 0.0,
        signal: Literal["reward", "cost"] = "reward",
    ) -> LinearWorstCase:
        """What an affine policy is worth, nominally and over the KL balls of a radius.

        Under actions of mean K·s + k, whatever their noise, the value of the signal c·s + e·a is
        V(s) = v·s + u, with v = (I − γ(A + BK)ᵀ)⁻¹(c + Kᵀe) and u = (e·k + γ·v·Bk)/(1 − γ). The next
        state enters γV(s') by γ·v·Σ^½·w, which is linear in w: its worst expectation over
        KL(q‖N(0, I)) ≤ R is that of a normal w whose mean is moved by √(2R) against (Σ^½)ᵀv, with the
        variance left alone. It takes γ√(2R)‖(Σ^½)ᵀv‖ off every step, so v stays and the value drops by
        γ√(2R)‖(Σ^½)ᵀv‖/(1 − γ). For a cost the shift goes the other way and the value rises.

        Arguments:
            gain: K, (m, n); a number fills the matrix.
            offset: k, (m,); likewise.
            radius: R, of the KL ball around the disturbance at every state and action.
            signal: "reward", whose worst case is the lowest, or "cost", whose is the highest.

        Raises:
            ValueError: the discounted sum diverges: γ times the spectral radius of A + BK is not under
                one; or an argument is bad.
        """
        if signal not in ("reward", "cost"):
            raise ValueError(f"signal: expected 'reward' or 'cost', got {signal!r}")
        if not radius >= 0:
            raise ValueError(f"radius: expected a number of at least 0, got {radius}")
        A, B, root, mean = (
            np.asarray(leaf, np.float64)
            for leaf in (self.dynamics, self.control, self.noise, self.initial_mean)
        )
        c, e = (np.asarray(leaf, np.float64) for leaf in getattr(self, signal))
        K, k = np.broadcast_to(gain, B.T.shape), np.broadcast_to(offset, e.shape)
        closed_loop = A + B @ K
        growth = self.discount * np.abs(np.linalg.eigvals(closed_loop)).max()
        if growth >= 1:
            raise ValueError(
                f"gain: discount times the spectral radius of A + BK is {growth:.3g}, not under 1"
            )
        discount = self.discount
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


def _product(
    matrix: Float[Array, "rows columns"], vector: Float[Array, " columns"]
) -> Float[Array, " rows"]:
    # In full single precision also where the hardware would rather round.
    return jnp.matmul(matrix, vector, precision=jax.lax.Precision.HIGHEST)


def _signal(name: str, signal: tuple[ArrayLike, ArrayLike], n: int, m: int) -> LinearSignal:
    state, action = signal
    return LinearSignal(
        _of_shape(f"{name}.state", state, (n,)), _of_shape(f"{name}.action", action, (m,))
    )


def _of_shape(name: str, value: ArrayLike, shape: tuple[int, ...]) -> Float[Array, "..."]:
    array = jnp.asarray(value, jnp.float32)
    if array.shape != shape:
        raise ValueError(f"{name}: expected shape {shape}, got {array.shape}")
    return array
