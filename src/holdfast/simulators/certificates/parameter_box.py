"""The share of a box of physical parameters in which an episode costs more than its limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from holdfast._support.compilation import compiled
from holdfast.simulators.certificates.attack import FrozenPolicy
from holdfast.simulators.environment import Environment
from holdfast.simulators.training.rollout import Nominal, Player, Sight, rollout

# Environments side by side in one program.
_AT_ONCE = 256


def check_box(env: Environment, box: Mapping[str, tuple[float, float]]) -> None:
    """Raise a ValueError if a parameter or its ends cannot be used."""
    if not box:
        raise ValueError("box: expected at least one parameter")
    for name, ends in box.items():
        if np.shape(ends) != (2,) or not ends[0] < ends[1]:
            raise ValueError(f"box: expected {name}=(low, high), got {ends!r}")
        for end in ends:
            env.with_parameters(**{name: float(end)})


def box_costs(
    frozen: FrozenPolicy, box: Mapping[str, tuple[float, float]], draws: int, seed: int
) -> Float[np.ndarray, "draws signals"]:
    """Return reward and costs of one episode for each draw of uniform parameters."""
    generator = np.random.default_rng(seed)
    env = frozen.env
    key = jax.random.PRNGKey(seed)
    ordered = env.is_hosted and not env.is_replayable
    ordered |= bool(getattr(frozen.policy, "has_memory", False))
    found = []
    for start in range(0, draws, _AT_ONCE):
        count = min(_AT_ONCE, draws - start)
        drawn = [
            {name: float(generator.uniform(*ends)) for name, ends in box.items()}
            for _ in range(count)
        ]
        envs = [env.with_parameters(**each) for each in drawn]
        stacked: Any = jax.tree.map(lambda *leaves: jnp.stack(leaves), *envs)
        keys = jax.random.split(jax.random.fold_in(key, start), count)
        found.append(np.asarray(_play_each(frozen, stacked, keys, ordered)))
    return np.concatenate(found)


@compiled
def _play_each(frozen: FrozenPolicy, envs: Environment, keys: Array, ordered: bool) -> Array:
    sight = Sight(frozen.observations, None, None, True)

    def one(env: Environment, key: Array) -> Array:
        player = Player(env, frozen.policy, sight, frozen.deterministic)
        batch = rollout(player, Nominal.create(env), key, 1)
        powers = frozen.signals.discount ** jnp.arange(len(batch.alive))[:, None]
        plain = not frozen.signals.bootstrap
        values = batch.signals[:, 0] * (1.0 if plain else powers)
        signs = jnp.array([1.0] + [-1.0] * (values.shape[-1] - 1))
        return signs * values.sum(0)

    if ordered:
        return lax.map(lambda each: one(*each), (envs, keys))
    return jax.vmap(one)(envs, keys)
