"""Policies of other libraries, in the place of a trained agent."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import weakref
from collections.abc import Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt32

from holdfast.simulators.environment import Box, Discrete, Environment
from holdfast.simulators.failures import host_failures
from holdfast.simulators.policy.agent import Agent
from holdfast.simulators.policy.foreign_files import ForeignFunction, read_function
from holdfast.simulators.training.settings import Settings, cost_limits

_NUMBERS = itertools.count()
# Observations on which a policy is tried: three tell rows from columns and from one observation.
_TRIED = 3


@dataclasses.dataclass(eq=False)
class Caller:
    """A foreign policy that answers rows of observations, with checks of its answers.

    All callers compare equal, so that compiled programs are shared; see `ForeignPolicy.number`.

    Attributes:
        function: the policy.
        env: the simulator whose observations and actions it is called with.
        takes_rows: whether the policy takes several observations at once.
        failures: exceptions that the policy raised inside a compiled program.
        number: key of this caller in the table of callers.
    """

    function: ForeignFunction
    env: Environment
    takes_rows: bool = False
    failures: list[BaseException] = dataclasses.field(default_factory=list)
    number: int = dataclasses.field(default_factory=lambda: next(_NUMBERS))
    _memories: list[Any] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        _CALLERS[self.number] = self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Caller)

    def __hash__(self) -> int:
        return hash(Caller)

    def actions(
        self, observations: Float[np.ndarray, "rows n"], seed: int | None, start: bool = False
    ) -> np.ndarray:
        """Return one action for each row, in the simulator's units.

        Arguments:
            observations: flat observations.
            seed: seed of drawn actions, or None for the most likely ones.
            start: whether the episodes begin with these observations.

        Raises:
            ValueError: an answer is not a finite action of the right size.
        """
        native = getattr(self.env, "native_observations", lambda rows: rows)(observations)
        rows = len(observations)
        if self.function.memory is not None:
            found = self._remembering(native, rows, start)
        elif self.takes_rows:
            found = self.function.call(native, seed)
        else:
            found = [self.function.call(_row(native, i), seed) for i in range(rows)]
        return self._checked(found, rows)

    def _remembering(self, native: Any, rows: int, start: bool) -> list[Any]:
        if start:
            while len(self._memories) < rows:
                self._memories.append(copy.deepcopy(self.function.memory))
            self.forget_episodes()
        return [self._memories[i](_row(native, i)) for i in range(rows)]

    def forget_episodes(self) -> None:
        """Reset all copies of a policy with a memory."""
        for memory in self._memories:
            memory.reset()

    def _checked(self, found: Any, rows: int) -> np.ndarray:
        space, name = self.env.action_space, self.function.name
        numbers = np.asarray(found, float)
        if not np.isfinite(numbers).all():
            bad = numbers[~np.isfinite(numbers)][0]
            raise ValueError(f"policy: {name} returned {bad}, expected finite numbers")
        numbers = getattr(self.env, "encode_actions", lambda given: given)(numbers)
        size = space.size if isinstance(space, Box) else 1
        if numbers.size != rows * size:
            raise ValueError(
                f"policy: {name} returned {numbers.size / rows:g} numbers for an observation, "
                f"expected {size}: the actions of {self.env.name} are {space}"
            )
        if isinstance(space, Box):
            return numbers.reshape(rows, size).astype(np.float32)
        whole = np.rint(numbers).reshape(rows)
        wrong = (whole != numbers.reshape(rows)) | (whole < 0) | (whole >= space.count)
        if wrong.any():
            bad = numbers.reshape(rows)[wrong][0]
            raise ValueError(
                f"policy: {name} returned the action {bad:g}, expected one of {space.count}"
            )
        return whole.astype(np.int32)

    def try_out(self) -> None:
        """Find out whether the policy takes rows, and raise a ValueError if it does not work.

        A function may take one observation or rows of them. It takes rows if that gives the same actions
        as one observation at a time.
        """
        function, env = self.function, self.env
        if function.inputs is not None and function.inputs != env.observation_size:
            raise ValueError(
                f"policy: {function.name} takes {function.inputs} numbers, {env.name} observes "
                f"{env.observation_size}"
            )
        with host_failures(env):
            _, seen = env.reset_rows(jax.random.split(jax.random.PRNGKey(0), _TRIED))
        observations = np.asarray(seen)
        self.takes_rows = bool(function.takes_rows)
        one_by_one = self._tried(observations)
        self.forget_episodes()
        if function.takes_rows is None and function.memory is None:
            self.takes_rows = True
            with contextlib.suppress(Exception):  # a function of one observation may raise anything
                found = self.actions(observations, None)
                self.takes_rows = bool(np.allclose(found, one_by_one, atol=1e-5))
                return
            self.takes_rows = False

    def _tried(self, observations: np.ndarray) -> np.ndarray:
        try:
            return self.actions(observations, None, start=True)
        except ValueError as error:
            if str(error).startswith("policy: "):
                raise
            raise self._raised(error) from error
        except Exception as error:  # whatever the policy raises
            raise self._raised(error) from error

    def _raised(self, error: Exception) -> ValueError:
        text = " ".join(str(error).split())[:200]
        return ValueError(
            f"policy: {self.function.name} raised {type(error).__name__} ({text}) for an observation "
            f"of {self.env.observation_size} numbers of {self.env.name}"
        )


# Weak references: a caller ends with the last policy that holds it.
_CALLERS: weakref.WeakValueDictionary[int, Caller] = weakref.WeakValueDictionary()


def _row(native: Any, i: int) -> Any:
    """Return one observation of rows in the environment's own form."""
    if isinstance(native, dict):
        return {name: _row(part, i) for name, part in native.items()}
    return tuple(_row(part, i) for part in native) if isinstance(native, tuple) else native[i]


class ForeignPolicy(eqx.Module):
    """A policy outside JAX, with the methods of `Policy` that playing needs.

    Attributes:
        number: number of the caller, traced: policies of equal form share compiled programs.
        space: the action space.
        has_memory: whether the policy has a memory, so that it is called in the order of the program.
        draws: whether it draws actions by a seed, so that it can be asked for another one.
    """

    number: UInt32[Array, ""]
    space: Box | Discrete = eqx.field(static=True)
    has_memory: bool = eqx.field(static=True)
    draws: bool = eqx.field(static=True)
    _alive: Caller = eqx.field(static=True)

    def act(
        self,
        inputs: Float[Array, "rows n"],
        key: PRNGKeyArray,
        time: Int[Array, ""],
        deterministic: bool | Bool[Array, "..."] = False,
    ) -> Array:
        """Return one action per row: all drawn with the key, or all the most likely ones."""
        bits = jax.random.bits(key, (), jnp.uint32)
        rows, space = len(inputs), self.space
        box = isinstance(space, Box)
        shape = (rows, space.size) if isinstance(space, Box) else (rows,)
        result = jax.ShapeDtypeStruct(shape, jnp.float32 if box else jnp.int32)

        def call(number: Any, bits: Any, time: Any, likely: Any, inputs: Any) -> np.ndarray:
            caller = _CALLERS[int(np.ravel(number)[0])]
            seen = np.asarray(inputs)
            # A program that is mapped over seeds or parameters adds leading axes.
            lead = seen.shape[:-2]
            try:
                if np.any(likely) != np.all(likely):
                    raise ValueError("policy: one call asks for drawn and for most likely actions")
                seed = None if np.any(likely) else int(np.ravel(bits)[0])
                flat = seen.reshape(-1, seen.shape[-1])
                found = caller.actions(flat, seed, bool(np.ravel(time)[0] == 0))
            except BaseException as error:
                caller.failures.append(error)
                raise
            return found.reshape(*lead, *shape)

        operands = (self.number, bits, jnp.asarray(time), jnp.asarray(deterministic), inputs)
        if self.has_memory:
            return io_callback(call, result, *operands, ordered=True)
        return jax.pure_callback(call, result, *operands, vmap_method="broadcast_all")

    def to_environment(self, action: Array) -> Array:
        """Return the action: a foreign policy acts in the environment's units."""
        return action

    @property
    def name(self) -> str:
        """The name of the policy."""
        return f"the policy {self.caller.function.name}"

    @property
    def caller(self) -> Caller:
        """The object that calls the policy."""
        return _CALLERS[int(self.number)]

    @property
    def failure(self) -> BaseException | None:
        """The last exception of the policy, or None."""
        return self.caller.failures[-1] if self.caller.failures else None

    def forget_failure(self) -> None:
        """Discard the exceptions of the policy."""
        self.caller.failures.clear()


@dataclasses.dataclass(frozen=True, eq=False)
class ForeignAgent(Agent):
    """A policy of another library with the methods of an `Agent`, except `save` and `to_onnx`."""

    policy: Any

    def __repr__(self) -> str:
        name = self.description.get("name")
        return f"ForeignAgent({self.algorithm!r}, environment={name!r}, limits={self.limits})"

    @property
    def label(self) -> str:
        """The name of the policy."""
        return self.algorithm

    @property
    def inputs(self) -> int:
        """The length of an observation."""
        return self.observation_size

    @property
    def observation_size(self) -> int:
        """The length of an observation."""
        assert self.environment is not None
        return self.environment.observation_size

    def predict(
        self,
        observation: Any,
        deterministic: bool = True,
        *,
        generator: np.random.Generator | None = None,
    ) -> np.ndarray:
        """Return the action for one observation, or for rows of them, as `Agent.predict` does.

        A policy with a memory continues from its last observation; `reset` starts an episode.
        """
        x = self._checked_vector(observation)
        rows = x.reshape(-1, self.inputs)
        seed = None
        if not deterministic:
            seed = int((generator or np.random.default_rng()).integers(2**32))
        caller = self.policy.caller
        actions = caller.actions(rows, seed, start=len(caller._memories) < len(rows))
        actions = actions.reshape(*x.shape[:-1], *actions.shape[1:])
        decode = getattr(self.environment, "decode", None)
        return actions if decode is None else decode(actions)

    def reset(self) -> None:
        """Start an episode of `predict`."""
        self.policy.caller.forget_episodes()

    def to_bytes(self) -> bytes:
        """Raise a ValueError: the policy belongs to another library, which has to save it."""
        raise ValueError(
            f"agent: {self.label} is not a policy of Holdfast; save it where it was made"
        )

    def to_onnx(self, path: Any) -> None:
        """Raise a ValueError: the policy belongs to another library, which has to export it."""
        del path
        self.to_bytes()


def foreign_agent(
    policy: Any,
    env: Environment,
    *,
    cost_limit: Any = None,
    limit_on: str = "episode",
    trust: bool = False,
    statistics: Any = None,
) -> ForeignAgent:
    """Return an agent that acts with a foreign policy; `holdfast.verbs.as_agent` documents it."""
    function = read_function(policy, trust=trust, statistics=statistics)
    given = () if cost_limit is None else tuple(np.ravel(cost_limit).astype(float).tolist())
    settings = Settings(cost_limit=given, limit_on=limit_on)
    limits = cost_limits(env, settings)
    if function.memory is not None and jax.default_backend() != "cpu":
        raise ValueError(
            f"policy: {function.name} has a memory and must be called in order; set JAX_PLATFORMS=cpu"
        )
    caller = Caller(function, env)
    caller.try_out()
    number = jnp.asarray(caller.number, jnp.uint32)
    acting = ForeignPolicy(
        number, env.action_space, function.memory is not None, function.draws, caller
    )
    return ForeignAgent(
        policy=acting,
        observations=None,
        algorithm=function.name,
        settings=settings,
        limits=limits,
        seed=0,
        environment=env,
        description=env.description(),
    )


@contextlib.contextmanager
def policy_failures(agents: Iterable[Agent]) -> Any:
    """Raise a foreign policy's own failure in place of that of the compiled program."""
    with contextlib.ExitStack() as stack:
        for agent in agents:
            if isinstance(agent, ForeignAgent):
                stack.enter_context(host_failures(agent.policy))
        yield


def agents_of(given: Any, env: Environment | None, **options: Any) -> tuple[Agent, ...]:
    """Return agents from one agent, several, or a foreign policy, which takes the options."""
    if isinstance(given, Agent):
        given = (given,)
    if isinstance(given, list | tuple):
        if options.get("cost_limit") is not None:
            raise ValueError("cost_limit: an Agent has its own limits")
        return tuple(given)
    if env is None:
        raise ValueError("environment: a policy of another library needs one")
    return (foreign_agent(given, env, **options),)
