"""A trained policy: the result of `train`, and the object that is used, saved and stressed."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from holdfast._support.files import plain, write_bytes
from holdfast._version import __version__
from holdfast.model import RobustCMDP
from holdfast.simulators.certificates.simulator_certificate import SimulatorCertificate
from holdfast.simulators.environment import Box, Discrete, Environment
from holdfast.simulators.policy.arrays import PolicyArrays
from holdfast.simulators.policy.memory import PolicyHistory, pair_size
from holdfast.simulators.policy.networks import Normaliser, Policy
from holdfast.simulators.training import checkpoint
from holdfast.simulators.training.settings import Settings

if TYPE_CHECKING:
    import gymnasium

    from holdfast.simulators.policy.evaluation import AgentEvaluation


@dataclasses.dataclass(frozen=True, eq=False)
class Agent:
    """A trained policy with everything that is needed to use it.

    Attributes:
        policy: the network.
        observations: normaliser of the observations, or None if they are not normalised.
        algorithm: name of the algorithm that trained it.
        settings: settings of the training.
        limits: cost limits of the training.
        seed: seed of the training.
        environment: the simulator; None if the agent was loaded and its simulator is not registered.
        description: description of the simulator, as `Environment.description` returns it.
        certificate: what `train` proved about it with `certified`; otherwise None.

    Example:
        >>> import holdfast as hf
        >>> model = hf.environments.n_chain(nodes=5)
        >>> hf.train(model, "trpo", limit_on="discounted", iterations=1, batch_size=300)
        Agent('trpo', seed=0, environment='table', limits=(-6.0,))
    """

    policy: Policy
    observations: Normaliser | None
    algorithm: str
    settings: Settings
    limits: tuple[float, ...]
    seed: int
    environment: Environment | None
    description: Mapping[str, Any]
    certificate: SimulatorCertificate | None = None

    def __repr__(self) -> str:
        name = self.description.get("name")
        return f"Agent({self.algorithm!r}, seed={self.seed}, environment={name!r}, limits={self.limits})"

    @property
    def label(self) -> str:
        """Algorithm and seed, as in "rcpo-0"."""
        return f"{self.algorithm}-{self.seed}"

    @property
    def draws_actions(self) -> bool:
        """Whether it can draw its actions or take the most likely ones; a function acts in one way."""
        return getattr(self.policy, "draws", True)

    def predict(
        self,
        observation: Any,
        deterministic: bool = True,
        *,
        generator: np.random.Generator | None = None,
    ) -> np.ndarray:
        """Return the action for one observation, or for rows of them, in the environment's units.

        Vector actions are clipped to the bounds of the action space. An agent that was trained with
        `memory` remembers its observations and actions from call to call; call `reset` at the start of
        an episode. An observation that already contains the past, as in the exported ONNX graph, is
        used as it is and not remembered.

        Arguments:
            observation: one observation, or an array with one in each row. Dict and tuple observations
                of Gymnasium are accepted too: the `encode` method of the agent's environment converts
                them if there is one; otherwise their numbers are concatenated, dicts by sorted keys.
            deterministic: return the most likely action instead of a drawn one.
            generator: random generator of drawn actions; by default a new one, seeded by the system.

        Raises:
            ValueError: the observation has the wrong length, or is not finite.

        Example:
            >>> import numpy as np, holdfast as hf
            >>> model = hf.environments.n_chain(nodes=5)
            >>> agent = hf.train(model, "trpo", limit_on="discounted", iterations=1, batch_size=300)
            >>> agent.predict(np.eye(5)).shape
            (5,)
        """
        arrays, x = self.arrays, self._checked_vector(observation)
        drawn_by = None if deterministic else generator or np.random.default_rng()
        remembers = x.shape[-1] < arrays.inputs
        outputs = arrays.outputs(self._history.extended(x) if remembers else x)
        actions = arrays.actions(outputs, drawn_by)
        if remembers:
            self._history.remember(x, actions)
        decode = getattr(self.environment, "decode", None)
        return actions if decode is None else decode(actions)

    def _checked_vector(self, observation: Any) -> np.ndarray:
        x, size = self._vector(observation), self.observation_size
        if x.ndim == 0 or x.shape[-1] not in (size, self.inputs):
            raise ValueError(f"observation: expected {size} numbers, got shape {x.shape}")
        if not np.isfinite(x).all():
            raise ValueError("observation: expected finite numbers, got some that are not")
        return x

    def reset(self) -> None:
        """Forget past observations and actions; without `memory` there are none.

        Example:
            >>> import holdfast as hf
            >>> model = hf.environments.n_chain(nodes=5)
            >>> settings = {"limit_on": "discounted", "iterations": 1, "batch_size": 300}
            >>> agent = hf.train(model, "trpo", memory=2, **settings)
            >>> first, second = agent.predict([1, 0, 0, 0, 0]), agent.predict([0, 1, 0, 0, 0])
            >>> agent.reset()
            >>> bool(agent.predict([1, 0, 0, 0, 0]) == first)
            True
        """
        self._history.reset()

    @property
    def inputs(self) -> int:
        """The length of the policy's input, with remembered observations and actions."""
        return self.arrays.inputs

    @property
    def observation_size(self) -> int:
        """The number of entries of an observation, without the remembered ones."""
        memory = self.settings.memory
        return (self.inputs - memory * pair_size(0, self.policy.space)) // (1 + memory)

    @functools.cached_property
    def _history(self) -> PolicyHistory:
        return PolicyHistory(self.settings.memory, self.observation_size, self.policy.space)

    def _vector(self, observation: Any) -> np.ndarray:
        """Return one observation, or rows of them, as the policy's input."""
        encode = getattr(self.environment, "encode", None)
        x = None
        if not isinstance(observation, Mapping):
            with contextlib.suppress(TypeError, ValueError):  # parts of different shapes
                x = np.asarray(observation, np.float32)
        known = ((self.observation_size,), (self.inputs,))
        if x is not None and (encode is None or x.shape[-1:] in known):
            return x
        if encode is not None:
            return np.asarray(encode(observation), np.float32)
        try:
            return np.concatenate([np.zeros(0, np.float32), *_numbers(observation)])
        except (TypeError, ValueError) as error:
            raise ValueError(f"observation: expected numbers ({error})") from error

    @functools.cached_property
    def arrays(self) -> PolicyArrays:
        """The policy, its normaliser and its bounds as NumPy arrays."""
        return PolicyArrays.create(self.policy, self.observations)

    def evaluate(
        self,
        environment: str | RobustCMDP | Environment | gymnasium.Env | None = None,
        *,
        episodes: int = 100,
        deterministic: bool | None = None,
        confidence: float = 0.95,
        seed: int = 0,
    ) -> AgentEvaluation:
        """Play episodes and return their rewards and costs with confidence intervals.

        A policy may be used with its most likely actions or with drawn ones, and their costs differ.
        Both are played: the result is that of the most likely actions, and its `drawn` has the other.

        Means have percentile bootstrap intervals, as in `stress`. The share of episodes that cost more
        than a limit has a Wilson interval, which has a positive width also if no episode did.

        A simulator is played under its nominal noise. Its signals are summed as in training: plain sums
        up to the horizon with limit_on="episode", otherwise discounted sums. A Gymnasium environment is
        played with `predict`, one episode after the other, up to its time limit. Its costs are read
        from info["costs"], from info["cost"], or from the third of six values.

        Arguments:
            environment: name of an environment, a table, a simulator, a Gymnasium environment or its
                id; by default the agent's own simulator.
            episodes: number of episodes, at least 2.
            deterministic: True for most likely actions only, False for actions drawn as in training
                only; None plays `episodes` of both.
            confidence: level of the intervals.
            seed: seed of everything that is drawn.

        Raises:
            ValueError: an argument cannot be used; the message names it.
            FloatingPointError: the environment returned a number that is not finite.
            TrainingError: a simulator outside JAX failed.

        Example:
            >>> import holdfast as hf
            >>> model = hf.environments.n_chain(nodes=5)
            >>> agent = hf.train(model, "trpo", limit_on="discounted", iterations=1, batch_size=300)
            >>> found = agent.evaluate(episodes=50)
            >>> found.reward.low <= found.reward.mean <= found.reward.high
            True
            >>> found.episode_costs.shape, found.drawn.episode_costs.shape
            ((50, 1), (50, 1))
        """
        from holdfast.simulators.policy.evaluation import evaluate_agent

        return evaluate_agent(self, environment, episodes, deterministic, confidence, seed)

    def to_onnx(self, path: str | PathLike[str]) -> None:
        """Write the deterministic policy as an ONNX graph; the file appears complete or not at all.

        The input `observation` is float32 of shape (batch, n). The output `action` is float32 of shape
        (batch, m) in the environment's units, or int64 of shape (batch,) for discrete actions. The
        caller flattens dict and tuple observations. The graph does not refuse NaN. With `memory` the
        caller also appends the past: the k last pairs of an observation and the action taken there, the
        most recent first, zeros before the start; actions clipped to their bounds and scaled to ±1,
        discrete ones as one-hot vectors. The metadata hold k as `memory`.

        Raises:
            ImportError: onnx is not installed; `pip install "holdfast[onnx]"` installs it.

        Example:
            >>> import pathlib, tempfile, holdfast as hf
            >>> model = hf.environments.n_chain(nodes=5)
            >>> agent = hf.train(model, "trpo", limit_on="discounted", iterations=1, batch_size=300)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     agent.to_onnx(f"{folder}/policy.onnx")
            ...     [file.name for file in pathlib.Path(folder).iterdir()]
            ['policy.onnx']
        """
        from holdfast.simulators.policy.onnx import to_onnx_bytes

        write_bytes(path, to_onnx_bytes(self))

    def save(self, path: str | PathLike[str]) -> None:
        """Write one file that `load` reads; it appears complete or not at all.

        Example:
            >>> import tempfile, numpy as np, holdfast as hf
            >>> model = hf.environments.n_chain(nodes=5)
            >>> agent = hf.train(model, "trpo", limit_on="discounted", iterations=1, batch_size=300)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     agent.save(f"{folder}/agent.safetensors")
            ...     again = hf.load(f"{folder}/agent.safetensors", environment=model)
            >>> bool((again.predict(np.eye(5)) == agent.predict(np.eye(5))).all())
            True
        """
        write_bytes(path, self.to_bytes())

    def to_bytes(self) -> bytes:
        """Return the contents of the file that `save` writes."""
        space = self.policy.space
        # Bounds are stored as text, since JSON has no infinity.
        bounds = {
            name: [str(float(v)) for v in value] if isinstance(value, tuple) else value
            for name, value in vars(space).items()
        }
        header = {
            "kind": "agent",
            "version": __version__,
            "algorithm": self.algorithm,
            "settings": self.settings.to_dict(),
            "limits": list(self.limits),
            "seed": self.seed,
            "environment": dict(self.description),
            "space": {"kind": type(space).__name__, **bounds},
            "sizes": [self.arrays.inputs, *(len(bias) for _, bias in self.arrays.layers)],
            "normalised": self.observations is not None,
        }
        if self.certificate is not None:
            header["certificate"] = plain(self.certificate.to_dict())
        return checkpoint.encode(header, (self.policy, self.observations))

    def check_fits(self, env: Environment, name: str) -> None:
        """Raise a ValueError if observations or actions of a simulator do not fit the policy's."""
        inputs, space = self.observation_size, self.policy.space
        if inputs != env.observation_size or space != env.action_space:
            raise ValueError(
                f"environment: {env.name} has {env.observation_size} observations and actions "
                f"{env.action_space}, {name} has {inputs} and {space}"
            )


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
        space, sizes = _space(header["space"]), tuple(header["sizes"])
        normalised = header["normalised"]
        known = (
            header["algorithm"],
            Settings.from_record(header["settings"]),
            tuple(map(float, header["limits"])),
            header["seed"],
        )
        description = header["environment"]
        proof = header.get("certificate")
        proof = None if proof is None else SimulatorCertificate.from_dict(proof)
        if not isinstance(description, Mapping) or not isinstance(header["algorithm"], str):
            raise TypeError("the environment or the algorithm has another type")
        if type(header["seed"]) is not int:
            raise TypeError("the seed has another type")
        if len(sizes) < 2 or any(type(size) is not int or size < 1 for size in sizes):
            raise TypeError(f"the sizes of the network are {sizes}")

        def blank() -> tuple[Policy, Normaliser | None]:
            policy = Policy.create(jax.random.PRNGKey(0), sizes[0], sizes[1:-1], space)
            return policy, Normaliser.create(sizes[0]) if normalised else None

        like = jax.eval_shape(blank)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(f"{path}: not an agent that this version can read ({error})") from error
    _, (policy, observations) = checkpoint.load(path, "agent", like)
    agent = Agent(policy, observations, *known, make(description), description, proof)
    if agent.environment is not None:
        agent.check_fits(agent.environment, f"the agent in {path}")
    return agent


def _numbers(observation: Any) -> Iterator[np.ndarray]:
    """Yield the numbers in nested mappings and sequences, those of a mapping by sorted keys."""
    if isinstance(observation, Mapping):
        for name in sorted(observation):
            yield from _numbers(observation[name])
    elif isinstance(observation, list | tuple):
        for part in observation:
            yield from _numbers(part)
    else:
        yield np.asarray(observation, np.float32).ravel()


def _space(header: Mapping[str, Any]) -> Box | Discrete:
    if header["kind"] == "Discrete":
        return Discrete(int(header["count"]))
    low, high = (tuple(map(float, header[end])) for end in ("low", "high"))
    most = float(np.finfo(np.float32).max)
    if len(low) != len(high) or any(most < abs(bound) < math.inf for bound in (*low, *high)):
        raise ValueError("the bounds of actions differ in number or exceed single precision")
    return Box(low, high)
