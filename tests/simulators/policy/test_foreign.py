"""Policies of other libraries: the same actions, and one sentence where they do not fit."""

import numpy as np
import pytest

import holdfast as hf
from holdfast.environments import PointGather

torch = pytest.importorskip("torch")
sb3 = pytest.importorskip("stable_baselines3")
pytestmark = pytest.mark.filterwarnings("ignore")  # of Stable-Baselines3 and its pickles


def spins(step):
    return abs(step.next_observation[2]) > 4


@pytest.fixture(scope="module")
def pendulum():
    return hf.disturb("Pendulum-v1", hf.Actions(0.2), spins, horizon=20)


@pytest.fixture(scope="module")
def gather():
    return PointGather()


def model(kind, env="Pendulum-v1", **options):
    torch.manual_seed(0)
    network = {"policy_kwargs": {"net_arch": [8]}, "device": "cpu"}
    return getattr(sb3, kind)("MlpPolicy", env, **network, **options)


def observations(count=32, size=3):
    return np.random.default_rng(0).normal(size=(count, size)).astype(np.float32)


@pytest.mark.parametrize("kind", ["PPO", "A2C", "SAC", "TD3"])
def test_a_model_and_its_archive_act_as_the_original(kind, pendulum, tmp_path):
    original = model(kind)
    original.save(tmp_path / "model.zip")
    expected = original.predict(observations(), deterministic=True)[0]
    for policy, options in ((original, {}), (tmp_path / "model.zip", {"trust": True})):
        agent = hf.as_agent(policy, pendulum, cost_limit=5, **options)
        assert agent.label == kind
        np.testing.assert_allclose(agent.predict(observations()), expected, atol=1e-5)


def test_statistics_of_vec_normalize_are_applied(pendulum, tmp_path):
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    env = VecNormalize(make_vec_env("Pendulum-v1", seed=0))
    original = model("PPO", env, n_steps=32, batch_size=32)
    original.learn(32)
    env.save(tmp_path / "statistics.pkl")
    original.save(tmp_path / "model.zip")
    expected = original.predict(env.normalize_obs(observations()), deterministic=True)[0]
    plain = original.predict(observations(), deterministic=True)[0]
    assert np.abs(expected - plain).max() > 1e-3
    attached = hf.as_agent(original, pendulum, cost_limit=5)
    saved = hf.as_agent(
        tmp_path / "model.zip",
        pendulum,
        cost_limit=5,
        trust=True,
        statistics=tmp_path / "statistics.pkl",
    )
    for agent in (attached, saved):
        np.testing.assert_allclose(agent.predict(observations()), expected, atol=1e-5)


def test_discrete_actions_of_dqn():
    env = hf.disturb("CartPole-v1", hf.Observations(0.01), {}, horizon=20)
    original = model("DQN", "CartPole-v1")
    agent = hf.as_agent(original, env)
    seen = observations(size=4)
    assert (agent.predict(seen) == original.predict(seen, deterministic=True)[0]).all()
    assert agent.evaluate(episodes=4).episode_rewards.max() <= 20


def test_files_of_onnx_and_torchscript_act_as_the_original(gather, tmp_path):
    network = torch.nn.Sequential(torch.nn.Linear(29, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    seen = observations(size=29)
    expected = network(torch.as_tensor(seen)).detach().numpy()
    torch.jit.script(network).save(str(tmp_path / "policy.pt"))
    write_onnx(tmp_path / "policy.onnx", network)
    for name, options in (("policy.onnx", {}), ("policy.pt", {"trust": True})):
        agent = hf.as_agent(tmp_path / name, gather, cost_limit=0.1, **options)
        assert agent.policy.caller.takes_rows
        np.testing.assert_allclose(agent.predict(seen), expected, atol=1e-5)


def write_onnx(path, network, outputs=1):
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    first, last = network[0], network[2]
    arrays = {"w": first.weight, "b": first.bias, "v": last.weight, "d": last.bias}
    constants = [numpy_helper.from_array(a.detach().numpy(), n) for n, a in arrays.items()]
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], transB=1),
        helper.make_node("Tanh", ["h"], ["z"]),
        helper.make_node("Gemm", ["z", "v", "d"], ["y"], transB=1),
    ]
    shape = [("y", 2), ("z", 4)][:outputs]
    results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", k]) for n, k in shape]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 29])
    graph = helper.make_graph(nodes, "policy", [given], results, constants)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)


class Counter:
    """A policy with a memory: it walks straight ahead in every second step."""

    def reset(self):
        self.steps = 0

    def __call__(self, observation):
        self.steps += 1
        return [float(self.steps % 2), 0.0]


def test_a_memory_is_reset_with_every_episode(gather):
    def half(observation):
        return [0.5, 0.0]

    found = [
        hf.as_agent(policy, gather, cost_limit=0.1).evaluate(episodes=300)
        for policy in (Counter(), half, lambda observation: [0.0, 0.0])
    ]
    remembering, steady, resting = (each.episode_rewards.mean() for each in found)
    # Both walk as far as each other, but the counter starts each episode with a whole step.
    assert abs(remembering - steady) < 0.25 * steady
    assert resting < 0.5 * steady
    memories = hf.as_agent(Counter(), gather, cost_limit=0.1)
    assert [float(memories.predict(np.zeros(29))[0]) for _ in range(3)] == [1, 0, 1]
    memories.reset()
    assert float(memories.predict(np.zeros(29))[0]) == 1


def test_stress_attacks_a_foreign_policy_by_its_actions_alone(chain):
    def right(observation):
        return 1

    options = {"episodes": 500, "updates": 20, "radii": [0.4], "restarts": 1}
    options |= {"deterministic": False}
    found = hf.stress(right, environment=chain, cost_limit=-6, kernels="auto", **options)
    nominal, on_reward, on_cost = found.rows
    assert on_reward.reward.high < nominal.reward.low
    assert on_cost.costs[0].mean >= nominal.costs[0].mean - 0.1


def test_a_function_of_one_observation_and_one_of_rows_give_the_same(gather):
    gain = np.random.default_rng(0).normal(size=(2, 29)) / 10

    def one(observation):
        return gain @ observation

    def rows(observations):
        return observations @ gain.T

    def flat(observation):  # takes rows without an error, but means something else
        return np.ravel(observation)[:2]

    agents = [hf.as_agent(each, gather, cost_limit=0.1) for each in (one, rows, flat)]
    assert [each.policy.caller.takes_rows for each in agents] == [False, True, False]
    seen = observations(size=29)
    np.testing.assert_allclose(agents[0].predict(seen), agents[1].predict(seen), atol=1e-5)
    np.testing.assert_allclose(agents[2].predict(seen), seen[:, :2], atol=1e-6)


def test_a_policy_that_fails_later_is_reported_by_name(gather):
    calls = iter(range(10))

    def tired(observation):
        if next(calls, None) is None:
            raise RuntimeError("tired")
        return [0.0, 0.0]

    with pytest.raises(hf.TrainingError, match=r"the policy tired failed[\s\S]*tired"):
        hf.as_agent(tired, gather, cost_limit=0.1).evaluate(episodes=300)


def fails(observation):
    return 1 / 0


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (fails, "policy: fails raised ZeroDivisionError"),
        (lambda seen: [np.nan, 0], "policy: <lambda> returned nan, expected finite numbers"),
        (
            lambda seen: [1, 2, 3],
            "policy: <lambda> returned 3 numbers for an observation, expected 2",
        ),
        (3, "policy: expected an Agent, a Stable-Baselines3 model"),
        ("nowhere.onnx", "policy: there is no file"),
    ],
)
def test_bad_policies_are_refused(policy, message, gather):
    with pytest.raises(ValueError, match=message):
        hf.as_agent(policy, gather, cost_limit=0.1)


def test_bad_files_are_refused(gather, pendulum, tmp_path):
    for name, what in (("a.zip", "archive"), ("a.pt", "TorchScript")):
        (tmp_path / name).write_bytes(b"nothing")
        with pytest.raises(ValueError, match=f"trust: reading a.* {what}.* can run code|{what}"):
            hf.as_agent(tmp_path / name, gather, cost_limit=0.1)
        with pytest.raises(ValueError, match=f"policy: .*{name}"):
            hf.as_agent(tmp_path / name, gather, cost_limit=0.1, trust=True)
    (tmp_path / "a.onnx").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="is not an ONNX graph"):
        hf.as_agent(tmp_path / "a.onnx", gather, cost_limit=0.1)
    network = torch.nn.Sequential(torch.nn.Linear(29, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    write_onnx(tmp_path / "two.onnx", network, outputs=2)
    with pytest.raises(ValueError, match=r"one output, got 2 \(y, z\)"):
        hf.as_agent(tmp_path / "two.onnx", gather, cost_limit=0.1)
    with pytest.raises(ValueError, match="PPO takes 3 numbers, point-gather observes 29"):
        hf.as_agent(model("PPO"), gather, cost_limit=0.1)
    with pytest.raises(ValueError, match="cost_limit: point-gather has 1 cost"):
        hf.as_agent(lambda seen: [0, 0], gather, cost_limit=(1, 2))
    with pytest.raises(ValueError, match="environment: a policy of another library needs one"):
        hf.stress(fails)
    with pytest.raises(ValueError, match="statistics: only a Stable-Baselines3 model"):
        hf.as_agent(lambda seen: [0, 0], gather, cost_limit=0.1, statistics="s.pkl")
