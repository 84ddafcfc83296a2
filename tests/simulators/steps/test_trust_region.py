"""The policy's step: against dense linear algebra, against exact values of a table, and its refusals."""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from jax.flatten_util import ravel_pytree

import holdfast as hf
from holdfast._support.devices import row
from holdfast.environments.table_simulator import TableSimulator
from holdfast.simulators.environment import Box, Discrete
from holdfast.simulators.policy.networks import MLP, Policy
from holdfast.simulators.steps.local_model import LocalModel, PolicyStep
from holdfast.simulators.steps.trust_region import (
    Linearisation,
    conjugate_gradients,
    divergence,
    evidence,
    fisher_product,
    in_rows,
    line_search,
    linearise,
    surrogate,
)
from holdfast.simulators.training.learner import first_learners, sample
from holdfast.simulators.training.settings import Plan, Settings, cost_limits

TIME, EPISODES, INPUTS = 3, 8, 2
SPACES = {"box": Box((-1.0, -2.0), (1.0, 2.0)), "discrete": Discrete(3)}


def tiny_policy(space, seed=0):
    """One in double precision, away from its starting point."""
    policy = Policy.create(jax.random.key(seed), INPUTS, (3,), space)
    flat, unravel = ravel_pytree(policy)
    rng = np.random.default_rng(seed)
    return unravel(jnp.asarray(flat + 0.5 * rng.normal(size=flat.shape), flat.dtype))


def situation(seed=0):
    rng = np.random.default_rng(seed)
    weights = rng.random((TIME, EPISODES)) * (rng.random((TIME, EPISODES)) < 0.8)
    return rng.normal(size=(TIME, EPISODES, INPUTS)), weights


# --- curvature


@pytest.mark.parametrize("kind", SPACES)
def test_fisher_product_is_the_hessian_of_the_divergence(kind):
    with jax.enable_x64(True):
        policy = tiny_policy(SPACES[kind])
        inputs, weights = situation()
        flat, unravel = ravel_pytree(policy)

        @jax.jit
        def both(flat):
            old = unravel(flat)
            at = old.distribution(inputs)
            hessian = jax.hessian(lambda v: divergence(unravel(v), at, inputs, weights))(flat)
            products = [fisher_product(old, inputs, weights, damping) for damping in (0.0, 0.5)]
            return hessian, *(jax.vmap(product)(jnp.eye(len(flat))) for product in products)

        hessian, undamped, damped = map(np.asarray, both(flat))
    np.testing.assert_allclose(undamped, hessian, atol=1e-10)
    assert np.abs(hessian).max() > 0.1
    # Damping is in units of the diagonal's mean, which is estimated.
    added = damped - undamped
    size = added[0, 0]
    np.testing.assert_allclose(added, size * np.eye(len(hessian)), atol=1e-10)
    assert 0.25 <= size / (0.5 * np.diag(hessian).mean()) <= 4


@pytest.mark.parametrize("kind", ["discrete"])
def test_products_side_by_side_are_those_one_by_one(kind):
    """At the size of a real batch, where jaxlib 0.10.2 on a CPU can be wrong (jax issue 39103)."""
    policy, shape = tiny_policy(SPACES[kind]), (5, 6_000)
    rng = np.random.default_rng(0)
    inputs = jnp.asarray(rng.normal(size=(*shape, INPUTS)), jnp.float32)
    weights = jnp.asarray(rng.random(shape), jnp.float32)
    right = jnp.asarray(rng.normal(size=(3, ravel_pytree(policy)[0].size)), jnp.float32)

    @jax.jit
    def solutions(right):
        return conjugate_gradients(fisher_product(policy, inputs, weights, 0.1), right, 20)

    together = solutions(right)
    for i in range(3):
        np.testing.assert_allclose(
            together[i], solutions(right[i : i + 1])[0], rtol=0.01, atol=0.01
        )


@pytest.mark.parametrize("seed", range(10))
def test_conjugate_gradients_solve(seed):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(8, 8))
    matrix = root @ root.T + 0.5 * np.eye(8)
    right = rng.normal(size=(3, 8)) * 10.0 ** rng.uniform(-3, 3, (3, 1))
    right[2] = 0
    found = np.asarray(solved(matrix, right))
    exact = np.linalg.solve(matrix, right.T).T
    error = np.linalg.norm(found - exact, axis=1)
    assert (error <= 1e-3 * np.linalg.norm(exact, axis=1)).all()
    assert (found[2] == 0).all()


def test_conjugate_gradients_rest_without_curvature():
    """Rounding makes small curvatures zero or negative; the step so far is kept, and stays finite."""
    right = np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]])
    found = np.asarray(solved(np.diag([2.0, 0, -1]), right))
    np.testing.assert_allclose(found, [[0.5, 0, 0], [0, 0, 0], [0, 0, 0]])


@jax.jit
def solved(matrix, right):
    return conjugate_gradients(lambda v: matrix @ v, right, 30)


# --- first order


@pytest.mark.parametrize("kind", SPACES)
def test_gradient_of_the_surrogate_equals_finite_differences(kind):
    with jax.enable_x64(True):
        policy, (inputs, weights) = tiny_policy(SPACES[kind]), situation()
        rng = np.random.default_rng(1)
        actions = rng.normal(size=(TIME, EPISODES, 2))
        if kind == "discrete":
            actions = rng.integers(0, 3, (TIME, EPISODES))
        advantages = rng.normal(size=weights.shape)
        seen = evidence(policy, in_rows(inputs), in_rows(actions), advantages, weights)
        flat, unravel = ravel_pytree(policy)
        value = jax.jit(jax.value_and_grad(lambda v: surrogate(unravel(v), seen)))
        at, slope = value(flat)
        # Centred advantages: nothing is gained where the policy stands.
        assert abs(at) < 1e-12
        for _ in range(3):
            step = 1e-6 * rng.normal(size=flat.shape)
            change = value(flat + step)[0] - value(flat - step)[0]
            np.testing.assert_allclose(2 * slope @ step, change, rtol=1e-6, atol=1e-14)


def exact_value(model, logits, signal, horizon, discount):
    """Σ discount^t·E[signal], over so many steps, of a softmax policy."""
    policy = scipy.special.softmax(logits, axis=-1)
    chain = np.einsum("sa,sap->sp", policy, model.transitions)
    state, total = np.asarray(model.initial), 0.0
    for t in range(horizon):
        total += discount**t * state @ (policy * signal).sum(-1)
        state = state @ chain
    return total


@functools.partial(jax.jit, static_argnums=0)
def linearised(plan, env, learner):
    learner, samples = sample(plan, env, learner)
    return linearise(plan, learner, samples).model, samples.estimates


@pytest.mark.parametrize("limit_on", ["discounted", "episode"])
def test_gains_are_the_true_changes_in_the_unit_of_the_limit(oracle, limit_on):
    """Gradient, margin and limit in one unit, whatever that is: the second constraint's is 50."""
    discount, horizon, episodes = 0.7, 20 if limit_on == "discounted" else 5, 12_000
    rng = np.random.default_rng(0)
    utility, cost = rng.random((4, 2)), 50 * rng.random((4, 2))
    model = hf.RobustCMDP(
        transitions=rng.dirichlet(np.full(4, 0.5), (4, 2)),
        reward=7 * rng.random((4, 2)),
        constraints=[hf.at_least(utility, 1.5), hf.at_most(cost, 90.0)],
        initial=rng.dirichlet(np.ones(4)),
        discount=discount,
        uncertainty=hf.KL(0.1),
    )
    env = TableSimulator(model, horizon=horizon)
    settings = Settings(
        limit_on=limit_on,
        weighting="discounted",
        batch_size=episodes * horizon,
        damping=1e-3,
        limit_gain=0.0,  # the limit itself, which inner limits do not start at
    )
    plan = Plan.create(env, settings, robust=False, constrained=True)
    logits = rng.normal(size=(4, 2))
    network = MLP((jnp.asarray(logits, jnp.float32),), (jnp.zeros(2),))
    learner = row(first_learners(plan, env, settings, cost_limits(env, settings), [0]), 0)
    learner = eqx.tree_at(lambda x: x.policy.network, learner, network)
    signals = [model.reward, utility, -cost]
    if limit_on == "discounted":
        # The right critics, so that the cut is no cut; where the horizon ends it λ = 1 has to do.
        chances = scipy.special.softmax(logits, axis=-1)
        values = [oracle.values_under(model, model.transitions, s, chances) for s in signals]
        weights = jnp.asarray(np.pad(values, ((0, 0), (0, 1))), jnp.float32)[..., None]
        critics = MLP((weights,), (jnp.zeros((3, 1)),))
        learner = eqx.tree_at(lambda x: x.natures.critic.network, learner, critics)
    else:
        assert plan.discounts == (discount, 1.0, 1.0)
    found, estimates = linearised(plan, env, learner)

    def true(logits):
        steps = 200 if limit_on == "discounted" else horizon
        each = zip(signals, plan.discounts, strict=True)
        return np.array([exact_value(model, logits, s, steps, gamma) for s, gamma in each])

    now = true(logits)[1:]
    error = np.asarray(estimates.error[1:])
    assert (np.abs(estimates.value[1:] - now) <= 5 * error).all()
    assert (np.abs(found.needed - (np.array([1.5, -90.0]) - now)) <= 5 * error).all()
    _, unravel = ravel_pytree(learner.policy)
    for c in jnp.eye(3):
        moved = unravel(found.step(c)).network
        direction = np.asarray(moved.weights[0], float) + np.asarray(moved.biases[0], float)
        small = 1e-4 / np.abs(direction).max()
        change = (true(logits + small * direction) - true(logits - small * direction)) / 2 / small
        # In units of the most that a step of this length can gain.
        most = np.sqrt(np.diag(found.gram) * (c @ found.gram @ c))
        assert (np.abs(found.gains(c) - change) <= 0.1 * most).all()


@functools.partial(jax.jit, static_argnums=0)
def linearised_apart(plan, env, learner):
    """The linearisation where the cost's batch stays in one state, the gradient, and H times d."""
    learner, samples = sample(plan, env, learner)
    seen = samples.batches.observations
    seen = seen.at[1].set(jnp.zeros_like(seen[1]).at[..., 2].set(1.0))
    samples = samples._replace(batches=samples.batches._replace(observations=seen))
    local = linearise(plan, learner, samples)
    both = plan.settings.trust_region_on == "all"
    of = local.evidence if both else local.evidence[:1]
    part = len(of[0].inputs) // len(of)
    rows = jnp.concatenate([each.inputs[:part] for each in of])
    share = jnp.concatenate([each.weights[:part] / each.weights[:part].sum() for each in of])
    # `linearise` takes a share of every batch: all of one, or half of each of two.
    product = fisher_product(learner.policy, rows, share, plan.settings.damping)
    gradient = ravel_pytree(jax.grad(surrogate)(learner.policy, local.evidence[0]))[0]
    return local, gradient, product(local.model.directions[0])


@pytest.mark.parametrize("kernels", ["reward", "all"])
def test_curvature_comes_from_the_batches_that_count(oracle, kernels):
    """H is the Fisher matrix of the reward's batch, or the mean of those of all batches."""
    env = TableSimulator(oracle.random_model(5, states=4, actions=2, radius=0.3), horizon=5)
    settings = Settings(
        radius=0.3,
        limit_on="discounted",
        trust_region_on=kernels,
        batch_size=400,
        fisher_share=1.0,
        cg_steps=60,
        damping=0.1,
    )
    plan = Plan.create(env, settings, robust=True, constrained=True)
    learner = row(first_learners(plan, env, settings, cost_limits(env, settings), [0]), 0)
    local, gradient, again = linearised_apart(plan, env, learner)
    assert len(local.visited) == {"reward": 1, "all": 2}[kernels]
    np.testing.assert_allclose(again, gradient, atol=1e-3 * np.abs(gradient).max())


@functools.partial(jax.jit, static_argnums=0)
def with_gradients(plan, env, learner):
    learner, samples = sample(plan, env, learner)
    local, batch = linearise(plan, learner, samples), row(samples.batches, 0)
    gradients = [jax.grad(surrogate)(learner.policy, each) for each in local.evidence]
    chances = divergence(
        eqx.tree_at(lambda p: p.network.biases, learner.policy, (jnp.array([0.3, 0.0]),)),
        learner.policy.distribution(local.evidence[0].inputs),
        local.evidence[0].inputs,
        local.evidence[0].weights,
    )
    return local.model, [g.network.weights[0] for g in gradients], chances, batch


@pytest.mark.parametrize("weighting", ["steps", "discounted"])
@pytest.mark.parametrize("limit_on", ["discounted", "episode"])
def test_weights_of_steps_by_hand(limit_on, weighting):
    """g, h, the KL divergence and the Fisher matrix of a table, written out in NumPy."""
    discount, horizon, episodes, states = 0.6, 9, 40, 4
    rng = np.random.default_rng(0)
    model = hf.RobustCMDP(
        transitions=rng.dirichlet(np.full(states, 0.5), (states, 2)),
        reward=rng.random((states, 2)),
        constraints=[hf.at_most(rng.random((states, 2)), 1.0)],
        initial=rng.dirichlet(np.ones(states)),
        discount=discount,
        uncertainty=hf.KL(0.1),
    )
    env = TableSimulator(model, horizon=horizon)
    settings = Settings(
        limit_on=limit_on,
        weighting=weighting,
        batch_size=episodes * horizon,
        damping=1e-6,
        fisher_share=1.0,
        cg_steps=40,
        reward_gae=1.0,
        cost_gae=1.0,
    )
    plan = Plan.create(env, settings, robust=False, constrained=True)
    learner = row(first_learners(plan, env, settings, cost_limits(env, settings), [0]), 0)
    logits = rng.normal(size=(states, 2))
    network = MLP((jnp.asarray(logits, jnp.float32),), (jnp.zeros(2),))
    learner = eqx.tree_at(lambda x: x.policy.network, learner, network)
    # Critics that say zero: with λ = 1 an advantage is the discounted sum of what is still paid.
    critics = jax.tree.map(jnp.zeros_like, learner.natures.critic.network)
    learner = eqx.tree_at(lambda x: x.natures.critic.network, learner, critics)
    found, gradients, moved, batch = with_gradients(plan, env, learner)

    chances = scipy.special.softmax(logits, axis=-1)
    state = np.asarray(batch.observations).argmax(-1)
    taken = np.eye(2)[np.asarray(batch.actions)]
    time = np.arange(horizon)[:, None]
    of_limit = 1.0 if limit_on == "episode" else discount
    decays = (1.0 if weighting == "steps" else discount, of_limit)
    expected = []
    for i, (decay, gamma) in enumerate(zip(decays, (discount, of_limit), strict=True)):
        paid, weights = np.asarray(batch.signals, float)[..., i], decay**time * np.ones(episodes)
        advantages = np.array([(gamma ** (time - t) * paid)[t:].sum(0) for t in range(horizon)])
        advantages -= (weights * advantages).sum() / weights.sum()
        scores = (weights * advantages)[..., None] * (taken - chances[state])
        expected.append([scores[state == s].sum(0) / episodes for s in range(states)])
        np.testing.assert_allclose(gradients[i], expected[i], rtol=1e-3, atol=1e-4)

    weights = decays[0] ** time * np.ones(episodes)
    share = np.array([weights[state == s].sum() for s in range(states)]) / weights.sum()
    other = scipy.special.softmax(logits + np.array([0.3, 0.0]), axis=-1)
    np.testing.assert_allclose(moved, share @ (other * np.log(other / chances)).sum(1), rtol=1e-3)
    # In the eight weights and two biases H = Σ_s share(s)·J_sᵀ(diag π − ππᵀ)J_s.
    fisher = np.zeros((2 * states + 2, 2 * states + 2))
    for s in range(states):
        jacobian = np.hstack([np.kron(np.eye(states)[s], np.eye(2)), np.eye(2)])
        metric = np.diag(chances[s]) - np.outer(chances[s], chances[s])
        fisher += share[s] * jacobian.T @ metric @ jacobian
    full = [np.append(np.ravel(each), np.sum(each, axis=0)) for each in expected]
    gram = full @ np.linalg.pinv(fisher, rcond=1e-8) @ np.transpose(full)
    np.testing.assert_allclose(found.gram, gram, rtol=0.02, atol=0.02 * np.abs(gram).max())


# --- line search

SEARCH = Settings(line_search_decay=0.5, line_search_tries=6).static
DECAY, TRIES = SEARCH.line_search_decay, SEARCH.line_search_tries


def batches():
    """A Gaussian policy of no inputs but a constant; what it gains is known for every mean."""
    policy = Policy(MLP((jnp.zeros((1, 1)),), (jnp.zeros(1),)), jnp.zeros(1), Box((-1.0,), (1.0,)))
    rng = np.random.default_rng(0)
    shape = (4, 50)
    inputs, weights = np.ones((*shape, 1), np.float32), np.ones(shape, np.float32)
    found = []
    for sign in (1.0, -1.0):
        actions = rng.normal(size=(*shape, 1)).astype(np.float32)
        advantages = sign * actions[..., 0]
        found.append(evidence(policy, in_rows(inputs), in_rows(actions), advantages, weights))
    return policy, tuple(found)


POLICY, BATCHES = batches()


class Landing(NamedTuple):
    """The result of a line search, with the surrogate gains of its policy."""

    policy: Policy
    accepted: jax.Array
    backtracks: jax.Array
    kl: jax.Array
    gains: jax.Array


@functools.partial(jax.jit, static_argnums=3)
def searched(step, needed, delta, factors=(1.0,)):
    """The line search along a step that is the first direction of its local model.

    The divergence is measured on copies of the batch with inputs multiplied by these factors.
    """
    visited = tuple(BATCHES[0]._replace(inputs=each * BATCHES[0].inputs) for each in factors)
    directions = jnp.stack([step, jnp.zeros_like(step)])
    model = LocalModel(jnp.eye(2), needed, delta, directions)
    coefficients = PolicyStep(jnp.array([1.0, 0.0]), jnp.array(True), jnp.array(False))
    local = Linearisation(model, BATCHES, visited, jnp.array(True))
    policy, update = line_search(POLICY, local, coefficients, SEARCH)
    gains = jnp.stack([surrogate(policy, each) for each in BATCHES])
    return Landing(policy, update["accepted"], update["backtracks"], update["kl"], gains)


def search(step, needed=-1e9, delta=1e9):
    """A step is (weight, bias, log_std); a positive need makes it a recovery."""
    step = jnp.asarray(step, jnp.float32)
    return searched(step, jnp.array([needed], jnp.float32), jnp.float32(delta))


def looked_at(step):
    """KL and surrogate gains of a step, from the formulas of the normal distribution."""
    mean, log_std = step[0] + step[1], step[2]
    kl = 0.5 * (np.exp(2 * log_std) - 1 - 2 * log_std + mean**2)
    gains = []
    for each in BATCHES:
        a = np.asarray(each.actions, float)[..., 0]
        logs = -0.5 * ((a - mean) * np.exp(-log_std)) ** 2 - log_std + 0.5 * a**2
        gains.append((np.asarray(each.weights) * np.exp(logs) * np.asarray(each.advantages)).sum())
    return kl, gains


def test_a_good_step_is_taken_whole():
    landing = search([0.05, 0.05, 0.02])
    assert landing.accepted
    assert landing.backtracks == 0
    kl, gains = looked_at([0.05, 0.05, 0.02])
    np.testing.assert_allclose(landing.kl, kl, rtol=1e-3)
    np.testing.assert_allclose(landing.gains, gains, rtol=1e-3)
    np.testing.assert_allclose(landing.policy.network.weights[0], [[0.05]], rtol=1e-6)
    np.testing.assert_allclose(landing.policy.network.biases[0], [0.05], rtol=1e-6)
    np.testing.assert_allclose(landing.policy.log_std, [0.02], rtol=1e-6)


def test_it_shortens_by_the_decay_until_the_trust_region_holds():
    # KL is ½·mean², and the mean 0.8·½^k.
    landing = search([0.8, 0.0, 0.0], delta=0.5 * 0.21**2)
    assert landing.accepted
    assert landing.backtracks == 2
    np.testing.assert_allclose(landing.policy.network.weights[0], [[0.2]], rtol=1e-6)
    np.testing.assert_allclose(landing.kl, 0.02, rtol=1e-4)


def test_the_trust_region_holds_in_the_states_of_every_batch_that_counts():
    # The mean is 0.8·½^k·factor; the largest factor decides, wherever it stands.
    for factors in ((1.0, 2.0), (2.0, 0.5)):
        landing = searched(
            jnp.array([0.8, 0.0, 0.0]), jnp.array([-1e9]), jnp.float32(0.5 * 0.21**2), factors
        )
        assert landing.accepted
        assert landing.backtracks == 3
        np.testing.assert_allclose(landing.policy.network.weights[0], [[0.1]], rtol=1e-6)
        np.testing.assert_allclose(landing.kl, 0.02, rtol=1e-4)


@pytest.mark.parametrize(
    "bad",
    [
        {"step": [1.0, 0.0, 0.0], "delta": 1e-12},
        {"step": [-0.1, 0.0, 0.0]},
        {"step": [0.1, 0.0, 0.0], "needed": 0.0},
        {"step": [0.1, 0.0, 0.0], "needed": 1.0},
        {"step": [np.nan, 0.0, 0.0], "needed": 1.0},
        {"step": [0.0, 0.0, 0.0]},
    ],
)
def test_where_nothing_passes_the_policy_stays(bad):
    landing = search(**bad)
    assert not landing.accepted
    assert landing.kl == 0
    np.testing.assert_allclose(landing.gains, looked_at([0.0, 0.0, 0.0])[1], atol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, landing.policy, POLICY)


def test_reward_may_be_lost_only_to_recover():
    loss = [-0.1, 0.0, 0.0]
    assert looked_at(loss)[1][0] < 0 < looked_at(loss)[1][1]
    assert not search(loss, needed=0.0).accepted
    assert search(loss, needed=0.05).accepted


def test_room_that_a_constraint_has_is_used_but_not_more():
    gain = [0.4, 0.0, 0.0]
    cost = -looked_at(gain)[1][1]
    assert cost > 0
    landing = search(gain, needed=-0.6 * cost)
    assert landing.accepted
    assert landing.backtracks == 1
    assert landing.gains[1] >= -0.6 * cost


@pytest.mark.parametrize("seed", range(30))
def test_the_first_try_that_passes_is_taken(seed):
    rng = np.random.default_rng(seed)
    step = rng.normal(size=3) * [1.0, 1.0, 0.3]
    needed, delta = rng.normal() * 0.2, 10.0 ** rng.uniform(-4, 0)
    landing = search(step, needed, delta)
    passes = []
    for k in range(TRIES):
        kl, (reward, utility) = looked_at(DECAY**k * step)
        passes.append(kl <= delta and utility >= min(needed, 0) and (needed > 0 or reward > 0))
    assert landing.accepted == any(passes)
    taken = passes.index(True) if any(passes) else TRIES - 1
    assert landing.backtracks == taken
    assert landing.kl <= delta
    moved = ravel_pytree(landing.policy)[0] - ravel_pytree(POLICY)[0]
    np.testing.assert_allclose(moved, any(passes) * DECAY**taken * step, rtol=1e-5)
