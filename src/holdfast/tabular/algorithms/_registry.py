"""What `solve` has to know of an algorithm, and how its settings are read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from jaxtyping import Array

from holdfast._support.arguments import meant
from holdfast.tabular.algorithms._run import Run


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """An algorithm of `solve`.

    Attributes:
        search: from a run to its last policy; it records the way.
        settings: the frozen dataclass of its hyper-parameters, or None where it has none.
        reads: the arguments of `solve`, of those that only some algorithms have a use for, that it
            takes.
        local: whether where it ends depends on where it starts.
    """

    search: Callable[[Run], Array]
    settings: type[Any] | None = None
    reads: tuple[str, ...] = ("trust_region", "step", "safeguard", "bounds")
    local: bool = True

    def read_settings(self, name: str, given: object) -> object:
        """The settings from what the user gave: nothing, a mapping, or the dataclass itself."""
        if self.settings is None:
            if given is not None:
                raise ValueError(f"settings: {name!r} has none, got {given!r}")
            return None
        if given is None:
            return self.settings()
        if isinstance(given, self.settings):
            return given
        if not isinstance(given, Mapping):
            kind = self.settings.__name__
            raise ValueError(f"settings: {name!r} takes a mapping or {kind}(…), got {given!r}")
        known = [field.name for field in dataclasses.fields(self.settings)]
        for key in given:
            if key not in known:
                raise ValueError(f"settings: {name!r} has no {key!r}{meant(key, known)}")
        return self.settings(**given)

    def check_arguments(self, name: str, given: Mapping[str, object]) -> None:
        """Refuses arguments, here those away from their defaults, that it has no use for."""
        for argument, value in given.items():
            if argument not in self.reads:
                own = f"; see {self.settings.__name__}" if self.settings else ""
                raise ValueError(f"{argument}: {name!r} has no use for it, got {value!r}{own}")
