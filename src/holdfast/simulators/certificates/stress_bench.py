"""The tests of `stress`, one after the other: which there are, and how each is done."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from holdfast.simulators.certificates.attack import (
    Frozen,
    Noisier,
    play_attack,
    play_nominal,
    train_attackers,
    watch,
)
from holdfast.simulators.certificates.stress_result import (
    ACTIONS,
    ATTACK,
    NOMINAL,
    PARAMETER,
    SCALED,
    Row,
    measured,
)
from holdfast.simulators.environment import Box, Environment, GaussianNoise
from holdfast.simulators.nature.adversary import Nature
from holdfast.simulators.training.rollout import Sight
from holdfast.simulators.training.settings import AdversarySettings

Callback = Callable[[int, int, str], None]

NOISE = (1.0, 1.5, 2.0, 3.0)
ACTION_NOISE = (0.05, 0.1, 0.2)
_JUDGED_ON = 4000


@dataclasses.dataclass(frozen=True)
class Tests:
    """Everything that is to be tried, as (level) or (name, level)."""

    radii: tuple[float, ...]
    noise: tuple[float, ...]
    action_noise: tuple[float, ...]
    parameters: tuple[tuple[str, float], ...]

    @classmethod
    def create(
        cls,
        env: Environment,
        *,
        radii: Sequence[float] | None,
        noise: Sequence[float] | str | None,
        action_noise: Sequence[float] | str | None,
        parameters: Mapping[str, Sequence[float]],
    ) -> Self:
        """Checks them against the environment."""
        gaussian = isinstance(env.disturbance, GaussianNoise)
        box = isinstance(env.action_space, Box) and gaussian
        if isinstance(noise, str):
            noise = _or_auto("noise", noise, NOISE if gaussian else None)
        if isinstance(action_noise, str):
            action_noise = _or_auto("action_noise", action_noise, ACTION_NOISE if box else None)
        if noise is not None and not gaussian:
            raise ValueError(f"noise: the disturbance of {env.name} is not Gaussian")
        if action_noise is not None and not box:
            raise ValueError(f"action_noise: the actions of {env.name} are not vectors")
        known = env.parameters
        tried = []
        for name, values in parameters.items():
            if name not in known:
                raise ValueError(
                    f"{name}: not a parameter of {env.name}, which has {', '.join(known) or 'none'}"
                )
            levels = _levels(name, values, least=-math.inf)
            for level in levels:
                env.with_parameters(**{name: level})  # what no machine has is refused here
            tried += [(name, level) for level in levels]
        return cls(
            radii=tuple(r for r in _levels("radii", radii) if r > 0),
            noise=_levels("noise", noise),
            action_noise=_levels("action_noise", action_noise),
            parameters=tuple(tried),
        )


def _or_auto(name: str, given: str, usual: Sequence[float] | None) -> Sequence[float] | None:
    if given != "auto":
        raise ValueError(f"{name}: expected a list of numbers, 'auto' or None, got {given!r}")
    return usual


def _levels(name: str, given: Sequence[float] | None, least: float = 0.0) -> tuple[float, ...]:
    """Different numbers in rising order."""
    if given is None:
        return ()
    try:
        levels = np.atleast_1d(np.asarray(given, float))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: expected a list of numbers, got {given!r}") from error
    if levels.ndim != 1 or not levels.size:
        raise ValueError(f"{name}: expected a list of at least one number, got {given!r}")
    bad = levels[~(np.isfinite(levels) & (levels >= least))]
    if bad.size:
        wanted = "finite numbers" + ("" if math.isinf(least) else f" of at least {least:g}")
        raise ValueError(f"{name}: expected {wanted}, got {bad[0]:g}")
    return tuple(np.unique(levels).tolist())


Returns = Float[np.ndarray, "episodes signals"]


class Found(NamedTuple):
    """What one agent's episodes paid in every test, in the order of the rows; costs as utilities."""

    plain: list[Returns]
    attacked: list[Returns]
    kernels: list[str]


@dataclasses.dataclass(frozen=True)
class Bench:
    """Runs all tests on one agent after the other."""

    env: Environment
    tests: Tests
    kinds: tuple[AdversarySettings, ...]
    restarts: int
    episodes: int
    seed: int
    callback: Callback | None
    agents: int

    def measure(self, frozen: Frozen, agent: int) -> Found:
        """Everything about one agent."""
        key = jax.random.fold_in(jax.random.PRNGKey(self.seed), agent)
        plain_key, watch_key, train_key, attack_key = jax.random.split(key, 4)
        steps = self._progress(agent)
        plain = [self._plain(frozen, *test, plain_key, steps) for test in _plain_tests(self.tests)]
        if not self.tests.radii:
            return Found(plain, [], [])
        sight = watch(frozen, watch_key)
        natures, values = self._train(frozen, sight, train_key, steps)
        attacked, kernels = self._play_strongest(frozen, sight, natures, values, attack_key, steps)
        return Found(plain, attacked, kernels)

    def _progress(self, agent: int) -> Callable[[str], None]:
        signals, radii = 1 + len(self.env.cost_names), len(self.tests.radii)
        calls = signals * radii // self._jobs_at_once(signals * radii)
        total = len(_plain_tests(self.tests)) + len(self.kinds) * calls + signals * radii
        done = agent * total

        def begin(what: str) -> None:
            nonlocal done
            if self.callback is not None:
                self.callback(done, total * self.agents, what)
            done += 1

        return begin

    def _plain(
        self,
        frozen: Frozen,
        kind: str,
        subject: str,
        level: float,
        key: jax.Array,
        begin: Callable[[str], None],
    ) -> Returns:
        """Under a given kernel or parameter; the same draws for all, so that they compare well."""
        begin(f"{subject or kind} {level:g}" if kind != NOMINAL else kind)
        env = self.env if kind != PARAMETER else self.env.with_parameters(**{subject: level})
        if isinstance(env.disturbance, GaussianNoise):
            # The same program for all of them.
            factor = jnp.asarray(level if kind == SCALED else 1.0, jnp.float32)
            std = jnp.asarray(level if kind == ACTIONS else 0.0, jnp.float32)
            env = Noisier(env, factor, std)
        frozen = dataclasses.replace(frozen, env=env)
        return self._finite(play_nominal(frozen, key, self.episodes), kind, subject, level)

    def _jobs_at_once(self, jobs: int) -> int:
        """All of them on an accelerator; one on a CPU, which has no use for width."""
        return 1 if jax.default_backend() == "cpu" else jobs

    def _train(
        self, frozen: Frozen, sight: Sight, key: jax.Array, begin: Callable[[str], None]
    ) -> tuple[list[list[Nature]], Float[np.ndarray, "kinds signals radii restarts"]]:
        """Adversaries, by kind and then in the order of (signal, radius, restart); and their values."""
        names = ("reward", *self.env.cost_names)
        jobs = [(index, radius) for index in range(len(names)) for radius in self.tests.radii]
        at_once = self._jobs_at_once(len(jobs))
        judged_on = min(self.episodes, _JUDGED_ON)
        natures: list[list[Nature]] = []
        values: list[float] = []
        for number, kind in enumerate(self.kinds):
            kind_key = jax.random.fold_in(key, number)
            keys = jax.random.split(kind_key, (len(jobs), self.restarts))
            natures.append([])
            for first in range(0, len(jobs), at_once):
                some = jobs[first : first + at_once]
                index, radius = some[0]
                what = f"{names[index]} within {radius:g}" if at_once == 1 else "all signals"
                begin(f"{kind.kernel} against {what}")
                trained = train_attackers(
                    frozen,
                    sight,
                    jnp.repeat(jnp.asarray([job[0] for job in some]), self.restarts),
                    jnp.repeat(jnp.asarray([job[1] for job in some], jnp.float32), self.restarts),
                    keys[first : first + at_once].reshape(len(some) * self.restarts, -1),
                    kind,
                    judged_on,
                )
                natures[-1] += [
                    jax.tree.map(lambda leaf, i=i: leaf[i], trained.natures)
                    for i in range(len(some) * self.restarts)
                ]
                values += np.asarray(trained.values).tolist()
        shape = (len(self.kinds), len(names), len(self.tests.radii), self.restarts)
        return natures, np.asarray(values).reshape(shape)

    def _play_strongest(
        self,
        frozen: Frozen,
        sight: Sight,
        natures: list[list[Nature]],
        values: Float[np.ndarray, "kinds signals radii restarts"],
        key: jax.Array,
        begin: Callable[[str], None],
    ) -> tuple[list[Returns], list[str]]:
        """Fresh episodes under the strongest adversary of every signal and radius."""
        signals = values.shape[1]
        names = ("reward", *self.env.cost_names)
        played: dict[tuple[int, int], Returns] = {}
        returns, kernels = [], []
        for index in range(signals):
            for r, radius in enumerate(self.tests.radii):
                begin(f"strongest against {names[index]} within {radius:g}")
                if not np.isfinite(values[:, index, r]).all():
                    self._finite(values[:, index, r], ATTACK, names[index], radius)
                within = values[:, index, : r + 1]
                kind, *place = map(int, np.unravel_index(np.argmin(within), within.shape))
                job = int(np.ravel_multi_index((index, *place), values.shape[1:]))
                nature = natures[kind][job]
                if (kind, job) not in played:
                    key, play_key = jax.random.split(key)
                    found = play_attack(
                        frozen, sight, nature, jnp.asarray(index), play_key, self.episodes
                    )
                    played[kind, job] = self._finite(found, ATTACK, names[index], radius)
                returns.append(played[kind, job])
                kernels.append(self.kinds[kind].kernel)
        return returns, kernels

    def _finite(self, returns: Any, kind: str, subject: str, level: float) -> Returns:
        found = np.asarray(returns)
        if not np.isfinite(found).all():
            test = f"{kind} {subject} {level:g}".replace("  ", " ")
            raise FloatingPointError(
                f"{self.env.name} returned something that is not a finite number ({test})"
            )
        return found


def _plain_tests(tests: Tests) -> list[tuple[str, str, float]]:
    """(kind, subject, level) of the tests without an adversary."""
    return [
        (NOMINAL, "", 0.0),
        *((SCALED, "", level) for level in tests.noise),
        *((ACTIONS, "", level) for level in tests.action_noise),
        *((PARAMETER, name, level) for name, level in tests.parameters),
    ]


def rows_of(
    tests: Tests,
    cost_names: Sequence[str],
    found: Sequence[Found],
    seed: int,
    confidence: float,
) -> Iterable[Row]:
    """What was found as rows, the nominal one first."""

    def row(
        test: tuple[str, str, float], returns: Sequence[Returns], kernels: Sequence[str] = ()
    ) -> Row:
        kind, subject, level = test
        signs = [1.0] + [-1.0] * len(cost_names)
        reward, *costs = (
            measured([sign * each[:, i] for each in returns], confidence, seed)
            for i, sign in enumerate(signs)
        )
        return Row(kind, level, subject, reward, tuple(costs), tuple(kernels))

    plain = _plain_tests(tests)
    yield row(plain[0], [each.plain[0] for each in found])
    attacks = [(ATTACK, name, r) for name in ("reward", *cost_names) for r in tests.radii]
    for i, test in enumerate(attacks):
        yield row(test, [each.attacked[i] for each in found], [each.kernels[i] for each in found])
    for i, test in enumerate(plain[1:], start=1):
        yield row(test, [each.plain[i] for each in found])
