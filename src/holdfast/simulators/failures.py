"""Failures: exceptions outside JAX, which a compiled program cannot pass on, and values not finite."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from holdfast.simulators.environment import Environment, TrainingError


class Failing(Protocol):
    """A simulator or a policy outside JAX, which keeps the exceptions that it raised."""

    @property
    def name(self) -> str:
        """The name in messages."""

    @property
    def failure(self) -> BaseException | None:
        """The last exception, or None."""

    def forget_failure(self) -> None:
        """Clear `failure` after it was reported."""


@contextlib.contextmanager
def host_failures(env: Failing, kept: str = "") -> Iterator[None]:
    """Raise a simulator's own failure, if it has one, in place of that of the compiled program."""
    interruptible = getattr(env, "interruptible", contextlib.nullcontext)
    try:
        with interruptible():
            yield
    except (jax.errors.JaxRuntimeError, ValueError):  # JAX raises either, by the kind of callback
        failure = env.failure
        if failure is None:
            raise
        env.forget_failure()
        if isinstance(failure, KeyboardInterrupt):
            raise failure from None
        # Messages of a host are complete. For other exceptions the traceback is added.
        told = isinstance(failure, TrainingError)
        text = str(failure) if told else "".join(traceback.format_exception(failure)).rstrip()
        raise TrainingError(f"{env.name} failed{kept}:\n{text}") from None


def check_finite_training(
    env: Environment, seeds: Sequence[int], rows: list[dict[str, Any]], learners: Any, kept: str
) -> None:
    """Raise a TrainingError before a value that is not finite is written or returned.

    Arguments:
        env: the simulator.
        seeds: seeds of the run.
        rows: metrics of some iterations, from which `bad_step` is removed.
        learners: states after them, along a leading axis of seeds.
        kept: end of the message.
    """
    for each in rows:
        where = f"in iteration {each['iteration']} of seed {each['seed']}"
        bad = each.pop("bad_step", -1)
        if bad >= 0:
            raise TrainingError(
                f"{env.name} returned a value that is not finite at step {bad} of an "
                f"episode, {where}{kept}"
            )
        for name, value in each.items():
            if not np.isfinite(value).all():
                raise TrainingError(f"{name} on {env.name} is not finite {where}{kept}")
    for path, leaf in jax.tree_util.tree_leaves_with_path(jax.device_get(learners)):
        healthy = np.isfinite(leaf).reshape(len(seeds), -1).all(1)
        if not healthy.all():
            raise TrainingError(
                f"training on {env.name} diverged: "
                f"{jax.tree_util.keystr(path).lstrip('.')} is not finite after iteration "
                f"{rows[-1]['iteration']} of seed {seeds[int(np.argmin(healthy))]}{kept}"
            )
