"""The tests of `stress`: which tests there are, and how each is run on an agent."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from holdfast._support.arguments import numbers_of
from holdfast._support.devices import row
from holdfast.simulators.certificates.attack import (
    FrozenPolicy,
    Noisier,
    Targets,
    play,
    train_attackers,
    watch,
)
from holdfast.simulators.certificates.intervals import measured
from holdfast.simulators.certificates.stress_result import (
    ACTIONS,
    ATTACK,
    DRAWN,
    LIKELY,
    NOMINAL,
    PARAMETER,
    SCALED,
    Row,
)
from holdfast.simulators.environment import Box, Environment, GaussianNoise
from holdfast.simulators.nature.adversary import Nature
from holdfast.simulators.training.settings import AdversarySettings

Callback = Callable[[int, int, str], None]
Begin = Callable[[str], None]
Returns = Float[np.ndarray, "episodes signals"]

# Default levels: three times the noise breaks most policies, and so does action noise of a fifth of the
# unit in which most environments measure actions.
NOISE = (1.0, 1.5, 2.0, 3.0)
ACTION_NOISE = (0.05, 0.1, 0.2)
# 4,000 episodes tell adversaries apart whose values differ by 5 % of the spread of an episode.
_JUDGED_ON = 4000


class PlannedTest(NamedTuple):
    """One test: its kind, the attacked signal or the parameter, its level and actions, as in `Row`."""

    kind: str
    subject: str
    level: float
    actions: str = DRAWN

    def __str__(self) -> str:
        return " ".join(filter(None, (self.kind, self.subject, f"{self.level:g}")))

    @property
    def deterministic(self) -> bool:
        """Whether the policy takes its most likely action."""
        return self.actions == LIKELY


def planned_tests(
    env: Environment,
    *,
    radii: Sequence[float] | None,
    noise: Sequence[float] | str | None,
    action_noise: Sequence[float] | str | None,
    parameters: Mapping[str, Sequence[float]],
) -> list[PlannedTest]:
    """Return the tests in the order of the result: nominal, attacks, noise and parameters.

    Raises:
        ValueError: a level cannot be used with this environment.
    """
    gaussian = isinstance(env.disturbance, GaussianNoise)
    box = isinstance(env.action_space, Box) and gaussian
    noise = or_auto("noise", noise, NOISE if gaussian else None)
    action_noise = or_auto("action_noise", action_noise, ACTION_NOISE if box else None)
    if noise is not None and not gaussian:
        raise ValueError(f"noise: the disturbance of {env.name} is not Gaussian")
    if action_noise is not None and not box:
        raise ValueError(f"action_noise: the actions of {env.name} are not vectors")
    levels = [
        (NOMINAL, "", (0.0,)),
        *((ATTACK, name, _levels("radii", radii)) for name in signal_names(env)),
        (SCALED, "", _levels("noise", noise)),
        (ACTIONS, "", _levels("action_noise", action_noise)),
        *((PARAMETER, name, _levels(name, given, -math.inf)) for name, given in parameters.items()),
    ]
    tests = [PlannedTest(kind, subject, level) for kind, subject, each in levels for level in each]
    for test in tests:
        if test.kind == PARAMETER:
            # Raises for a name or value that the environment does not accept.
            env.with_parameters(**{test.subject: test.level})
    return [test for test in tests if test.kind != ATTACK or test.level > 0]


def signal_names(env: Environment) -> tuple[str, ...]:
    """Return the names of the reward and the costs."""
    return ("reward", *env.cost_names)


def or_auto(
    name: str, given: Sequence[float] | str | None, default: Sequence[float] | None
) -> Sequence[float] | None:
    """Return the levels that were given, with "auto" replaced by the default."""
    if given == "auto":
        return default
    if isinstance(given, str):
        raise ValueError(f"{name}: expected a list of numbers, 'auto' or None, got {given!r}")
    return given


def _levels(name: str, given: Sequence[float] | None, least: float = 0.0) -> tuple[float, ...]:
    """Return the distinct levels by rising value."""
    if given is None:
        return ()
    levels = np.atleast_1d(numbers_of(name, given))
    if levels.ndim != 1 or not levels.size:
        raise ValueError(f"{name}: expected a list of at least one number, got {given!r}")
    bad = levels[~(np.isfinite(levels) & (levels >= least))]
    if bad.size:
        wanted = "finite numbers" + ("" if math.isinf(least) else f" of at least {least:g}")
        raise ValueError(f"{name}: expected {wanted}, got {bad[0]:g}")
    return tuple(np.unique(levels).tolist())


# Sums of every signal in each episode, costs as utilities, and the kernel of an attack.
PlayedTests = dict[PlannedTest, tuple[Returns, str]]


class Candidate(NamedTuple):
    """A trained adversary: its test, its kind of kernel, and the value of the attacked signal."""

    test: PlannedTest
    kernel: str
    nature: Nature
    value: float


@dataclasses.dataclass(frozen=True)
class AttackPlan:
    """All tests, and how they are run.

    Attributes:
        env: the simulator.
        tests: the tests, from `planned_tests`.
        kinds: settings of each kind of adversary.
        restarts: adversaries of each kind for each radius and signal.
        episodes: episodes measured in each test, for each agent.
        seed: seed of everything that is drawn.
        callback: called with the number of steps done, their total, and the next step.
        agents: number of agents, for the total.
    """

    env: Environment
    tests: Sequence[PlannedTest]
    kinds: tuple[AdversarySettings, ...]
    restarts: int
    episodes: int
    seed: int
    callback: Callback | None
    agents: int

    @property
    def attacks(self) -> list[PlannedTest]:
        """The tests with an adversary."""
        return [test for test in self.tests if test.kind == ATTACK]

    def run(self, frozen: FrozenPolicy, agent: int) -> PlayedTests:
        """Return the episodes of every test of one agent."""
        key = jax.random.fold_in(jax.random.PRNGKey(self.seed), agent)
        plain_key, watch_key, train_key, attack_key = jax.random.split(key, 4)
        begin = self._progress(agent)
        found = {
            test: (self._play_plain(frozen, test, plain_key, begin), "")
            for test in self.tests
            if test.kind != ATTACK
        }
        if not self.attacks:
            return found
        sight = watch(frozen, watch_key)
        candidates = self._train(frozen, sight, train_key, begin)
        strongest: dict[int, tuple[Returns, str]] = {}
        for test in self.attacks:
            begin(f"strongest against {test.subject} within {test.level:g}")
            # An adversary of a smaller radius lies in the larger ball too.
            within = [
                i
                for i, each in enumerate(candidates)
                if (each.test.subject, each.test.actions) == (test.subject, test.actions)
                and each.test.level <= test.level
            ]
            best = min(within, key=lambda i: candidates[i].value)
            if best not in strongest:
                attack_key, key = jax.random.split(attack_key)
                attacked = jnp.asarray(signal_names(self.env).index(test.subject))
                nature, kernel = candidates[best].nature, candidates[best].kernel
                acting = _acting(frozen, test)
                returns = play(acting, key, self.episodes, sight, nature, attacked)
                strongest[best] = (self._finite(returns, test), kernel)
            found[test] = strongest[best]
        return found

    def _progress(self, agent: int) -> Begin:
        trainings = len(self.kinds) * (len(self.attacks) // self._jobs_at_once)
        total = len(self.tests) + trainings
        steps = itertools.count(agent * total)

        def begin(what: str) -> None:
            if self.callback is not None:
                self.callback(next(steps), total * self.agents, what)

        return begin

    def _play_plain(
        self, frozen: FrozenPolicy, test: PlannedTest, key: jax.Array, begin: Begin
    ) -> Returns:
        """Return episodes without an adversary; all tests share their draws, for comparison."""
        kind, subject, level, _ = test
        begin(kind if kind == NOMINAL else f"{subject or kind} {level:g}")
        env = self.env if kind != PARAMETER else self.env.with_parameters(**{subject: level})
        if isinstance(env.disturbance, GaussianNoise):
            # Wrapped in every test, so that all of them run one compiled program.
            factor = jnp.asarray(level if kind == SCALED else 1.0, jnp.float32)
            std = jnp.asarray(level if kind == ACTIONS else 0.0, jnp.float32)
            env = Noisier(env, factor, std)  # type: ignore[abstract]
        acting = dataclasses.replace(_acting(frozen, test), env=env)
        return self._finite(play(acting, key, self.episodes), test)

    @property
    def _jobs_at_once(self) -> int:
        """1 on a CPU, which one job keeps busy, and all jobs on an accelerator."""
        return 1 if jax.default_backend() == "cpu" else max(len(self.attacks), 1)

    def _train(
        self, frozen: FrozenPolicy, sight: Any, key: jax.Array, begin: Begin
    ) -> list[Candidate]:
        """Return the trained adversaries, by kind, then signal, radius and restart."""
        tests, at_once = self.attacks, self._jobs_at_once
        candidates = []
        for number, kind in enumerate(self.kinds):
            keys = jax.random.split(jax.random.fold_in(key, number), (len(tests), self.restarts))
            for first in range(0, len(tests), at_once):
                some = tests[first : first + at_once]
                what = f"{some[0].subject} within {some[0].level:g}"
                begin(f"{kind.kernel} against {what if at_once == 1 else 'all signals'}")
                jobs = [test for test in some for _ in range(self.restarts)]
                targets = Targets(
                    jnp.asarray([signal_names(self.env).index(test.subject) for test in jobs]),
                    jnp.asarray([test.level for test in jobs], jnp.float32),
                    jnp.asarray([test.deterministic for test in jobs]),
                    keys[first : first + at_once].reshape(len(jobs), -1),
                )
                judged_on = min(self.episodes, _JUDGED_ON)
                natures, values = train_attackers(frozen, sight, targets, kind, judged_on)
                for i, test in enumerate(jobs):
                    value = float(self._finite(values[i], test))
                    candidates.append(Candidate(test, kind.kernel, row(natures, i), value))
        return candidates

    def _finite(self, found: Any, test: PlannedTest) -> np.ndarray:
        found = np.asarray(found)
        if not np.isfinite(found).all():
            raise FloatingPointError(
                f"{self.env.name} returned a number that is not finite ({test})"
            )
        return found

    def rows(self, found: Sequence[PlayedTests], confidence: float) -> tuple[Row, ...]:
        """Return the results of all agents as rows, the nominal one first."""
        rows = []
        for test in self.tests:
            returns, kernels = zip(*(each[test] for each in found), strict=True)
            reward, *costs = (
                measured([sign * each[:, i] for each in returns], confidence, self.seed)
                # Episodes hold utilities; a cost is the negative of its utility.
                for i, sign in enumerate([1.0] + [-1.0] * len(self.env.cost_names))
            )
            named, of = tuple(filter(None, kernels)), (test.kind, test.level, test.subject)
            rows.append(Row(*of, reward, tuple(costs), named, test.actions))
        return tuple(rows)


def _acting(frozen: FrozenPolicy, test: PlannedTest) -> FrozenPolicy:
    """Return the policy with the actions of a test."""
    return dataclasses.replace(frozen, deterministic=jnp.asarray(test.deterministic))
