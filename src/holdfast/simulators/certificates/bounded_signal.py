"""A signal as a cost in a known range, which a bound from above needs."""

from __future__ import annotations

import dataclasses
from typing import Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from holdfast.simulators.environment import Step


@dataclasses.dataclass(frozen=True)
class SignalRange:
    """The declared range of a signal.

    Attributes:
        low: lowest value of a step.
        high: highest value of a step. Values outside are cut, and the bound is about the cut signal.
        most: largest sum over an episode; larger sums are cut there. Infinite for no cut.
    """

    low: float
    high: float
    most: float = float("inf")

    def __str__(self) -> str:
        cut = "" if np.isinf(self.most) else f", cut at {self.most:g} an episode"
        return f"[{self.low:g}, {self.high:g}] a step{cut}"


class BoundedSignal(eqx.Module):
    """A signal, turned into a cost of at least 0 whose sum over an episode is at most `total`.

    The cost of step t is γ^t·(signal − low). The last step of an episode adds −low for each remaining
    step, since later signals are zero. The sum is therefore the sum of the signal minus `offset`.

    Attributes:
        index: 0 for the reward, which enters as −reward; 1, 2, … for the costs.
        weights: γ^t, or 1 for plain sums.
        low: lowest value of a step, at most 0.
        high: highest value of a step, at least 0.
        total: largest sum.
    """

    index: Int[Array, ""]
    weights: Float[Array, " steps"]
    low: Float[Array, ""]
    high: Float[Array, ""]
    total: Float[Array, ""]

    @classmethod
    def create(cls, index: int, given: SignalRange, discount: float, steps: int) -> Self:
        """Return a signal; the range of the reward, index 0, is that of −reward."""
        weights = discount ** np.arange(steps)
        low, high = min(given.low, 0.0), max(given.high, 0.0)
        total = min((high - low) * weights.sum(), given.most - low * weights.sum())
        return cls(jnp.asarray(index), *map(jnp.float32, (weights, low, high, total)))

    @property
    def offset(self) -> float:
        """The signal's sum less the sum of the costs."""
        return float(self.low) * float(np.asarray(self.weights, float).sum())

    def paid(
        self, there: Step, time: Int[Array, ""], left: Float[Array, " rows"]
    ) -> tuple[Float[Array, " rows"], Bool[Array, " rows"]]:
        """Return the cost of a step of every row, and whether a value was outside the range.

        Arguments:
            there: the steps.
            time: their number in the episode.
            left: what is left of `total`; no step pays more.
        """
        signals = jnp.concatenate([-there.reward[..., None], there.costs], axis=-1)
        value = jnp.take(signals, self.index, axis=-1)
        kept = jnp.clip(value, self.low, self.high)
        later = jnp.where(jnp.arange(len(self.weights)) > time, self.weights, 0.0).sum()
        ended = jnp.where(there.terminated, -self.low * later, 0.0)
        cost = self.weights[time] * (kept - self.low) + ended
        return jnp.minimum(cost, left), (kept != value)
