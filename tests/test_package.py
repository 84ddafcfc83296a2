"""What a user sees first: names, imports, precision."""

import ast
import collections
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.verbs import as_model

ROOT = Path(__file__).parents[1]


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importing_holdfast_imports_nothing_heavy():
    heavy = "{'jax', 'scipy', 'matplotlib', 'mujoco', 'rich', 'tyro', 'optax'}"
    code = f"import sys, holdfast; print(sorted({heavy} & set(sys.modules)))"
    assert run_python(code) == "[]"


def test_the_core_needs_only_the_core():
    """Tables and JAX training work without Gymnasium, matplotlib, tyro, rich and highspy."""
    code = """
import sys
for name in ("gymnasium", "matplotlib", "tyro", "rich", "cvxpy", "highspy", "tensorboard"):
    sys.modules[name] = None
import holdfast as hf
solution = hf.solve(hf.environments.n_chain(), iterations=2)
from holdfast.simulators.train import prepare
from holdfast.verbs import as_simulator
prepare(as_simulator("point-gather"), "rcpo", radius=0.1, cost_limit=0.1)
prepare(as_simulator(hf.environments.n_chain()), "rcpo", radius=0.1, limit_on="discounted")
hf.train, hf.stress, hf.load
print(hf.certify(hf.environments.n_chain(), solution.policy).feasible)
"""
    assert run_python(code) == "True"


def test_tables_load_nothing_of_the_deep_part():
    code = """
import sys, holdfast as hf
hf.evaluate("n-chain", [0] * 40)
hf.solve, hf.certify
print([name for name in sys.modules if name.startswith("holdfast.simulators") or name == "optax"])
"""
    assert run_python(code) == "[]"


def test_type_checkers_see_the_public_names():
    """The imports for type checkers are those of the table from which the names are resolved."""
    tree = ast.parse(Path(hf.__file__).read_text())
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    assert ast.unparse(guarded.test) == "TYPE_CHECKING"
    seen = {
        alias.asname: (statement.module, alias.name)
        for statement in guarded.body
        for alias in statement.names
    }
    assert seen == {name: (module, name) for name, module in hf._MODULE_OF.items()}


def test_a_verb_names_itself_when_called_wrongly():
    with pytest.raises(TypeError, match=r"^solve: got an unexpected keyword argument 'iteration'"):
        hf.solve("gambler", iteration=3)
    with pytest.raises(
        ValueError, match="model: there is no model or file 'gambller'; did you mean"
    ):
        hf.solve("gambller")


def test_an_import_string_may_name_a_model_itself(tmp_path, monkeypatch):
    code = "import holdfast as hf\n\nCHAIN = hf.environments.n_chain(nodes=5)\n"
    (tmp_path / "own_models.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    model = as_model("own_models:CHAIN")
    assert model.states == 5
    assert as_model("own_models:CHAIN") is model
    with pytest.raises(TypeError, match="not callable"):
        as_model("own_models:CHAIN", nodes=6)


def test_the_environments_that_are_public_are_there():
    for name in hf.environments.__all__:
        assert getattr(hf.environments, name) is not None
    assert dir(hf.environments) == sorted(hf.environments.__all__)
    assert set(hf.environments.MODELS) < set(hf.environments.SIMULATORS)
    with pytest.raises(AttributeError, match=r"environments' has no attribute 'casino'"):
        _ = hf.environments.casino


def test_every_public_name_is_there_and_has_an_example():
    assert dir(hf) == sorted(hf.__all__)
    documented = {name: getattr(hf, name) for name in hf.__all__}
    for module in (hf.environments, hf.uncertainty):
        documented |= {f"{module.__name__}.{n}": getattr(module, n) for n in module.__all__}
    objects = {n: each for n, each in documented.items() if callable(each)}
    assert len(objects) > 50
    assert [name for name, each in objects.items() if ">>>" not in (each.__doc__ or "")] == []


def parsed_modules():
    return {path: path.read_text() for path in Path(hf.__file__).parent.rglob("*.py")}


def test_no_two_classes_share_a_name():
    homes = collections.defaultdict(list)
    for path, text in parsed_modules().items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(path.name)
    assert len(homes) > 100
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_no_file_is_longer_than_400_lines():
    lengths = {path.name: text.count("\n") for path, text in parsed_modules().items()}
    assert len(lengths) > 100
    assert {name: length for name, length in lengths.items() if length > 400} == {}


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'holdfast' has no attribute 'slove'"):
        _ = hf.slove


def test_the_contract_names_are_public():
    contract = {
        "RobustCMDP", "Kernel", "KL", "at_least", "at_most", "evaluate", "solve", "certify",
        "environments", "from_gymnasium", "train", "load", "stress", "Agent", "Stress", "check_proof",
    }  # fmt: skip
    assert contract <= set(hf.__all__)


def test_a_users_own_precision_is_untouched():
    code = """
import jax, jax.numpy as jnp, holdfast as hf
model = hf.environments.n_chain()
hf.solve(model, iterations=1)
print(jax.config.jax_enable_x64, jnp.ones(1).dtype)
"""
    assert run_python(code) == "False float32"


def test_a_second_model_of_similar_size_does_not_compile_again():
    code = """
import logging, jax, holdfast as hf
hf.solve(hf.environments.gambler(), iterations=2)
compiled = []
jax.config.update("jax_log_compiles", True)
class Count(logging.Handler):
    def emit(self, record):
        text = record.getMessage()
        if text.startswith("Finished XLA compilation"):
            compiled.append(text)
logger = logging.getLogger("jax")
logger.handlers = [Count()]
logger.propagate = False
hf.solve(hf.environments.n_chain(), iterations=2)
print(len([text for text in compiled if "outlook" in text or "update" in text]))
"""
    assert run_python(code) == "0"


def test_versions_agree():
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"## {hf.__version__}" in changelog
