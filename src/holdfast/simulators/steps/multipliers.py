"""Lagrange multipliers of the costs, which follow their limits by Adam."""

from __future__ import annotations

import dataclasses
from typing import Self

import equinox as eqx
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from holdfast._support.arguments import check_number


@dataclasses.dataclass(frozen=True)
class MultiplierSettings:
    """Settings of the multipliers; the values are OmniSafe's.

    Arguments:
        multiplier: initial multiplier of every cost, in standard deviations of the reward's advantage
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
    """One multiplier λ_i ≥ 0 for each cost, with the state of their optimiser."""

    values: Float[Array, " costs"]
    optimiser: optax.OptState

    @classmethod
    def create(cls, costs: int, settings: MultiplierSettings) -> Self:
        """Return the initial multipliers."""
        values = jnp.full(costs, settings.multiplier, jnp.float32)
        return cls(values, optax.adam(settings.multiplier_learning_rate).init(values))

    def after(self, excess: Float[Array, " costs"], settings: MultiplierSettings) -> Self:
        """Return the multipliers after one Adam step up the gradient of Σλ_i·excess_i, at least 0.

        Arguments:
            excess: measured cost minus limit.
            settings: the learning rate.
        """
        adam = optax.adam(settings.multiplier_learning_rate)
        change, optimiser = adam.update(-excess, self.optimiser)
        return type(self)(jnp.maximum(self.values + change, 0.0), optimiser)

    def shares(self, spread: Float[Array, ""]) -> Float[Array, " signals"]:
        """Return the weights of the reward and of every cost in the Lagrangian, which sum to one.

        Arguments:
            spread: standard deviation of the reward's advantages, the multipliers' unit.
        """
        weights = jnp.concatenate([jnp.ones(1), self.values])
        # 1e-8 only avoids 0/0 where no action changes the reward.
        units = jnp.ones_like(weights).at[0].set(1 / (spread + 1e-8))
        return weights * units / weights.sum()
