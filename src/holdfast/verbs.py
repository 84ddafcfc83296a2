"""The public verbs, such as `evaluate`, `solve`, `certify`, `sensitivity`, `train` and `stress`.

Each verb accepts a name wherever it accepts a model or a simulator. It passes the object on to the
function of the same name in `holdfast.tabular` or `holdfast.simulators`, and has the signature and the
documentation of that function. The modules for simulators are imported on first use, which keeps
`import holdfast` fast for tables.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast import registry
from holdfast._support.arguments import meant
from holdfast.model import RobustCMDP
from holdfast.tabular import certify as _certify
from holdfast.tabular import evaluate as _evaluate
from holdfast.tabular import sensitivity as _sensitivity
from holdfast.tabular import solve as _solve
from holdfast.tabular import sweep as _sweep

if TYPE_CHECKING:
    from holdfast.simulators.environment import Environment
    from holdfast.simulators.policy.agent import Agent

R = TypeVar("R")


def as_model(given: str | PathLike[str] | RobustCMDP, **options: Any) -> RobustCMDP:
    """Return a model from its name, from a model file, or unchanged.

    Arguments:
        given: a registered name such as "gambler", the import string of a model or of a function that
            makes one, the path of a model file, or a model.
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
        found = registry.ENVIRONMENTS.find(str(given))
        made = found if isinstance(found, RobustCMDP) and not options else found(**options)
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
    from holdfast.environments.table_simulator import TableSimulator, named_simulator
    from holdfast.simulators.environment import Environment

    if isinstance(given, str) and (given in registry.ENVIRONMENTS or "." in given.split(":")[0]):
        maker = registry.ENVIRONMENTS.find(given)
        if isinstance(maker, type) and issubclass(maker, Environment):
            return maker(**options)
        return named_simulator(given, **options)
    if isinstance(given, Environment):
        return given
    if isinstance(given, RobustCMDP):
        return TableSimulator(given)
    # Built-in simulators and tables are trained without Gymnasium, where it is not installed.
    import gymnasium

    from holdfast.gym.disturb import disturb, is_gymnasium

    if is_gymnasium(given):
        return disturb(given)
    if not isinstance(given, str):
        raise TypeError(
            "environment: expected a name, a RobustCMDP, an Environment or a Gymnasium environment, "
            f"got {type(given).__name__}"
        )
    suggestion = meant(given, [*registry.ENVIRONMENTS, *gymnasium.registry], most=20)
    raise ValueError(f"environment: there is no {given!r}{suggestion}")


def as_agent(
    policy: Any,
    environment: Any = None,
    *,
    cost_limit: Any = None,
    limit_on: str = "episode",
    trust: bool = False,
    statistics: Any = None,
) -> Agent:
    """Return an agent that acts with a policy of any library.

    The agent predicts, and `Agent.evaluate`, `stress` and `certify` take it. A function may take one
    observation or rows of them; it is called with rows if that gives the same actions. Observations and
    actions have the form of the Gymnasium environment; those of a simulator in JAX are vectors. An
    object with `reset` has a memory: every episode has a copy of it, which is reset at its start.

    Reading a .zip file, a file of statistics or a TorchScript file can run code that is stored in it, so
    these need `trust=True`. An ONNX file holds only a graph of operators.

    Arguments:
        policy: a Stable-Baselines3 model or its .zip file, an .onnx file with one input and one
            output, a TorchScript file (.pt), a function of the observation, an object with `reset` that
            can be called, the import string `module:name` of such a function, a file that `train`
            wrote, or an `Agent`, which is returned unchanged.
        environment: name, simulator, table or Gymnasium environment in which the policy acts.
        cost_limit: limit of each cost; by default the environment's own.
        limit_on: "episode" for plain sums up to the horizon, "discounted" for discounted sums.
        trust: whether code that is stored in a file may run.
        statistics: `VecNormalize` object of a Stable-Baselines3 model, or its file; by default that of
            the model's own environment.

    Raises:
        ValueError: the policy does not work in this environment, or its file needs `trust`.

    Example:
        >>> import holdfast as hf
        >>> def ahead(observation):
        ...     return [1.0, 0.0]
        >>> agent = hf.as_agent(ahead, "point-gather", cost_limit=0.1)
        >>> agent
        ForeignAgent('ahead', environment='point-gather', limits=(0.1,))
        >>> agent.evaluate(episodes=50).reward.mean > 0
        True
    """
    from holdfast.simulators.policy.agent import Agent
    from holdfast.simulators.policy.foreign import foreign_agent

    if isinstance(policy, Agent):
        return policy
    if isinstance(policy, str) and ":" in policy and not Path(policy).exists():
        policy = registry.imported(policy)
    elif isinstance(policy, str | PathLike) and _is_own(Path(policy)):
        return load(policy, environment=environment)
    if environment is None:
        raise ValueError("environment: a policy of another library needs one")
    return foreign_agent(
        policy,
        as_simulator(environment),
        cost_limit=cost_limit,
        limit_on=limit_on,
        trust=trust,
        statistics=statistics,
    )


def _is_own(path: Path) -> bool:
    """Return whether a path is a run folder or a file of `train`."""
    return path.is_dir() or path.suffix == ".safetensors"


def simulator_from(description: Mapping[str, Any]) -> Environment | None:
    """Return the simulator that a saved description belongs to, or None if it cannot be made again.

    A file only names registered environments. An import string in it is not followed, since the file
    would choose which code runs.

    Example:
        >>> from holdfast.verbs import as_simulator, simulator_from
        >>> env = as_simulator("point-gather", horizon=20)
        >>> simulator_from(env.description()).horizon
        20
    """
    try:
        if description.get("gymnasium"):
            from holdfast.gym.disturb import from_recipe

            env: Environment = from_recipe(description)
        elif description.get("name") in registry.ENVIRONMENTS:
            env = as_simulator(description["name"], **description.get("options", {}))
        else:
            return None
        # Compared as JSON, in which a tuple is a list.
        mine, theirs = json.dumps(env.description()), json.dumps(dict(description))
        return env if json.loads(mine) == json.loads(theirs) else None
    # The options of a file reach the constructor of a registered environment.
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, ImportError):
        return None
    except MemoryError:
        return None


def _accepting_names(
    verb: Callable[..., R], argument: str, resolve: Callable[[Any], Any]
) -> Callable[..., R]:
    """Return the verb with one argument resolved before the call; None stays None."""
    signature = inspect.signature(verb)

    @functools.wraps(verb)
    def call(*args: Any, **kwargs: Any) -> R:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{verb.__name__}: {error}") from None
        if bound.arguments.get(argument) is not None:
            bound.arguments[argument] = resolve(bound.arguments[argument])
        return verb(*bound.args, **bound.kwargs)

    return call


evaluate = _accepting_names(_evaluate.evaluate, "model", as_model)
solve = _accepting_names(_solve.solve, "model", as_model)
_certify_table = _accepting_names(_certify.certify, "model", as_model)


@functools.wraps(_certify.certify)
def certify(model: Any, policy: Any, **options: Any) -> Any:  # noqa: D103
    # With radius= or box= the first argument is a simulator; a table is then run as one.
    if "radius" not in options and "box" not in options:
        if _is_simulator(model):
            raise ValueError("radius: a simulator needs a radius or a box")
        return _certify_table(model, policy, **options)
    verb = registry.imported("holdfast.simulators.certify:certify")
    env = as_simulator(model)
    if isinstance(policy, str | PathLike):
        policy = as_agent(
            policy,
            env,
            cost_limit=options.pop("cost_limit", None),
            trust=options.pop("trust", False),
        )
    return verb(env, policy, **options)


def _is_simulator(given: Any) -> bool:
    if isinstance(given, str | PathLike | RobustCMDP):
        return False
    from holdfast.simulators.environment import Environment

    return isinstance(given, Environment)


sensitivity = _accepting_names(_sensitivity.sensitivity, "model", as_model)
sweep = _accepting_names(_sweep.sweep, "model", as_model)


def __getattr__(name: str) -> Any:
    """Return a verb for simulators, made when first used: it needs the simulators' modules."""
    if name not in ("train", "stress", "check_environment"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    verb = registry.imported(f"holdfast.simulators.{name}:{name}")
    globals()[name] = _accepting_names(verb, "environment", as_simulator)
    return globals()[name]


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
    from holdfast.simulators.policy.agent import load_agent

    make = simulator_from if environment is None else (lambda _: as_simulator(environment))
    return load_agent(path, make)
