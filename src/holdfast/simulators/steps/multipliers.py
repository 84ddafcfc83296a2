"""Lagrange multipliers of the costs, which follow their limits by Adam."""

from __future__ import annotations

import dataclasses
from typing import Self

import equinox as eqx
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from holdfast._support.arguments import check_number
from holdfast.simulators.policy.networks import Normaliser
from holdfast.simulators.steps.trust_region import Evidence


@dataclasses.dataclass(frozen=True)
class MultiplierSettings:
    """Settings of the multipliers; the values are OmniSafe's.

    Arguments:
        multiplier: initial multiplier of every cost, in standard deviations of the reward's advantages
            per unit of the cost.
        multiplier_learning_rate: Adam learning rate, about the change of a multiplier per iteration. A
            cost of a much smaller unit needs a larger one.
    """

    multiplier: float = 0.001
    multiplier_learning_rate: float = 0.035

    def __post_init__(self) -> None:
        check_number("multiplier", self.multiplier)
        check_number("multiplier_learning_rate", self.multiplier_learning_rate, above=True)


class Multipliers(eqx.Module):
    """One multiplier λ_i ≥ 0 for each cost, with the state of their optimiser.

    Their unit is the standard deviation of the reward's advantages over all iterations so far. The
    spread of a single batch is no unit: it vanishes as a policy becomes deterministic, and then no
    multiplier is large enough to bring the policy back.
    """

    values: Float[Array, " costs"]
    optimiser: optax.OptState
    advantages: Normaliser

    @classmethod
    def create(cls, costs: int, settings: MultiplierSettings) -> Self:
        """Return the initial multipliers."""
        values = jnp.full(costs, settings.multiplier, jnp.float32)
        optimiser = optax.adam(settings.multiplier_learning_rate).init(values)
        return cls(values, optimiser, Normaliser.create(1))

    def after(
        self, excess: Float[Array, " costs"], reward: Evidence, settings: MultiplierSettings
    ) -> Self:
        """Return the multipliers after one Adam step up the gradient of Σλ_i·excess_i, at least 0.

        Arguments:
            excess: measured cost minus limit.
            reward: the reward's batch, for the unit.
            settings: the learning rate.
        """
        adam = optax.adam(settings.multiplier_learning_rate)
        change, optimiser = adam.update(-excess, self.optimiser)
        live = (reward.weights > 0).astype(jnp.float32)
        advantages = self.advantages.updated(reward.advantages[:, None], live)
        return type(self)(jnp.maximum(self.values + change, 0.0), optimiser, advantages)

    def shares(self, evidence: tuple[Evidence, ...]) -> Float[Array, " signals"]:
        """Return the weights of the surrogates of the reward and of every cost in the Lagrangian.

        The Lagrangian is a mean over steps, in the multipliers' unit, of which reward and costs have
        shares that sum to one. A surrogate is a sum over an episode, with its own weights.
        """
        weights = jnp.concatenate([jnp.ones(1), self.values])
        units = jnp.ones_like(weights).at[0].set(self.advantages.spread[0])
        # 1e-9 only avoids 0/0 for a batch without a live step.
        steps = jnp.stack([jnp.maximum(each.weights.sum(), 1e-9) for each in evidence])
        return weights / weights.sum() / units / steps
