"""Simulators whose worst case is known, for the bounds from above."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import norm

from holdfast.simulators.environment import Discrete, Environment, GaussianNoise, Step


class Known(Environment):
    """A number as the state, one normal number as the disturbance, one cost."""

    horizon: int = eqx.field(static=True, default=2)
    observation_size = feature_size = 1
    action_space = Discrete(1)
    disturbance = GaussianNoise(1, "state", (1.0,))
    cost_names = ("cost",)
    discount = 0.99

    def features(self, state):
        return state[:1]

    def _step(self, state, cost):
        return Step(state, state[:1], jnp.zeros(()), jnp.reshape(cost, (1,)), jnp.array(False))


class OnceDrawn(Known):
    """One draw an episode: it costs 1 above 1 if first state and action are equal, else below −1.

    Nature sees the first state and action, so it can shift the draw to the side that costs. A bound
    that forgets one of them would see a draw whose sides cost the same on average.
    """

    name = "once-drawn"
    draws_once = True
    action_space = Discrete(2)
    signal_ranges = ((0.0, 1.0), (0.0, 1.0))

    def reset(self, key):
        state = jnp.stack([jax.random.bernoulli(key).astype(jnp.float32), 0.0])
        return state, state[:1]

    def listens(self, state):
        return state[1] == 0

    def step(self, state, action, disturbance):
        side = jnp.where(state[0] == action, disturbance[0], -disturbance[0])
        cost = jnp.where((side > 1) & (state[1] == 0), 1.0, 0.0)
        return self._step(state.at[1].set(1.0), cost)

    def worst(self, radius):
        return most_likely(norm.sf(1), radius)


class NoisyAfter(Known):
    """The draw of the first step adds 1/4 to eight later costs if it is above 1; action 1 adds 3/4."""

    name = "noisy-after"
    draws_once = True
    horizon: int = eqx.field(static=True, default=9)
    action_space = Discrete(2)
    signal_ranges = ((0.0, 1.0), (0.0, 1.0))

    def reset(self, key):
        return jnp.zeros(2), jnp.zeros(1)

    def listens(self, state):
        return state[0] == 0

    def step(self, state, action, disturbance):
        first = state[0] == 0
        heavy = jnp.where(first, (disturbance[0] > 1).astype(jnp.float32), state[1])
        cost = jnp.where(first, 0.0, 0.25 * heavy + 0.75 * action)
        return self._step(jnp.stack([jnp.ones(()), heavy]), cost)

    def worst(self, radius):
        """Return the worst case of a policy that tosses a coin in every step."""
        return 8 * (0.25 * most_likely(norm.sf(1), radius) + 0.375)


class Steady(Known):
    """Every step costs 1, for ever."""

    name = "steady"
    draws_once = True
    discount = 0.9
    signal_ranges = ((0.0, 1.0), (0.0, 1.0))

    def reset(self, key):
        return jnp.zeros(1), jnp.zeros(1)

    def listens(self, state):
        return state[0] == 0

    def step(self, state, action, disturbance):
        return self._step(jnp.ones(1), 1.0)


class RareHeavy(Known):
    """Every step costs 5 with probability 0.01, whatever happened before."""

    name = "rare-heavy"
    signal_ranges = ((0.0, 1.0), (0.0, 5.0))

    def reset(self, key):
        return jnp.zeros(1), jnp.zeros(1)

    def step(self, state, action, disturbance):
        return self._step(state, jnp.where(disturbance[0] > norm.isf(0.01), 5.0, 0.0))

    def worst(self, radius):
        return 5 * self.horizon * most_likely(0.01, radius)


class ClippedLinear(Known):
    """s' = 0.8·s + 0.3·w from s = 0.3, with the cost s' clipped to [0, 1]."""

    name = "clipped-linear"
    signal_ranges = ((0.0, 1.0), (0.0, 1.0))

    def reset(self, key):
        return jnp.full(1, 0.3), jnp.full(1, 0.3)

    def step(self, state, action, disturbance):
        after = 0.8 * state + 0.3 * disturbance
        return self._step(after, jnp.clip(after[0], 0.0, 1.0))

    def worst(self, radius, grid=201, nodes=61):
        """Return the worst case by backward induction on a fine grid."""
        states = np.linspace(-4, 4, grid)
        x, weights = np.polynomial.hermite_e.hermegauss(nodes)
        weights = weights / weights.sum()
        value = np.zeros(grid)
        for _ in range(self.horizon):
            after = 0.8 * states[:, None] + 0.3 * x
            y = np.clip(after, 0, 1) + np.interp(after, states, value)
            value = np.array([worst_mean(row, weights, radius) for row in y])
        return float(np.interp(0.3, states, value))


def most_likely(p, radius):
    """Return the largest q with KL(q‖p) ≤ radius, for an event."""

    def excess(q):
        rest = (1 - q) * np.log((1 - q) / (1 - p)) if q < 1 else 0.0
        return q * np.log(q / p) + rest - radius

    return brentq(excess, p, 1 - 1e-12)


def worst_mean(y, p, radius):
    """Return the largest mean of y over laws within the radius of p, by the convex dual."""
    if np.ptp(y) < 1e-12:
        return float(p @ y)

    def dual(log_lam):
        lam, top = np.exp(log_lam), y.max()
        return lam * radius + top + lam * np.log(p @ np.exp((y - top) / lam))

    return float(minimize_scalar(dual, bounds=(-12, 8), method="bounded").fun)


class DrawnMass(Known):
    """The mass 1.1^w is drawn once. Action 0 costs 1 below a mass of 0.8; action 1 is always safe."""

    name = "drawn-mass"
    draws_once = True
    action_space = Discrete(2)
    signal_ranges = ((0.0, 1.0), (0.0, 1.0))

    def reset(self, key):
        return jnp.zeros(1), jnp.zeros(1)

    def listens(self, state):
        return state[0] == 0

    def step(self, state, action, disturbance):
        light = (1.1 ** disturbance[0] < 0.8) & (state[0] == 0) & (action == 0)
        return self._step(jnp.ones(1), jnp.where(light, 1.0, 0.0))
