"""Attacked reward against attacked cost on Point Gather: RCPO, and PCPO at tightened limits.

RCPO (radius 0.2, limit 0.1) is compared with PCPO, which trains under the nominal disturbance, at the
same limit and at tighter ones. PCPO at the limit 0.1 is domain randomisation: nominal draws of the
disturbance and no adversary. Every agent is attacked on its reward and on its cost, with drawn and with
most likely actions, by new adversaries as in `stress`; the strongest kind counts:

    python benchmarks/point_gather_frontier.py --out runs/frontier        # some minutes on a GPU
    python benchmarks/point_gather_frontier.py --draw runs/frontier/frontier.json

The folder receives frontier.json, rewritten after every group of agents, and frontier.png. After
`--seconds` no further group is begun. Groups in order: RCPO, PCPO, RCPO with other safety margins, the
first RCPO agents under larger attacks (what is left to find), and RCPO trained against the other kind of
adversary. `--saturation` leaves out the groups that are not about the size of attacks.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from holdfast._support.compilation import compiled
from holdfast._support.devices import row, side_by_side
from holdfast.environments.point_gather import PointGather
from holdfast.simulators.certificates import attack
from holdfast.simulators.certificates.attack import FrozenPolicy, Targets
from holdfast.simulators.policy.agent import Agent
from holdfast.simulators.stress import UPDATES, attack_settings, frozen_agent
from holdfast.simulators.train import TrainingRun, prepare
from holdfast.simulators.training.learner import iterations
from holdfast.simulators.training.settings import AdversarySettings

RADIUS, LIMIT = 0.2, 0.1
TIGHTENED = (0.1, 0.05, 0.04, 0.03, 0.02)
# Limits at which RCPO, with its safety margin of 0.15, aims where margins of 0.15, 0.1 and 0.19 would at
# the limit 0.1. Limits are traced, so that all of them share a compiled program.
AIMS = (0.1, 0.1059, 0.095)
KINDS = ("mean-shift", "tilted")
# The kind of adversary that is not the default of training.
OTHER = "mean-shift"
SIGNALS, WAYS = ("reward", "cost"), ("drawn", "most likely")
# Iterations per compiled call: a line of progress every few seconds.
CHUNK = 20
# Episodes on which adversaries are compared, and on which the strongest one is measured again.
JUDGED_ON, EPISODES = 8_192, 65_536

Attacks = dict[str, np.ndarray]
Say = Callable[[str], None]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/frontier"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=50_000)
    parser.add_argument("--updates", type=int, default=UPDATES, help="of an adversary")
    parser.add_argument("--attack-batch", type=int, help="steps; default: that of stress")
    parser.add_argument("--restarts", type=int, default=1)
    parser.add_argument("--episodes", type=int, default=EPISODES)
    parser.add_argument("--limits", type=float, nargs="+", default=TIGHTENED, help="of PCPO")
    parser.add_argument("--seconds", type=float, default=420, help="then no group is begun")
    parser.add_argument(
        "--saturation", action="store_true", help="only RCPO, under attacks of several sizes"
    )
    parser.add_argument("--draw", type=Path, help="draw the figure of this file and stop")
    options = parser.parse_args()
    if options.draw:
        draw(options.draw, options.draw.with_suffix(".png"))
        return
    path = options.out / "frontier.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    result = experiment(options, path)
    show(result)
    if not options.saturation:
        draw(path, path.with_suffix(".png"))


def experiment(options: argparse.Namespace, path: Path) -> dict[str, Any]:
    """Train and attack the groups of agents; write the result after every group."""
    start = time.perf_counter()
    kinds = [scaled(attack_settings(kind, options.updates), options) for kind in KINDS]
    result: dict[str, Any] = {"groups": []}

    def say(what: str) -> None:
        print(f"[{time.perf_counter() - start:6.1f} s] {what}", flush=True)

    for name, run, policies, attacks in planned_groups(options, kinds, say):
        if not result["groups"]:
            hidden = ("out", "draw", "seconds")
            result["setup"] = {
                **{key: value for key, value in vars(options).items() if key not in hidden},
                "radius": RADIUS,
                "limit": LIMIT,
                "attacks": [dataclasses.asdict(kind) for kind in kinds],
                "settings": run.settings.to_dict(),
                "device": str(jax.devices()[0].device_kind),
            }
        frozen, key = first_frozen(run, policies), jax.random.PRNGKey(1)
        size = (options.restarts, options.episodes)
        found = [jax.device_get(attacked(frozen, policies, key, kind, *size)) for kind in attacks]
        values = strongest(found, [kind.kernel for kind in attacks])
        group = {
            "name": name,
            "algorithm": run.algorithm.name,
            "cost_limit": run.limits[0],
            "adversary": run.settings.adversary.kernel,
            "seeds": list(run.seeds),
            **{key: value.tolist() for key, value in values.items()},
        }
        result["groups"].append(group)
        path.write_text(json.dumps(result, indent=1))
        say(line(group))
        if time.perf_counter() - start > options.seconds:
            say("no time for further groups")
            break
    return result


def scaled(settings: AdversarySettings, options: argparse.Namespace) -> AdversarySettings:
    size = options.attack_batch or settings.batch_size
    return dataclasses.replace(settings, batch_size=size)


def planned_groups(
    options: argparse.Namespace, kinds: list[AdversarySettings], say: Say
) -> Iterator[tuple[str, TrainingRun, Any, list[AdversarySettings]]]:
    """Yield name, run, policies and attacks of every group; a group is trained when it is due."""
    common = {
        "seeds": options.seeds,
        "iterations": options.iterations,
        "batch_size": options.batch_size,
    }

    def rcpo(limit: float, **settings: Any) -> TrainingRun:
        env = PointGather()
        return prepare(env, "rcpo", radius=RADIUS, cost_limit=limit, **common, **settings)

    robust = [rcpo(limit) for limit in AIMS[: 1 if options.saturation else None]]
    policies = trained(robust, say)
    yield "RCPO", robust[0], policies[0], kinds
    if not options.saturation:
        nominal = [
            prepare(PointGather(), "pcpo", cost_limit=limit, **common) for limit in options.limits
        ]
        for run, mine in zip(nominal, trained(nominal, say), strict=True):
            yield "PCPO", run, mine, kinds
    for run, mine in zip(robust[1:], policies[1:], strict=True):
        yield "RCPO, other margin", run, mine, kinds
    shift, tilted = kinds
    for name, larger in (
        ("twice the updates", dataclasses.replace(shift, updates=2 * shift.updates)),
        ("network (256, 128)", dataclasses.replace(shift, hidden=(256, 128))),
        ("mixture", dataclasses.replace(shift, kernel="gaussian-mixture")),
        ("256 candidates", dataclasses.replace(tilted, candidates=256)),
        ("twice the updates, tilted", dataclasses.replace(tilted, updates=2 * tilted.updates)),
    ):
        yield f"RCPO, attack with {name}", robust[0], policies[0], [larger]
    if options.saturation:
        return
    other = [rcpo(limit, adversary={"kernel": OTHER}) for limit in AIMS]
    for run, mine in zip(other, trained(other, say), strict=True):
        yield f"RCPO, trained against {OTHER}", run, mine, kinds


def trained(runs: list[TrainingRun], say: Say) -> list[Any]:
    """Train the seeds of several runs that differ in their limits, in one compiled program.

    Returns policy and normaliser of each run, along a leading axis of seeds.
    """
    first, seeds = runs[0], len(runs[0].seeds)
    learners = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *(run.first() for run in runs))
    done, total = 0, first.settings.iterations
    while done < total:
        count = min(CHUNK, total - done)
        now = (first.algorithm, first.plan, CHUNK, first.env, learners, jnp.asarray(count))
        learners, metrics = iterations(*now)
        done += count
        last = jax.device_get({name: value[count - 1] for name, value in metrics.items()})
        means = (
            f"{name} {np.mean(last[name]):.3f}" for name in ("reward", "costs", "likely_costs")
        )
        say(f"{first.algorithm.name}, iteration {done}: {', '.join(means)}")
    policies = (learners.policy, learners.sight.observations)
    if not all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(policies)):
        raise FloatingPointError(f"{first.algorithm.name}: training diverged")
    return [
        jax.tree.map(lambda leaf, i=i: leaf[i * seeds : (i + 1) * seeds], policies)
        for i in range(len(runs))
    ]


def first_frozen(run: TrainingRun, policies: Any) -> FrozenPolicy:
    """Return the first policy of a run, frozen."""
    about = (run.algorithm.name, run.settings, run.limits, run.seeds[0])
    agent = Agent(*row(policies, 0), *about, run.env, run.env.description())
    return frozen_agent(agent, run.env)[0]


@compiled
def attacked(
    frozen: FrozenPolicy,
    policies: Any,
    key: jax.Array,
    settings: AdversarySettings,
    restarts: int,
    episodes: int,
) -> dict[str, jax.Array]:
    """Return reward and cost of every agent, nominal and under attacks of one kind on that signal.

    Values have the axes seed and way to act. Each comes with its standard error, and with the value on
    the episodes on which adversaries are compared.
    """
    way, signal, _ = map(jnp.ravel, jnp.indices((len(WAYS), len(SIGNALS), restarts)))
    jobs = len(way)

    def one(policy: Any, key: jax.Array) -> dict[str, jax.Array]:
        mine = dataclasses.replace(frozen, policy=policy[0], observations=policy[1])
        watch_key, train_key, play_key = jax.random.split(key, 3)
        sight = attack.watch(mine, watch_key)
        keys = jax.random.split(train_key, jobs)
        targets = Targets(signal, jnp.full(jobs, RADIUS, jnp.float32), way == 1, keys)
        judged_on = min(JUDGED_ON, episodes)
        natures, values = attack.train_attackers(mine, sight, targets, settings, judged_on)
        # The strongest restart of every way and signal.
        best = jnp.argmin(values.reshape(-1, restarts), -1) + jnp.arange(0, jobs, restarts)
        judged = values[best]

        def measured(nature: Any, target: Targets) -> tuple[jax.Array, jax.Array]:
            acting = dataclasses.replace(mine, deterministic=target.deterministic)
            returns = attack.play(acting, play_key, episodes, sight, nature, target.signal)
            # Episodes hold utilities; a cost is the negative of its utility.
            return returns.mean(0) * jnp.array([1, -1]), returns.std(0) / jnp.sqrt(len(returns))

        attacks = side_by_side(measured, *row((natures, targets), best))
        unharmed = side_by_side(lambda target: measured(None, target), row(targets, best))
        found = {}
        for i, title in enumerate(SIGNALS):
            found[f"judged_{title}"] = judged[i :: len(SIGNALS)]
            for name, values in (("nominal", unharmed), ("attacked", attacks)):
                mean, error = (each[i :: len(SIGNALS), i] for each in values)
                found |= {f"{name}_{title}": mean, f"{name}_{title}_error": error}
        return found

    return side_by_side(one, policies, jax.random.split(key, len(policies[0].log_std)))


def strongest(found: list[Attacks], kinds: list[str]) -> Attacks:
    """Return the values under the strongest kind of every seed, way and signal, and its name."""
    best = dict(found[0])
    for title in SIGNALS:
        judged = np.stack([each[f"judged_{title}"] for each in found])
        pick = judged.argmin(0)[None]
        for name in (f"attacked_{title}", f"attacked_{title}_error"):
            best[name] = np.take_along_axis(np.stack([each[name] for each in found]), pick, 0)[0]
        best[f"kernel_{title}"] = np.array(kinds)[pick[0]]
        del best[f"judged_{title}"]
    return best


def line(group: dict[str, Any]) -> str:
    """Return a group in one line: means over seeds, with the largest attacked cost of a seed."""
    cost = np.array(group["attacked_cost"])
    parts = [f"{group['name']}, limit {group['cost_limit']:g}"]
    for i, way in enumerate(WAYS):
        nominal, reward = (
            np.mean(group[f"{name}_reward"], 0)[i] for name in ("nominal", "attacked")
        )
        parts.append(
            f"{way} actions: nominal reward {nominal:.2f}, attacked reward {reward:.2f}, attacked "
            f"cost {cost[:, i].mean():.4f} (at most {cost[:, i].max():.4f})"
        )
    return "; ".join(parts)


def show(result: dict[str, Any]) -> None:
    print(
        "\n| algorithm, limit | actions | nominal reward | attacked reward | attacked cost, by seed |"
    )
    print("|---|---|---|---|---|")
    for group in result["groups"]:
        for i, way in enumerate(WAYS):
            nominal, reward = (
                np.mean(group[f"{name}_reward"], 0)[i] for name in ("nominal", "attacked")
            )
            costs = ", ".join(f"{each[i]:.4f}" for each in group["attacked_cost"])
            name = f"{group['name']}, limit {group['cost_limit']:g}"
            print(f"| {name} | {way} | {nominal:.2f} | {reward:.2f} | {costs} |")


def draw(source: Path, path: Path) -> None:
    """Draw attacked reward against attacked cost, one panel for each way to act."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    from holdfast.report.charts import STYLES

    result = json.loads(source.read_text())
    figure, panels = pyplot.subplots(1, len(WAYS), figsize=(8.4, 3.5), sharey=True, squeeze=False)
    for i, (panel, way) in enumerate(zip(panels[0], WAYS, strict=True)):
        for name in ("pcpo", "rcpo"):
            groups = [each for each in result["groups"] if each["name"] == name.upper()]
            look = {"color": STYLES[name].colour}
            means = []
            for group in groups:
                cost = np.array(group["attacked_cost"])[:, i]
                reward = np.array(group["attacked_reward"])[:, i]
                panel.plot(cost, reward, "o", ms=3, alpha=0.45, mew=0, **look)
                means.append((cost.mean(), reward.mean()))
                if name == "pcpo":
                    limit = f"{group['cost_limit']:g}"
                    text = {"xytext": (4, -9), "textcoords": "offset points", "fontsize": 8}
                    panel.annotate(limit, means[-1], **text, **look)
            label = "PCPO, limit tightened" if name == "pcpo" else "RCPO, radius 0.2, limit 0.1"
            panel.plot(*np.array(means).T, "-D", ms=6, lw=1.2, label=label, **look)
        limit = result["setup"]["limit"]
        panel.axvline(limit, color="#4d4d4d", lw=1, ls="--")
        panel.set_title(f"{way} actions", fontsize=10)
        panel.set_xlabel(f"cost under attack (limit {limit:g})")
        panel.grid(alpha=0.25)
    panels[0][0].set_ylabel("reward under attack")
    panels[0][0].legend(fontsize=8, loc="best")
    figure.suptitle(
        f"Point Gather, attacks of radius {result['setup']['radius']:g}: each seed and the means",
        fontsize=11,
    )
    figure.tight_layout()
    figure.savefig(path, dpi=140)
    pyplot.close(figure)
    print(f"figure in {path}")


if __name__ == "__main__":
    main()
