"""Gymnasium environments as a host: a pool of them, stepped in the order in which it is asked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Bool, Float, Shaped, UInt32

from holdfast.gym.hosts.host import Reply
from holdfast.gym.hosts.pools import Pool


class PoolHost:
    """A pool that is opened when it is first asked, and cannot go back.

    A copy's place is which reset it belongs to, which copy it is, and how many steps it has made: so a
    step from a place that has passed is noticed.

    Arguments:
        open_pool: makes the pool.
        name: of the environment, for messages.
        feature_size: how long its observations are.
        cost_names: the costs.
    """

    is_replayable = False
    place_size = 3

    def __init__(
        self,
        open_pool: Callable[[], Pool],
        name: str,
        feature_size: int,
        cost_names: tuple[str, ...],
    ) -> None:
        self.feature_size, self.cost_names = feature_size, cost_names
        self._open, self._name = open_pool, name
        self._pool: Pool | None = None
        self._resets = self._steps = 0

    def reset(self, seeds: UInt32[np.ndarray, " rows"]) -> Reply:
        """As many beginnings as seeds; whatever was going on before is over."""
        if self._pool is None:
            self._pool = self._open()
        rows = len(seeds)
        with self._closed_on_error():
            observations = self._pool.reset(seeds)
        self._resets, self._steps = self._resets + 1, 0
        nothing = np.zeros(rows, np.float32)
        costs = np.zeros((rows, len(self.cost_names)), np.float32)
        place = self._place(rows)
        return Reply(place, observations, observations, nothing, costs, np.zeros(rows, bool))

    def step(
        self,
        place: UInt32[np.ndarray, "rows place"],
        actions: Shaped[np.ndarray, "rows ..."],
        commands: Float[np.ndarray, "rows command"],
        over: Bool[np.ndarray, " rows"],
    ) -> Reply:
        """A step of every copy whose episode is not over."""
        if self._pool is None or not np.array_equal(place, self._place(len(place))):
            raise RuntimeError(f"{self._name} was asked to go back to a state that has passed")
        with self._closed_on_error():
            found = self._pool.step(actions, commands, ~over)
        self._steps += 1
        return Reply(
            self._place(len(place)),
            found.observations,
            found.observations,
            found.rewards,
            found.costs,
            found.terminated | over,
        )

    @contextlib.contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        """So that whoever goes on from a checkpoint gets a new pool."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _place(self, rows: int) -> UInt32[np.ndarray, "rows 3"]:
        found = np.empty((rows, 3), np.uint32)
        found[:, 0], found[:, 1], found[:, 2] = self._resets, np.arange(rows), self._steps
        return found

    def close(self) -> None:
        """Closes the environments."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None
