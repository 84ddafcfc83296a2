"""The verb `solve`: search for the best policy of a robust constrained model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
from jaxtyping import Array, Float

from holdfast._support.arguments import check_choice, check_number, check_whole_number
from holdfast._support.devices import over_given_devices
from holdfast._support.precision import float64
from holdfast._support.threads import few_threads
from holdfast.model import RobustCMDP, policy_of
from holdfast.model.names import PolicyLike
from holdfast.model.policies import random_policy, uniform_policy
from holdfast.model.policy_table import PolicyTable, policy_table
from holdfast.model.table import TableLayout
from holdfast.registry import ALGORITHMS, Algorithm
from holdfast.tabular.certificates.upper_bound import lagrangian_bound
from holdfast.tabular.certify import Certificate, attainable_values, check_nodes
from holdfast.tabular.certify import certify as prove
from holdfast.tabular.deterministic import best_deterministic
from holdfast.tabular.evaluate import Evaluation, divisible_layout, evaluate, layout_features
from holdfast.tabular.evaluation.optimum import best_of
from holdfast.tabular.evaluation.worst_case import WorstCase, check_method, worst_case_method
from holdfast.tabular.memory import with_memory
from holdfast.tabular.run import Iterate, Run, SolveOptions

Status = Literal["feasible", "infeasible", "not-found"]

# Share of the uniform policy mixed into an initial policy with zeros: large enough for
# multiplicative steps to bring an action back, too small to change values by more than about 1e-6.
_UNIFORM_SHARE = 1e-6
# Share of the uniform policy mixed into a start at a corner, so that its deterministic rows can change.
_CORNER_SHARE = 0.02
# Iterations of a run that starts from a policy of the relaxation. Such a run starts close to a good
# policy, or it finds none.
_RELAXED_STEPS = 60
# Another run's policy replaces the run's own if it gains more than this, relative to max(1, |reward|).
_LEAST_GAIN = 1e-9
# Default values of the arguments that only some algorithms use.
_DEFAULTS = {"trust_region": 0.01, "step": "exact", "safeguard": "project", "bounds": False}


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Solution:
    """The result of `solve`.

    Attributes:
        policy: the last iterate, (S, A), or (H, S, A) with a horizon; crpo, epirc-pgs and rnpg end
            their history with the iterate that their papers return. With `certify=True`, the best
            feasible iterate, if there is one.
        evaluation: values of that policy, evaluated afresh.
        status: "feasible" if that evaluation proves it; "infeasible" if it is proved that no policy is
            feasible; "not-found" if neither is known.
        history: arrays by name, with one row for each iterate and the initial policy in row 0. In the
            worst case: "reward", "margins" (rows, m), "error", the largest of all signals, and
            "margin_errors" (rows, m). Under the nominal kernel:
            "nominal_reward", "nominal_margins". Of the step: "kl", E_{d^r}[KL(π_{k+1}‖π_k)],
            "recovered", and "trust_region". "seconds" since the start. With `bounds=True`, the
            columns of `tabular.certificates.step_bounds` too.
        attainable: if the policy is not feasible, the largest worst-case value that each constraint can
            have on its own, in the user's sense, (m,); otherwise None.
        algorithm: name of the algorithm.
        certificate: certificate of the policy with `certify=True`, otherwise None.
        model: the model.
        stochastic: with `deterministic=True`, the evaluation of the policy that the search for a
            deterministic one started from; otherwise None.
        remembered: with `remember=True`, the solution on states × flags, otherwise None. State
            f·S + s of its model is state s after the events of set f. Set 0 is empty.

    Example:
        >>> import holdfast as hf
        >>> hf.solve("gambler", "lp")
        lp: not-found after 1 iteration
        NOT feasible in the worst case (numerical error below 1e-9)
        reward: worst case 3.16162, nominal 5.92492
        utility ≥ 2.5: worst case 1.26631, nominal 2.5, margin -1.23369
    """

    policy: Float[np.ndarray, "*H S A"]
    evaluation: Evaluation
    status: Status
    history: dict[str, np.ndarray]
    attainable: Float[np.ndarray, " m"] | None
    algorithm: str
    model: RobustCMDP
    certificate: Certificate | None = None
    stochastic: Evaluation | None = None
    remembered: Solution | None = None

    @property
    def price(self) -> float:
        """Worst-case reward that the deterministic policy loses; 0 without `deterministic=True`."""
        if self.stochastic is None:
            return 0.0
        return self.stochastic.reward.worst - self.evaluation.reward.worst

    def table(self) -> PolicyTable:
        """Return the policy as a table for people, with the names of states and actions.

        Example:
            >>> import holdfast as hf
            >>> print(hf.solve(hf.environments.n_chain(nodes=3), "rvi").table())
            state    action
            state 0  action 1
            state 1  action 1
            state 2  action 1
        """
        return policy_table(self.model, self.policy)

    def __repr__(self) -> str:
        rows = len(self.history["reward"]) - 1
        title = f"{self.algorithm}: {self.status} after {rows} iteration{'s' if rows != 1 else ''}"
        lines = [title, str(self.evaluation if self.certificate is None else self.certificate)]
        if self.stochastic is not None:
            lines.append(price_in_words(self.stochastic, self.evaluation))
        if self.remembered is not None:
            lines.append(_gain_in_words(self, self.remembered))
        return "\n".join(lines)


def price_in_words(stochastic: Evaluation, deterministic: Evaluation) -> str:
    """Return what a deterministic policy costs, as a sentence."""
    if stochastic.feasible and not deterministic.feasible:
        return "deterministic: no deterministic policy was found that keeps the constraints"
    lost = stochastic.reward.worst - deterministic.reward.worst
    if not stochastic.feasible or abs(lost) <= 1e-6 * max(1.0, abs(stochastic.reward.worst)):
        return "deterministic: one action in every state, at no cost"
    share = abs(lost) / max(abs(stochastic.reward.worst), _LEAST_GAIN)
    verb = "costs" if lost > 0 else "gains"
    return f"deterministic: {verb} {abs(lost):.4g} of the worst-case reward ({100 * share:.2g} %)"


def _gain_in_words(plain: Solution, remembered: Solution) -> str:
    """Return a sentence about the reward gained by a policy with memory of events."""
    found = f"a policy that remembers which events have happened: {remembered.status}"
    reward = remembered.evaluation.reward.worst
    found += f", worst-case reward {reward:.6g}"
    if plain.status != remembered.status:
        return found
    return f"{found} (gains {reward - plain.evaluation.reward.worst:.3g})"


@few_threads
@float64
@over_given_devices
def solve(
    model: RobustCMDP,
    algorithm: str | Algorithm | Callable[[Run], object] = "rcpo",
    *,
    iterations: int = 200,
    trust_region: float = 0.01,
    step: Literal["exact", "taylor"] = "exact",
    safeguard: Literal["project"] | None = "project",
    worst_case: str | WorstCase = "dual",
    initial_policy: PolicyLike | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | object | None = None,
    bounds: bool = False,
    certify: bool = False,
    nodes: int | None = 0,
    deterministic: bool = False,
    remember: bool = False,
    devices: int = 1,
    callback: Callable[[int], None] | None = None,
) -> Solution:
    """Search for the policy with the largest worst-case reward that satisfies every constraint, (5).

    Arguments:
        model: the model, or its name.
        algorithm: "rcpo" (robust, constrained), "pcpo" or "cpo" (constrained, nominal kernel),
            "rvi" (robust, without constraints), "lp" (nominal optimum by linear programming), or another
            published algorithm, robust and constrained: "rpd", "rcpg", "r3c", "crpo", "epirc-pgs",
            "rnpg", and "cup" (nominal by default). Also an `Algorithm` record, a function of a
            `holdfast.tabular.algorithms.Run`, or either of them as "package.module:name".
        iterations: number of policy updates. rvi records this many policies, and the last one is
            optimal up to a certified error; lp makes one update.
        trust_region: δ, the largest E_{d^r}[KL(π‖π_k)] of an improvement.
        step: "exact" solves the convex problem of each step, "taylor" its second-order expansion (26).
        safeguard: "project" keeps every iterate after the first feasible one feasible; None is the
            paper's plain update.
        worst_case: how to find worst-case kernels: "dual", "projected-gradient" or "tilted", or one of
            `Dual`, `ProjectedGradient` and `Tilted` with settings.
        initial_policy: probabilities (S, A), action indices (S,), or a mapping from states to actions;
            with a horizon also (H, S, A) or (H, S). Zeros would never change under multiplicative steps,
            so that 1e-6 of the uniform policy is mixed into a policy with zeros.
        seed: seed of the initial policy, with Dirichlet(1) rows, if none is given.
        settings: hyper-parameters of rpd, rcpg, r3c, cup, crpo, epirc-pgs or rnpg: a mapping, or the
            algorithm's own record from `holdfast.tabular.algorithms`, such as `RPD(dual_step=0.05)`.
            These algorithms do not use `safeguard` and `bounds`, and only r3c uses `trust_region` and
            `step`.
        bounds: whether the history contains lower bounds on the change of each step. They take 2S
            further robust evaluations an iteration.
        certify: whether to start further runs from the corners of the problem (the best policies of the
            reward, of each constraint, and of the Lagrangian), to return the best feasible policy of
            all runs, and to certify it.
        nodes: largest number of nodes of branch and bound in that certificate, or None for the time
            limit of 60 seconds only; see `certify`. Further, shorter runs then start from the policies
            that branch and bound could not exclude at first.
        deterministic: whether to return a policy with one action in every state, or with a horizon in
            every state and step. Models with up to 256 such policies are searched completely; otherwise
            the search starts at the most likely actions and changes one of them at a time.
            `Solution.price` is the reward that this costs.
        remember: whether to search also for a policy that remembers which events of `reach` rules have
            happened. `Solution.remembered` has it, and the summary says what it gains. It is for sets
            that keep to the listed successors.
        devices: number of devices over which the states of a large model are divided, as in `evaluate`.
        callback: function called with the number of each iteration after it is recorded.

    Example:
        >>> import holdfast as hf
        >>> solution = hf.solve("gambler", "rcpo", iterations=50)
        >>> solution.status
        'feasible'
        >>> hf.solve("gambler", "crpo", settings={"policy_step": 0.5}).status
        'feasible'
    """
    chosen = as_algorithm(algorithm)
    layout = divisible_layout(model, devices)
    check_whole_number("iterations", iterations, least=1)
    check_number("trust_region", trust_region, above=True)
    check_choice("step", step, ("exact", "taylor"))
    check_choice("safeguard", safeguard, ("project", None))
    check_whole_number("seed", seed, least=0)
    options = SolveOptions(
        iterations=int(iterations),
        trust_region=float(trust_region),
        step=step,
        safeguard=safeguard,
        worst_case=layout_features(layout, worst_case_method(worst_case)),
        bounds=bounds,
        callback=callback,
        settings=chosen.read_settings(settings),
    )
    given = {name: getattr(options, name) for name in _DEFAULTS}
    chosen.check_accepts({name: v for name, v in given.items() if v != _DEFAULTS[name]})
    check_method(options.worst_case, layout.table)
    if nodes != 0 and not certify:
        raise ValueError(f"nodes: needs certify=True, got {nodes}")
    if certify:
        check_nodes(model, nodes)
    if bounds and (model.horizon is not None or layout.table.boundaries is not None):
        raise ValueError("bounds: they are for models without a horizon and without reach rules")
    if bounds and layout.table.is_large:
        raise ValueError(
            f"bounds: 2S robust evaluations an iteration are too many for {model.states} states"
        )
    start = _initial_policy(model, initial_policy, seed)
    memory = with_memory(model) if remember else None

    run = Run(layout, options, layout.pad_policy(start))
    chosen.function(run)
    found, certificate = run.last, None
    if certify:
        run, found = _best_iterate(run, found, chosen, _corners(layout), options.iterations)
        certificate = prove(model, layout.unpad_policy(found.policy), nodes=nodes)
        starts = [_mixed(layout, p) for p in certificate.relaxed_policies]
        before = found
        run, found = _best_iterate(
            run, found, chosen, starts, min(options.iterations, _RELAXED_STEPS)
        )
        if found is not before:
            certificate = prove(model, layout.unpad_policy(found.policy), nodes=nodes)
    policy, stochastic = layout.unpad_policy(found.policy), None
    if deterministic:
        stochastic = evaluate(model, policy, worst_case=worst_case, devices=devices)
        policy = best_deterministic(layout, policy, options.worst_case)
        certificate = prove(model, policy, nodes=nodes) if certify else None
    # Evaluate the returned policy itself. The search evaluated it padded, with other rounding errors.
    evaluation = evaluate(model, policy, worst_case=worst_case, devices=devices)
    status: Status = "feasible"
    attained = None
    if not evaluation.feasible:
        # This looks at each constraint alone. Several may conflict even if each is attainable on its
        # own.
        attained, hopeless = attainable_values(layout)
        status = "infeasible" if hopeless else "not-found"
    remembered = None
    if memory is not None:
        copies = memory.states // model.states
        remembered = solve(
            memory,
            algorithm,
            iterations=iterations,
            trust_region=trust_region,
            step=step,
            safeguard=safeguard,
            worst_case=worst_case,
            initial_policy=np.concatenate([policy] * copies, axis=-2),
            settings=settings,
            certify=certify,
            devices=devices,
        )
    return Solution(
        policy=policy,
        evaluation=evaluation,
        status=status,
        history=run.history(),
        attainable=attained,
        algorithm=chosen.name,
        model=model,
        certificate=certificate,
        stochastic=stochastic,
        remembered=remembered,
    )


def as_algorithm(given: str | Algorithm | Callable[[Run], object]) -> Algorithm:
    """Return the algorithm with this name, the given record, or a record of the given function.

    A function accepts all arguments of `solve`.

    Raises:
        ValueError: there is no algorithm with this name.
    """
    found = ALGORITHMS.find(given) if isinstance(given, str) else given
    if isinstance(found, Algorithm):
        return found
    if not callable(found):
        raise ValueError(f"algorithm: expected a name, an Algorithm or a function, got {given!r}")
    return Algorithm(getattr(found, "__name__", repr(found)), found, accepts=tuple(_DEFAULTS))


def _best_iterate(
    run: Run, found: Iterate, algorithm: Algorithm, starts: list[Array], iterations: int
) -> tuple[Run, Iterate]:
    """Return the best feasible iterate of this run and of runs from other policies, and its run.

    If no iterate is feasible, return the given one of this run.
    """
    runs = []
    if algorithm.local:
        quiet = dataclasses.replace(run.options, callback=None, iterations=iterations)
        for start in starts:
            other = Run(run.layout, quiet, start)
            algorithm.function(other)
            runs.append(other)
    best = [(each, each.best) for each in runs if each.best is not None]
    if run.best is not None:
        # Keep this run's own iterate unless another one is better by more than rounding.
        own = float(run.best.worst.value[0])
        least = own + _LEAST_GAIN * max(1.0, abs(own))
        best = [pair for pair in best if float(pair[1].worst.value[0]) > least]
        found = run.best
    return max(best, key=lambda pair: float(pair[1].worst.value[0]), default=(run, found))


def _corners(layout: TableLayout) -> list[Array]:
    """Return the best policies of the reward, each constraint and the Lagrangian, slightly mixed."""
    table, actions = layout.table, layout.model.actions
    policies = [best_of(table, i).policy for i in range(len(table.signals))]
    policies.append(lagrangian_bound(table, actions).optimum.policy)
    return [_mixed(layout, layout.unpad_policy(p)) for p in policies]


def _mixed(layout: TableLayout, policy: Float[np.ndarray, "*H S A"]) -> Array:
    """Return a policy slightly mixed with the uniform one, in the table's shape."""
    uniform = uniform_policy(layout.model)
    return layout.pad_policy((1 - _CORNER_SHARE) * policy + _CORNER_SHARE * uniform)


def _initial_policy(
    model: RobustCMDP, initial_policy: PolicyLike | None, seed: int
) -> Float[np.ndarray, "*H S A"]:
    if initial_policy is None:
        return random_policy(model, seed)
    policy = policy_of(model, initial_policy, "initial_policy")
    uniform = uniform_policy(model)
    if ((policy > 0) == (uniform > 0)).all():
        return policy
    return (1 - _UNIFORM_SHARE) * policy + _UNIFORM_SHARE * uniform
