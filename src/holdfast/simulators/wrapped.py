"""Environments made of other environments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.simulators.environment import Environment


def _forwarded(name: str) -> property | Callable[..., Any]:
    """Return a property or method that forwards to the one of the same name of `inner`."""
    if isinstance(vars(Environment)[name], property):
        return property(lambda self: getattr(self.inner, name))

    def method(self: Any, *args: Any) -> Any:
        return getattr(self.inner, name)(*args)

    return method


class Wrapped(Environment):
    """An environment that forwards everything to `inner`; subclasses change some of it."""

    inner: Environment

    # `with_parameters` would return the inner environment without its wrapper.
    locals().update(
        {
            name: _forwarded(name)
            for name in vars(Environment)
            if not name.startswith("_") and name != "with_parameters"
        }
    )
