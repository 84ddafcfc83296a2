"""Time of the Point Gather experiment in a new process: five seeds of RCPO, 100 iterations.

    python benchmarks/deep_experiment.py [--seeds 5] [--iterations 100] [--batch-size 50000]

Prints the seconds from the start of the process to the trained agents, the seconds of compilation among
them, and the simulator steps per second with and without compilation. Every simulated step counts: the
batch of each signal's kernel, the batches of its adversary, and the nominal batch that is measured.
"""

from __future__ import annotations

import time

_START = time.perf_counter() - time.process_time()  # about when the process began

import argparse

import jax

from holdfast.environments.point_gather import PointGather
from holdfast.simulators.train import train
from holdfast.simulators.training.settings import Plan, Settings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=50_000)
    parser.add_argument("--radius", type=float, default=0.2)
    parser.add_argument("--algorithm", default="rcpo")
    arguments = parser.parse_args()
    settings = {
        "radius": arguments.radius if arguments.algorithm == "rcpo" else 0.0,
        "iterations": arguments.iterations,
        "batch_size": arguments.batch_size,
    }
    env, robust = PointGather(), arguments.algorithm == "rcpo"
    plan = Plan.create(env, Settings(**settings), robust=robust, constrained=True)
    compiled, rows = [], []

    def listen(event: str, seconds: float, **_: object) -> None:
        if event.startswith("/jax/core/compile/"):  # tracing, lowering, and the backend's part
            compiled.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(listen)
    ready = time.perf_counter()
    train(env, arguments.algorithm, seeds=arguments.seeds, callback=rows.extend, **settings)
    end = time.perf_counter()
    compilation = sum(compiled)
    training = end - ready - compilation

    device = jax.devices()[0]
    steps = plan.steps(env) * arguments.iterations * arguments.seeds
    print(f"{device.platform}: {device.device_kind}, jax {jax.__version__}")
    print(
        f"{arguments.algorithm}, {arguments.seeds} seeds, {arguments.iterations} iterations of "
        f"{arguments.batch_size:,} steps under each kernel: {steps:,} steps simulated"
    )
    whole = end - _START
    print(f"from the start of the process {whole:8.1f} s  {steps / whole:14,.0f} steps/s")
    print(f"of that: imports              {ready - _START:8.1f} s")
    print(f"         compilation          {compilation:8.1f} s")
    print(f"         training             {training:8.1f} s  {steps / training:14,.0f} steps/s")
    last = rows[-arguments.seeds :]
    reward, cost = (
        sum(pair) / len(last)
        for pair in zip(*((r["reward"], r["costs"][0]) for r in last), strict=True)
    )
    print(f"at the end, under the worst case found: reward {reward:.2f}, cost {cost:.2f}")


if __name__ == "__main__":
    main()
