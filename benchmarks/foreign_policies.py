"""Ten policies by Stable-Baselines3, trained briefly and audited.

    python benchmarks/foreign_policies.py [--only Pendulum] [--steps 1.0] [--out FOLDER]

Each policy is trained with its library's default settings for a few thousand steps, times --steps, and
audited with `hf.audit`: mass and gain, for Pendulum the mass, for LunarLander the gravity, differ from
the simulator's by a factor that is drawn once an episode. Prints the nominal cost, what the attack
found, what is proved with 95 % confidence, the limit, and the verdict. Needs stable-baselines3;
LunarLander also gymnasium[box2d].
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import stable_baselines3 as sb3

import holdfast as hf

# By environment: steps of training for PPO, and for SAC and TD3, which learn from every step.
_STEPS = {"Pendulum": (10_000, 2_000), "Hopper": (30_000, 5_000), "HalfCheetah": (30_000, 5_000)}
_SMALL = {"episodes": 100, "updates": 3, "restarts": 1, "kernels": "mean-shift", "noise": None}
_POLICIES = [
    *(("Pendulum", kind) for kind in ("PPO", "SAC", "TD3")),
    *(("Hopper", kind) for kind in ("PPO", "SAC", "TD3")),
    *(("HalfCheetah", kind) for kind in ("PPO", "SAC", "TD3")),
    ("LunarLander", "PPO"),
]


def spins(step: hf.Transition) -> bool:
    """Return whether a pendulum turns faster than 6 rad/s."""
    return bool(abs(step.next_observation[2]) > 6)


def set_pendulum(env: Any, name: str, factor: float) -> None:
    """Set the mass of a pendulum."""
    assert name == "mass"
    env.m = factor


def set_lander(env: Any, name: str, factor: float) -> None:
    """Set the gravity of a lander's world."""
    assert name == "gravity"
    env.world.gravity = (0.0, -10.0 * factor)


def falls(step: hf.Transition) -> bool:
    """Return whether a lander sinks faster than 0.8."""
    return bool(step.next_observation[3] < -0.8)


def disturbed(name: str) -> tuple[Any, float]:
    """Return the environment with its disturbance and cost, and the limit of the cost."""
    if name == "Pendulum":
        mass = hf.Parameters(mass=0.1)
        return hf.disturb("Pendulum-v1", mass, spins, set_parameter=set_pendulum), 20.0
    if name == "LunarLander":
        gravity, options = hf.Parameters(gravity=0.1), {"set_parameter": set_lander}
        return hf.disturb("LunarLander-v3", gravity, falls, horizon=300, **options), 25.0
    body = hf.Parameters(mass=0.1, gain=0.1)
    return hf.disturb(f"{name}-v5", body, hf.speed_limit(1.0), horizon=200), 25.0


def trained(name: str, kind: str, factor: float) -> Any:
    """Return a policy of Stable-Baselines3."""
    version = {"Pendulum": "v1", "LunarLander": "v3"}.get(name, "v5")
    steps = _STEPS.get(name, _STEPS["Hopper"])[kind != "PPO"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PPO advises against GPUs
        model = getattr(sb3, kind)("MlpPolicy", f"{name}-{version}", seed=0, device="cpu")
        return model.learn(int(steps * factor))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=sorted({name for name, _ in _POLICIES}))
    parser.add_argument("--steps", type=float, default=1.0, help="factor on the steps of training")
    parser.add_argument("--out", default="", help="folder for the audits, which a report shows")
    given = parser.parse_args()
    print("| policy | nominal cost | found ≥ | proved ≤ | limit | verdict | training, audit (s) |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for name, kind in _POLICIES:
        if name not in given.only:
            continue
        try:
            start = time.monotonic()
            policy = trained(name, kind, given.steps)
        except gymnasium.error.DependencyNotInstalled as error:
            print(f"| {name}, {kind} | not run: {error} | | | | | |", flush=True)
            continue
        middle = time.monotonic()
        env, limit = disturbed(name)
        found = hf.audit(
            policy,
            env,
            radius=0.05,
            cost_limit=limit,
            out=Path(given.out) / f"{name}-{kind}" if given.out else None,
            attack_options=_SMALL,
            proof_options={"cost_range": (0, 1), "episodes": 400},
        )
        nominal = next(row for row in found.stress.rows if row.kind != "attack").costs[0].mean
        lows = [row.costs[0].low for row in found.stress.rows if row.kind == "attack"]
        lows += [proof.costs[0].found for proof in found.certificates]
        # The larger of the bounds for drawn and for most likely actions.
        uppers = [proof.costs[0].upper for proof in found.certificates]
        upper = f"{max(uppers):.3g}" if uppers else "nothing"
        seconds = f"{middle - start:.0f}, {time.monotonic() - middle:.0f}"
        cells = (f"{nominal:.3g}", f"{max(lows):.3g}", upper, f"{limit:g}", found.verdict, seconds)
        print(f"| {name}, {kind} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
