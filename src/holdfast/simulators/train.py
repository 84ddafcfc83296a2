"""The verb for simulators: `train`."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, overload

from holdfast._support.arguments import check_whole_number
from holdfast.registry import Algorithm
from holdfast.simulators.environment import Environment
from holdfast.simulators.policy.agent import Agent
from holdfast.simulators.training.loop import Callback, Run, TrainingError
from holdfast.simulators.training.settings import AdversarySettings, Settings

__all__ = ["TrainingError", "prepare", "train"]


@overload
def train(
    environment: Environment,
    algorithm: str | Algorithm = ...,
    *,
    seeds: None = ...,
    seed: int = ...,
    steps: int | None = ...,
    out: str | PathLike[str] | None = ...,
    callback: Callback | None = ...,
    devices: int = ...,
    **settings: Any,
) -> Agent: ...


@overload
def train(
    environment: Environment,
    algorithm: str | Algorithm = ...,
    *,
    seeds: int | Sequence[int],
    seed: int = ...,
    steps: int | None = ...,
    out: str | PathLike[str] | None = ...,
    callback: Callback | None = ...,
    devices: int = ...,
    **settings: Any,
) -> list[Agent]: ...


def train(
    environment: Environment,
    algorithm: str | Algorithm = "rcpo",
    *,
    seeds: int | Sequence[int] | None = None,
    seed: int = 0,
    steps: int | None = None,
    out: str | PathLike[str] | None = None,
    callback: Callback | None = None,
    devices: int = 1,
    **settings: Any,
) -> Agent | list[Agent]:
    """Trains a policy that keeps its limits under the worst-case kernels of a simulator.

    Arguments:
        environment: a name in `hf.environments.SIMULATORS`, a table, a simulator of your own, what
            `hf.disturb` gives, or a Gymnasium environment or its id.
        algorithm: "rcpo", or without an adversary "pcpo", "cpo" and, without limits, "trpo".
        seeds: how many policies to train side by side, with seeds 0, 1, …, or which, as in [1, 4]; a
            list of agents comes back. On a CPU each is what it would be if it were trained alone.
        seed: of the one policy that is trained where `seeds` is left out.
        steps: simulator steps in the batches of policy updates, instead of `iterations`.
        out: folder for metrics, checkpoints and the agents, and TensorBoard's events where it is there.
            Where the folder holds the same run already, training goes on from its checkpoint, and gives
            the same as if it had never stopped; a finished run's agents come back at once, and with more
            iterations it is carried further.
        callback: called with the rows of each few iterations, one for every iteration and seed.
        devices: over which the episodes of every batch are divided, rounded up to as many on each. What
            comes out is that of one device up to rounding where their number divides every batch, and
            a run may go on with another number, no longer bit for bit; `run.json` says so.
        **settings: fields of `Settings`, such as radius, cost_limit, limit_on, iterations, batch_size
            and trust_region; adversary takes an `AdversarySettings` or a mapping.

    Returns:
        The agent, or with `seeds` a list of them.

    Raises:
        ValueError: an argument cannot be used, or `out` holds another run or a damaged one; the message
            says which, before any work, and nothing is overwritten.
        TrainingError: the simulator returned something that is not finite, or failed; the last
            checkpoint stands.

    Example:
        >>> import holdfast as hf
        >>> model = hf.environments.n_chain(nodes=5)
        >>> agent = hf.train(model, "pcpo", limit_on="discounted", iterations=2, batch_size=300)
        >>> agent.limits, agent.predict([0, 0, 1, 0, 0]) in (0, 1)
        ((-6.0,), True)
    """
    run = prepare(
        environment, algorithm, seeds=seeds, seed=seed, steps=steps, devices=devices, **settings
    )
    agents = run.train(None if out is None else Path(out), callback)
    return agents[0] if seeds is None else agents


def prepare(
    environment: Environment,
    algorithm: str | Algorithm,
    *,
    seeds: int | Sequence[int] | None = None,
    seed: int = 0,
    steps: int | None = None,
    devices: int = 1,
    **settings: Any,
) -> Run:
    """The run that `train` would do, with everything checked and nothing done."""
    return Run.create(
        environment, algorithm, _settings(settings, steps), _seeds(seed, seeds), devices
    )


def _seeds(seed: int, seeds: int | Sequence[int] | None) -> tuple[int, ...]:
    if seeds is not None and seed != 0:
        raise ValueError("seed: give either seed or seeds, not both")
    if isinstance(seeds, numbers.Integral):
        check_whole_number("seeds", seeds, least=1)
        return tuple(range(int(seeds)))
    if seeds is None:
        seeds = (seed,)
    elif isinstance(seeds, str) or not isinstance(seeds, Iterable):
        raise ValueError(f"seeds: expected a whole number or a list of them, got {seeds!r}")
    chosen = tuple(seeds)
    for each in chosen:
        check_whole_number("seed", each, least=0)
        if each >= 2**32:
            raise ValueError(f"seed: expected a whole number under 2**32, got {each}")
    if not chosen or len(set(chosen)) != len(chosen):
        raise ValueError(f"seeds: expected different ones, at least one, got {list(chosen)}")
    return tuple(int(each) for each in chosen)


def _settings(given: dict[str, Any], steps: int | None) -> Settings:
    """The settings, from whatever numbers and sequences were given for them."""
    adversary = given.get("adversary", {})
    if isinstance(adversary, AdversarySettings):
        adversary = dataclasses.asdict(adversary)
    plain = _plain(Settings, {k: v for k, v in given.items() if k != "adversary"})
    limit = plain.pop("cost_limit", None)
    if limit is not None:
        plain["cost_limit"] = limit if isinstance(limit, tuple) else (limit,)
    try:
        inner = _plain(AdversarySettings, dict(adversary))
        settings = Settings.from_dict({**plain, "adversary": inner})
    except TypeError as error:
        raise ValueError(f"settings: {error}") from error
    if steps is None:
        return settings
    if "iterations" in given:
        raise ValueError("steps: give either steps or iterations, not both")
    check_whole_number("steps", steps, least=1)
    return dataclasses.replace(settings, iterations=-(-int(steps) // settings.batch_size))


def _plain(kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Python's own numbers and tuples for those of NumPy, JAX or lists; 1 is 1.0 where that is meant."""
    real = {field.name for field in dataclasses.fields(kind) if "float" in str(field.type)}

    def plain(value: Any, name: str) -> Any:
        if isinstance(value, list | tuple):
            return tuple(plain(each, name) for each in value)
        if hasattr(value, "tolist"):
            return plain(value.tolist(), name)
        return float(value) if type(value) is int and name in real else value

    return {name: plain(value, name) for name, value in given.items()}
