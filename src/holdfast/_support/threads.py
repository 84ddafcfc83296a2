"""The threads of the linear algebra library inside the verbs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

# Up to this many states one thread is as fast as several: the threads of a factorisation wait for each
# other about as long as they compute, and on a busy machine much longer.
_ONE_THREAD_STATES = 2048


@functools.cache
def _pools() -> Any:
    # JAX on a CPU calls the linear algebra of SciPy, which has to be loaded to be found.
    import scipy.linalg.lapack  # noqa: F401
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextlib.contextmanager
def linear_algebra_threads(states: int) -> Iterator[None]:
    """Limit the linear algebra library to one thread for matrices of up to 2,048 states.

    Example:
        >>> with linear_algebra_threads(521):
        ...     pass
    """
    if states > _ONE_THREAD_STATES:
        yield
        return
    with _pools().limit(limits=1, user_api="blas"):
        yield


def few_threads(verb: F) -> F:
    """Return a verb of a model, its first argument, with `linear_algebra_threads` inside."""

    @functools.wraps(verb)
    def wrapped(model: Any, *args: Any, **kwargs: Any) -> Any:
        with linear_algebra_threads(getattr(model, "states", 0)):
            return verb(model, *args, **kwargs)

    return wrapped  # type: ignore[return-value]
