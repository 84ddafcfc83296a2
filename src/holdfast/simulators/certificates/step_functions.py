"""The learned functions U, ν and λ of the bound at every step."""

from __future__ import annotations

import math
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from holdfast.simulators.certificates.attack import FrozenPolicy
from holdfast.simulators.certificates.bounded_signal import BoundedSignal
from holdfast.simulators.policy.networks import MLP
from holdfast.simulators.training.rollout import Sight

# The cut L is this many times √(2R). The worst response to a linear y shifts a normal disturbance by
# √(2R) standard deviations. A draw at three standard deviations then is exp(3·√(2R)) times as likely.
_DEVIATIONS = 3.0
# λ starts at this share of its largest value: close to the bound without it.
_FIRST_LAMBDA = 0.1
# An episode stops when W exceeds the trivial bound by this fraction of the total. The fraction is not
# learned, because stopping has no gradient. Only in rare episodes does U_t rise above U_0 by more.
PATIENCE = 0.25


class StepFunctions(eqx.Module):
    """The learned functions U, ν and λ, with the constants that bound W.

    Attributes:
        value: network of U; its input is the critic's and the share of the total that is left.
        dual: network of λ and ν; its input is the adversary's and the same share.
        logits: logarithms of `reach` and of the multiplier α, as shares of the total.
        sight: normalisers of the inputs.
        start: logit of U at initialisation.
    """

    value: MLP
    dual: MLP
    logits: Float[Array, "2"]
    sight: Sight
    start: Float[Array, ""]

    @classmethod
    def create(
        cls, key: PRNGKeyArray, frozen: FrozenPolicy, sight: Sight, hidden: tuple[int, ...]
    ) -> Self:
        """Return functions with U at a tenth of what is left, and small λ."""
        first, second = jax.random.split(key)
        env = frozen.env
        return cls(
            MLP.create(first, (env.feature_size + 2, *hidden, 1), last_scale=0.01),
            MLP.create(second, (env.nature_feature_size + 2, *hidden, 2), last_scale=0.01),
            jnp.log(jnp.array([0.3, 0.3])),
            Sight(frozen.observations, sight.features, sight.nature, True),
            jnp.asarray(math.log(0.1 / 0.9)),
        )

    def u(self, features: Array, time: Array, left: Array, total: Array) -> Float[Array, "*rows"]:
        """Return U_t, in [0, left]."""
        x = self._with_left(self.sight.of_critic(features, time), left, total)
        return left * jax.nn.sigmoid(self.start + self.value(x)[..., 0])

    def multipliers(
        self,
        nature: Array,
        time: Array,
        left: Array,
        u: Array,
        signal: BoundedSignal,
        radius: Array,
    ) -> tuple[Float[Array, "*rows"], Float[Array, "*rows"]]:
        """Return λ and ν, such that λR + ν + λ(e^L − 1) − U is at most `reach`.

        If U is the worst-case value then ν = U − λR is best, so ν stays within λL/2 of that.
        """
        cut = self.cut(radius)
        total = signal.total
        x = self._with_left(self.sight.of_nature(nature, time), left, total)
        raw = self.dual(x)
        most = self.reach(total) / (jnp.expm1(cut) + jnp.maximum(cut / 2, radius))
        share = jax.nn.sigmoid(raw[..., 0] + math.log(_FIRST_LAMBDA / (1 - _FIRST_LAMBDA)))
        lam = most * jnp.maximum(share, 1e-4)
        nu = jnp.maximum(u + lam * (cut / 2 * jnp.tanh(raw[..., 1]) - radius), 0.0)
        return lam, nu

    def reach(self, total: Array) -> Float[Array, ""]:
        """Return the largest increase of W in one step, the cut part aside."""
        return total * jnp.exp(self.logits[0])

    def highest(self, total: Array) -> Float[Array, ""]:
        """Return a number that W never exceeds."""
        # W is computed in single precision, which is off by less than 1e-5 of its range.
        return ((1 + PATIENCE) * total + self.reach(total)) * (1 + 1e-5)

    @staticmethod
    def cut(radius: Array) -> Float[Array, ""]:
        """Return the exponent L at which G is cut."""
        return _DEVIATIONS * jnp.sqrt(2 * radius)

    @staticmethod
    def _with_left(x: Array, left: Array, total: Array) -> Array:
        return jnp.concatenate([x, (left / total)[..., None]], axis=-1)
