"""Holdfast's environments through Gymnasium: its own checker, seeds, and the simulators themselves."""

import os
import subprocess
import sys
import warnings

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.utils import seeding
from gymnasium.utils.env_checker import check_env

import holdfast as hf
from holdfast.gym.as_gymnasium import SimulatorEnv, TableEnv
from holdfast.gym.registration import ENVIRONMENTS

TABLES = {"Gambler": "gambler", "NChain": "n-chain", "FrozenLake": "frozen-lake"}
every_environment = pytest.mark.parametrize("name", ENVIRONMENTS)
ON_MUJOCO = [name for name, entry in ENVIRONMENTS.items() if ".mujoco." in entry.maker]


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """MuJoCo writes its log into the working directory."""
    monkeypatch.chdir(tmp_path)


def made(name, **arguments):
    return gymnasium.make(f"holdfast/{name}-v0", **arguments)


@every_environment
@pytest.mark.usefixtures("elsewhere")
def test_gymnasium_s_own_checker_passes(name):
    env = made(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Observations of a simulator have no bounds.
        warnings.filterwarnings("ignore", message=".*Box observation space.*infinity")
        check_env(env.unwrapped, skip_render_check=False)
    env.close()


@every_environment
@pytest.mark.usefixtures("elsewhere")
def test_a_seed_repeats_an_episode(name):
    def episode(seed):
        env = made(name)
        env.action_space.seed(1)
        observation, _ = env.reset(seed=seed)
        seen = [np.asarray(observation, float).ravel()]
        for _ in range(10):
            observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
            seen.append(np.r_[np.asarray(observation, float).ravel(), reward, info["cost"]])
            if terminated or truncated:
                break
        return np.concatenate(seen)

    np.testing.assert_array_equal(episode(3), episode(3))
    assert any(not np.array_equal(episode(3), episode(seed)) for seed in (4, 5, 6))


@pytest.mark.parametrize(
    ("imports", "prefix"),
    [
        ("import gymnasium, holdfast", ""),
        ("import holdfast, gymnasium", ""),
        ("import gymnasium", "holdfast:"),
    ],
)
def test_they_are_there_after_either_order_of_imports(imports, prefix):
    code = f"{imports}; print(gymnasium.make('{prefix}holdfast/NChain-v0').observation_space.n)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "40"


@pytest.mark.parametrize("name", TABLES)
def test_a_table_s_environment_moves_and_pays_as_the_table_says(name):
    """Means of many steps from one state and action against the table's own row."""
    model = hf.environments.MODELS[TABLES[name]]()
    env = TableEnv(model)
    env.reset(seed=0)
    kernel = (
        model.transitions.dense() if isinstance(model.transitions, hf.Kernel) else model.transitions
    )
    state, action = model.states // 2, 1
    counts, paid, cost = np.zeros(model.states), [], []
    for _ in range(4000):
        env.reset(options={"state": state})
        there, reward, _, _, info = env.step(action)
        counts[there] += 1
        paid.append(reward)
        cost.append(info["cost"])
    np.testing.assert_allclose(counts / 4000, kernel[state, action], atol=0.04)
    lists = model.transitions.probabilities[state, action]

    def mean(signal):
        return signal[state, action] if signal.ndim == 2 else lists @ signal[state, action]

    assert np.mean(paid) == pytest.approx(mean(model.reward), abs=0.35)
    assert np.mean(cost) == pytest.approx(-mean(model.constraints[0].utility), abs=0.05)


@pytest.mark.campaign
def test_point_gather_equals_the_simulator_on_a_thousand_action_sequences():
    """Gymnasium's environment step by step against all episodes at once, mapped and scanned."""
    episodes, steps = (1000 if os.environ.get("HOLDFAST_CAMPAIGN") else 200), 15
    env = made("PointGather").unwrapped
    simulator = env.simulator
    rng = np.random.default_rng(0)
    actions = rng.normal(0, 0.7, (episodes, steps, 2)).astype(np.float32)
    pushes = rng.standard_normal((episodes, steps, 3)).astype(np.float32)

    @jax.jit
    @jax.vmap
    def episode(seed, actions, pushes):
        state, first = simulator.reset(jax.random.PRNGKey(seed))

        def step(state, given):
            found = simulator.step(state, *given)
            return found.state, found[1:]

        return first, jax.lax.scan(step, state, (actions, pushes))[1]

    drawn = [int(seeding.np_random(seed)[0].integers(2**31)) for seed in range(episodes)]
    first, rest = jax.device_get(episode(np.array(drawn), actions, pushes))
    observations, rewards, costs, ends = rest
    caught = 0.0
    for i in range(episodes):
        np.testing.assert_allclose(env.reset(seed=i)[0], first[i], rtol=0, atol=1e-6)
        for t in range(steps):
            observation, reward, end, _, info = env.step_under(actions[i, t], pushes[i, t])
            np.testing.assert_allclose(observation, observations[i, t], rtol=0, atol=1e-6)
            assert (reward, info["cost"], end) == (rewards[i, t], costs[i, t, 0], ends[i, t])
            caught += info["cost"]
            if end:
                break
    assert caught > 0.3 * episodes  # or bombs were not part of the comparison


@every_environment
@pytest.mark.usefixtures("elsewhere")
def test_pictures_need_no_display(name):
    env = made(name, render_mode="rgb_array")
    env.reset(seed=0)
    before = env.render()
    env.step(env.action_space.sample())
    after = env.render()
    assert before.dtype == np.uint8
    assert before.ndim == 3
    assert before.shape == after.shape
    assert before.std() > 0
    env.close()


def test_without_mujoco_the_extra_is_named():
    code = f"""
import sys
sys.modules["mujoco"] = None
import gymnasium, holdfast
for name in {ON_MUJOCO}:
    try:
        gymnasium.make(f"holdfast/{{name}}-v0")
    except ImportError as problem:
        print(problem)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    sentences = found.stdout.splitlines()
    assert len(sentences) == len(ON_MUJOCO) == 8
    for sentence in sentences:
        assert sentence.startswith("task: ")
        assert 'pip install "holdfast[mujoco]"' in sentence


def test_wrong_use_gets_a_sentence():
    with pytest.raises(ValueError, match=r"^model: expected one of gambler"):
        TableEnv("casino")
    with pytest.raises(ValueError, match=r"^render_mode: expected one of"):
        TableEnv("gambler", render_mode="hologram")
    with pytest.raises(ValueError, match=r"^render_mode: linear-gaussian has no picture"):
        SimulatorEnv(hf.environments.LinearGaussian(), render_mode="rgb_array")
    with pytest.raises(ValueError, match=r"^state: expected 0 to 16, got 17"):
        TableEnv("gambler").reset(options={"state": 17})
