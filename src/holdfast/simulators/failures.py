"""Exceptions of simulators and policies outside JAX, which a compiled program cannot pass on."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from typing import Protocol

import jax

from holdfast.simulators.environment import TrainingError


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
        # A host says itself what went wrong; of any other exception the place matters.
        told = isinstance(failure, TrainingError)
        text = str(failure) if told else "".join(traceback.format_exception(failure)).rstrip()
        raise TrainingError(f"{env.name} failed{kept}:\n{text}") from None
