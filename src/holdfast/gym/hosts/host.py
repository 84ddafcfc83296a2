"""What a host is: something outside JAX that steps many copies of an environment at once."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Bool, Float, Shaped, UInt32


class Reply(NamedTuple):
    """What a host says of every copy after a reset or a step.

    Attributes:
        place: where it is, in the host's own numbers.
        observations: what the policy sees.
        features: what critics and adversaries see.
        rewards: of the step.
        costs: of the step, a column for each.
        terminated: whether the episode is over.
    """

    place: UInt32[np.ndarray, "rows place"]
    observations: Float[np.ndarray, "rows observation"]
    features: Float[np.ndarray, "rows features"]
    rewards: Float[np.ndarray, " rows"]
    costs: Float[np.ndarray, "rows costs"]
    terminated: Bool[np.ndarray, " rows"]


class Host(Protocol):
    """Copies of one environment."""

    @property
    def is_replayable(self) -> bool:
        """Whether a step can be taken again from a place of before."""

    @property
    def place_size(self) -> int:
        """How many numbers a place has."""

    @property
    def feature_size(self) -> int:
        """How many numbers `Reply.features` has."""

    @property
    def cost_names(self) -> tuple[str, ...]:
        """The costs, in the order of `Reply.costs`."""

    def reset(self, seeds: UInt32[np.ndarray, " rows"]) -> Reply:
        """As many beginnings as seeds."""

    def step(
        self,
        place: UInt32[np.ndarray, "rows place"],
        actions: Shaped[np.ndarray, "rows ..."],
        commands: Float[np.ndarray, "rows command"],
        over: Bool[np.ndarray, " rows"],
    ) -> Reply:
        """A step of every copy whose episode is not over."""

    def close(self) -> None:
        """Ends what the host has running."""
