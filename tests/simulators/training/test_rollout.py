"""Episodes by hand, advantages against a slow reference, frequencies against the table."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import holdfast as hf
from holdfast.environments.table_simulator import TableSimulator
from holdfast.simulators.environment import Box, Environment, GaussianNoise, Step
from holdfast.simulators.policy.networks import MLP, Critic, Normaliser, Policy
from holdfast.simulators.training.estimates import critic_inputs, episode_returns, estimate
from holdfast.simulators.training.rollout import (
    Nominal,
    Player,
    Sight,
    Signal,
    TwoWays,
    rollout,
)

HORIZON, EPISODES, CANDIDATES = 5, 12, 3
# At which count each kind of episode ends: in the middle, never, with the horizon.
ENDS = np.array([3, 99, HORIZON])


class Counter(Environment):
    """Counts its steps; the kind of an episode decides when it ends. Pays before it counts.

    Reward count + 1; costs 10·kind and 100 on the step that ends. `level` adds up the disturbance.
    """

    bad_kind: jax.Array
    bad_count: jax.Array

    name = "counter"
    horizon = HORIZON
    observation_size = 3
    feature_size = 3
    action_space = Box((-1.0,), (1.0,))
    disturbance = GaussianNoise(CANDIDATES, "state", (1.0,) * CANDIDATES)
    cost_names = ("kind", "end")

    def reset(self, key):
        kind = jax.random.randint(key, (), 0, 3)
        state = {"count": jnp.array(0), "kind": kind, "level": jnp.array(0.0)}
        return state, self.features(state)

    def step(self, state, action, disturbance):
        count, kind = state["count"] + 1, state["kind"]
        new = {"count": count, "kind": kind, "level": state["level"] + disturbance.sum()}
        bad = (kind == self.bad_kind) & (count == self.bad_count)
        terminated = count >= jnp.asarray(ENDS)[kind]
        reward = jnp.where(bad, jnp.nan, 1.0 * count + 0.0 * action[0])
        costs = jnp.stack([10.0 * kind, 100.0 * terminated])
        return Step(new, self.features(new), reward, costs, terminated)

    def features(self, state):
        return jnp.stack([1.0 * state["count"], 1.0 * state["kind"], state["level"]])


class Probe(eqx.Module):
    """Asks for the lookahead of fixed candidates and gives it back as the disturbance."""

    candidates: jax.Array

    def draw(self, key, situation):
        del key
        rows = len(situation.inputs)
        fixed = jnp.broadcast_to(self.candidates[:, None], (CANDIDATES, rows, CANDIDATES))
        return situation.lookahead(fixed).T


def affine_critic(weights, bias=0.0, mean=0.0, spread=1.0):
    network = MLP((jnp.asarray(weights, jnp.float32)[:, None],), (jnp.array([bias], jnp.float32),))
    returns = Normaliser(jnp.array([mean]), jnp.array([spread**2]), jnp.ones(()))
    return Critic(network, returns)


POLICY = Policy(MLP((0.1 * jnp.ones((3, 1)),), (jnp.zeros(1),)), jnp.zeros(1), Counter.action_space)
PLAIN = Sight(None, None, None, clock=True)
CRITIC = affine_critic([0.3, -0.2, 0.05, 0.7], bias=0.1, mean=2.0, spread=1.5)


@functools.partial(jax.jit, static_argnames="keep_states")
def played(env, kernel, index, discount, key, keep_states=False):
    player, how = Player(env, POLICY, PLAIN), signal(discount, 1.0, True, index)
    return rollout(
        player, kernel, key, EPISODES, critic=CRITIC, signal=how, keep_states=keep_states
    )


def counter(bad_kind=-1, bad_count=-1):
    return Counter(jnp.array(bad_kind), jnp.array(bad_count))


@pytest.fixture(scope="module")
def batch():
    return played(counter(), Nominal(CANDIDATES), 0, 0.9, jax.random.key(3), keep_states=True)


@pytest.fixture(scope="module")
def kinds(batch):
    found = np.asarray(batch.features[0, :, 1]).astype(int)
    assert set(found) == {0, 1, 2}
    return found


# --- the batch


def test_every_field_by_hand(batch, kinds):
    time = np.arange(HORIZON)[:, None]
    alive = time < ENDS[kinds]
    terminated = time + 1 == ENDS[kinds]
    np.testing.assert_array_equal(batch.alive, alive)
    np.testing.assert_array_equal(batch.terminated, terminated)
    expected = np.stack(
        [time + 1.0 + 0 * kinds, -10.0 * kinds + 0 * time, -100.0 * terminated], axis=-1
    )
    np.testing.assert_array_equal(batch.signals, expected * alive[..., None])
    level = np.cumsum(np.asarray(batch.disturbances).sum(-1), 0)
    level = np.concatenate([np.zeros((1, EPISODES)), level])
    counts = np.arange(HORIZON + 1)[:, None] + 0 * kinds
    features = np.stack([counts, kinds + 0 * counts, level], axis=-1)
    np.testing.assert_allclose(batch.features, features, atol=1e-5)
    np.testing.assert_allclose(batch.observations, features[:-1], atol=1e-5)
    np.testing.assert_array_equal(batch.states["count"], time + 0 * kinds)
    np.testing.assert_array_equal(batch.states["kind"], kinds + 0 * time)
    assert batch.actions.shape == (HORIZON, EPISODES, 1)
    assert batch.disturbances.shape == (HORIZON, EPISODES, CANDIDATES)
    assert batch.nature_features.shape == batch.log_nominal.shape == (HORIZON, EPISODES, 0)
    mean = 0.1 * features[:-1].sum(-1)
    noise = np.asarray(batch.actions)[..., 0] - mean
    assert abs(noise.mean()) <= 5 / np.sqrt(noise.size)
    assert abs(noise.std() - 1) <= 5 / np.sqrt(2 * noise.size)


def test_the_same_key_gives_the_same_batch(batch):
    again = played(counter(), Nominal(CANDIDATES), 0, 0.9, jax.random.key(3), keep_states=True)
    jax.tree.map(np.testing.assert_array_equal, batch, again)
    other = played(counter(), Nominal(CANDIDATES), 0, 0.9, jax.random.key(4), keep_states=True)
    assert not np.array_equal(batch.disturbances, other.disturbances)


def test_critics_see_the_clock_where_there_is_one(batch):
    inputs = np.asarray(critic_inputs(batch, PLAIN))
    np.testing.assert_array_equal(inputs[..., :-1], batch.features)
    clock = np.broadcast_to(np.arange(HORIZON + 1)[:, None] / HORIZON, inputs.shape[:-1])
    np.testing.assert_allclose(inputs[..., -1], clock, rtol=1e-6)
    blind = critic_inputs(batch, Sight(None, None, None, clock=False))
    assert (np.asarray(blind)[..., -1] == 0).all()


# --- returns and advantages


def signal(discount, gae, bootstrap, index=0, decay=0.6):
    numbers = map(jnp.asarray, (index, discount, gae, decay))
    return Signal(*numbers, bootstrap)


def reference(batch, values, paid, discount, gae, bootstrap):
    """Returns and advantages episode by episode, forwards, from their definitions."""
    alive, terminated = np.asarray(batch.alive), np.asarray(batch.terminated)
    returns, advantages = np.zeros(EPISODES), np.zeros((HORIZON, EPISODES))
    for e in range(EPISODES):
        length = int(alive[:, e].sum())
        ended = bool(terminated[length - 1, e])
        goes_on = bootstrap and not ended
        residuals = []
        for t in range(length):
            after = values[t + 1, e] if t + 1 < length or goes_on else 0.0
            residuals.append(paid[t, e] + discount * after - values[t, e])
        for t in range(length):
            advantages[t, e] = sum(
                (discount * gae) ** (k - t) * residuals[k] for k in range(t, length)
            )
        if bootstrap:
            returns[e] = sum(discount**t * paid[t, e] for t in range(length))
            returns[e] += discount**length * values[length, e] if goes_on else 0.0
        else:
            returns[e] = paid[:length, e].sum()
    return returns, advantages


compiled_estimate = jax.jit(estimate, static_argnames="of_nature")


@pytest.mark.parametrize("bootstrap", [True, False])
@pytest.mark.parametrize("gae", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("index", "decay"), [(0, 1.0), (1, 0.6), (2, 0.8)])
def test_estimates_equal_a_slow_reference(batch, bootstrap, gae, index, decay):
    discount = 0.8
    how = signal(discount, gae, bootstrap, index, decay)
    found = compiled_estimate(batch, CRITIC, PLAIN, how)
    inputs = np.asarray(critic_inputs(batch, PLAIN), float)
    values = 2.0 + 1.5 * (inputs @ [0.3, -0.2, 0.05, 0.7] + 0.1)
    paid = np.asarray(batch.signals, float)[..., index]
    returns, advantages = reference(batch, values, paid, discount, gae, bootstrap)
    np.testing.assert_allclose(found.advantages, advantages, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found.value, returns.mean(), rtol=1e-5)
    np.testing.assert_allclose(found.error, returns.std() / np.sqrt(EPISODES), rtol=0.1)
    alive = np.asarray(batch.alive)
    weights = decay ** np.arange(HORIZON)[:, None] * alive
    np.testing.assert_allclose(found.weights, weights, rtol=1e-6)
    targets = np.asarray(found.targets)
    np.testing.assert_allclose(targets[alive], (advantages + values[:-1])[alive], atol=2e-4)
    each = episode_returns(batch, how, jnp.asarray(values[-1], jnp.float32))
    np.testing.assert_allclose(each, returns, rtol=1e-5, atol=1e-5)


def test_with_no_critic_advantages_are_what_is_still_to_come(batch):
    zero = affine_critic(np.zeros(4))
    found = compiled_estimate(batch, zero, PLAIN, signal(0.7, 1.0, False))
    paid = np.asarray(batch.signals)[..., 0]
    to_come = np.zeros(EPISODES)
    for t in reversed(range(HORIZON)):
        to_come = paid[t] + 0.7 * to_come
        np.testing.assert_allclose(found.advantages[t], to_come, rtol=1e-5)


def test_a_disturbance_that_is_drawn_once_counts_with_the_whole_episode(batch):
    """Its advantages are those of λ = 1; where every step is disturbed they are the usual ones."""
    once = batch._replace(heard=jnp.zeros_like(batch.heard).at[0].set(True))
    usual, whole = signal(0.8, 0.5, True), signal(0.8, 1.0, True)
    of_nature = compiled_estimate(once, CRITIC, PLAIN, usual, of_nature=True)
    expected = compiled_estimate(batch, CRITIC, PLAIN, whole)
    np.testing.assert_allclose(of_nature.advantages, expected.advantages, rtol=1e-5, atol=1e-5)
    always = batch._replace(heard=jnp.ones_like(batch.heard))
    found = compiled_estimate(always, CRITIC, PLAIN, usual, of_nature=True)
    expected = compiled_estimate(batch, CRITIC, PLAIN, usual)
    np.testing.assert_allclose(found.advantages, expected.advantages, rtol=1e-6)


# --- what is not finite


def test_the_first_bad_step_of_a_live_episode_is_found(batch, kinds):
    assert batch.first_bad_step() == -1
    for kind, count in [(0, 1), (1, 4), (2, 5)]:
        env = counter(kind, count)
        found = played(env, Nominal(CANDIDATES), 0, 0.9, jax.random.key(3), keep_states=True)
        assert found.first_bad_step() == count - 1
    broken = batch._replace(features=batch.features.at[4, 1].set(jnp.inf))
    assert broken.first_bad_step() == (3 if ENDS[kinds[1]] > 3 else -1)


def test_nothing_after_the_end_counts():
    """An environment need not know what to pay once it is over."""
    env = counter(0, 4)
    found = played(env, Nominal(CANDIDATES), 0, 0.9, jax.random.key(3), keep_states=True)
    assert found.first_bad_step() == -1
    assert (np.asarray(found.signals)[~np.asarray(found.alive)] == 0).all()
    seen = compiled_estimate(found, CRITIC, PLAIN, signal(0.8, 0.5, True))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(seen))


def test_features_after_the_end_do_not_reach_advantages(batch):
    over = np.concatenate([np.zeros((1, EPISODES), bool), ~np.asarray(batch.alive)])
    over[1:] |= np.asarray(batch.terminated)
    broken = batch._replace(features=jnp.where(over[..., None], jnp.nan, batch.features))
    how = signal(0.8, 0.5, True)
    good = compiled_estimate(batch, CRITIC, PLAIN, how)
    found = compiled_estimate(broken, CRITIC, PLAIN, how)
    np.testing.assert_array_equal(found.advantages, good.advantages)
    np.testing.assert_array_equal(found.value, good.value)


# --- the lookahead of a kernel


@pytest.mark.parametrize("index", [0, 1, 2])
def test_lookahead_is_what_the_step_pays_and_what_comes_after(index):
    candidates = np.array([[0.0, 0.0, 0.0], [1.0, 0.5, 0.0], [-2.0, 0.0, 1.0]])
    probe = Probe(jnp.asarray(candidates, jnp.float32))
    found = played(counter(), probe, index, 0.8, jax.random.key(3), keep_states=True)
    state = jax.tree.map(np.asarray, found.states)
    count, kind = state["count"] + 1, state["kind"]
    terminated = count >= ENDS[kind]
    paid = np.stack([1.0 * count, -10.0 * kind, -100.0 * terminated])[index]
    for c, candidate in enumerate(candidates):
        level = state["level"] + candidate.sum()
        inputs = np.stack([count, kind, level, count / HORIZON], axis=-1)
        values = 2.0 + 1.5 * (inputs @ [0.3, -0.2, 0.05, 0.7] + 0.1)
        expected = paid + 0.8 * values * ~terminated
        # What the horizon does to the last step depends on the signal.
        np.testing.assert_allclose(found.disturbances[:-1, :, c], expected[:-1], rtol=1e-4)


# --- drawn and most likely actions side by side


@pytest.mark.parametrize(("count", "most_copies"), [((5, 2), None), ((5, 2), 2), ((6, 4), None)])
def test_most_likely_actions_are_played_beside_drawn_ones(count, most_copies):
    """Also in four rounds, the last one not full, and in two groups of three and two."""
    ways = TwoWays.on_devices(*count)
    env = counter()
    if most_copies:
        env = type("Few", (Counter,), {"most_copies": most_copies})(env.bad_kind, env.bad_count)
    player = Player(env, POLICY, PLAIN, ways.deterministic)
    play = jax.jit(lambda key: rollout(player, Nominal(CANDIDATES), key, sum(ways)))
    batch = play(jax.random.key(0))
    drawn, likely = ways.separated(batch)
    assert (drawn.alive.shape, likely.alive.shape) == ((HORIZON, count[0]), (HORIZON, count[1]))
    for part, same in ((drawn, False), (likely, True)):
        modes = POLICY.distribution(part.observations).mode()
        close = np.isclose(part.actions, modes, atol=1e-6)
        assert close.all() if same else not close.any()
    order = np.argsort(np.asarray(ways.deterministic), kind="stable")
    joined = jax.tree.map(lambda a, b: np.concatenate([a, b], 1), drawn, likely)
    np.testing.assert_array_equal(joined.disturbances, batch.disturbances[:, order])


# --- a table


@pytest.mark.parametrize("disturbance", ["outcome", "gaussian"])
def test_states_come_as_often_as_the_table_says(disturbance):
    model = hf.environments.n_chain(nodes=5)
    env = TableSimulator(model, horizon=6, disturbance=disturbance)
    logits = np.random.default_rng(0).normal(size=(5, 2))
    policy = Policy(
        MLP((jnp.asarray(logits, jnp.float32),), (jnp.zeros(2),)), None, env.action_space
    )
    episodes = 8_000
    player = Player(env, policy, PLAIN)
    play = jax.jit(lambda key: rollout(player, Nominal.create(env), key, episodes))
    batch = play(jax.random.key(0))
    kernel = model.transitions.dense()
    chances = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    chain = np.einsum("sa,sap->sp", chances, kernel)
    exact = np.asarray(model.initial)
    reward = 0.0
    for t in range(7):
        frequency = np.asarray(batch.features[t]).mean(0)
        assert (np.abs(frequency - exact) <= 5 * np.sqrt(exact * (1 - exact) / episodes)).all()
        reward += (exact @ (chances * model.reward).sum(-1)) * (t < 6)
        exact = exact @ chain
    paid = np.asarray(batch.signals)[..., 0].sum(0)
    assert abs(paid.mean() - reward) <= 5 * paid.std() / np.sqrt(episodes)
    utility = np.asarray(batch.signals)[..., 1]
    np.testing.assert_array_equal(utility, 2.0 * np.asarray(batch.actions))
