"""The exported policy is the policy, as another runtime sees it."""

import builtins
import dataclasses
import itertools
import json
import math
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
import pytest

from holdfast.simulators.environment import Box, Discrete
from holdfast.simulators.policy.agent import Agent
from holdfast.simulators.policy.networks import Normaliser, Policy
from holdfast.simulators.training.settings import Settings

INPUTS = 6
SPACES = {
    "box": Box(low=(-1.0, -0.25, 2.0), high=(1.0, 0.75, 5.0)),
    "unbounded": Box(low=(-math.inf,) * 2, high=(math.inf,) * 2),
    "half-bounded": Box(low=(0.0, -math.inf), high=(math.inf, 0.5)),
    "discrete": Discrete(4),
}


def agent_of(space, *, hidden=(64, 32), normalised=True):
    policy = Policy.create(jax.random.PRNGKey(0), INPUTS, hidden, space)
    last = 30 * policy.network.weights[-1]  # as far from the start as a trained one
    policy = eqx.tree_at(lambda p: p.network.weights[-1], policy, last)
    seen = None
    if normalised:
        spread = jnp.array([1e-3, 0.1, 1.0, 2.0, 30.0, 1e3])
        data = 3.0 + spread * jax.random.normal(jax.random.PRNGKey(1), (50, INPUTS))
        seen = Normaliser.create(INPUTS).updated(data, jnp.ones(50))
    settings = Settings(hidden=hidden)
    return Agent(policy, seen, "pcpo", settings, (0.1, 2.0), 3, None, {"name": "mine"})


def session_of(agent, folder):
    agent.to_onnx(folder / "policy.onnx")
    return onnxruntime.InferenceSession(folder / "policy.onnx", providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(
    ("space", "hidden", "normalised"),
    list(itertools.product(SPACES, [(), (64, 32)], [True, False])),
)
def test_the_graph_gives_the_action_that_predict_gives(space, hidden, normalised, tmp_path):
    agent = agent_of(SPACES[space], hidden=hidden, normalised=normalised)
    session = session_of(agent, tmp_path)
    rng = np.random.default_rng(0)
    for scale, rows in ((1.0, 200), (100.0, 200), (1e6, 200), (1.0, 1), (0.0, 1)):
        x = (3 + scale * rng.standard_normal((rows, INPUTS))).astype(np.float32)
        (found,) = session.run(None, {"observation": x})
        expected = agent.predict(x)
        assert found.shape == expected.shape
        assert found.dtype == (np.int64 if space == "discrete" else np.float32)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("space", ["box", "half-bounded"])
def test_actions_stay_in_the_box(space, tmp_path):
    x = (3 + 1e6 * np.random.default_rng(0).standard_normal((200, INPUTS))).astype(np.float32)
    (found,) = session_of(agent_of(SPACES[space]), tmp_path).run(None, {"observation": x})
    low, high = np.array(SPACES[space].low), np.array(SPACES[space].high)
    assert ((found >= low) & (found <= high)).all()


def test_normalised_inputs_are_cut(tmp_path):
    agent = agent_of(SPACES["unbounded"], hidden=())
    session = session_of(agent, tmp_path)
    far, farther = (
        session.run(None, {"observation": np.full((1, 6), v, "f4")}) for v in (1e8, 1e9)
    )
    np.testing.assert_array_equal(far, farther)


def test_the_file_passes_the_checker_and_says_where_it_comes_from(tmp_path):
    agent = agent_of(SPACES["box"])
    agent.to_onnx(tmp_path / "a.onnx")
    model = onnx.load(tmp_path / "a.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [each.version for each in model.opset_import] == [17]
    facts = {each.key: json.loads(each.value) for each in model.metadata_props}
    assert facts.pop("memory") == 0
    assert facts == {"algorithm": "pcpo", "seed": 3, "limits": [0.1, 2.0], "environment": "mine"}
    shapes = {
        value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
    assert shapes == {"observation": ["batch", 6], "action": ["batch", 3]}
    agent.to_onnx(tmp_path / "b.onnx")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.onnx", "b.onnx"]


def test_the_normaliser_is_in_the_graph(tmp_path):
    agent = agent_of(SPACES["box"])
    x = np.random.default_rng(0).standard_normal((50, INPUTS)).astype(np.float32)
    (found,) = session_of(agent, tmp_path).run(None, {"observation": x})
    plain = dataclasses.replace(agent, observations=None)
    assert np.abs(found - plain.predict(x)).max() > 1e-2


def test_without_onnx_the_sentence_says_what_to_install(monkeypatch, tmp_path):
    real = builtins.__import__

    def without(name, *rest):
        if name.split(".")[0] == "onnx":
            raise ModuleNotFoundError(name)
        return real(name, *rest)

    monkeypatch.delitem(sys.modules, "onnx")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r'^onnx: .*pip install "holdfast\[onnx\]"$'):
        agent_of(SPACES["box"]).to_onnx(tmp_path / "a.onnx")
    assert not list(tmp_path.iterdir())
