"""A trained policy: what `train` gives back, and what is used, saved and stressed."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import ArrayLike

from holdfast._model import RobustCMDP
from holdfast._version import __version__
from holdfast.deep import checkpoint
from holdfast.deep.configuration import Settings
from holdfast.deep.environment import Box, Discrete, Environment
from holdfast.deep.networks import Normaliser, Policy

# Of `Normaliser.__call__`, here in NumPy; a test holds the two together.
_CLIP, _EPSILON = np.float32(10.0), np.float32(1e-6)


class _Arrays(NamedTuple):
    """The policy for NumPy alone: a call of JAX costs more than all of it."""

    mean: np.ndarray | None
    inverse_spread: np.ndarray | None
    layers: tuple[tuple[np.ndarray, np.ndarray], ...]
    last: tuple[np.ndarray, np.ndarray]
    std: np.ndarray | None
    box: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None


@dataclasses.dataclass(frozen=True, eq=False)
class Agent:
    """A policy with all that is needed to use it.

    Attributes:
        policy: the network.
        observations: the normaliser of what it sees; None where it sees observations as they are.
        algorithm: that trained it.
        settings: of that training.
        limits: of the costs that it was trained under.
        seed: of that training.
        environment: the simulator; None where it was not Holdfast's own and the agent was loaded.
        description: of the simulator, as it was.

    Example:
        >>> import tempfile, numpy as np, holdfast as hf
        >>> model = hf.environments.n_chain(nodes=5)
        >>> agent = hf.train(model, "trpo", limit_on="discounted", iterations=1, batch_size=300)
        >>> agent.predict(np.eye(5)).shape
        (5,)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     agent.save(f"{folder}/agent.safetensors")
        ...     again = hf.load(f"{folder}/agent.safetensors", environment=model)
        >>> bool(again.predict(np.eye(5)[2]) == agent.predict(np.eye(5)[2]))
        True
    """

    policy: Policy
    observations: Normaliser | None
    algorithm: str
    settings: Settings
    limits: tuple[float, ...]
    seed: int
    environment: Environment | None
    description: Mapping[str, Any]

    def predict(
        self,
        observation: ArrayLike,
        deterministic: bool = True,
        *,
        generator: np.random.Generator | None = None,
    ) -> np.ndarray:
        """The action for one observation, or for rows of them, in the environment's units.

        Vectors are cut to the bounds of the action space, where it has any.

        Arguments:
            observation: one, or an array with one in each row.
            deterministic: the most likely action; otherwise one is drawn, as in training.
            generator: draws it; a new one, seeded by the system, if left out.

        Raises:
            ValueError: the observation has another length than the policy's, or is not finite.
        """
        arrays = self._arrays
        x = np.asarray(observation, np.float32)
        size = (arrays.layers or (arrays.last,))[0][0].shape[0]
        if x.ndim == 0 or x.shape[-1] != size:
            raise ValueError(f"observation: expected {size} numbers, got shape {x.shape}")
        if not np.isfinite(x).all():
            raise ValueError("observation: expected finite numbers, got some that are not")
        if arrays.mean is not None:
            x = (x - arrays.mean) * arrays.inverse_spread
            x = np.minimum(np.maximum(x, -_CLIP), _CLIP)
        for weight, bias in arrays.layers:
            x = np.tanh(x @ weight + bias)
        weight, bias = arrays.last
        outputs = x @ weight + bias
        if not deterministic:
            generator = generator or np.random.default_rng()
        if arrays.std is None:
            if generator is not None and not deterministic:
                outputs = outputs + generator.gumbel(size=outputs.shape)
            return outputs.argmax(axis=-1)
        if generator is not None and not deterministic:
            outputs = outputs + arrays.std * generator.standard_normal(outputs.shape, np.float32)
        if arrays.box is None:
            return outputs
        low, high, middle, half = arrays.box
        return np.minimum(np.maximum(middle + half * outputs, low), high)

    @functools.cached_property
    def _arrays(self) -> _Arrays:
        policy, space, seen = self.policy, self.policy.space, self.observations
        weights, biases = (
            [np.array(each, np.float32) for each in part]
            for part in (policy.network.weights, policy.network.biases)
        )
        *layers, last = zip(weights, biases, strict=True)
        box = None
        if isinstance(space, Box) and all(map(math.isfinite, space.high)):
            low, high = np.array(space.low, np.float32), np.array(space.high, np.float32)
            box = (low, high, (low + high) / 2, (high - low) / 2)
        return _Arrays(
            None if seen is None else np.array(seen.mean, np.float32),
            None if seen is None else 1 / np.sqrt(np.array(seen.square, np.float32) + _EPSILON),
            tuple(layers),
            last,
            None if policy.log_std is None else np.exp(np.array(policy.log_std, np.float32)),
            box,
        )

    def save(self, path: str | PathLike[str]) -> None:
        """Writes one file that `load` reads back; it appears whole or not at all."""
        checkpoint.save(Path(path), *self._contents())

    def to_bytes(self) -> bytes:
        """What `save` writes."""
        return checkpoint.encode(*self._contents())

    def _contents(self) -> tuple[dict[str, Any], Any]:
        space = self.policy.space
        header = {
            "kind": "agent",
            "version": __version__,
            "algorithm": self.algorithm,
            "settings": self.settings.to_dict(),
            "limits": list(self.limits),
            "seed": self.seed,
            "environment": dict(self.description),
            "space": {"kind": type(space).__name__, **_jsonable(dataclasses.asdict(space))},
            "sizes": [
                int(self.policy.network.weights[0].shape[0]),
                *(int(bias.shape[0]) for bias in self.policy.network.biases),
            ],
            "normalised": self.observations is not None,
        }
        return header, (self.policy, self.observations)


def load(
    path: str | PathLike[str], *, environment: str | RobustCMDP | Environment | None = None
) -> Agent:
    """Reads an agent that `Agent.save` or `train` wrote.

    Arguments:
        path: the file, or the folder of a finished run with one seed.
        environment: the simulator, where it was not one that Holdfast has by name. An agent predicts
            without one; only `stress` asks for it.

    Raises:
        ValueError: the file is damaged, is no agent, or does not fit the environment; the message says
            which and has its path.

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
    path = Path(path)
    if path.is_dir():
        from holdfast.deep.runs import agent_files

        files = agent_files(path)
        if len(files) != 1:
            raise ValueError(f"{path}: holds {len(files)} agents; name one, such as {files[0]}")
        path = files[0]
    header = checkpoint.read_header(path, "agent")
    try:
        space = _space(header["space"])
        sizes = tuple(header["sizes"])
        settings = Settings.from_dict(header["settings"])

        def blank() -> tuple[Policy, Normaliser | None]:
            policy = Policy.create(jax.random.PRNGKey(0), sizes[0], sizes[1:-1], space)
            return policy, Normaliser.create(sizes[0]) if header["normalised"] else None

        like = jax.eval_shape(blank)
        algorithm, limits = header["algorithm"], tuple(header["limits"])
        seed, description = header["seed"], header["environment"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not an agent that this version can read ({error})") from error
    _, (policy, observations) = checkpoint.load(path, "agent", like)
    simulator = _simulator(path, description, environment, sizes[0], space)
    return Agent(policy, observations, algorithm, settings, limits, seed, simulator, description)


def _simulator(
    path: Path,
    description: Mapping[str, Any],
    given: str | RobustCMDP | Environment | None,
    inputs: int,
    space: Box | Discrete,
) -> Environment | None:
    if given is None:
        from holdfast.environments.simulators import simulator_from

        return simulator_from(description)
    from holdfast.deep.train import as_simulator

    env = as_simulator(given)
    if env.observation_size != inputs or env.action_space != space:
        raise ValueError(
            f"environment: {env.name} has {env.observation_size} observations and actions "
            f"{env.action_space}, the agent in {path} {inputs} and {space}"
        )
    return env


def _space(header: Mapping[str, Any]) -> Box | Discrete:
    if header["kind"] == "Box":
        low, high = (tuple(float(v) for v in header[k]) for k in ("low", "high"))
        return Box(low, high)
    return Discrete(int(header["count"]))


def _jsonable(values: dict[str, Any]) -> dict[str, Any]:
    """Bounds as text: JSON has no infinity."""
    return {
        name: [str(float(v)) for v in value] if isinstance(value, tuple) else value
        for name, value in values.items()
    }
