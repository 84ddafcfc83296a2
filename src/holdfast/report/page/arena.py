"""Episodes of Point Gather, under the nominal noise and under the adversaries of training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import holdfast as hf
from holdfast._support.compilation import compiled_simulation
from holdfast.environments.gathering import APPLES, ARENA
from holdfast.environments.point_gather import PointGather
from holdfast.environments.point_gather_episode import Episode
from holdfast.report.page.content import Arena, Drive
from holdfast.simulators.training import runs
from holdfast.simulators.training.learner import Learner, read_learners
from holdfast.simulators.training.rollout import Batch, Signal, rollout

_EPISODES = 3


def arena_block(folder: Path, description: Mapping[str, Any]) -> Arena | None:
    """Return episodes of the first seed's policy, or None if the run is not one of Point Gather.

    Arguments:
        folder: folder of a finished run.
        description: description of the run.

    Raises:
        ValueError: the agent or the checkpoint cannot be read; the message names the file.
    """
    if description["environment"]["name"] != "point-gather":
        return None
    agent = hf.load(runs.agent_file(folder, description["seeds"][0]))
    env = agent.environment
    if not isinstance(env, PointGather):
        return None
    episodes = {
        f"nominal noise, episode {seed + 1}": Episode.of(agent, seed=seed)
        for seed in range(_EPISODES)
    }
    about = "A purple arrow is the disturbance of the step, drawn three times as long."
    if description["robust"] and (folder / runs.CHECKPOINT).is_file():
        episodes |= _against_adversaries(folder, env)
        about += " The adversaries are those at the end of training, each within the radius."
    return Arena(
        key="episodes",
        title="Episodes on the map",
        about=about,
        half_width=ARENA,
        reach=float(env.catch_distance),
        apples=APPLES,
        drives=[_drive(name, episode) for name, episode in episodes.items()],
    )


def _against_adversaries(folder: Path, env: PointGather) -> dict[str, Episode]:
    """Return episodes of the first seed under the learned worst case of each signal."""
    learner = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), read_learners(folder, env))
    found = {}
    for index, name in enumerate(("reward", *env.cost_names)):
        batch, last, taken = _play(env, learner, jnp.asarray(index), jax.random.PRNGKey(0))
        for i in range(_EPISODES):
            found[f"adversary of {name}, episode {i + 1}"] = _episode(env, batch, last, taken, i)
    return found


@compiled_simulation
def _play(
    env: PointGather, learner: Learner, index: jax.Array, key: jax.Array
) -> tuple[Batch, Any, jax.Array]:
    """Return episodes under one signal's kernel, the states after them, and the actions taken."""
    nature = jax.tree.map(lambda leaf: leaf[index], learner.natures)
    one = jnp.ones(())
    signal = Signal(index, one, one, one, bootstrap=False)
    batch = rollout(
        learner.player(env),
        nature.kernel,
        key,
        _EPISODES,
        critic=nature.critic,
        signal=signal,
        keep_states=True,
    )
    taken = learner.policy.to_environment(batch.actions)
    before = jax.tree.map(lambda leaf: leaf[-1], batch.states)
    return batch, env.step_rows(before, taken[-1], batch.disturbances[-1]).state, taken


def _episode(env: PointGather, batch: Batch, last: Any, taken: jax.Array, i: int) -> Episode:
    states = jax.tree.map(
        lambda before, after: np.concatenate([before[:, i], after[None, i]]), batch.states, last
    )
    signals = np.asarray(batch.signals[:, i])
    return Episode(
        env,
        states,
        np.asarray(taken[:, i]),
        signals[:, 0],
        -signals[:, 1:],
        np.asarray(batch.disturbances[:, i]),
    )


def _drive(name: str, episode: Episode) -> Drive:
    pushes = episode.pushes
    totals = {"return": episode.rewards, "bombs": episode.costs[:, 0]}
    return Drive(
        name=name,
        objects=np.asarray(episode.states.objects[0]),
        path=episode.path,
        headings=np.asarray(episode.states.pose)[:, 2],
        pushes=[] if pushes is None else pushes,
        caught_at=episode.caught_at.tolist(),
        totals={each: np.append(0.0, np.cumsum(paid)) for each, paid in totals.items()},
    )
