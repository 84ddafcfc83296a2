"""What a shield costs and saves: an unsafe policy in tables as Gymnasium environments.

    python benchmarks/shield.py [--episodes 300] [--models gambler frozen-lake machine-replacement]

The unsafe policy is that of robust value iteration, which ignores the constraint. The fallback policy is
RCPO's, or the one with the lowest worst-case cost. Episodes run under the nominal kernel, and under the
kernel that is worst for the constraint of the unsafe policy. Prints the mean discounted reward and cost
with standard errors, the limit, and the share of steps whose action was replaced.
"""

from __future__ import annotations

import argparse

import numpy as np

import holdfast as hf
from holdfast.gym.as_gymnasium import TableEnv

# Steps after which an episode is cut: γ^t is then at most 1 %.
_REMAINDER = 0.01


def episodes(
    env: TableEnv | hf.Shield, policy: np.ndarray, discount: float, count: int
) -> np.ndarray:
    """Return the discounted reward and cost of each episode."""
    steps = int(np.ceil(np.log(_REMAINDER) / np.log(discount)))
    draw, found = np.random.default_rng(0), np.zeros((count, 2))
    for i in range(count):
        state, _ = env.reset(seed=i)
        for t in range(steps):
            action = int(draw.choice(policy.shape[1], p=policy[state]))
            state, reward, over, _, info = env.step(action)
            found[i] += discount**t * np.array([reward, info["cost"]])
            if over:
                break
    return found


def safest(model: hf.RobustCMDP) -> np.ndarray:
    """Return the policy with the lowest worst-case cost, by robust value iteration on it."""
    return hf.solve(model.replace(reward=model.constraints[0].utility), "rvi").policy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument(
        "--models", nargs="+", default=["gambler", "frozen-lake", "machine-replacement"]
    )
    given = parser.parse_args()
    print("| model | kernel | shield's fallback | reward | cost | limit | replaced |")
    print("|---|---|---|---|---|---|---|")
    for name in given.models:
        model = hf.environments.MODELS[name]()
        unsafe = hf.solve(model, "rvi").policy
        kernel = hf.evaluate(model, unsafe).constraints[0].kernel
        fallbacks = {"none": None, "RCPO": hf.solve(model, "rcpo").policy, "safest": safest(model)}
        limit = -model.constraints[0].utility_threshold
        for where, tables in (("nominal", model), ("worst", model.replace(transitions=kernel))):
            for label, fallback in fallbacks.items():
                env = TableEnv(tables)
                shielded = env if fallback is None else hf.Shield(env, fallback, model=model)
                found = episodes(shielded, unsafe, model.discount, given.episodes)
                errors = found.std(0, ddof=1) / np.sqrt(len(found))
                reward, cost = (
                    f"{m:.3g} ± {e:.2g}" for m, e in zip(found.mean(0), errors, strict=True)
                )
                share = (
                    f"{100 * shielded.overridden / shielded.steps:.0f} %"
                    if isinstance(shielded, hf.Shield)
                    else ""
                )
                print(
                    f"| {name} | {where} | {label} | {reward} | {cost} | {limit:g} | {share} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
