"""Small run folders of every kind, and a real browser."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import holdfast as hf
from holdfast._support.files import write_bytes
from holdfast.experiments import SolveSettings, TabularExperiment
from holdfast.experiments.results import ConstraintThreshold, Result, Results
from holdfast.experiments.store import fingerprint, model_digest, to_bytes, write_record
from holdfast.report import page
from holdfast.report.page.collect import Kept, collect
from holdfast.report.solution import write_solution
from holdfast.simulators.certificates.intervals import ConfidenceInterval, Measured
from holdfast.simulators.certificates.stress_result import Row, Stress
from holdfast.simulators.train import TrainingRun, prepare
from holdfast.simulators.training import runs
from holdfast.simulators.training.checkpoint import save_learners
from holdfast.verbs import as_simulator

ODD_NAME = "<b>x&y"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def solve_folder(folder: Path, model: hf.RobustCMDP, name: str, *, certify: bool = False) -> Path:
    solution = hf.solve(model, iterations=3)
    if certify:
        solution = dataclasses.replace(solution, certificate=certificate_of(model, solution))
    write_solution(folder, model, solution, {"environment": name, "algorithm": "rcpo", "seed": 0})
    return folder


def certificate_of(model: hf.RobustCMDP, solution: hf.Solution) -> hf.Certificate:
    """What `certify` gives, with made-up bounds: the real ones take longer than the page does."""
    found = solution.evaluation
    return hf.Certificate(
        feasible=found.feasible,
        margins=found.margins,
        reward=found.reward.worst,
        error=found.error,
        upper_bound=13.0,
        critical_factor=float("nan"),
        critical_factors=np.array([1.25]),
        multipliers=np.array([0.5]),
        regions=1,
        proof=None,
        relaxed_policies=(),
        attainable=None,
        evaluation=found,
        model=model,
        policy=solution.policy,
    )


def metrics(iteration: int, seed: int) -> dict:
    """A row as training writes it: the cost falls below its limit of 0.1 after some iterations."""
    cost = 0.3 - 0.05 * iteration + 0.01 * seed
    reward = 1.0 + iteration + 0.1 * seed
    return {
        "iteration": iteration,
        "seed": seed,
        "costs": [cost],
        "likely_costs": [cost - 0.02],
        "cost_errors": [0.01],
        "nominal_costs": [cost - 0.05],
        "kl": 0.01,
        "reward": reward,
        "reward_error": 0.2,
        "nominal_reward": reward + 1,
    }


def prepared(
    algorithm: str = "rcpo", *, seeds: int = 2, iterations: int = 6, **more
) -> TrainingRun:
    if algorithm == "rcpo":
        more = {"radius": 0.2, **more}
    return prepare(
        as_simulator("point-gather"), algorithm, seeds=seeds, iterations=iterations, **more
    )


def train_folder(folder: Path, run: TrainingRun, done: int, *, with_agents: bool = False) -> Path:
    """A run as `train` leaves it after some iterations, without the minutes of training."""
    folder.mkdir(parents=True)
    runs.write_description(folder, run.describe())
    seeds = run.describe()["seeds"]
    rows = [metrics(i, seed) for i in range(done) for seed in seeds]
    runs.append_lines(folder / runs.METRICS, rows)
    if with_agents:
        learners = run.first()
        save_learners(folder, run.describe(), learners, done)
        for agent in run._agents(learners, done):
            agent.save(runs.agent_file(folder, agent.seed))
    return folder


def stressed(agent: str = "rcpo-0", slope: float = 0.3) -> Stress:
    def value(mean: float) -> Measured:
        interval = ConfidenceInterval(mean, mean - 0.02, mean + 0.02)
        return Measured(*interval, None, (interval,))

    def row(kind: str, level: float, subject: str, worse: float) -> Row:
        return Row(kind, level, subject, value(5 - worse), (value(0.05 + slope * worse),))

    rows = [row("nominal", 0.0, "", 0.0)]
    rows += [
        row("attack", radius, signal, radius)
        for signal in ("reward", "bombs")
        for radius in (0.1, 0.4)
    ]
    rows += [row("noise", level, "", level - 1) for level in (1.0, 2.0)]
    rows += [row("parameter", level, "speed", 1.0) for level in (0.8, 1.2)]
    environment = {"name": "point-gather", "parameters": {"speed": 1.0}}
    setup = {"confidence": 0.95, "episodes": 100}
    return Stress((agent,), ("bombs",), (0.1,), tuple(rows), environment, setup)


def compared(environment: str = "frozen-lake", seeds: int = 3, model: str = "") -> Results:
    """RCPO, which ends feasible, and PCPO, which does not."""
    ends = {"rcpo": 0.2, "pcpo": -0.5}
    experiment = TabularExperiment(
        environments=(environment,),
        algorithms=tuple(ends),
        seeds=seeds,
        settings=SolveSettings(iterations=30),
    )
    table = hf.environments.MODELS[environment]()
    bounds = ConstraintThreshold.of(table)
    found: dict[str, list[Result]] = {name: [] for name in ends}
    for job in experiment.jobs():
        margins = np.linspace(-1.0, ends[job.algorithm], 31)[:, None] + 0.01 * job.seed
        history = {
            "reward": np.linspace(0, 2, 31) + 0.1 * job.seed,
            "nominal_reward": np.linspace(0, 3, 31),
            "margins": margins,
            "nominal_margins": margins + 0.2,
            "error": np.zeros(31),
            "kl": np.zeros(31),
            "recovered": np.zeros(31, bool),
            "seconds": np.arange(31.0),
        }
        policy = np.full((table.states, table.actions), 1 / table.actions)
        proof = {"gap": 9.4e-13}
        found[job.algorithm].append(Result(job, "feasible", bounds, policy, history, proof))
    return Results(experiment, found, model or model_digest(table), environment)


def experiment_folder(folder: Path, *results: Results, version: str = hf.__version__) -> Path:
    """Writes a folder that holds the given results, each of a model of its own."""
    environments = tuple(found.environment for found in results)
    experiment = dataclasses.replace(results[0].experiment, environments=environments)
    write_record(folder, experiment, {found.cell: found.model for found in results})
    for found in results:
        for result in found:
            mark = fingerprint(result.job, found.model)
            write_bytes(folder / result.job.path, to_bytes(result, mark))
    path = folder / "experiment.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": version}))
    return folder


@pytest.fixture(scope="session")
def gather_run() -> TrainingRun:
    return prepared()


@pytest.fixture(scope="session")
def all_runs(tmp_path_factory, gather_run) -> Path:
    """A folder with a run of every kind, and some that cannot be shown."""
    folder = tmp_path_factory.mktemp("runs")
    solve_folder(folder / "lake", hf.environments.frozen_lake(), "frozen-lake", certify=True)
    shutil.copytree(folder / "lake", folder / ODD_NAME)
    (folder / ODD_NAME / "certificate.json").unlink()
    train_folder(folder / "gather" / "rcpo", gather_run, 6, with_agents=True)
    stressed().save(folder / "gather" / "rcpo" / "stress.json")
    train_folder(folder / "gather" / "pcpo", prepared("pcpo", seeds=1), 4)
    (folder / "damaged").mkdir()
    (folder / "damaged" / "run.json").write_text("{")
    newer = train_folder(folder / "newer", gather_run, 1)
    described = json.loads((newer / "run.json").read_text())
    described["made_with"]["holdfast"] = "99.0.0"
    (newer / "run.json").write_text(json.dumps(described))
    return folder


@pytest.fixture(scope="session")
def page_kept() -> Kept:
    """Sections and episodes that were made once, for every test that reads the same folders."""
    return Kept()


@pytest.fixture(scope="session")
def report_file(all_runs, page_kept, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("report") / "report.html"
    experiment = experiment_folder(out.parent / "comparison", compared())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "collect", lambda paths: collect(paths, page_kept))
        page.write_page([all_runs, experiment], out)
    return out


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium; a machine without one cannot say whether the page works."""
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.fail("no Chromium found: install it, as in `apt-get install chromium`")
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def open_page(browser):
    """Opens an address; whatever is fetched or goes wrong is kept in `page.fetched`, `page.errors`."""
    opened = []

    def open_it(address: str, *, width: int = 1280, height: int = 900, **options):
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        opened.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.fetched, page.errors = [], []
        page.on("request", lambda request: page.fetched.append(request.url))
        page.on("pageerror", lambda error: page.errors.append(str(error)))
        page.on(
            "console",
            lambda message: page.errors.append(message.text) if message.type == "error" else None,
        )
        page.goto(address)
        return page

    yield open_it
    for context in opened:
        context.close()
