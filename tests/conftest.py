"""Oracles that share no code with the package: plain NumPy and SciPy, slow and obvious."""

from __future__ import annotations

import dataclasses
import gc
import os
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import scipy.optimize

import holdfast as hf


def kl_worst_value(p: np.ndarray, y: np.ndarray, radius: float) -> float:
    """min q·y over KL(q‖p) ≤ radius, by maximising the dual over the logarithm of its multiplier."""
    p, y = p[p > 0], y[p > 0]
    low, span = y.min(), y.max() - y.min()
    if span == 0 or radius == 0:
        return float(p @ y)
    u = (y - low) / span
    if -np.log(p[u == 0].sum()) <= radius:
        return float(low)

    def negative_dual(log_beta: float) -> float:
        beta = np.exp(log_beta)
        return (np.log(p @ np.exp(-beta * u)) + radius) / beta

    grid = np.linspace(-12, 12, 97)
    best = grid[np.argmin([negative_dual(point) for point in grid])]
    found = scipy.optimize.minimize_scalar(
        negative_dual, bounds=(best - 0.5, best + 0.5), method="bounded", options={"xatol": 1e-12}
    )
    return float(low + span * max(-found.fun, 0.0))


def dense(model: hf.RobustCMDP, signal: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Successors, probabilities and a signal, entry by entry."""
    kernel = model.transitions
    if isinstance(kernel, hf.Kernel):
        successors, p = kernel.successors, kernel.probabilities
    else:
        p, successors = kernel, np.broadcast_to(np.arange(model.states), kernel.shape)
    return (
        successors,
        p,
        np.broadcast_to(signal if signal.ndim == 3 else signal[..., None], p.shape),
    )


def robust_values(
    model: hf.RobustCMDP,
    signal: np.ndarray,
    policy: np.ndarray | None,
    tolerance: float = 1e-11,
) -> np.ndarray:
    """Robust value iteration in plain NumPy; of a policy, or of the best one where it is None."""
    successors, p, c = dense(model, signal)
    radius = np.broadcast_to(model.uncertainty.radius, p.shape[:2])
    values = np.zeros(model.states)
    for _ in range(100_000):
        y = c + model.discount * values[successors]
        q = np.array(
            [
                [kl_worst_value(p[s, a], y[s, a], radius[s, a]) for a in range(model.actions)]
                for s in range(model.states)
            ]
        )
        new = q.max(-1) if policy is None else (policy * q).sum(-1)
        if np.abs(new - values).max() <= tolerance * (1 - model.discount):
            return new
        values = new
    raise AssertionError("the oracle did not converge")


def values_under(
    model: hf.RobustCMDP, kernel: np.ndarray | hf.Kernel, signal: np.ndarray, policy: np.ndarray
) -> np.ndarray:
    """V of a policy under a given kernel, by a dense linear solve."""
    given = dataclasses.replace(model, transitions=kernel)
    successors, p, c = dense(given, signal)
    joint = policy[..., None] * p
    chain = np.zeros((model.states, model.states))
    s, _, _ = np.indices(p.shape)
    np.add.at(chain, (s, successors), joint)
    return np.linalg.solve(np.eye(model.states) - model.discount * chain, (joint * c).sum((1, 2)))


def random_policy(model: hf.RobustCMDP, rng: np.random.Generator) -> np.ndarray:
    return rng.dirichlet(np.ones(model.actions), model.states)


def random_model(
    seed: int,
    *,
    states: int = 5,
    actions: int = 3,
    constraints: int = 1,
    discount: float = 0.9,
    radius: float = 0.1,
    lists: bool = False,
    next_state_signals: bool = False,
    slack: float = 0.0,
) -> hf.RobustCMDP:
    """A random model whose thresholds are a random policy's worst-case values, less a slack."""
    rng = np.random.default_rng(seed)
    kernel: np.ndarray | hf.Kernel = rng.dirichlet(np.full(states, 0.5), (states, actions))
    shape: tuple[int, ...] = (states, actions)
    if lists:
        width = 3
        kernel = hf.Kernel(
            rng.integers(0, states, (states, actions, width)),
            rng.dirichlet(np.ones(width), (states, actions)),
        )
        shape = (states, actions, width) if next_state_signals else shape
    elif next_state_signals:
        shape = (states, actions, states)
    model = hf.RobustCMDP(
        transitions=kernel,
        reward=rng.random(shape),
        initial=rng.dirichlet(np.ones(states)),
        discount=discount,
        uncertainty=hf.KL(radius),
    )
    policy = random_policy(model, rng)
    limits = []
    for i in range(constraints):
        signal = rng.random(shape)
        sign = -1.0 if i % 2 else 1.0
        worst = hf.evaluate(model.replace(reward=sign * signal), policy).reward.worst
        made = hf.at_least if sign > 0 else hf.at_most
        limits.append(made(signal, sign * (worst - slack)))
    return model.replace(constraints=limits)


@pytest.fixture(scope="session")
def oracle() -> SimpleNamespace:
    return SimpleNamespace(
        kl_worst_value=kl_worst_value,
        robust_values=robust_values,
        values_under=values_under,
        random_model=random_model,
        random_policy=random_policy,
    )


@pytest.fixture
def nominal_values():
    """Values of a policy under the nominal kernel, by a linear solve on its dense form."""

    def solve(model: hf.RobustCMDP, policy: np.ndarray, signal: np.ndarray) -> np.ndarray:
        kernel = model.transitions
        if signal.ndim == 3:
            signal = (kernel.probabilities * signal).sum(-1)
        chain = np.einsum("sa,sat->st", policy, kernel.dense())
        system = np.eye(model.states) - model.discount * chain
        return np.linalg.solve(system, (policy * signal).sum(-1))

    return solve


def pytest_configure(config):
    """Share one folder of compiled programs between all processes of a test session.

    Most of the time of the tests goes into compilation. Programs that play simulators are not optimised;
    `make campaign` optimises them. Set HOLDFAST_TEST_CACHE to keep the folder between sessions.
    """
    folder = os.environ.get("HOLDFAST_TEST_CACHE")
    if not hasattr(config, "workerinput"):
        if "HOLDFAST_CAMPAIGN" not in os.environ:
            os.environ.setdefault("HOLDFAST_COMPILE", "quick")
        if folder is None:
            folder = tempfile.mkdtemp(prefix="holdfast-tests-")
            config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        # Workers, examples and the command line inherit these.
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(folder) / "compiled")
        # Smaller programs compile about as quickly as they are read.
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.3"
    for name in ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"):
        value = os.environ[name.upper()]
        jax.config.update(name, float(value) if name.endswith("secs") else value)


def pytest_collection_modifyitems(config, items):
    if "HOLDFAST_CAMPAIGN" not in os.environ:
        long = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]
    # Entries are not written at one stroke: a reader that comes too early compiles for itself.
    early = pytest.mark.filterwarnings(
        "ignore:Error (reading|writing) persistent compilation cache"
    )
    # A long session uses more shapes than most programs do, and drops its compiled programs at times.
    dropped = pytest.mark.filterwarnings("ignore:.* memory mappings are in use")
    for item in items:
        item.add_marker(early)
        item.add_marker(dropped)


@pytest.fixture(scope="module", autouse=True)
def room():
    """Compiled programs are kept while a process lives, and Linux lets it have 65,530 mappings."""
    yield
    mappings = Path("/proc/self/maps")
    if mappings.is_file() and mappings.read_bytes().count(b"\n") > 25_000:
        jax.clear_caches()
        gc.collect()
