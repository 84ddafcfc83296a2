"""Random instances of a policy update, and the same problems for a convex solver."""

from __future__ import annotations

import dataclasses
import os
import warnings

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.special

from holdfast.tabular.evaluation.values import PolicyValues
from holdfast.tabular.steps.tilted_policy import TiltedPolicies

STATES, ACTIONS, DISCOUNT = 4, 3, 0.9
RESIDUAL = 1e-8
# Constraints are met to this share of the scale: the rounding of logits of 1e9 moves them by 2e-8.
MET = 1e-7
CASES = 400 if os.environ.get("HOLDFAST_CAMPAIGN") else 8


def draws(**choices):
    """Return CASES dictionaries with a seed and one value of each choice, drawn with fixed seeds."""
    rng = np.random.default_rng(0)
    return [
        {"seed": seed}
        | {name: values[rng.integers(len(values))] for name, values in choices.items()}
        for seed in range(CASES)
    ]


@dataclasses.dataclass(frozen=True)
class Instance:
    """A policy with what is known of it; the reward comes first, then the constraints."""

    policy: np.ndarray  # (S, A)
    advantages: np.ndarray  # (n, S, A)
    occupancy: np.ndarray  # (n, S)
    values: np.ndarray  # (n,)
    thresholds: np.ndarray  # (m,)

    @property
    def scale(self):
        """The span of the objectives' coefficients."""
        return max(1.0, np.ptp(self.advantages) / (1 - DISCOUNT))

    @property
    def violated(self):
        return np.flatnonzero(self.values[1:] < self.thresholds)

    def reward(self, policy):
        return np.sum(self.occupancy[0][:, None] * policy * self.advantages[0])

    def slopes(self):
        """What a linearised constraint's value gains with each π(a|s)."""
        return self.occupancy[1:, :, None] * self.advantages[1:] / (1 - DISCOUNT)

    def margins(self, policy):
        gains = (self.slopes() * policy).sum((1, 2))
        return self.values[1:] + gains - self.thresholds

    def kl(self, policy, base=None):
        base = self.policy if base is None else base
        kept = policy > 0
        ratio = np.log(np.where(kept, policy, 1.0) / np.where(kept, base, 1.0))
        return self.occupancy[0] @ (policy * ratio).sum(-1)

    def asking(self, thresholds):
        return dataclasses.replace(self, thresholds=np.asarray(thresholds, float))

    def missing(self, violations):
        """The same instance with every constraint violated by so much (met, where negative)."""
        return self.asking(self.values[1:] + violations)

    def tilts(self, step):
        count = len(self.values)
        values = PolicyValues(
            value=jnp.asarray(self.values),
            values=jnp.zeros((count, STATES)),
            advantages=jnp.asarray(self.advantages),
            occupancy=jnp.asarray(self.occupancy),
            error=jnp.zeros(count),
        )
        return TiltedPolicies.at(
            jnp.asarray(self.policy),
            values,
            jnp.asarray(self.thresholds),
            jnp.asarray(1 - DISCOUNT),
            step,
        )


def random_instance(seed, count, *, vanishing=False, ties=False, smallest=1e-4):
    rng = np.random.default_rng(seed)
    policy = rng.dirichlet(np.full(ACTIONS, rng.choice([0.3, 1.0, 5.0])), STATES) + smallest
    policy = policy / policy.sum(-1, keepdims=True)
    advantages = rng.normal(size=(1 + count, STATES, ACTIONS)) * rng.choice([0.1, 1.0, 10.0])
    if ties:
        advantages = np.round(advantages, 0 if advantages.std() > 0.5 else 1)
    occupancy = rng.dirichlet(np.ones(STATES), 1 + count)
    if vanishing:
        occupancy[0, rng.integers(STATES)] = 0.0
        occupancy[0] /= occupancy[0].sum()
    return Instance(
        policy=policy,
        advantages=advantages - (policy * advantages).sum(-1, keepdims=True),
        occupancy=occupancy,
        values=rng.normal(size=1 + count),
        thresholds=np.zeros(count),
    )


def with_room(instance, seed, room):
    """Thresholds of which some policy misses the nearest by −room, in units of the advantages."""
    rng = np.random.default_rng(seed)
    spread = np.ptp(instance.advantages)
    instance = instance.missing(spread * rng.random(len(instance.thresholds)))
    return instance.asking(instance.thresholds + best_margin(instance) - room * spread)


def best_margin(instance):
    """The largest smallest margin that any policy has: a linear program."""
    slopes = instance.slopes().reshape(len(instance.thresholds), -1)
    rows = np.kron(np.eye(STATES), np.ones(ACTIONS))
    found = scipy.optimize.linprog(
        np.r_[np.zeros(STATES * ACTIONS), -1.0],
        A_ub=np.c_[-slopes, np.ones(len(slopes))],
        b_ub=instance.values[1:] - instance.thresholds,
        A_eq=np.c_[rows, np.zeros(STATES)],
        b_eq=np.ones(STATES),
        bounds=[(0, 1)] * (STATES * ACTIONS) + [(None, None)],
    )
    return found.x[-1]


def solve(objective, limits):
    """Return the value of a convex problem, or None if the solver is not sure of it."""
    problem = cp.Problem(objective, limits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem.solve(solver=cp.CLARABEL)
    return problem.value if problem.status == cp.OPTIMAL else None


class Problem:
    """The pieces of which the problems are made."""

    def __init__(self, instance, base=None):
        self.policy = cp.Variable((STATES, ACTIONS), nonneg=True)
        base = instance.policy if base is None else base
        weights = instance.occupancy[0]
        self.simplex = cp.sum(self.policy, axis=1) == 1
        self.reward = cp.sum(cp.multiply(weights[:, None] * instance.advantages[0], self.policy))
        self.kl = cp.sum(
            [
                weights[s] * cp.sum(cp.rel_entr(self.policy[s], base[s]))
                for s in np.flatnonzero(weights)
            ]
        )
        self.margins = [
            value + cp.sum(cp.multiply(slope, self.policy)) - threshold
            for value, slope, threshold in zip(
                instance.values[1:], instance.slopes(), instance.thresholds, strict=True
            )
        ]

    @property
    def met(self):
        return [margin >= 0 for margin in self.margins]


def best_reward(instance, delta, *, constrained):
    problem = Problem(instance)
    limits = [problem.simplex, problem.kl <= delta, *(problem.met if constrained else [])]
    return solve(cp.Maximize(problem.reward), limits)


def least_distance(instance, base=None):
    problem = Problem(instance, base)
    return solve(cp.Minimize(problem.kl), [problem.simplex, *problem.met])


def best_violated_margin(instance, delta):
    problem, lift = Problem(instance), cp.Variable()
    lifted = [problem.margins[i] >= lift for i in instance.violated]
    return solve(cp.Maximize(lift), [problem.simplex, problem.kl <= delta, *lifted])


def run(function, instance, delta, step="exact"):
    """Return the result of a step on an instance, in float64, as NumPy arrays."""
    with jax.enable_x64(True):
        result = function(instance.tilts(step), jnp.asarray(float(delta)))
        return jax.tree.map(np.asarray, result)


def assert_policy(policy):
    assert (policy >= 0).all()
    np.testing.assert_allclose(policy.sum(-1), 1.0, rtol=1e-12)


def assert_inside(instance, policy, delta):
    assert_policy(policy)
    assert instance.kl(policy) <= delta + RESIDUAL


def assert_met(instance, update):
    assert update.met
    assert_policy(update.policy)
    assert (instance.margins(update.policy) >= -MET * instance.scale).all()


def mean_advantage(logits, occupancy, advantages):
    return (occupancy[:, None] * jax.nn.softmax(logits) * advantages).sum()


def mean_divergence(logits, occupancy, policy):
    log_ratio = jax.nn.log_softmax(logits) - jnp.log(policy)
    return (occupancy[:, None] * jax.nn.softmax(logits) * log_ratio).sum()


gradient, hessian = jax.jit(jax.grad(mean_advantage)), jax.jit(jax.hessian(mean_divergence))


class Expansion:
    """The paper's g, h, H and b, with H dense, by automatic differentiation in the logits."""

    def __init__(self, instance):
        size = STATES * ACTIONS
        self.logits = np.log(instance.policy)
        with jax.enable_x64(True):
            slopes = [
                np.asarray(gradient(self.logits, d, a)).ravel()
                for d, a in zip(instance.occupancy, instance.advantages, strict=True)
            ]
            curvature = np.asarray(hessian(self.logits, instance.occupancy[0], instance.policy))
        self.g, self.H = slopes[0], curvature.reshape(size, size)
        self.h = np.reshape(slopes[1:], (-1, size)) / (1 - DISCOUNT)
        self.b = instance.thresholds - instance.values[1:]

    def policy(self, x):
        return scipy.special.softmax(self.logits + x.reshape(STATES, ACTIONS), axis=-1)

    def improvement(self, delta):
        natural = np.linalg.pinv(self.H, hermitian=True) @ self.g
        return np.sqrt(2 * delta / (self.g @ natural)) * natural

    def update(self, delta):
        """Equation (26) with the constraint's sense turned: h·(θ − θ_k) ≥ b."""
        half = self.improvement(delta)
        h, b = self.h[0], self.b[0]
        natural = np.linalg.pinv(self.H, hermitian=True) @ h
        return half + max((b - h @ half) / (h @ natural), 0.0) * natural

    def quadratic(self, x):
        root = np.linalg.cholesky(self.H + 1e-14 * np.eye(len(self.H)))
        return cp.sum_squares(root.T @ x)


def displacement(instance, coefficients):
    """θ − θ_k, of which only what moves the policy matters."""
    with jax.enable_x64(True):
        features = np.asarray(instance.tilts("taylor").features)
    return np.einsum("n,nsa->sa", coefficients, features).ravel()


def taylor_instance(seed, count):
    instance = random_instance(seed, count, smallest=0.02)
    return dataclasses.replace(instance, occupancy=0.9 * instance.occupancy + 0.1 / STATES)
