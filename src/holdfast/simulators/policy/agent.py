"""A trained policy: what `train` gives back, and what is used, saved and stressed."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from holdfast._version import __version__
from holdfast.model import RobustCMDP
from holdfast.simulators.environment import Box, Discrete, Environment
from holdfast.simulators.policy.networks import Normaliser, Policy
from holdfast.simulators.training import checkpoint
from holdfast.simulators.training.settings import Settings

if TYPE_CHECKING:
    import gymnasium

    from holdfast.simulators.policy.evaluation import AgentEvaluation

# Of `Normaliser.__call__`, here in NumPy; a test holds the two together.
_CLIP, _EPSILON = np.float32(10.0), np.float32(1e-6)


class Arrays(NamedTuple):
    """The policy for NumPy alone: a call of JAX costs more than all of it.

    Attributes:
        inputs: length of an observation.
        mean: of observations; None where they are taken as they are.
        inverse_spread: one over their spread.
        clip: beyond which normalised observations are cut.
        layers: weight and bias of every hidden layer.
        last: weight and bias of the last one.
        std: of actions that are vectors.
        box: their lowest and highest values, and the middle and half the range of what is cut to those;
            None where they have no bounds.
    """

    inputs: int
    mean: np.ndarray | None
    inverse_spread: np.ndarray | None
    clip: np.float32
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
        observation: Any,
        deterministic: bool = True,
        *,
        generator: np.random.Generator | None = None,
    ) -> np.ndarray:
        """The action for one observation, or for rows of them, in the environment's units.

        Vectors are cut to the bounds of the action space, where it has any.

        Arguments:
            observation: one, or an array with one in each row. What a Gymnasium environment gives for
                a space that is no box is taken too: by the `encode` of the agent's environment where
                that has one, otherwise by its numbers in order, a mapping's by its sorted keys.
            deterministic: the most likely action; otherwise one is drawn, as in training.
            generator: draws it; a new one, seeded by the system, if left out.

        Raises:
            ValueError: the observation has another length than the policy's, or is not finite.
        """
        arrays = self.arrays
        x = self._vector(observation)
        if x.ndim == 0 or x.shape[-1] != arrays.inputs:
            raise ValueError(f"observation: expected {arrays.inputs} numbers, got shape {x.shape}")
        if not np.isfinite(x).all():
            raise ValueError("observation: expected finite numbers, got some that are not")
        if arrays.mean is not None:
            x = (x - arrays.mean) * arrays.inverse_spread
            x = np.minimum(np.maximum(x, -arrays.clip), arrays.clip)
        for weight, bias in arrays.layers:
            x = np.tanh(x @ weight + bias)
        weight, bias = arrays.last
        outputs = x @ weight + bias
        if not deterministic:
            generator = generator or np.random.default_rng()
        if arrays.std is None:
            if generator is not None and not deterministic:
                outputs = outputs + generator.gumbel(size=outputs.shape)
            return self._decoded(outputs.argmax(axis=-1))
        if generator is not None and not deterministic:
            outputs = outputs + arrays.std * generator.standard_normal(outputs.shape, np.float32)
        if arrays.box is not None:
            low, high, middle, half = arrays.box
            outputs = np.minimum(np.maximum(middle + half * outputs, low), high)
        return self._decoded(outputs)

    def _decoded(self, actions: np.ndarray) -> np.ndarray:
        """Actions as the environment takes them, where it says how that is."""
        decode = getattr(self.environment, "decode", None)
        return actions if decode is None else decode(actions)

    def _vector(self, observation: Any) -> np.ndarray:
        """An observation as the policy takes it, or rows of them."""
        encode = getattr(self.environment, "encode", None)
        x = None
        if not isinstance(observation, Mapping):
            with contextlib.suppress(TypeError, ValueError):  # parts of different shapes
                x = np.asarray(observation, np.float32)
        if x is not None and (encode is None or x.shape[-1:] == (self.arrays.inputs,)):
            return x
        if encode is not None:
            return np.asarray(encode(observation), np.float32)
        try:
            return np.concatenate([np.zeros(0, np.float32), *_numbers(observation)])
        except (TypeError, ValueError) as error:
            raise ValueError(f"observation: expected numbers ({error})") from error

    @functools.cached_property
    def arrays(self) -> Arrays:
        """The policy's numbers, with the normalisation and the bounds that belong to it."""
        policy, space, seen = self.policy, self.policy.space, self.observations
        weights, biases = (
            [np.array(each, np.float32) for each in part]
            for part in (policy.network.weights, policy.network.biases)
        )
        *layers, last = zip(weights, biases, strict=True)
        box = None
        if isinstance(space, Box) and any(map(math.isfinite, (*space.low, *space.high))):
            low, high = np.array(space.low, np.float32), np.array(space.high, np.float32)
            # Where a bound is missing, actions have no scale of their own and are only cut.
            scale = np.zeros_like(low), np.ones_like(low)
            if space.is_bounded:
                scale = (low + high) / np.float32(2), (high - low) / np.float32(2)
            box = (low, high, *scale)
        return Arrays(
            len(weights[0]),
            None if seen is None else np.array(seen.mean, np.float32),
            None if seen is None else 1 / np.sqrt(np.array(seen.square, np.float32) + _EPSILON),
            _CLIP,
            tuple(layers),
            last,
            None if policy.log_std is None else np.exp(np.array(policy.log_std, np.float32)),
            box,
        )

    def evaluate(
        self,
        environment: str | RobustCMDP | Environment | gymnasium.Env | None = None,
        *,
        episodes: int = 100,
        deterministic: bool = True,
        confidence: float = 0.95,
        seed: int = 0,
    ) -> AgentEvaluation:
        """Plays episodes and says what they pay and cost, with confidence intervals.

        Means have percentile bootstrap intervals, as those of `stress` have. The share of episodes that
        cost more than a limit allows has a Wilson interval, which is honest about a cost that was never
        seen.

        A simulator is played under its nominal noise, and its signals are added up as in training: plain
        sums up to the horizon with limit_on="episode", otherwise discounted sums. A Gymnasium
        environment is played with `predict`, one episode after the other up to its time limit, beyond
        which nothing counts; its costs are info["costs"], info["cost"], or the third of six values.

        Arguments:
            environment: the agent's own simulator if left out; otherwise the name of one, a table, a
                simulator, a Gymnasium environment or the id of one.
            episodes: that are played.
            deterministic: take the most likely actions, rather than draw them as in training.
            confidence: of the intervals.
            seed: of all that is drawn.

        Raises:
            ValueError: an argument cannot be used; the message names it.
            FloatingPointError: the environment returned something that is not finite.
            TrainingError: a simulator outside JAX failed.

        Example:
            >>> import holdfast as hf
            >>> model = hf.environments.n_chain(nodes=5)
            >>> agent = hf.train(model, "trpo", limit_on="discounted", iterations=1, batch_size=300)
            >>> found = agent.evaluate(episodes=50)
            >>> found.reward.low <= found.reward.mean <= found.reward.high
            True
            >>> found.episode_costs.shape
            (50, 1)
        """
        from holdfast.simulators.policy.evaluation import evaluate_agent

        return evaluate_agent(
            self,
            environment,
            episodes=episodes,
            deterministic=deterministic,
            confidence=confidence,
            seed=seed,
        )

    def to_onnx(self, path: str | PathLike[str]) -> None:
        """Writes the deterministic policy as an ONNX graph, whole or not at all.

        It takes `observation`, float32 of shape (batch, n), as `predict` does, and gives `action`:
        float32 of shape (batch, m) in the environment's units, or int64 of shape (batch,). Observations
        that are not flat have to be flattened by whoever calls it, and NaN is not refused.

        Raises:
            ImportError: onnx is not installed, which `pip install holdfast[onnx]` does.
        """
        from holdfast.simulators.policy.onnx import write_onnx

        write_onnx(self, path)

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


def load_agent(
    path: str | PathLike[str], make: Callable[[Mapping[str, Any]], Environment | None]
) -> Agent:
    """Read an agent; `make` returns its simulator from the saved description, or None."""
    path = Path(path)
    if path.is_dir():
        from holdfast.simulators.training.runs import agent_files

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
    simulator = make(description)
    if simulator is not None and (
        simulator.observation_size != sizes[0] or simulator.action_space != space
    ):
        raise ValueError(
            f"environment: {simulator.name} has {simulator.observation_size} observations and actions "
            f"{simulator.action_space}, the agent in {path} {sizes[0]} and {space}"
        )
    return Agent(policy, observations, algorithm, settings, limits, seed, simulator, description)


def _numbers(observation: Any) -> Iterator[np.ndarray]:
    """The numbers in nested mappings and sequences, those of a mapping by its sorted keys."""
    if isinstance(observation, Mapping):
        for name in sorted(observation):
            yield from _numbers(observation[name])
    elif isinstance(observation, list | tuple):
        for part in observation:
            yield from _numbers(part)
    else:
        yield np.asarray(observation, np.float32).ravel()


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
