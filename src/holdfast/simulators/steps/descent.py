"""Adam steps on minibatches, and two ways to divide a batch into them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float, Shaped

from holdfast._support.devices import spread

Parameters = TypeVar("Parameters")


class Passes(NamedTuple):
    """The passes of an optimiser over a batch: learning rate, epochs and minibatches per epoch."""

    rate: float | Float[Array, ""]
    epochs: int
    minibatches: int


def descend(
    start: tuple[Parameters, optax.OptState],
    loss: Callable[[Parameters, Any], Array],
    parts: Any,
    passes: Passes,
) -> tuple[Parameters, optax.OptState]:
    """Return parameters and their optimiser after Adam steps on minibatches.

    Arguments:
        start: the parameters and the state of their optimiser.
        loss: function of the parameters and a minibatch.
        parts: arrays (minibatches, rows, …), as from `by_episodes` or `by_steps`.
        passes: learning rate and epochs.
    """
    adam = optax.adam(passes.rate)

    def update(carry: tuple[Parameters, optax.OptState], part: Any) -> tuple[Any, None]:
        parameters, state = carry
        changes, state = adam.update(jax.grad(loss)(parameters, part), state, parameters)
        return (optax.apply_updates(parameters, changes), state), None

    def epoch(carry: tuple[Parameters, optax.OptState], _: None) -> tuple[Any, None]:
        return lax.scan(update, carry, parts)

    return lax.scan(epoch, start, None, length=passes.epochs)[0]


def by_episodes(data: Any, minibatches: int) -> Any:
    """Divide arrays (time, episodes, …) into minibatches of whole episodes, as rows of steps.

    Episodes are independent of each other, so that any division of them is random and nothing is
    shuffled. Episodes left over by the division are not used.
    """
    episodes = jax.tree.leaves(data)[0].shape[1]
    minibatches = min(minibatches, episodes)
    size = episodes // minibatches

    def divided(leaf: Array) -> Array:
        # Episodes are dealt out in turn: if they are divided over devices, so is each minibatch.
        steps, more = len(leaf), leaf.shape[2:]
        parts = leaf[:, : size * minibatches].reshape(steps, size, minibatches, *more)
        return jnp.moveaxis(parts, (2, 1), (0, 1)).reshape(minibatches, size * steps, *more)

    return spread(jax.tree.map(divided, data), axis=1)


def by_steps(rows: Any, minibatches: int) -> Any:
    """Divide arrays (rows, …), episode after episode, into minibatches of steps of many episodes.

    Rows are dealt out in turn, so that neighbouring steps are in different minibatches and every
    minibatch has steps of every long episode. A batch of twenty episodes thus gives hundreds of
    minibatches. They are used in one random order in every pass; in order of time, consecutive
    minibatches would be correlated. If rows are left over, there are fewer than minibatches.
    """
    count = len(jax.tree.leaves(rows)[0])
    minibatches = min(minibatches, count)
    size = count // minibatches
    order = jax.random.permutation(jax.random.PRNGKey(0), minibatches)

    def divided(leaf: Array) -> Array:
        parts = leaf[: size * minibatches].reshape(size, minibatches, *leaf.shape[1:])
        return jnp.moveaxis(parts, 1, 0)[order]

    return spread(jax.tree.map(divided, rows), axis=1)


def in_rows(leaf: Shaped[Array, "time episodes *more"]) -> Shaped[Array, "..."]:
    """Return the steps as rows, episode after episode."""
    return jnp.moveaxis(leaf, 1, 0).reshape(-1, *leaf.shape[2:])
