"""A trained policy: what `train` gives back, and what is used, saved and stressed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from holdfast._version import __version__
from holdfast.deep import checkpoint
from holdfast.deep.configuration import Settings
from holdfast.deep.environment import Box, Discrete, Environment
from holdfast.deep.networks import Normaliser, Policy

_SUFFIX = ".safetensors"


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
        >>> agent = hf.train("point-gather", "pcpo", iterations=1, batch_size=300, seed=0)
        >>> action = agent.predict(np.zeros(29))
        >>> action.shape
        (2,)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     agent.save(f"{folder}/agent.safetensors")
        ...     again = hf.load(f"{folder}/agent.safetensors")
        >>> bool((again.predict(np.zeros(29)) == action).all())
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

        Arguments:
            observation: one, or an array with one in each row.
            deterministic: the most likely action; otherwise one is drawn, as in training.
            generator: draws it; a new one, seeded by the system, if left out.

        Raises:
            ValueError: the observation has another length than the policy's, or is not finite.
        """
        space = self.policy.space
        x = np.asarray(observation, np.float32)
        size = self.policy.network.weights[0].shape[0]
        if x.ndim == 0 or x.shape[-1] != size:
            raise ValueError(f"observation: expected {size} numbers, got shape {x.shape}")
        if not np.isfinite(x).all():
            raise ValueError("observation: expected finite numbers")
        outputs = self._forward(x)
        if isinstance(space, Discrete):
            if not deterministic:
                generator = generator or np.random.default_rng()
                outputs = outputs + generator.gumbel(size=outputs.shape)
            return np.argmax(outputs, axis=-1)
        if not deterministic:
            generator = generator or np.random.default_rng()
            std = np.exp(np.asarray(self.policy.log_std))
            outputs = outputs + std * generator.standard_normal(outputs.shape, np.float32)
        return _in_box(outputs, space)

    def _forward(self, x: np.ndarray) -> np.ndarray:
        if self.observations is not None:
            x = np.asarray(self.observations(x))
        network = self.policy.network
        weights, biases = map(np.asarray, network.weights), map(np.asarray, network.biases)
        layers = list(zip(weights, biases, strict=True))
        for weight, bias in layers[:-1]:
            x = np.tanh(x @ weight + bias)
        weight, bias = layers[-1]
        return x @ weight + bias

    def save(self, path: str | PathLike[str]) -> None:
        """Writes one file that `load` reads back; it appears whole or not at all."""
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
                self.policy.network.weights[0].shape[0],
                *(int(bias.shape[0]) for bias in self.policy.network.biases),
            ],
            "normalised": self.observations is not None,
        }
        checkpoint.save(Path(path), header, (self.policy, self.observations))


def load(path: str | PathLike[str], *, environment: Environment | None = None) -> Agent:
    """Reads an agent that `Agent.save` wrote.

    Arguments:
        path: the file, or the folder of a finished run with one seed.
        environment: the simulator, where it was not one of Holdfast's own.

    Raises:
        ValueError: the file is damaged, or is no agent; the message has its path.
    """
    path = Path(path)
    if path.is_dir():
        from holdfast.deep.runs import agent_files

        files = agent_files(path)
        if len(files) != 1:
            raise ValueError(f"{path}: holds {len(files)} agents; name one, such as {files[0]}")
        path = files[0]
    header = checkpoint.read_header(path)
    if header.get("kind") != "agent":
        raise ValueError(f"{path}: holds a {header.get('kind')}, not an agent")
    space_header = dict(header["space"])
    space: Box | Discrete
    if space_header.pop("kind") == "Box":
        low, high = (tuple(float(v) for v in space_header[k]) for k in ("low", "high"))
        space = Box(low, high)
    else:
        space = Discrete(**space_header)
    sizes = tuple(header["sizes"])

    def blank() -> tuple[Policy, Normaliser | None]:
        policy = Policy.create(jax.random.PRNGKey(0), sizes[0], sizes[1:-1], space)
        return policy, Normaliser.create(sizes[0]) if header["normalised"] else None

    _, (policy, observations) = checkpoint.load(path, jax.eval_shape(blank))
    if environment is None:
        from holdfast.environments.simulators import simulator_from

        environment = simulator_from(header["environment"])
    return Agent(
        policy,
        observations,
        header["algorithm"],
        Settings.from_dict(header["settings"]),
        tuple(header["limits"]),
        header["seed"],
        environment,
        header["environment"],
    )


def _in_box(outputs: np.ndarray, space: Box) -> np.ndarray:
    low, high = np.asarray(space.low, np.float32), np.asarray(space.high, np.float32)
    if not all(map(math.isfinite, space.high)):
        return outputs.astype(np.float32)
    scaled = (low + high) / 2 + (high - low) / 2 * outputs
    return np.clip(scaled, low, high).astype(np.float32)


def _jsonable(values: dict[str, Any]) -> dict[str, Any]:
    """Infinite bounds as text: JSON has no infinity."""
    return {
        name: [str(v) for v in value] if isinstance(value, tuple) else value
        for name, value in values.items()
    }


