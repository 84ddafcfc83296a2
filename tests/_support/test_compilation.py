"""Compiled programs: quick options, and the folder that keeps them."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from holdfast._support import compilation


def test_a_compiled_function_is_part_of_the_program_that_calls_it():
    inner = compilation.compiled(lambda x: 2 * x)
    outer = compilation.compiled(lambda x: inner(x) + 1)
    assert outer(jnp.array(3.0)) == 7
    assert jax.grad(lambda x: outer(x) ** 2)(3.0) == 28


def test_options_that_xla_does_not_know_are_left_out(monkeypatch):
    monkeypatch.setitem(compilation._QUICK, "cpu", {"xla_no_such_option": 1})
    assert compilation._options.__wrapped__("cpu") == {}


def test_options_of_the_user_have_priority(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=true")
    assert compilation._options.__wrapped__("cpu") == {}


def test_a_simulation_is_optimised_unless_it_is_to_compile_quickly(monkeypatch):
    monkeypatch.delenv("HOLDFAST_COMPILE")
    options = compilation._options_of_simulations.__wrapped__
    assert options("cpu") == compilation._options("cpu")
    monkeypatch.setenv("HOLDFAST_COMPILE", "quick")
    assert options("cpu")["xla_backend_optimization_level"] == 0


SCRIPT = """
import jax, holdfast as hf, numpy as np
value = hf.evaluate("river-swim", np.zeros(6, int)).reward.worst
print(value, jax.config.jax_compilation_cache_dir or "none")
"""


def evaluate_elsewhere(**changes):
    """A first call in another process, which would keep its programs in the user's cache folder."""
    settings = {"JAX_COMPILATION_CACHE_DIR": "", "HOLDFAST_CACHE": "", **changes}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=os.environ | {name: str(value) for name, value in settings.items()},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_library_keeps_compiled_programs(tmp_path):
    value, folder = evaluate_elsewhere(XDG_CACHE_HOME=tmp_path)
    assert folder == str(tmp_path / "holdfast" / "jax")
    kept = sorted((tmp_path / "holdfast" / "jax").glob("*-cache"))
    assert kept
    assert evaluate_elsewhere(XDG_CACHE_HOME=tmp_path) == [value, folder]
    assert sorted((tmp_path / "holdfast" / "jax").glob("*-cache")) == kept


def test_the_switch_turns_the_cache_off(tmp_path):
    _, folder = evaluate_elsewhere(XDG_CACHE_HOME=tmp_path, HOLDFAST_CACHE="off")
    assert folder == "none"
    assert not list(tmp_path.iterdir())


@pytest.fixture
def jax_settings(monkeypatch):
    """What would be set in JAX, without setting it."""
    settings: dict[str, object] = {}
    monkeypatch.setattr(compilation, "_users_folder", lambda: None)
    monkeypatch.setattr(jax.config, "update", settings.__setitem__)
    return settings


def test_a_cache_that_the_user_chose_is_kept(jax_settings, monkeypatch, tmp_path):
    monkeypatch.setattr(compilation, "_users_folder", lambda: str(tmp_path / "mine"))
    assert compilation.keep_programs.__wrapped__() is None
    assert not jax_settings


def test_a_folder_that_cannot_be_written_is_done_without(jax_settings, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert compilation.keep_programs.__wrapped__() is None
    assert not jax_settings


def test_a_large_folder_loses_its_oldest_programs(jax_settings, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compilation, "_LARGEST_FOLDER", 1000)
    folder = tmp_path / "holdfast" / "jax"
    folder.mkdir(parents=True)
    for age in range(5):
        (folder / f"{age}-cache").write_bytes(bytes(300))
        os.utime(folder / f"{age}-cache", (1e9 - age, 1e9 - age))
    assert compilation.keep_programs.__wrapped__() == folder
    assert sorted(path.name for path in folder.iterdir()) == ["0-cache"]
    assert jax_settings["jax_compilation_cache_dir"] == str(folder)
