"""Names of algorithms, uncertainty sets and environments, built-in and from other packages.

A name maps to an import string, `package.module:attribute`. The object is imported when the name is
first looked up. A low layer of the package can therefore name a high one without importing it, and
worker processes resolve the same names as their parent.

Other packages register names through entry points, in the groups `holdfast.algorithms`,
`holdfast.simulator_algorithms`, `holdfast.uncertainty` and `holdfast.environments`:

    [project.entry-points."holdfast.algorithms"]
    random-search = "my_package:RANDOM_SEARCH"
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from holdfast._support.arguments import meant


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """An algorithm of `solve` or of `train`.

    Attributes:
        name: label in solutions, run folders and reports.
        function: for tables, a function of a `tabular.algorithms.Run` that records every iterate in
            the run; for simulators, a function `(plan, environment, state) -> (state, metrics)` that
            performs one iteration of training and is traced by JAX.
        settings: frozen dataclass of the algorithm's hyper-parameters, or None if it has none.
        accepts: names of the optional `solve` arguments this algorithm accepts.
        robust: whether the algorithm uses worst-case kernels, not only the nominal kernel.
        constrained: whether the algorithm enforces the constraints.
        local: whether the result depends on the initial policy.
        first_state: for simulators, a function of the plan and the initial policy that returns the
            algorithm's own part of the training state, such as multipliers; None if it has none.
        nominal_at_zero: for simulators, whether radius 0 means no adversary, and not an adversary that
            may not move.

    Example:
        >>> from holdfast.registry import ALGORITHMS
        >>> ALGORITHMS["rcpo"].name, ALGORITHMS["rvi"].constrained
        ('rcpo', False)
    """

    name: str
    function: Callable[..., Any]
    settings: type[Any] | None = None
    accepts: tuple[str, ...] = ()
    robust: bool = True
    constrained: bool = True
    local: bool = True
    first_state: Callable[..., Any] | None = None
    nominal_at_zero: bool = False

    def read_settings(self, given: object, argument: str = "settings") -> Any:
        """Return the settings record from None, a mapping or the record itself.

        Arguments:
            given: the settings.
            argument: name of the caller's argument, for error messages.

        Raises:
            ValueError: the algorithm has no settings, or no setting of that name.
        """
        if self.settings is None:
            if given is not None:
                raise ValueError(f"{argument}: {self.name!r} has no settings, got {given!r}")
            return None
        if given is None:
            return self.settings()
        if isinstance(given, self.settings):
            return given
        if not isinstance(given, Mapping):
            kind = self.settings.__name__
            raise ValueError(
                f"{argument}: {self.name!r} takes a mapping or {kind}(…), got {given!r}"
            )
        known = [field.name for field in dataclasses.fields(self.settings)]
        for key in given:
            if key not in known:
                raise ValueError(f"{argument}: {self.name!r} has no {key!r}{meant(key, known)}")
        return self.settings(**given)

    def check_accepts(self, given: Mapping[str, object]) -> None:
        """Raise a ValueError for the first argument that this algorithm does not accept."""
        for argument, value in given.items():
            if argument not in self.accepts:
                own = f"; see {self.settings.__name__}" if self.settings else ""
                raise ValueError(f"{argument}: {self.name!r} does not use it, got {value!r}{own}")


class Registry(Mapping[str, Any]):
    """The names of one kind of object, each imported when it is first looked up.

    Arguments:
        kind: the argument's name in error messages, such as "algorithm".
        group: entry-point group through which other packages add names.
        built_in: import strings by name.

    Example:
        >>> from holdfast.registry import UNCERTAINTY
        >>> UNCERTAINTY["kl"].__name__
        'KL'
        >>> UNCERTAINTY.find("k1")
        Traceback (most recent call last):
        ...
        ValueError: uncertainty: there is no 'k1'; did you mean kl?
    """

    def __init__(self, kind: str, group: str, built_in: Mapping[str, str]) -> None:
        self.kind, self.group = kind, group
        self._built_in = dict(built_in)

    @functools.cached_property
    def targets(self) -> dict[str, Any]:
        """Import strings or objects by name. A built-in name takes precedence over an entry point."""
        points = importlib.metadata.entry_points(group=self.group)
        found = {point.name: point.value for point in points if point.name not in self._built_in}
        return {**self._built_in, **found}

    def register(self, name: str, target: object) -> None:
        """Add a name in this process.

        Arguments:
            name: the new name.
            target: the object, or its import string. Worker processes do not see names that are
                registered here; give them an entry point or an import string.

        Raises:
            ValueError: the name belongs to a built-in object.
        """
        if name in self._built_in:
            raise ValueError(f"{self.kind}: {name!r} is a built-in name; choose another")
        self.targets[name] = target

    def find(self, name: str) -> Any:
        """Return the object with this name, or with this import string.

        Raises:
            ValueError: the name is unknown, or the object cannot be imported.
        """
        if name in self.targets:
            return self[name]
        if isinstance(name, str) and ":" in name:
            return self._load(name, name)
        raise ValueError(f"{self.kind}: there is no {name!r}{meant(name, list(self.targets))}")

    def find_imported(self, name: str) -> Any:
        """Return the object that a file names, without importing a module that the file chose.

        Raises:
            ValueError: the name is unknown, or is the import string of a module that is not imported.
        """
        module = str(name).partition(":")[0]
        if name not in self.targets and ":" in str(name) and module not in sys.modules:
            raise ValueError(
                f"{self.kind}: the file names {name!r}; import {module} first, or register a name"
            )
        return self.find(name)

    def name_of(self, found: Any) -> str:
        """Return the name under which every process finds this object: registered or an import string.

        Example:
            >>> from holdfast.registry import UNCERTAINTY
            >>> from holdfast.uncertainty import KL, UncertaintySet
            >>> UNCERTAINTY.name_of(KL), UNCERTAINTY.name_of(UncertaintySet)
            ('kl', 'holdfast.uncertainty.protocol:UncertaintySet')
        """
        name = getattr(found, "name", None)
        if isinstance(self.targets.get(str(name)), str) and self[str(name)] is found:
            return str(name)
        return f"{found.__module__}:{found.__qualname__}"

    def __getitem__(self, name: str) -> Any:
        target = self.targets[name]
        return self._load(name, target) if isinstance(target, str) else target

    def __iter__(self) -> Iterator[str]:
        return iter(self.targets)

    def __len__(self) -> int:
        return len(self.targets)

    def _load(self, name: str, target: str) -> Any:
        try:
            return imported(target)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(f"{self.kind}: {name!r} cannot be imported: {error}") from error


def imported(target: str) -> Any:
    """Return the object that an import string names.

    Example:
        >>> imported("math:pi")
        3.141592653589793
    """
    return pkgutil.resolve_name(target)


def _algorithms(package: str, *names: str) -> dict[str, str]:
    """Return the import strings of algorithms; each has a file of its name."""
    return {name: f"{package}.{name.replace('-', '_')}:ALGORITHM" for name in names}


_TABULAR = _algorithms(
    "holdfast.tabular.algorithms",
    *("rcpo", "pcpo", "cpo", "rvi", "lp", "rpd", "rcpg", "r3c", "cup", "crpo", "epirc-pgs", "rnpg"),
)
ALGORITHMS = Registry("algorithm", "holdfast.algorithms", _TABULAR)
_DEEP = _algorithms(
    "holdfast.simulators.algorithms", "rcpo", "pcpo", "cpo", "trpo", "ppo-lag", "trpo-lag"
)
SIMULATOR_ALGORITHMS = Registry("algorithm", "holdfast.simulator_algorithms", _DEEP)
UNCERTAINTY = Registry(
    "uncertainty",
    "holdfast.uncertainty",
    {
        "kl": "holdfast.uncertainty.kl:KL",
        "total-variation": "holdfast.uncertainty.total_variation:TotalVariation",
        "chi-square": "holdfast.uncertainty.chi_square:ChiSquare",
        "contamination": "holdfast.uncertainty.contamination:Contamination",
        "interval": "holdfast.uncertainty.interval:Interval",
        "wasserstein": "holdfast.uncertainty.wasserstein:Wasserstein",
    },
)
# An environment is a function that returns a `RobustCMDP` (a table) or a simulator `Environment`.
TABLES = {
    "gambler": "holdfast.environments.gambler:gambler",
    "n-chain": "holdfast.environments.n_chain:n_chain",
    "frozen-lake": "holdfast.environments.frozen_lake:frozen_lake",
    "river-swim": "holdfast.environments.river_swim:river_swim",
    "garnet": "holdfast.environments.garnet:garnet",
    "slippery-lake": "holdfast.environments.slippery_lake:slippery_lake",
    "garbage-collector": "holdfast.environments.garbage_collector:garbage_collector",
    "inventory": "holdfast.environments.inventory:inventory",
    "machine-replacement": "holdfast.environments.machine_replacement:machine_replacement",
    "safe-navigation": "holdfast.environments.safe_navigation:safe_navigation",
}
_SIMULATORS = {
    "point-gather": "holdfast.environments.point_gather:PointGather",
    "linear-gaussian": "holdfast.environments.linear_gaussian:LinearGaussian",
}
ENVIRONMENTS = Registry("environment", "holdfast.environments", {**TABLES, **_SIMULATORS})
