"""A policy with a memory: what it sees, what it can learn by it, and the same inside and outside JAX."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import holdfast as hf
from holdfast.environments import Discrete, Environment, GaussianNoise, PointGather, Step
from holdfast.simulators.policy.memory import Remembering
from holdfast.simulators.training.rollout import Nominal, Player, Sight, rollout

HORIZON, MEMORY = 4, 2


class HiddenBit(Environment):
    """Pays 1 for the action that equals a bit drawn at the start; shows only whether the last one paid.

    Without a memory every policy has HORIZON/2. With one, all but the first step can be paid.
    """

    name = "hidden-bit"
    horizon = HORIZON
    observation_size = 1
    feature_size = 1
    action_space = Discrete(2)
    disturbance = GaussianNoise(1, "none", (0.0,))
    cost_names = ()
    discount = 0.9
    unused: jax.Array = eqx.field(default_factory=lambda: jnp.zeros(()))

    def reset(self, key):
        return jax.random.bernoulli(key).astype(jnp.int32), jnp.zeros(1)

    def step(self, state, action, disturbance):
        paid = (action == state).astype(jnp.float32)
        return Step(state, 2 * paid[None] - 1, paid, jnp.zeros(0), jnp.zeros((), bool))

    def features(self, state):
        return state[None].astype(jnp.float32)


@pytest.fixture(scope="module")
def trained():
    settings = {"iterations": 30, "batch_size": 1_000, "trust_region": 0.1, "hidden": (16,)}
    return hf.train(HiddenBit(), "trpo", memory=MEMORY, **settings)


def test_a_memory_finds_what_a_policy_without_one_cannot_know(trained):
    found = trained.evaluate(episodes=2_000)
    assert found.reward.mean > HORIZON - 0.75 > HORIZON / 2
    assert found.drawn.reward.mean > HORIZON / 2 + 0.5


def test_predict_remembers_as_the_simulator_does(trained):
    env = Remembering(HiddenBit(), MEMORY)
    policy, observations = jax.tree.map(jnp.asarray, (trained.policy, trained.observations))
    sight = Sight(observations, None, None, clock=True)
    player = Player(env, policy, sight, deterministic=True)
    batch = rollout(player, Nominal.create(env), jax.random.PRNGKey(5), 8)
    pair = 1 + 2
    for episode in range(8):
        trained.reset()
        for t in range(HORIZON):
            seen = np.asarray(batch.observations[t, episode])
            assert seen.shape == (1 + MEMORY * pair,)
            action = trained.predict(seen[:1])
            assert action == batch.actions[t, episode]
            # An observation with its past is used as it is, and not remembered.
            assert trained.predict(seen) == action
    # Two pairs back: the observation and the action of two steps before.
    late = np.asarray(batch.observations[3])
    np.testing.assert_array_equal(late[:, 1 + pair], batch.observations[1, :, 0])
    np.testing.assert_array_equal(late[:, 2 + pair :].argmax(-1), batch.actions[1])
    assert (np.asarray(batch.observations[0])[:, 1:] == 0).all()


def test_rows_are_remembered_together_until_reset(trained):
    trained.reset()
    trained.predict(np.zeros((3, 1)))
    with pytest.raises(
        ValueError, match=r"observation: expected rows \(3,\) as before, got \(2,\)"
    ):
        trained.predict(np.zeros((2, 1)))
    trained.reset()
    assert trained.predict(np.zeros((2, 1))).shape == (2,)
    trained.reset()


def test_files_know_the_memory(trained, tmp_path):
    trained.save(tmp_path / "agent.safetensors")
    again = hf.load(tmp_path / "agent.safetensors", environment=HiddenBit())
    for one in (trained, again):
        one.reset()
    assert again.settings.memory == MEMORY
    for observation in ([0.0], [1.0], [-1.0]):
        assert again.predict(observation) == trained.predict(observation)


def test_an_exported_graph_takes_the_past_as_input(trained, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    trained.to_onnx(tmp_path / "policy.onnx")
    session = runtime.InferenceSession(tmp_path / "policy.onnx")
    rows = np.random.default_rng(0).normal(size=(5, 1 + 3 * MEMORY)).astype(np.float32)
    (actions,) = session.run(None, {"observation": rows})
    np.testing.assert_array_equal(actions, trained.predict(rows))
    assert session.get_modelmeta().custom_metadata_map["memory"] == str(MEMORY)


def test_vector_actions_are_remembered_clipped_and_scaled():
    env = Remembering(PointGather(), 1)
    assert env.observation_size == 29 + 29 + 2
    state, first = env.reset(jax.random.PRNGKey(0))
    there = env.step(state, jnp.array([0.5, -3.0]), jnp.zeros(3))
    np.testing.assert_array_equal(there.observation[29:58], first[:29])
    np.testing.assert_allclose(there.observation[58:], [0.5, -1.0])
    np.testing.assert_array_equal(
        env.features(there.state), PointGather().features(there.state.inner)
    )


def test_a_negative_memory_is_refused():
    with pytest.raises(ValueError, match="memory: expected a whole number of at least 0, got -1"):
        hf.train(HiddenBit(), "trpo", memory=-1)
