"""The limits at which updates aim: they move until the measured costs settle below the limits."""

from __future__ import annotations

import dataclasses
from typing import Self

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

# Initial distance of the inner limit from the limit, as a fraction of the limit. The linearised
# constraint overshoots most when a policy first reaches its limit, so that the inner limit starts at
# half of it. With limit_gain=0.2 and a cost far below the limit, it reaches the limit within five
# iterations.
_FIRST_TIGHTENING = 0.5
# Weight of a new measurement in the running means of `InnerLimits.usual_costs`. A mean then covers about
# nine measurements of a fifth of a batch each, and is more precise than the cost of drawn actions.
_USUAL_WEIGHT = 0.2
# Excess over the limit, as a fraction of it, from which on linearised constraints are not trusted. Small
# batches overestimate how much one step can lower a cost. On HalfCheetah with uncertain mass every step
# was predicted to meet its inner limit, and the cost rose to six times the limit.
_FAR = 0.5


class InnerLimits(eqx.Module):
    """Limits on the costs, and the inner limits at which the updates aim.

    Attributes:
        limits: limit of every cost.
        tightening: distance between each limit and its inner limit.
        usual_costs: costs of drawn and of most likely actions, as running means over iterations. They
            stay zero if only drawn actions are limited.
        measurements: number of measurements in these means.
    """

    limits: Float[Array, " costs"]
    tightening: Float[Array, " costs"]
    usual_costs: Float[Array, "2 costs"]
    measurements: Int[Array, ""]

    @classmethod
    def create(cls, limits: Float[Array, " costs"], moving: bool) -> Self:
        """Return the initial inner limits; those that do not move are the limits themselves."""
        start = _FIRST_TIGHTENING if moving else 0.0
        return cls(limits, start * jnp.abs(limits), jnp.zeros((2, len(limits))), jnp.array(0))

    @property
    def values(self) -> Float[Array, " costs"]:
        """The inner limits."""
        return self.limits - self.tightening

    def seen(self, drawn: Float[Array, " costs"], likely: Float[Array, " costs"]) -> Self:
        """Return the limits with running means that include the costs of one more measurement."""
        # The weights 1, 1/2, 1/3, … of a mean, until a new measurement counts for a fifth.
        weight = jnp.maximum(_USUAL_WEIGHT, 1.0 / (1 + self.measurements))
        change = jnp.stack([drawn, likely]) - self.usual_costs
        usual = self.usual_costs + weight * change
        return dataclasses.replace(self, usual_costs=usual, measurements=self.measurements + 1)

    def needed(self, drawn: Float[Array, " costs"]) -> Float[Array, " costs"]:
        """Return how far the costs of drawn actions are above those that meet the inner limits.

        If most likely actions usually cost k times as much, drawn actions are held at 1/k of the inner
        limit. Both costs fall together, so that every positive limit can be met. Subtracting the
        difference would demand a negative cost once the difference is larger than the limit. Where a
        limit or a usual cost is not positive, a ratio has no meaning and the difference is subtracted.
        """
        usual, likely = self.usual_costs
        above = likely > usual
        positive = (self.limits > 0) & (usual > 0)
        share = jnp.where(above & positive, usual / jnp.where(above, likely, 1.0), 1.0)
        difference = jnp.where(above & ~positive, likely - usual, 0.0)
        inner = self.values
        return drawn - (jnp.where(inner > 0, inner * share, inner) - difference)

    def excess(self, drawn: Float[Array, " costs"], margin: float) -> Float[Array, " costs"]:
        """Return the larger of the costs of both kinds of actions, less (1 − margin)·limit."""
        usual, likely = self.usual_costs
        larger = drawn + jnp.maximum(likely - usual, 0.0)
        return larger - (self.limits - margin * jnp.abs(self.limits))

    def are_near(self, drawn: Float[Array, " costs"], gain: float) -> Bool[Array, ""]:
        """Return whether every larger cost is close enough to its limit to trust a linearisation.

        With a gain of zero, which is the paper's plain update, the answer is always yes. A limit of zero
        has no size that an excess could be compared with.
        """
        if gain == 0:
            return jnp.array(True)
        far = self.excess(drawn, 0.0) > _FAR * jnp.abs(self.limits)
        return ~jnp.any(far & (self.limits != 0))

    def moved(
        self, excess: Float[Array, " costs"], gain: float, opening_only: bool | Bool[Array, ""]
    ) -> Self:
        """Return the limits after one step of integral control.

        A linearised constraint settles above its limit. The inner limit therefore moves by `gain` times
        the excess. It stays between −limit and limit, and one measurement counts for at most half the
        limit.

        Arguments:
            excess: what `excess` returns.
            gain: step size; 0 keeps the inner limits.
            opening_only: whether the inner limits may open but not tighten.
        """
        if gain == 0:
            return self
        size = jnp.abs(self.limits)
        change = gain * jnp.clip(excess, -size / 2, size / 2)
        after = jnp.clip(self.tightening + change, 0.0, 2 * size)
        after = jnp.where(opening_only, jnp.minimum(self.tightening, after), after)
        return dataclasses.replace(self, tightening=after)
