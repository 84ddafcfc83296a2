"""An uncertainty set of your own: faults.

With a small probability a fault makes all possible outcomes equally likely. The set is the segment
between the nominal row and the uniform row on its support, so the worst response is one of its ends.
"""

import jax.numpy as jnp
import numpy as np

import holdfast as hf
from holdfast.uncertainty import UncertaintySet


class Faults(UncertaintySet):
    """Kernels (1 − t)·p + t·u with t ≤ radius, where u is uniform on the support of p."""

    def worst_response(self, p, y):
        """Return the end of the segment with the smaller mean target."""
        uniform = self._uniform(p)
        worse = ((uniform - p) * y).sum(-1) < 0
        share = jnp.where(worse, jnp.minimum(self.row_radius(p), 1.0), 0.0)[..., None]
        return (1 - share) * p + share * uniform

    def dual_value(self, p, y):
        """Return the smallest mean target over the segment, which is exact."""
        return (self.worst_response(p, y) * y).sum(-1)

    def divergence(self, p, q):
        """Return the share t at which q lies on the segment."""
        towards = self._uniform(p) - p
        length = (towards**2).sum(-1)
        share = ((q - p) * towards).sum(-1) / jnp.where(length > 0, length, 1.0)
        residual = jnp.abs(q - p - share[..., None] * towards).max(-1)
        # 1e-9 is the tolerance of `contains`; rounding leaves about 1e-16.
        return jnp.where((residual < 1e-9) & (share > -1e-9), jnp.maximum(share, 0.0), jnp.inf)

    def _uniform(self, p):
        support = p > 0
        return support / jnp.maximum(support.sum(-1, keepdims=True), 1)


model = hf.environments.gambler().replace(uncertainty=Faults(0.2))
timid = np.zeros(model.states, int)  # a stake of 1 in every state
evaluation = hf.evaluate(model, timid)
print(f"reward {evaluation.reward.nominal:.3f}, in the worst case {evaluation.reward.worst:.3f}")

solution = hf.solve(model, "rcpo", iterations=20)
print(f"RCPO: {solution.status}, worst case {solution.evaluation.reward.worst:.3f}")
assert evaluation.reward.worst <= evaluation.reward.nominal
