"""The claims about experiments in simulators, each checked against what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from holdfast.experiments.reading import read_suite
from holdfast.experiments.results import DeepResults, Trained
from holdfast.report.claims import Claim, Finding, Verdict
from holdfast.simulators.certificates.intervals import Measured
from holdfast.simulators.certificates.stress_result import Stress

_PAPER, _OURS = "paper, section 6.2", "ours"
# "Much higher" rewards: by this share at least.
_MUCH = 0.1
# Baselines hold a limit where their mean cost over the last iterations is within this share of it.
_HELD = 0.05
_LAST = 20


def check_deep_claims(results: DeepResults) -> list[Verdict]:
    """Checks every claim about the experiment that was run."""
    name = results.environment
    changed = _changes(results)
    return [
        Verdict(Claim(name, statement, source, check), check(results), changed)
        for statement, source, check in _claims(results)
    ]


def _changes(results: DeepResults) -> str:
    ran, usual = results.experiment.to_dict(), read_suite("point-gather").to_dict()
    return ", ".join(
        f"{name} {value} instead of {usual[name]}"
        for name, value in ran.items()
        if value != usual[name]
    )


def _claims(
    results: DeepResults,
) -> Iterator[tuple[str, str, Callable[[DeepResults], Finding]]]:
    experiment = results.experiment
    attack = f"the strongest attack found at radius {experiment.radius:g}"
    for step in experiment.trust_regions:
        yield (
            f"Step {step:g}: RCPO's cost is within the limit under {attack}, by its confidence interval",
            _OURS,
            lambda found, step=step: _within(found, "rcpo", step),
        )
        yield (
            f"Step {step:g}: PCPO's and CPO's are not",
            _OURS,
            lambda found, step=step: _beyond(found, step),
        )
        yield (
            f"Step {step:g}: RCPO's reward under Gaussian noise is much higher than PCPO's and CPO's",
            _PAPER,
            lambda found, step=step: _higher(found, step, "action noise"),
        )
        yield (
            f"Step {step:g}: RCPO satisfies the constraint under Gaussian noise",
            _PAPER,
            lambda found, step=step: _holds_under_noise(found, step),
        )
        yield (
            f"Step {step:g}: RCPO's reward is higher than PCPO's and CPO's under {attack}",
            _OURS,
            lambda found, step=step: _higher(found, step, "attack"),
        )
        yield (
            f"Step {step:g}: without disturbance PCPO and CPO hold the limit while the reward rises",
            _OURS,
            lambda found, step=step: _baselines(found, step),
        )


def _stressed(results: DeepResults, algorithm: str, step: float) -> Stress:
    found = results.of(algorithm, step).stress
    assert found is not None, algorithm
    return found


def _attacked(results: DeepResults, algorithm: str, step: float) -> Measured:
    found = _stressed(results, algorithm, step)
    return dict(found.curve(found.cost_names[0]))[results.experiment.radius]


def _within(results: DeepResults, algorithm: str, step: float) -> Finding:
    cost, limit = _attacked(results, algorithm, step), results.experiment.cost_limit
    seeds = sum(agent.high <= limit for agent in cost.agents)
    words = f"{_shown(cost)}, limit {limit:g}; {seeds} of {len(cost.agents)} seeds each on its own"
    return Finding(cost.high <= limit, words)


def _beyond(results: DeepResults, step: float) -> Finding:
    limit = results.experiment.cost_limit
    costs = {name: _attacked(results, name, step) for name in ("pcpo", "cpo")}
    words = ", ".join(f"{name.upper()} {_shown(cost)}" for name, cost in costs.items())
    return Finding(all(cost.low > limit for cost in costs.values()), words)


def _higher(results: DeepResults, step: float, kind: str) -> Finding:
    """Whether RCPO's reward is the highest at every level, and by how much it differs at each."""
    rewards = {
        name: dict(_stressed(results, name, step).curve("reward", kind))
        for name in ("rcpo", "pcpo", "cpo")
    }
    levels = [level for level in rewards["rcpo"] if level > 0]
    if kind == "attack":
        levels = [results.experiment.radius]
    least = _MUCH if kind == "action noise" else 0.0
    better, words = [], []
    for level in levels:
        rival = max(rewards["pcpo"][level].mean, rewards["cpo"][level].mean)
        mine = rewards["rcpo"][level].mean
        better.append(mine >= (1 + least) * rival)
        words.append(f"{level:g}: {mine:.2f} against {rival:.2f}")
    return Finding(all(better), "; ".join(words))


def _holds_under_noise(results: DeepResults, step: float) -> Finding:
    found, limit = _stressed(results, "rcpo", step), results.experiment.cost_limit
    points = [(level, cost) for level, cost in found.curve(found.cost_names[0], "action noise")]
    words = "; ".join(f"{level:g}: {_shown(cost)}" for level, cost in points if level > 0)
    return Finding(all(cost.high <= limit for _, cost in points), words)


def _baselines(results: DeepResults, step: float) -> Finding:
    limit = results.experiment.cost_limit
    holds, words = [], []
    for name in ("pcpo", "cpo"):
        trained = results.of(name, step, noise=False)
        cost, early, late = _progress(trained)
        holds.append(cost <= (1 + _HELD) * limit and late > early)
        words.append(f"{name.upper()} cost {cost:.3f}, reward {early:.2f} → {late:.2f}")
    _, _, unlimited = _progress(results.of("trpo", step, noise=False))
    cost = results.of("trpo", step, noise=False).curve("nominal_costs", 0)[:, -_LAST:].mean()
    words.append(f"without the limit cost {cost:.3f}, reward {unlimited:.2f}")
    return Finding(all(holds), "; ".join(words))


def _progress(trained: Trained) -> tuple[float, float, float]:
    """Mean cost over the last iterations, and the reward halfway and at the end."""
    costs, rewards = trained.curve("nominal_costs", 0), trained.curve("nominal_reward")
    half = rewards.shape[1] // 2
    early = rewards[:, max(0, half - _LAST) : half + 1].mean()
    return float(costs[:, -_LAST:].mean()), float(early), float(rewards[:, -_LAST:].mean())


def _shown(value: Measured) -> str:
    return f"{value.mean:.3f} [{value.low:.3f}, {value.high:.3f}]"
