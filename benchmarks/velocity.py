"""Train on robots with a speed limit, and compare with the published table.

    python benchmarks/velocity.py train --out runs/velocity --processes 16 --seconds 540
    python benchmarks/velocity.py table --out runs/velocity

`train` runs every task, algorithm and seed in a process of its own, on one core with one physics thread.
It stops after `--seconds` and continues where it stopped when it is called again. `table` prints what
there is so far, beside the published values. `--variants` trains with other settings than the defaults;
`ablation` prints their table.

    python benchmarks/velocity.py train --variants default few-critic-steps discounted-weights \
        --tasks HalfCheetah --algorithms cpo --steps 1000000 --out runs/ablation
    python benchmarks/velocity.py ablation --out runs/ablation
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TASKS = ("HalfCheetah", "Hopper", "Walker2d", "Ant", "Swimmer")
ALGORITHMS = ("cpo", "pcpo", "trpo-lag", "ppo-lag", "rcpo")
LIMIT = 25.0
# Changes to the default settings, each for one reason.
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "few-critic-steps": {"critic_epochs": 4, "critic_minibatches": 8, "critic_learning_rate": 2e-3},
    "discounted-weights": {"weighting": "discounted"},
    "damping-0.1": {"damping": 0.1},
    "damping-10": {"damping": 10.0},
    "damping-100": {"damping": 100.0},
    "fisher-share-0.2": {"fisher_share": 0.2},
    "cg-steps-20": {"cg_steps": 20},
    "no-normalisation": {"normalise": False},
    "trust-region-0.02": {"trust_region": 0.02},
    "trust-region-0.005": {"trust_region": 0.005},
    "batch-5000": {"batch_size": 5_000},
    "batch-20000": {"batch_size": 20_000},
    "gae-0.97": {"reward_gae": 0.97, "cost_gae": 0.97},
    "cost-gae-0.99": {"cost_gae": 0.99},
    "std-1": {"initial_std": 1.0},
    "std-0.6": {"initial_std": 0.6},
    "std-0.25": {"initial_std": 0.25},
    "networks-64-32": {"hidden": (64, 32)},
}
# The long-episode settings; every variant changes some of them.
SETTINGS: dict[str, Any] = {
    "batch_size": 10_000,
    "initial_std": 0.4,
    "hidden": (64, 64),
    "critic_epochs": 10,
    "critic_minibatches": 40,
    "critic_learning_rate": 1e-3,
    "fisher_share": 0.5,
}
# RCPO's set: mass and friction drawn once per episode, by 10 %.
RADIUS = 0.5
ADVERSARY = {"batch_size": 5_000, "updates": 1, "minibatches": 1, "epochs": 10}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["train", "job", "table", "ablation"])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS), choices=ALGORITHMS)
    parser.add_argument("--variants", nargs="+", default=["default"], choices=list(VARIANTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=10_000_000, help="simulator steps of a run")
    parser.add_argument("--seconds", type=float, default=1e9, help="wall clock of this call")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=Path("runs/velocity"))
    given = parser.parse_args()
    if given.command == "train":
        train_all(given)
    elif given.command == "job":
        run_job(given)
    elif given.command == "table":
        print(table(rows_in(given.out)))
    else:
        print(ablation(rows_in(given.out)))


def jobs(given: argparse.Namespace) -> list[tuple[str, str, int, str]]:
    return [
        (task, algorithm, seed, variant)
        for seed in given.seeds
        for task in given.tasks
        for algorithm in given.algorithms
        for variant in given.variants
    ]


def folder_of(out: Path, task: str, algorithm: str, seed: int, variant: str) -> Path:
    return out / f"{task}-{algorithm}-{variant}-{seed}"


def train_all(given: argparse.Namespace) -> None:
    """Run the jobs in processes, each bound to one core, until all are done or the time is up."""
    end = time.time() + given.seconds
    waiting = [job for job in jobs(given) if not is_done(folder_of(given.out, *job), given.steps)]
    cores = sorted(os.sched_getaffinity(0))[: given.processes]
    running: dict[int, tuple[subprocess.Popen, tuple]] = {}
    failed = []
    while running or (waiting and time.time() < end - 30):
        for core in cores:
            # A job needs half a minute to compile.
            if waiting and core not in running and time.time() < end - 30:
                job = waiting.pop(0)
                running[core] = (start(job, core, end, given), job)
        time.sleep(0.2)
        for core, (process, job) in list(running.items()):
            if process.poll() is not None:
                del running[core]
                failed += [job] if process.returncode else []
    for job in failed:
        print("failed:", *job, file=sys.stderr)
    left = [job for job in jobs(given) if not is_done(folder_of(given.out, *job), given.steps)]
    print(f"{len(left)} of {len(jobs(given))} runs are not finished")
    if failed:
        sys.exit(1)


def start(job: tuple, core: int, end: float, given: argparse.Namespace) -> subprocess.Popen:
    task, algorithm, seed, variant = job
    one_thread = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": one_thread,
        **{f"{name}_NUM_THREADS": "1" for name in ("OPENBLAS", "OMP", "MKL")},
    }
    command = [sys.executable, __file__, "job", "--out", str(given.out), "--steps", str(given.steps)]
    command += ["--tasks", task, "--algorithms", algorithm, "--variants", variant]
    command += ["--seeds", str(seed), "--seconds", str(max(1.0, end - time.time()))]
    return subprocess.Popen(
        command, env=environment, preexec_fn=lambda: os.sched_setaffinity(0, {core})
    )


def is_done(folder: Path, steps: int) -> bool:
    path = folder / "row.json"
    return path.is_file() and json.loads(path.read_text())["steps"] >= steps


def run_job(given: argparse.Namespace) -> None:
    """Train one policy until its steps or the seconds are used up, and write its row."""
    import holdfast as hf

    started = time.time()
    task, algorithm, seed = given.tasks[0], given.algorithms[0], given.seeds[0]
    variant = given.variants[0]
    folder = folder_of(given.out, task, algorithm, seed, variant)
    path = folder / "row.json"
    before = json.loads(path.read_text()) if path.is_file() else {"seconds": 0.0, "curve": []}
    robust = {"radius": RADIUS, "adversary": ADVERSARY} if algorithm == "rcpo" else {}
    channel = hf.Parameters(mass=0.1, friction=0.1) if robust else None
    env = hf.disturb(f"holdfast/{task}Velocity-v0", channel, workers=1)
    curve, ends = before["curve"], []

    def record(rows: list[dict[str, Any]], agents: list[Any]) -> bool:
        row, now = rows[-1], time.time()
        kept = [each for each in curve if each["iteration"] < row["iteration"]]
        at = kept[-1] if kept else {"steps": 0, "policy_steps": 0}
        curve[:] = kept
        curve.append(
            {
                "iteration": row["iteration"],
                "steps": at["steps"] + env.simulated_steps - record.counted,
                "policy_steps": at["policy_steps"] + row["steps"],
                "reward": row["nominal_reward"],
                "cost": row["nominal_costs"][0],
                "worst_reward": row["reward"],
                "worst_cost": row["costs"][0],
            }
        )
        record.counted = env.simulated_steps
        done = curve[-1]["steps"] >= given.steps
        # Stop while there is time for one more iteration; the first one in a process also compiles.
        took = now - ends[-1] if ends else 0.0
        ends.append(now)
        stop = done or now - started + 2 * took > given.seconds
        if stop or row["iteration"] % 10 == 9:
            write_row(path, given, before["seconds"] + now - started, curve)
        if done:
            finish(path, agents[0])
        return stop

    record.counted = 0
    hf.train(
        env,
        algorithm,
        seed=seed,
        cost_limit=LIMIT,
        iterations=1_000_000,
        out=folder,
        callback=record,
        **{**SETTINGS, **VARIANTS[variant], **robust},
    )


def write_row(path: Path, given: argparse.Namespace, seconds: float, curve: list) -> None:
    late = curve[-10:]  # 200 episodes of 1,000 steps
    last = curve[-1]
    row = {
        "task": given.tasks[0],
        "algorithm": given.algorithms[0],
        "seed": given.seeds[0],
        "variant": given.variants[0],
        "steps": last["steps"],
        "policy_steps": last["policy_steps"],
        "reward": sum(each["reward"] for each in late) / len(late),
        "cost": sum(each["cost"] for each in late) / len(late),
        "seconds": seconds,
        "curve": curve,
    }
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(row))
    temporary.replace(path)


def finish(path: Path, agent: Any) -> None:
    """Add to a finished row the reward and cost of the most likely actions."""
    found = agent.evaluate(episodes=20, deterministic=True)
    row = json.loads(path.read_text())
    row["likely_reward"], row["likely_cost"] = found.reward.mean, found.costs[0].mean
    path.write_text(json.dumps(row))


def rows_in(out: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(out.glob("*/row.json"))]


def table(rows: list[dict[str, Any]]) -> str:
    """Return the table of rewards and costs, mean and spread over seeds."""
    import numpy as np

    lines = []
    for task in TASKS:
        for algorithm in ALGORITHMS:
            found = [r for r in rows if (r["task"], r["algorithm"]) == (task, algorithm)]
            if found:
                reward, cost = (np.array([r[k] for r in found]) for k in ("reward", "cost"))
                steps = min(r["steps"] for r in found)
                lines.append(
                    f"{task:12} {algorithm:9} {reward.mean():8.0f} ± {reward.std():5.0f}  "
                    f"cost {cost.mean():6.1f} (max {cost.max():6.1f})  seeds {len(found)}  "
                    f"steps {steps:,}  {sum(r['seconds'] for r in found):.0f} s"
                )
    return "\n".join(lines)


def ablation(rows: list[dict[str, Any]]) -> str:
    """Return for each variant the reward and cost at the number of steps that all runs have."""
    import numpy as np

    steps = min(row["steps"] for row in rows)
    lines = [f"after {steps:,} steps"]
    keys = sorted({(r["task"], r["algorithm"], r["variant"]) for r in rows})
    for key in keys:
        ends = []
        for row in rows:
            if (row["task"], row["algorithm"], row["variant"]) == key:
                until = [each for each in row["curve"] if each["steps"] <= steps][-10:]
                ends.append([np.mean([each[k] for each in until]) for k in ("reward", "cost")])
        reward, cost = np.array(ends).T
        lines.append(
            f"{key[0]:12} {key[1]:9} {key[2]:20} reward {reward.mean():7.0f} ± {reward.std():4.0f}"
            f"  cost {cost.mean():6.1f}  seeds {len(ends)}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
