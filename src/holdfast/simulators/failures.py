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
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError):  # JAX raises either, by the kind of callback
        if env.failure is None:
            raise
        text = "".join(traceback.format_exception(env.failure)).rstrip()
        env.forget_failure()
        raise TrainingError(f"{env.name} failed{kept}:\n{text}") from None
