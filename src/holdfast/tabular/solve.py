"""The verb `solve`: a model in, a policy out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from holdfast._support.precision import float64
from holdfast.model import RobustCMDP, check_policy
from holdfast.model.table import Layout, layout_of
from holdfast.registry import ALGORITHMS, Algorithm
from holdfast.tabular.algorithms import Run
from holdfast.tabular.algorithms._run import Iterate, Options
from holdfast.tabular.certificates.upper_bound import lagrangian_bound
from holdfast.tabular.certify import Certificate, attainable, check_nodes
from holdfast.tabular.certify import certify as prove
from holdfast.tabular.evaluate import Evaluation, layout_features, report
from holdfast.tabular.evaluation import sparse
from holdfast.tabular.evaluation.optimum import robust_optimum
from holdfast.tabular.evaluation.worst_case import WorstCase, check_method, worst_case_method

_UNIFORM_SHARE = 1e-6
# Of the uniform policy in a start at a corner: enough to leave it, too little to lose it.
_CORNER_SHARE = 0.02
# Of the arguments that only some algorithms read, what they are where nobody asked for anything.
_DEFAULTS = {"trust_region": 0.01, "step": "exact", "safeguard": "project", "bounds": False}


@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """What every algorithm returns.

    Attributes:
        policy: (S, A), the last iterate (crpo, epirc-pgs and rnpg end their history with the iterate
            that their papers return); with `certify=True` the best feasible one, where there is one.
        evaluation: of that policy.
        status: "feasible"; "infeasible" where it has been proved that no policy is; "not-found"
            where neither is known.
        history: arrays by name with a row for each iterate, row 0 the start. In the worst case:
            "reward", "margins" (rows, m), "error"; under the nominal kernel: "nominal_reward",
            "nominal_margins"; of the step: "kl" (E_{d^r}[KL(π_{k+1}‖π_k)]), "recovered",
            "trust_region" (the one in force); "seconds" since the start. With `bounds=True` also
            what theory promises of the step: see `tabular.certificates.step_bounds`.
        attainable: where the policy is not feasible, the best worst-case value that each constraint
            could have on its own, in the user's sense; otherwise None.
        algorithm: the algorithm's name.
        certificate: of the policy, with `certify=True`; otherwise None.
    """

    policy: Float[np.ndarray, "S A"]
    evaluation: Evaluation
    status: Literal["feasible", "infeasible", "not-found"]
    history: dict[str, np.ndarray]
    attainable: Float[np.ndarray, " m"] | None
    algorithm: str
    certificate: Certificate | None = None


@float64
def solve(
    model: RobustCMDP,
    algorithm: str | Algorithm = "rcpo",
    *,
    iterations: int = 200,
    trust_region: float = 0.01,
    step: Literal["exact", "taylor"] = "exact",
    safeguard: Literal["project"] | None = "project",
    worst_case: str | WorstCase = "dual",
    initial_policy: ArrayLike | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | object | None = None,
    bounds: bool = False,
    certify: bool = False,
    nodes: int = 0,
    callback: Callable[[int], None] | None = None,
) -> Solution:
    """Searches for the policy with the best worst-case reward that keeps every constraint.

    Arguments:
        model: the model.
        algorithm: "rcpo" (robust, constrained), "pcpo" or "cpo" (constrained, nominal kernel),
            "rvi" (robust, constraints ignored), "lp" (nominal optimum by linear programming), or one
            of the other published ones, robust and constrained: "rpd", "rcpg", "r3c", "crpo",
            "epirc-pgs", "rnpg", and "cup" (nominal, unless its settings say otherwise).
        iterations: policy updates; rvi records so many and stops on its certified error; lp takes
            one.
        trust_region: δ, the largest E_{d^r}[KL(π‖π_k)] of an improvement.
        step: "exact" solves each step's convex problem; "taylor" its second-order expansion.
        safeguard: "project" lets no iterate after the first feasible one be infeasible; None is the
            paper's plain update.
        worst_case: how worst-case kernels are found: "dual", "projected-gradient", "tilted", or
            one of `Dual`, `ProjectedGradient`, `Tilted` with settings.
        initial_policy: (S, A). Its zeros would never come back under multiplicative steps, so where
            it has any, 1e-6 of uniform is mixed in.
        seed: draws the initial policy, Dirichlet(1) rows, where none is given.
        settings: hyper-parameters of rpd, rcpg, r3c, cup, crpo, epirc-pgs or rnpg: a mapping, or the
            algorithm's own record from `holdfast.tabular.algorithms`, such as `RPD(dual_step=0.05)`.
            They have no use for `safeguard` and `bounds`, and only r3c for `trust_region` and
            `step`, so those have to stay as they are.
        bounds: whether the history also carries what theory promises of each step. It takes 2S
            further robust evaluations an iteration.
        certify: whether to search on from the corners of the problem as well (the best policies of the
            reward, of each constraint, and of the Lagrangian), keep the best feasible policy of all
            runs, and certify it.
        nodes: regions that branch and bound may judge for that certificate: see `certify`.
        callback: called with the number of each iteration once it is recorded.

    Example:
        >>> import holdfast as hf
        >>> solution = hf.solve(hf.environments.gambler(), "rcpo", iterations=50)
        >>> solution.status
        'feasible'
        >>> hf.solve(hf.environments.gambler(), "crpo", settings={"policy_step": 0.5}).status
        'feasible'
    """
    chosen = ALGORITHMS.find(algorithm) if isinstance(algorithm, str) else algorithm
    layout = layout_of(model)
    options = Options(
        iterations=_whole("iterations", iterations, least=1),
        trust_region=_trust_region(trust_region),
        step=_one_of("step", step, ("exact", "taylor")),
        safeguard=_one_of("safeguard", safeguard, ("project", None)),
        worst_case=layout_features(layout, worst_case_method(worst_case)),
        bounds=bounds,
        callback=callback,
        settings=chosen.read_settings(settings),
    )
    asked = {name: getattr(options, name) for name in _DEFAULTS}
    chosen.check_accepts({name: v for name, v in asked.items() if v != _DEFAULTS[name]})
    check_method(options.worst_case, layout.table)
    if nodes and not certify:
        raise ValueError(
            f"nodes: {nodes} regions are for a certificate, which goes with certify=True"
        )
    check_nodes(model, nodes)
    if bounds and sparse.is_sparse(layout.table):
        raise ValueError(
            f"bounds: they take 2S robust evaluations an iteration, too many for {model.states} states"
        )
    start = _initial_policy(model, initial_policy, _whole("seed", seed, least=0))

    run = Run(layout, options, layout.pad_policy(start))
    chosen.function(run)
    found = run.last
    if certify:
        run, found = _best_of(run, chosen)
    evaluation = report(layout, found.nominal, found.worst)
    status, attained = _status(layout, evaluation)
    policy = layout.unpad_policy(found.policy)
    return Solution(
        policy=policy,
        evaluation=evaluation,
        status=status,
        history=run.history(),
        attainable=attained,
        algorithm=chosen.name,
        certificate=prove(model, policy, nodes=nodes) if certify else None,
    )


def _best_of(run: Run, algorithm: Algorithm) -> tuple[Run, Iterate]:
    """The best feasible iterate of this run and of runs from the problem's corners, and its run.

    Where none is feasible, this run's last.
    """
    runs = [run]
    if algorithm.local:
        quiet = dataclasses.replace(run.options, callback=None)
        for corner in _corners(run.layout):
            other = Run(run.layout, quiet, corner)
            algorithm.function(other)
            runs.append(other)
    best = [(each, each.best) for each in runs if each.best is not None]
    if not best:
        return run, run.last
    # The run's own where others are better by rounding only.
    own = float(run.best.worst.value[0]) if run.best is not None else -math.inf
    top = max(best, key=lambda pair: float(pair[1].worst.value[0]))
    better = float(top[1].worst.value[0]) > own + 1e-9 * max(1.0, abs(own))
    return top if better or run.best is None else (run, run.best)


def _corners(layout: Layout) -> list[Array]:
    """The best policies of the reward, each constraint and the Lagrangian, a little uniform mixed in."""
    table, actions = layout.table, layout.model.actions
    bound = lagrangian_bound(table, actions)
    policies = [robust_optimum(table, signal).policy for signal in table.signals]
    mixed = [
        (1 - _CORNER_SHARE) * layout.unpad_policy(policy) + _CORNER_SHARE / actions
        for policy in [*policies, bound.optimum.policy]
    ]
    return [layout.pad_policy(policy) for policy in mixed]


def _status(
    layout: Layout, evaluation: Evaluation
) -> tuple[Literal["feasible", "infeasible", "not-found"], np.ndarray | None]:
    """Decided for one constraint; for several, undecided unless one is out of reach by itself."""
    if evaluation.feasible:
        return "feasible", None
    best, constraints = attainable(layout), layout.model.constraints
    shown = np.array([c.shown(value) for c, value in zip(constraints, best.lower, strict=True)])
    hopeless = any(best.upper < np.array([c.utility_threshold for c in constraints]))
    return ("infeasible" if hopeless else "not-found"), shown


def _initial_policy(
    model: RobustCMDP, initial_policy: ArrayLike | None, seed: int
) -> Float[np.ndarray, "S A"]:
    if initial_policy is None:
        rng = np.random.default_rng(seed)
        return rng.dirichlet(np.ones(model.actions), size=model.states)
    policy = check_policy("initial_policy", initial_policy, model.states, model.actions)
    if (policy > 0).all():
        return policy
    return (1 - _UNIFORM_SHARE) * policy + _UNIFORM_SHARE / model.actions


def _whole(name: str, value: int, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name}: expected a whole number of at least {least}, got {value!r}")
    return int(value)


def _trust_region(value: float) -> float:
    if not (isinstance(value, (int, float, np.number)) and value > 0 and math.isfinite(value)):
        raise ValueError(f"trust_region: expected a positive number, got {value!r}")
    return float(value)


def _one_of(name, value, choices):  # type: ignore[no-untyped-def]
    if value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(map(repr, choices))}, got {value!r}")
    return value
