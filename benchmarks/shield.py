"""What a shield costs and saves: an unsafe policy in tables as Gymnasium environments.

    python benchmarks/shield.py [--episodes 300] [--models gambler frozen-lake machine-replacement]

The unsafe policy is that of robust value iteration, which ignores the constraint. The fallback policy is
RCPO's, or the one with the lowest worst-case cost. Episodes run under the nominal kernel, and under the
kernels that are worst for the constraint of the unsafe and of the fallback policy. Prints the mean
discounted reward and cost with standard errors, the limit, and the share of replaced actions.
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
    draw, found = np.random.default_rng((0, 2)), np.zeros((count, 2))
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


def worst(model: hf.RobustCMDP, policy: np.ndarray) -> hf.RobustCMDP:
    """Return the model under the kernel that is worst for the constraint of a policy."""
    return model.replace(transitions=hf.evaluate(model, policy).constraints[0].kernel)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument(
        "--models", nargs="+", default=["gambler", "frozen-lake", "machine-replacement"]
    )
    given = parser.parse_args()
    print("| model | shield's fallback | kernel | reward | cost | limit | replaced |")
    print("|---|---|---|---|---|---|---|")
    for name in given.models:
        model = hf.environments.MODELS[name]()
        unsafe = hf.solve(model, "rvi").policy
        fallbacks = {"none": None, "RCPO": hf.solve(model, "rcpo").policy, "safest": safest(model)}
        limit = -model.constraints[0].utility_threshold
        for label, fallback in fallbacks.items():
            tables = {"nominal": model, "worst for the policy": worst(model, unsafe)}
            if fallback is not None:
                tables["worst for the fallback"] = worst(model, fallback)
            for where, table in tables.items():
                env = TableEnv(table)
                shielded = env if fallback is None else hf.Shield(env, fallback, model=model)
                found = episodes(shielded, unsafe, model.discount, given.episodes)
                errors = found.std(0, ddof=1) / np.sqrt(len(found))
                reward, cost = (
                    f"{mean:.3g} ± {error:.2g}"
                    for mean, error in zip(found.mean(0), errors, strict=True)
                )
                share = ""
                if isinstance(shielded, hf.Shield):
                    share = f"{100 * shielded.overridden / shielded.steps:.0f} %"
                cells = (name, label, where, reward, cost, f"{limit:g}", share)
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
