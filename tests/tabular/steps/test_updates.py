"""The steps of a policy update against a convex solver, each formulated as DESIGN writes it."""

import dataclasses
import warnings

import cvxpy as cp
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from holdfast.tabular.evaluation.values import PolicyValues
from holdfast.tabular.steps.improve import improve, improve_within
from holdfast.tabular.steps.project import project
from holdfast.tabular.steps.recover import recover
from holdfast.tabular.steps.tilted_policy import TiltedPolicies

STATES, ACTIONS, DISCOUNT = 4, 3, 0.9
RESIDUAL = 1e-8

# Nothing is gained by shrinking a seed.
light = settings(max_examples=10, deadline=None, derandomize=True, phases=[Phase.generate])
seeds = st.integers(0, 2**32 - 1)
constraints = pytest.mark.parametrize("count", [1, 3])
# Whether there are states where the reward's worst case never goes and a constraint's does.
vanishing = pytest.mark.parametrize("vanishing", [False, True], ids=["reached", "vanishing"])


# --- instances


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
            jnp.asarray(DISCOUNT),
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


# --- oracles: convex problems in π


def solve(objective, limits):
    """A convex problem's value; draws on which the solver is unsure are dropped."""
    problem = cp.Problem(objective, limits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem.solve(solver=cp.CLARABEL)
    assume(problem.status == cp.OPTIMAL)
    return problem.value


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


# --- the steps, compiled


@eqx.filter_jit
def _improve(tilts, delta):
    c = improve(tilts, delta)
    return tilts.policy(c), c


@eqx.filter_jit
def _improve_then_project(tilts, delta):
    improved = improve(tilts, delta)
    return tilts.policy(improved), improved, project(tilts, improved)


_improve_within = eqx.filter_jit(improve_within)
_recover = eqx.filter_jit(recover)


def run(function, instance, delta, step="exact"):
    """A compiled step on an instance, in float64, as NumPy."""
    with jax.enable_x64(True):
        result = function(instance.tilts(step), jnp.asarray(float(delta)))
        return jax.tree.map(np.asarray, result)


def assert_policy(policy):
    assert np.isfinite(policy).all()
    assert (policy >= 0).all()
    np.testing.assert_allclose(policy.sum(-1), 1.0, rtol=1e-12)


def assert_inside(instance, policy, delta):
    assert_policy(policy)
    assert instance.kl(policy) <= delta + RESIDUAL


# --- improvement, exact


@vanishing
@given(
    seed=seeds, ties=st.booleans(), delta=st.sampled_from([1e-6, 1e-3, 0.01, 0.1, 1.0, 10.0, 1e3])
)
@settings(light, max_examples=20)
def test_improvement_equals_a_convex_solver(vanishing, seed, ties, delta):
    instance = random_instance(seed, 1, vanishing=vanishing, ties=ties)
    policy, _ = run(_improve, instance, delta)
    assert_inside(instance, policy, delta)
    best = best_reward(instance, delta, constrained=False)
    assert abs(instance.reward(policy) - best) <= 1e-6 * instance.scale


@given(seed=seeds, ties=st.booleans())
@light
def test_a_large_trust_region_conditions_on_the_maximisers(seed, ties):
    instance = random_instance(seed, 1, ties=ties)
    advantages = instance.advantages[0]
    best = np.isclose(advantages, advantages.max(-1, keepdims=True), atol=1e-12)
    conditioned = np.where(best, instance.policy, 0.0)
    conditioned = conditioned / conditioned.sum(-1, keepdims=True)
    for delta in (instance.kl(conditioned) * (1 + 1e-9), 1e6):
        policy, _ = run(_improve, instance, delta)
        assert_inside(instance, policy, delta)
        assert abs(instance.reward(policy) - instance.reward(conditioned)) <= 1e-6 * instance.scale
    np.testing.assert_allclose(policy, conditioned, atol=1e-6)


def test_nothing_to_gain_moves_nothing():
    instance = random_instance(0, 1)
    flat = dataclasses.replace(instance, advantages=np.zeros_like(instance.advantages))
    for step in ("exact", "taylor"):
        policy, _ = run(_improve, flat, 0.1, step)
        np.testing.assert_allclose(policy, instance.policy, rtol=1e-12)


@pytest.mark.parametrize("step", ["exact", "taylor"])
@given(seed=seeds)
@light
def test_actions_without_mass_stay_without(step, seed):
    """As the padded ones, whose advantages may be anything."""
    instance = random_instance(seed, 3)
    policy = np.c_[instance.policy[:, :-1], np.zeros(STATES)]
    policy = policy / policy.sum(-1, keepdims=True)
    padded = dataclasses.replace(instance, policy=policy).missing([0.1, 0.2, -0.2])
    improved, _, update = run(_improve_then_project, padded, 0.1, step)
    recovered = run(_recover, padded, 0.1, step)
    within = run(_improve_within, padded, 0.1, step)
    for moved in (improved, update.policy, recovered.policy, within.policy):
        assert_policy(moved)
        assert (moved[:, -1] == 0).all()


# --- projection, exact


@constraints
@vanishing
@given(seed=seeds, ties=st.booleans(), room=st.sampled_from([0.5, 0.1, 0.01]))
@light
def test_projection_equals_a_convex_solver(count, vanishing, seed, ties, room):
    instance = random_instance(seed, count, vanishing=vanishing, ties=ties)
    instance = with_room(instance, seed, room)
    half, _, update = run(_improve_then_project, instance, 0.01)
    assert update.met
    assert_policy(update.policy)
    assert (instance.margins(update.policy) >= -RESIDUAL * instance.scale).all()
    least = least_distance(instance, half)
    assert abs(instance.kl(update.policy, half) - least) <= 1e-6 * max(1.0, least)


@constraints
@vanishing
@given(seed=seeds, ties=st.booleans(), room=st.sampled_from([-0.01, -0.1, -1.0]))
@light
def test_constraints_that_no_policy_meets_are_reported(count, vanishing, seed, ties, room):
    instance = random_instance(seed, count, vanishing=vanishing, ties=ties)
    instance = with_room(instance, seed, room)
    _, _, update = run(_improve_then_project, instance, 0.01)
    assert not update.met
    assert_policy(update.policy)
    assert not run(_improve_within, instance, 10.0).met


@constraints
@given(seed=seeds)
@light
def test_a_policy_that_meets_its_constraints_is_its_own_projection(count, seed):
    instance = random_instance(seed, count)
    instance = instance.missing(-np.random.default_rng(seed).random(count))
    half, c, update = run(_improve_then_project, instance, 1e-9)
    assert update.met
    np.testing.assert_allclose(update.policy, half, rtol=1e-14)
    np.testing.assert_array_equal(update.coefficients, c)


@given(seed=seeds, delta=st.sampled_from([1e-3, 0.1, 100.0]))
@light
def test_without_constraints_every_step_is_the_improvement(seed, delta):
    instance = random_instance(seed, 0)
    for step in ("exact", "taylor"):
        half, c, update = run(_improve_then_project, instance, delta, step)
        within = run(_improve_within, instance, delta, step)
        assert update.met
        assert within.met
        np.testing.assert_array_equal(update.coefficients, c)
        np.testing.assert_allclose(within.policy, half, atol=1e-6)


# --- both at once, exact


@constraints
@vanishing
@given(
    seed=seeds,
    ties=st.booleans(),
    room=st.sampled_from([0.5, 0.1]),
    extra=st.sampled_from([1e-3, 0.03, 0.3, 10.0]),
)
@light
def test_cpo_s_step_equals_a_convex_solver(count, vanishing, seed, ties, room, extra):
    assume(not (vanishing and extra > 1))  # its logits would need more digits than there are
    instance = random_instance(seed, count, vanishing=vanishing, ties=ties)
    instance = with_room(instance, seed, room)
    delta = least_distance(instance) * 1.01 + extra
    update = run(_improve_within, instance, delta)
    assert update.met
    assert_inside(instance, update.policy, delta)
    assert (instance.margins(update.policy) >= -RESIDUAL * instance.scale).all()
    best = best_reward(instance, delta, constrained=True)
    assert abs(instance.reward(update.policy) - best) <= 1e-6 * instance.scale


@pytest.mark.parametrize("delta", [0.01, 0.1, 1.0, 100.0])
@pytest.mark.parametrize(("slack", "best"), [(0.0, 1 / 3), (0.1, 1 / 3 + 0.2), (1 / 3, 1.0)])
def test_constraints_may_leave_no_use_for_the_trust_region(delta, slack, best):
    """By hand: the second and the third action are to keep a share of 1/3 − slack each."""
    shares = np.array([[1.0, 0.0, -1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    advantages = np.repeat((shares - shares.mean(-1, keepdims=True))[:, None], STATES, axis=1)
    instance = Instance(
        policy=np.full((STATES, ACTIONS), 1 / 3),
        advantages=advantages,
        occupancy=np.full((4, STATES), 1 / STATES),
        values=np.zeros(4),
        thresholds=-np.r_[slack, slack, 1.0] / (1 - DISCOUNT),
    )
    update = run(_improve_within, instance, delta)
    assert update.met
    assert_inside(instance, update.policy, delta)
    assert (instance.margins(update.policy) >= -RESIDUAL * instance.scale).all()
    rest = (1 - best) / 2
    target = np.tile([best, rest, rest], (STATES, 1))
    if instance.kl(target) < delta:
        np.testing.assert_allclose(update.policy, target, atol=1e-6)


@constraints
@vanishing
@given(seed=seeds, share=st.sampled_from([0.9, 0.5, 0.01]))
@light
def test_constraints_outside_the_trust_region_are_reported(count, vanishing, seed, share):
    instance = random_instance(seed, count, vanishing=vanishing)
    instance = with_room(instance, seed, 0.1)
    least = least_distance(instance)
    assume(least > 1e-4)
    assert not run(_improve_within, instance, share * least).met


# --- recovery, exact


@constraints
@vanishing
@given(
    seed=seeds,
    ties=st.booleans(),
    room=st.sampled_from([-1.0, -0.1]),
    delta=st.sampled_from([1e-3, 0.03, 0.3, 10.0]),
)
@light
def test_recovery_equals_a_convex_solver(count, vanishing, seed, ties, room, delta):
    """Where no policy meets the constraints."""
    assume(not (vanishing and delta > 1))  # its logits would need more digits than there are
    instance = random_instance(seed, count, vanishing=vanishing, ties=ties)
    instance = with_room(instance, seed, room)
    assume(len(instance.violated))
    assert_recovery_is_best(instance, delta)


@constraints
@given(seed=seeds, share=st.sampled_from([0.9, 0.1, 1e-3]))
@light
def test_recovery_of_what_the_trust_region_keeps_out_of_reach(count, seed, share):
    instance = with_room(random_instance(seed, count), seed, 0.1)
    assume(len(instance.violated))
    least = least_distance(instance)
    assume(least > 1e-4)
    assert_recovery_is_best(instance, share * least)


@given(seed=seeds)
@light
def test_recovery_does_not_stop_at_the_threshold(seed):
    """The violated margin is as large as it can be, as it is where it is the only constraint."""
    instance = random_instance(seed, 3).missing([1e-3, -1.0, -1.0])
    assert_recovery_is_best(instance, 0.1)


def assert_recovery_is_best(instance, delta):
    update = run(_recover, instance, delta)
    assert_inside(instance, update.policy, delta)
    best = best_violated_margin(instance, delta)
    smallest = instance.margins(update.policy)[instance.violated].min()
    assert abs(smallest - best) <= 1e-6 * instance.scale


# --- Taylor


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


@given(
    seed=seeds,
    delta=st.sampled_from([1e-6, 1e-3, 0.1, 1.0]),
    violation=st.sampled_from([-10.0, -0.1, 0.0, 0.1, 10.0]),
)
@settings(light, max_examples=25)
def test_taylor_s_update_is_the_paper_s(seed, delta, violation):
    instance = taylor_instance(seed, 1).missing([violation])
    expansion = Expansion(instance)
    half, _, update = run(_improve_then_project, instance, delta, "taylor")
    assert update.met
    expected = expansion.policy(expansion.improvement(delta))
    np.testing.assert_allclose(half, expected, rtol=1e-8, atol=1e-10)
    expected = expansion.policy(expansion.update(delta))
    np.testing.assert_allclose(update.policy, expected, rtol=1e-7, atol=1e-9)


@given(seed=seeds, delta=st.sampled_from([1e-4, 0.01, 0.3]), size=st.sampled_from([0.01, 1.0]))
@light
def test_taylor_s_projection_onto_several_constraints_is_a_quadratic_program(seed, delta, size):
    instance = taylor_instance(seed, 3)
    instance = instance.missing(size * np.random.default_rng(seed).normal(size=3))
    expansion = Expansion(instance)
    _, c, update = run(_improve_then_project, instance, delta, "taylor")
    half, moved = displacement(instance, c), displacement(instance, update.coefficients)
    assert update.met
    assert (expansion.h @ moved >= expansion.b - RESIDUAL * instance.scale).all()
    x = cp.Variable(len(half))
    least = solve(cp.Minimize(expansion.quadratic(x - half)), [expansion.h @ x >= expansion.b])
    distance = (moved - half) @ expansion.H @ (moved - half)
    assert abs(distance - least) <= 1e-6 * max(1.0, least)


@constraints
@given(seed=seeds, extra=st.sampled_from([1e-4, 0.01, 1.0]), size=st.sampled_from([0.01, 1.0]))
@light
def test_taylor_s_cpo_step_is_a_quadratically_constrained_program(count, seed, extra, size):
    instance = taylor_instance(seed, count)
    instance = instance.missing(size * np.random.default_rng(seed).normal(size=count))
    expansion = Expansion(instance)
    x = cp.Variable(STATES * ACTIONS)
    kl, met = expansion.quadratic(x) / 2, [expansion.h @ x >= expansion.b]
    least = solve(cp.Minimize(kl), met)
    delta = 1.01 * max(least, 0.0) + extra
    update = run(_improve_within, instance, delta, "taylor")
    moved = displacement(instance, update.coefficients)
    best = solve(cp.Maximize(expansion.g @ x), [kl <= delta, *met])
    assert update.met
    assert (expansion.h @ moved >= expansion.b - RESIDUAL * instance.scale).all()
    assert moved @ expansion.H @ moved / 2 <= delta + RESIDUAL
    assert abs(expansion.g @ moved - best) <= 1e-6 * instance.scale
    if least > 1e-4:
        assert not run(_improve_within, instance, 0.9 * least, "taylor").met


@constraints
@given(seed=seeds, delta=st.sampled_from([1e-4, 0.01, 1.0]))
@light
def test_taylor_s_recovery_is_a_quadratically_constrained_program(count, seed, delta):
    instance = taylor_instance(seed, count)
    instance = instance.missing(1e4 + np.random.default_rng(seed).normal(size=count))
    expansion = Expansion(instance)
    moved = displacement(instance, run(_recover, instance, delta, "taylor").coefficients)
    x, lift = cp.Variable(STATES * ACTIONS), cp.Variable()
    missing = expansion.b - expansion.b.max()
    limits = [expansion.quadratic(x) / 2 <= delta, expansion.h @ x - missing >= lift]
    best = solve(cp.Maximize(lift), limits)
    assert moved @ expansion.H @ moved / 2 <= delta + RESIDUAL
    assert abs((expansion.h @ moved - missing).min() - best) <= 1e-6 * instance.scale


@pytest.mark.parametrize("step", ["exact", "taylor"])
@constraints
def test_a_constraint_that_nothing_moves_is_reported(step, count):
    instance = taylor_instance(0, count)
    advantages = instance.advantages * np.r_[1.0, np.zeros(count)][:, None, None]
    instance = dataclasses.replace(instance, advantages=advantages).missing(np.full(count, 0.1))
    _, _, update = run(_improve_then_project, instance, 0.01, step)
    within = run(_improve_within, instance, 0.01, step)
    assert not update.met
    assert not within.met
    for moved in (update, within, run(_recover, instance, 0.01, step)):
        assert_policy(moved.policy)


@pytest.mark.parametrize("step", ["exact", "taylor"])
def test_constraints_that_contradict_each_other_are_reported(step):
    instance = taylor_instance(0, 3)
    advantages, occupancy = instance.advantages.copy(), instance.occupancy.copy()
    advantages[2], occupancy[2] = -advantages[1], occupancy[1]
    instance = dataclasses.replace(instance, advantages=advantages, occupancy=occupancy)
    instance = instance.missing([0.1, 0.1, -1.0])
    _, _, update = run(_improve_then_project, instance, 0.01, step)
    within = run(_improve_within, instance, 0.01, step)
    assert not update.met
    assert not within.met
    for moved in (update, within, run(_recover, instance, 0.01, step)):
        assert_policy(moved.policy)
