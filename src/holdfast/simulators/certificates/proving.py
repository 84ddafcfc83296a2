"""The bounds of one policy in one simulator, from fresh episodes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from holdfast.simulators.certificates.assumptions import (
    ACTING,
    BOX,
    EVERY_STEP,
    NOMINAL,
    ONCE,
    Sizes,
    of_a_box,
    of_bounds,
)
from holdfast.simulators.certificates.attack import FrozenPolicy, watch
from holdfast.simulators.certificates.attack_plan import Callback
from holdfast.simulators.certificates.bounded_mean import (
    divergence_bound,
    lower_limit,
    share_limit,
    upper_limit,
)
from holdfast.simulators.certificates.bounded_signal import BoundedSignal, SignalRange
from holdfast.simulators.certificates.draw_bound import (
    all_draws,
    drawn_episodes,
    fit_attack,
    halves,
    nominal_costs,
)
from holdfast.simulators.certificates.parameter_box import box_costs
from holdfast.simulators.certificates.simulator_certificate import (
    CertifiedCost,
    CertifiedReward,
    SimulatorCertificate,
)
from holdfast.simulators.certificates.step_bound import (
    Bounding,
    attacked_costs,
    first_values,
    in_parts,
    learn,
    measured_excess,
)
from holdfast.simulators.certificates.step_functions import StepFunctions
from holdfast.simulators.certificates.stress_result import DRAWN, LIKELY
from holdfast.simulators.environment import Environment
from holdfast.simulators.policy.agent import Agent

# Steps simulated side by side, fresh draws included: 4 million of Point Gather take 2 GB.
_STEPS_AT_ONCE = 4_000_000
# Shares of a signal's risk: for what the attack found, for E U_0 and for the mean of exp(W/α).
_FOUND_SHARE, _START_SHARE = 0.5, 0.05
# Initial states for E U_0, as a multiple of the episodes; they cost no steps.
_STARTS = 8
# Episodes under the attack: 20,000 measure it within 1 % of a standard deviation. More would make XLA
# spend seconds on constant folding.
_ATTACKED, _ATTACKED_AT_ONCE = 20_000, 1_000
_HIDDEN, _RATE = (32, 32), 1e-2


@dataclasses.dataclass(frozen=True)
class BoundSettings:
    """Sample sizes of a bound.

    Arguments:
        episodes: fresh episodes: half choose α, half give the confidence limit.
        draws: fresh disturbances at each visited state, for the bound at every step.
        updates: gradient steps that learn U, ν and λ.
        repeats: episodes of each draw, where nature draws once an episode; their mean counts.
        batch: episodes and fresh draws of each gradient step.
    """

    episodes: int = 20_000
    draws: int = 64
    updates: int = 300
    repeats: int = 1
    batch: tuple[int, int] = (256, 4)


@dataclasses.dataclass(frozen=True)
class Proved:
    """What was proved about one signal, as a cost in the user's units."""

    nominal: float
    found: float
    upper: float
    setup: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Certifying:
    """One call of `certify`."""

    env: Environment
    agent: Agent
    frozen: FrozenPolicy
    limits: tuple[float, ...]
    settings: BoundSettings
    confidence: float
    seed: int
    callback: Callback | None

    def _begin(self, done: int, total: int, what: str) -> None:
        if self.callback is not None:
            self.callback(done, total, what)

    def _certificate(
        self, assumptions: tuple[str, ...], setup: dict[str, Any], **fields: Any
    ) -> SimulatorCertificate:
        # A function has one way to act; other policies have two, and a proof is about one of them.
        if self.agent.draws_actions:
            way = LIKELY if self.frozen.deterministic else DRAWN
            assumptions = (ACTING[way], *assumptions)
            setup = {**setup, "actions": way}
        return SimulatorCertificate(
            environment=self.env.name,
            policy=self.agent.label,
            confidence=self.confidence,
            assumptions=assumptions,
            setup=setup,
            **fields,
        )

    def box(self, box: Mapping[str, tuple[float, float]]) -> SimulatorCertificate:
        """Return the limits on the shares of a box."""
        count = self.settings.episodes
        self._begin(0, 1, f"{count} draws from the box")
        values = box_costs(self.frozen, box, count, self.seed)
        check_finite(self.env, values)
        risk = (1 - self.confidence) / max(len(self.limits), 1)
        over = (values[:, 1:] > np.asarray(self.limits)).sum(0)
        costs = tuple(
            CertifiedCost(
                name, limit, -math.inf, math.inf, float(mean), share_limit(int(k), count, risk)
            )
            for name, limit, k, mean in zip(
                self.env.cost_names, self.limits, over, values[:, 1:].mean(0), strict=True
            )
        )
        return self._certificate(
            method=BOX,
            radius=math.nan,
            costs=costs,
            reward=CertifiedReward(math.inf, -math.inf, float(values[:, 0].mean())),
            assumptions=of_a_box(box, count),
            setup={"draws": count, "box": {k: list(v) for k, v in box.items()}, "seed": self.seed},
        )

    def bound(self, radius: float, ranges: Sequence[SignalRange | None]) -> SimulatorCertificate:
        """Return the bounds of all signals whose range is known."""
        bounded = [i for i, each in enumerate(ranges) if each is not None]
        risk = (1 - self.confidence) / len(bounded)
        method = NOMINAL if not radius else ONCE if self.env.draws_once else EVERY_STEP
        prove = {NOMINAL: self._nominal, ONCE: self._once, EVERY_STEP: self._every_step}[method]
        proved: dict[int, Proved] = {}
        for done, i in enumerate(bounded):
            name = ("reward", *self.env.cost_names)[i]
            self._begin(done, len(bounded), f"bound of {name}")
            given = ranges[i]
            assert given is not None
            steps = self.frozen.length
            discount = (
                float(self.frozen.signals.discount[i]) if self.frozen.signals.bootstrap else 1.0
            )
            signal = BoundedSignal.create(i, given, discount, steps)
            # What follows the cut of a discounted sum.
            tail = given.high * discount**steps / (1 - discount) if discount < 1 else 0.0
            key = jax.random.fold_in(jax.random.PRNGKey(self.seed), i)
            proved[i] = prove(signal, radius, risk, max(tail, 0.0), key)
        costs = tuple(
            CertifiedCost(name, limit, proved[i].found, proved[i].upper, proved[i].nominal)
            for i, (name, limit) in enumerate(zip(self.env.cost_names, self.limits, strict=True), 1)
        )
        reward = CertifiedReward(math.inf, -math.inf, math.nan)
        if 0 in proved:
            found = proved[0]
            # Zero minus the cost, so that no zero is shown as −0.
            reward = CertifiedReward(0 - found.found, 0 - found.upper, 0 - found.nominal)
        return self._certificate(
            method=method,
            radius=radius,
            costs=costs,
            reward=reward,
            assumptions=of_bounds(
                method,
                self.env,
                ranges,
                Sizes(
                    self.settings.episodes,
                    self.settings.draws,
                    self.settings.repeats,
                    risk,
                    _FOUND_SHARE,
                ),
                sum(each.setup["outside_range"] for each in proved.values()),
            ),
            setup={
                **dataclasses.asdict(self.settings),
                "ranges": [None if each is None else dataclasses.asdict(each) for each in ranges],
                "risk_per_signal": risk,
                "signals": {
                    ("reward", *self.env.cost_names)[i]: p.setup for i, p in proved.items()
                },
                "seed": self.seed,
                "limit_on": self.agent.settings.limit_on,
            },
        )

    def _nominal(
        self, signal: BoundedSignal, _: float, risk: float, tail: float, key: jax.Array
    ) -> Proved:
        sizes = in_parts(self.settings.episodes, _ATTACKED_AT_ONCE)
        keys = jax.random.split(key, len(sizes))
        found = [nominal_costs(self.frozen, signal, each, max(sizes)) for each in keys]
        costs = check_finite(self.env, np.concatenate([each for each, _ in found]))
        outside, highest = sum(int(cut) for _, cut in found), float(signal.total)
        upper_risk, found_risk = (1 - _FOUND_SHARE) * risk, _FOUND_SHARE * risk
        return Proved(
            nominal=float(costs.mean()) + signal.offset,
            found=highest * lower_limit(_unit(costs, highest), found_risk) + signal.offset,
            upper=highest * upper_limit(_unit(costs, highest), upper_risk) + signal.offset + tail,
            setup={"outside_range": outside, "highest": highest},
        )

    def _once(
        self, signal: BoundedSignal, radius: float, risk: float, tail: float, key: jax.Array
    ) -> Proved:
        count = self.settings.episodes
        size = getattr(self.env.disturbance, "size", 0)
        draw_key, fit_key, attack_key = jax.random.split(key, 3)
        drawn = all_draws(self.frozen, signal, draw_key, count, self.settings.repeats)
        costs = check_finite(self.env, drawn.cost)
        if bool(drawn.heard_later):
            raise ValueError(f"environment: {self.env.name} draws more than once an episode")
        highest = float(signal.total)
        upper_risk, found_risk = (1 - _FOUND_SHARE) * risk, _FOUND_SHARE * risk
        bound, alpha = divergence_bound(halves(costs), highest, radius, upper_risk)
        chosen = len(costs) // 2
        kernel = fit_attack(
            drawn.inputs[:chosen], drawn.cost[:chosen], jnp.float32(radius), size, fit_key
        )
        sizes = in_parts(min(count, _ATTACKED), _ATTACKED_AT_ONCE)
        attacked = np.concatenate(
            [
                np.asarray(drawn_episodes(self.frozen, signal, each, max(sizes), kernel).cost)
                for each in jax.random.split(attack_key, len(sizes))
            ]
        )
        found = highest * lower_limit(_unit(check_finite(self.env, attacked), highest), found_risk)
        return Proved(
            nominal=float(costs.mean()) + signal.offset,
            found=found + signal.offset,
            upper=min(bound, highest) + signal.offset + tail,
            setup={"alpha": alpha, "outside_range": int(drawn.outside), "highest": highest},
        )

    def _every_step(
        self, signal: BoundedSignal, radius: float, risk: float, tail: float, key: jax.Array
    ) -> Proved:
        learn_key, watch_key, rest = jax.random.split(key, 3)
        settings = self.settings
        work = Bounding(self.frozen, signal, jnp.float32(radius), settings.batch[1], 1)
        sight = watch(self.frozen, watch_key)
        functions, history = learned_functions(work, sight, settings, risk, learn_key)
        return self.step_proof(work, functions, risk, tail, rest, history)

    def step_proof(
        self,
        work: Bounding,
        functions: StepFunctions,
        risk: float,
        tail: float,
        key: jax.Array,
        history: np.ndarray,
    ) -> Proved:
        """Return the bound of given functions from fresh episodes."""
        settings, signal = self.settings, work.signal
        most = self.env.most_copies or 10**9
        excess_key, start_key, attack_key = jax.random.split(key, 3)
        at_once = max(1, min(most, _STEPS_AT_ONCE // (work.steps * (min(settings.draws, 64) + 1))))
        chunks = max(1, settings.draws // 64)
        fresh = work._replace(draws=settings.draws, chunks=chunks)

        def parts(function: Any, key: jax.Array, count: int, at_once: int) -> list[Any]:
            sizes = in_parts(count, at_once)
            keys = jax.random.split(key, len(sizes))
            # All parts have one size, so that they share a program.
            return [function(k, max(sizes)) for k in keys]

        found = parts(
            lambda k, n: measured_excess(fresh, functions, k, n),
            excess_key,
            settings.episodes,
            at_once,
        )
        w = check_finite(self.env, np.concatenate([np.asarray(each.w) for each in found]))
        costs = np.concatenate([np.asarray(each.cost, float) for each in found])
        starts = parts(
            lambda k, n: first_values(fresh, functions, k, n),
            start_key,
            _STARTS * settings.episodes,
            min(most, 65_536),
        )
        total, highest = float(signal.total), float(functions.highest(signal.total))
        upper_risk, found_risk = (1 - _FOUND_SHARE) * risk, _FOUND_SHARE * risk
        bound, u0, alpha = step_limit(
            w, np.concatenate(starts), (total, highest), float(work.radius) * work.steps, upper_risk
        )
        attacked = parts(
            lambda k, n: attacked_costs(fresh, functions, k, n),
            attack_key,
            min(settings.episodes, _ATTACKED),
            min(most, _ATTACKED_AT_ONCE),
        )
        lowest = total * lower_limit(
            _unit(check_finite(self.env, np.concatenate(attacked)), total), found_risk
        )
        return Proved(
            nominal=float(costs.mean()) + signal.offset,
            found=lowest + signal.offset,
            upper=bound + signal.offset + tail,
            setup={
                "alpha": alpha,
                "total": total,
                "highest": highest,
                "budget": float(work.radius) * work.steps,
                "mean_start": u0,
                "outside_range": int(sum(float(each.outside) for each in found)),
                "learned": [float(history[0]), float(history[-1])],
            },
        )


def learned_functions(
    work: Bounding, sight: Any, settings: BoundSettings, risk: float, key: jax.Array
) -> tuple[StepFunctions, np.ndarray]:
    """Return U, ν and λ that minimise the bound, and the bound during learning."""
    create_key, learn_key = jax.random.split(key)
    functions = StepFunctions.create(create_key, work.frozen, sight, _HIDDEN)
    most = work.frozen.env.most_copies or 10**9
    batch = (settings.updates, min(settings.batch[0], most))
    evidence = jnp.float32(math.log(2 / risk) / (settings.episodes / 2))
    functions, history = learn(work, functions, learn_key, batch, _RATE, evidence)
    return functions, np.asarray(history)


def step_limit(
    w: np.ndarray, starts: np.ndarray, scale: tuple[float, float], budget: float, risk: float
) -> tuple[float, float, float]:
    """Return the bound at every step from fresh W and U_0, the limit of E U_0, and α.

    Arguments:
        w: W of fresh episodes: the first half chooses α, the second half is limited.
        starts: U_0 of fresh initial states.
        scale: largest cost of an episode, and the number that W never exceeds.
        budget: H·R.
        risk: probability that the bound fails.
    """
    total, highest = scale
    u0 = total * upper_limit(_unit(starts, total), _START_SHARE * risk)
    rest, alpha = divergence_bound(halves(w), highest, budget, (1 - _START_SHARE) * risk)
    return min(u0 + rest, total), u0, alpha


def _unit(values: np.ndarray, total: float) -> np.ndarray:
    return np.clip(np.asarray(values, float) / total, 0.0, 1.0)


def check_finite(env: Environment, values: Any) -> np.ndarray:
    """Return the values, or raise a FloatingPointError."""
    values = np.asarray(values, float)
    if not np.isfinite(values).all():
        raise FloatingPointError(f"{env.name} returned a number that is not finite")
    return values
