"""Parts that the subcommands share: exit codes, error messages, the uncertainty set, the console."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from tyro.conf import arg

from holdfast import registry
from holdfast._support.files import WriteError

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console

    from holdfast.model import RobustCMDP

FEASIBLE, FAILED, BAD_INPUT, NOT_FEASIBLE, NOT_WRITTEN = 0, 1, 2, 3, 4
INTERRUPTED, CLOSED_PIPE = 130, 141


class BadInputError(Exception):
    """The user's input cannot be used; the message is one sentence that names the input."""


class FailedError(Exception):
    """The work cannot continue; the message is one sentence that gives the reason."""


class Command(Protocol):
    """A subcommand: a frozen dataclass of its options. Its docstring is its help text."""

    def run(self) -> int:
        """Do the work and return the exit code."""


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """Turn an error of the library about its input into one sentence and exit code 2."""
    try:
        yield
    except WriteError:
        raise
    except (ValueError, OSError) as error:
        raise BadInputError(" ".join(str(error).split())) from error


def in_options(message: str, options: Mapping[str, str]) -> str:
    """Return an error message of the library with options in place of Python arguments.

    Arguments:
        message: the message, which starts with the name of an argument.
        options: options by the name of their argument.

    Example:
        >>> in_options("nodes: needs certify=True", {"nodes": "--nodes", "certify": "--certify"})
        '--nodes: needs --certify'
    """

    def assigned(match: re.Match[str]) -> str:
        name, value = match.groups()
        if name not in options:
            return match.group()
        return options[name] if value == "True" else f"{options[name]} {value}"

    first, colon, rest = message.partition(": ")
    rest = re.sub(r"\b([a-z_]+)=([\w.]+)", assigned, rest)
    rest = re.sub(r"\bhf\.(solve|certify|train|stress|audit)\b", r"holdfast \1", rest)
    return options.get(first, first) + colon + rest


def options_of(command: Any, prefix: str = "--") -> dict[str, str]:
    """Return the options of a command by the names of its fields.

    Example:
        >>> options_of(SetOptions())["within_support"]
        '--within-support'
    """
    found: dict[str, str] = {}
    for field in dataclasses.fields(command):
        value, kind = getattr(command, field.name), str(field.type)
        if dataclasses.is_dataclass(value):
            inner = options_of(value, "--" if "Omit" in kind else f"--{field.name}.")
            found = inner | found  # the outer option wins, as in --batch-size
        elif metavar := re.search(r"Positional.*metavar=.(\w+)", kind):
            found[field.name] = metavar.group(1)
        else:
            found[field.name] = prefix + field.name.replace("_", "-")
    return found


def option(metavar: str, default: str) -> Any:
    """Return the help of an option whose default is described in words."""
    return arg(metavar=metavar, help_behavior_hint=f"(default: {default})")


@dataclasses.dataclass(frozen=True)
class SetOptions:
    """Uncertainty set, to replace the model's own."""

    set: Annotated[str, option("NAME", "the model's own")] = ""
    """Kind of set: kl, total-variation, chi-square, contamination, wasserstein, or a registered one."""
    radius: Annotated[float | None, option("R", "the model's own")] = None
    """Radius of the set, in the unit of its divergence, for every state and action."""
    within_support: bool = False
    """Keep nature within the successors of the nominal kernel (total-variation, contamination)."""
    metric: Annotated[str, option("FILE", "none")] = ""
    """The .npy file with the (S, S) distances between states (wasserstein)."""

    def to_dict(self) -> dict[str, Any]:
        """Return the options that were given."""
        return {k: v for k, v in dataclasses.asdict(self).items() if v not in ("", None, False)}

    def apply(self, model: RobustCMDP) -> RobustCMDP:
        """Return the model with this set.

        Raises:
            ValueError: the set does not exist, or does not take these options.
        """
        given = [name for name in ("within_support", "metric") if getattr(self, name)]
        if not self.set:
            if given:
                raise ValueError(f"{given[0]}: allowed only with --set and --radius")
            if self.radius is None:
                return model
            assert model.uncertainty is not None
            return model.replace(uncertainty=model.uncertainty.with_radius(self.radius))
        if self.set == "interval":
            raise ValueError("set: the bounds of intervals belong in the model file")
        try:
            make = registry.UNCERTAINTY.find(self.set)
        except ValueError as error:
            raise ValueError(f"set: {str(error).partition(': ')[2]}") from error
        if self.radius is None:
            raise ValueError(f"radius: {self.set} needs one")
        known = inspect.signature(make).parameters
        for name in given:
            if name not in known:
                raise ValueError(f"{name}: {self.set} does not take it")
        options: dict[str, Any] = {"within_support": True} if self.within_support else {}
        if "metric" in known:
            options["metric"] = _metric(self.metric)
        return model.replace(uncertainty=make(self.radius, **options))


def named_simulator(name: str, given: Mapping[str, Any]) -> Any:
    """Return a simulator by its name, or a Gymnasium environment with the options that were given.

    Raises:
        ValueError: an option does not fit.
    """
    options = {key: value for key, value in given.items() if value not in ((), "", None)}
    if options and name in registry.ENVIRONMENTS:
        option = next(iter(options))
        why = "steps inside JAX" if option == "step_timeout" else "has its own"
        raise ValueError(f"{option}: {name} {why}")
    if "cost" in options and "speed_limit" in options:
        raise ValueError("speed_limit: give either a speed limit or a cost, not both")
    import holdfast as hf
    from holdfast.gym.channels import from_text
    from holdfast.verbs import as_simulator

    if not options:
        return as_simulator(name)
    if "channel" in options:
        options["channel"] = from_text(options["channel"])
    if "speed_limit" in options:
        options["cost"] = hf.speed_limit(options.pop("speed_limit"))
    if options.get("step_timeout") == 0:
        options["step_timeout"] = None
    return hf.disturb(name, **options)


def _metric(path: str) -> np.ndarray:
    from holdfast._support.archives import read_array

    if not path:
        raise ValueError("metric: this set needs the distances between states")
    try:
        return read_array(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"metric: {path} is not a .npy file of distances: {error}") from error


def check_writable(folder: Path) -> None:
    """Raise a ValueError for a folder that cannot be created or written to; create nothing."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise ValueError(f"{folder}: cannot be written to, since {existing} is not a folder")
    if hasattr(os, "statvfs") and os.statvfs(existing).f_flag & os.ST_RDONLY:
        raise WriteError(f"{folder}: cannot be written to, the file system is read-only")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ValueError(f"{folder}: cannot be written to, permission denied")


def console(width: int = 120) -> Console:
    """Return a console for stdout; `width` is its number of columns unless stdout is a terminal."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=width)
