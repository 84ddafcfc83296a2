"""The public verbs, for tables and for simulators.

Each verb accepts a name wherever it accepts a model or a simulator, and passes the resolved object on to
the function of the same name in `holdfast.tabular` or `holdfast.simulators`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from holdfast import registry
from holdfast._support.arguments import meant
from holdfast.environments.table_simulator import TableSimulator, named_simulator
from holdfast.gym.disturb import disturb, from_recipe, gymnasium_ids, is_gymnasium
from holdfast.model import RobustCMDP
from holdfast.simulators import stress as _stress
from holdfast.simulators import train as _train
from holdfast.simulators.environment import Environment
from holdfast.simulators.policy.agent import Agent, load_agent
from holdfast.tabular import certify as _certify
from holdfast.tabular import evaluate as _evaluate
from holdfast.tabular import solve as _solve

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


def as_model(given: str | PathLike[str] | RobustCMDP, **options: Any) -> RobustCMDP:
    """Return a model from its name, from a model file, or unchanged.

    Arguments:
        given: a registered name such as "gambler", the path of a model file, or a model.
        **options: arguments of the function that makes the named model.

    Raises:
        ValueError: there is no such name or file, or the name belongs to a simulator.

    Example:
        >>> from holdfast.verbs import as_model
        >>> as_model("n-chain", nodes=5).states
        5
    """
    if isinstance(given, RobustCMDP):
        return given
    if not isinstance(given, str | PathLike):
        raise TypeError(
            f"model: expected a RobustCMDP, a name or a file, got {type(given).__name__}"
        )
    if given in registry.ENVIRONMENTS or (":" in str(given) and not Path(given).exists()):
        made = registry.ENVIRONMENTS.find(str(given))(**options)
        if isinstance(made, RobustCMDP):
            return made
        raise ValueError(f"model: {given!r} is a simulator, not a table; use hf.train")
    if Path(given).exists():
        return RobustCMDP.load(given)
    suggestion = meant(str(given), list(registry.ENVIRONMENTS))
    raise ValueError(f"model: there is no model or file {str(given)!r}{suggestion}")


def as_simulator(given: Any, **options: Any) -> Environment:
    """Return a simulator from its name, from a table, from Gymnasium, or unchanged.

    Arguments:
        given: a registered name, a Gymnasium id or environment, a `RobustCMDP` or an `Environment`.
        **options: arguments of the function that makes the named environment.

    Raises:
        ValueError: there is no such name.
        TypeError: the object is none of these.

    Example:
        >>> from holdfast.verbs import as_simulator
        >>> as_simulator("point-gather", horizon=20).horizon
        20
    """
    if isinstance(given, str) and (given in registry.ENVIRONMENTS or "." in given.split(":")[0]):
        return named_simulator(given, **options)
    if isinstance(given, Environment):
        return given
    if isinstance(given, RobustCMDP):
        return TableSimulator(given)
    if is_gymnasium(given):
        return disturb(given)
    if not isinstance(given, str):
        raise TypeError(
            "environment: expected a name, a RobustCMDP, an Environment or a Gymnasium environment, "
            f"got {type(given).__name__}"
        )
    suggestion = meant(given, [*registry.ENVIRONMENTS, *gymnasium_ids()], most=20)
    raise ValueError(f"environment: there is no {given!r}{suggestion}")


def simulator_from(description: Mapping[str, Any]) -> Environment | None:
    """Return the simulator that a saved description belongs to, or None if it cannot be made again.

    Example:
        >>> from holdfast.verbs import as_simulator, simulator_from
        >>> env = as_simulator("point-gather", horizon=20)
        >>> simulator_from(env.description()).horizon
        20
    """
    if description.get("gymnasium"):
        return from_recipe(description)
    try:
        env = as_simulator(str(description.get("name", "")), **description.get("options", {}))
    except (TypeError, ValueError):
        return None
    # Compared as JSON, in which a tuple is a list.
    same = json.loads(json.dumps(env.description())) == json.loads(json.dumps(dict(description)))
    return env if same else None


def _on_model(verb: Callable[Concatenate[RobustCMDP, P], R]) -> Callable[..., R]:
    @functools.wraps(verb)
    def call(model: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        return verb(as_model(model), *args, **kwargs)

    return call


evaluate = _on_model(_evaluate.evaluate)
solve = _on_model(_solve.solve)
certify = _on_model(_certify.certify)


@functools.wraps(_train.train)
def train(environment: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: D103
    return _train.train(as_simulator(environment), *args, **kwargs)


@functools.wraps(_stress.stress)
def stress(agent: Any, *, environment: Any = None, **kwargs: Any) -> Any:  # noqa: D103
    simulator = None if environment is None else as_simulator(environment)
    return _stress.stress(agent, environment=simulator, **kwargs)


def load(path: str | PathLike[str], *, environment: Any = None) -> Agent:
    """Read an agent that `Agent.save` or `train` wrote.

    Arguments:
        path: the file, or the folder of a finished run with one seed.
        environment: the simulator, if it was not a registered one. An agent predicts without a
            simulator; `stress` and `Agent.evaluate` need one.

    Raises:
        ValueError: the file is damaged, is not an agent, or does not fit the environment; the message
            names the file and the reason.

    Example:
        >>> import tempfile, holdfast as hf
        >>> model = hf.environments.n_chain(nodes=5)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = hf.train(
        ...         model, "trpo", limit_on="discounted", iterations=1, batch_size=300, out=folder
        ...     )
        ...     agent = hf.load(folder)
        >>> agent.algorithm, agent.seed, agent.environment
        ('trpo', 0, None)
    """
    make = simulator_from if environment is None else (lambda _: as_simulator(environment))
    return load_agent(path, make)
