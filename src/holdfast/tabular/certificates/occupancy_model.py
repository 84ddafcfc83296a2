"""A model as branch and bound sees it: the steps of a horizon are further states.

With a horizon of H steps, state s at step t is the state t·S + s, and nothing follows the last step.
With a horizon and `reach` rules, whose probabilities are not discounted, visits are not discounted
either, and the signals at step t are multiplied by γ^t. Actions that are not allowed are copies of an
allowed one.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple, cast

import numpy as np
from jaxtyping import Bool, Float, Int

from holdfast.model import Kernel, Reach, RobustCMDP
from holdfast.model.allowed import allowed_copies, only_allowed
from holdfast.uncertainty import UncertaintySet

_EPS = np.finfo(float).eps


class StoppedRule(NamedTuple):
    """A `reach` rule, as a utility of entering states.

    The visits of a policy start outside the states where the rule ends, and end in them. What enters
    one of the states to reach has reached it.

    Attributes:
        stays: whether the rule goes on in each state, (n,).
        pays: utility of entering each state from another one: ±1, times γ without a horizon, (n,).
        threshold: least utility, less that of the states of the beginning; rounded down.
    """

    stays: Bool[np.ndarray, " n"]
    pays: Float[np.ndarray, " n"]
    threshold: float


class OccupancyModel(NamedTuple):
    """The numbers of a model that its linear program needs; n states, those of all steps.

    Attributes:
        representative: the first action of each state that has the same row, signals and set as each
            action, (n, A).
        reward: (n, A), or (n, A, J) if it depends on the next state.
        utilities: the constraints on sums and means as utilities, each like the reward. For the mean of
            a step they are divided by Σ_t γ^t.
        thresholds: least values of the utilities.
        rules: the `reach` rules, by their number among the constraints, from 1.
        initial: initial distribution, (n,).
        discount: factor on what follows each state: γ, or 1 with a horizon and rules; 0 at the last step
            of a horizon, (n,).
        visits: upper bound on Σ_t γ^t, or on the number of steps with a horizon and rules.
    """

    representative: Int[np.ndarray, "n A"]
    reward: Float[np.ndarray, "n A *J"]
    utilities: list[Float[np.ndarray, "n A *J"]]
    thresholds: list[float]
    rules: dict[int, StoppedRule]
    initial: Float[np.ndarray, " n"]
    discount: Float[np.ndarray, " n"]
    visits: float


def occupancy_model(model: RobustCMDP) -> OccupancyModel:
    """Return the numbers of a model that branch and bound needs.

    Example:
        >>> import holdfast as hf
        >>> found = occupancy_model(hf.environments.gambler())
        >>> found.representative[2]                       # stakes are cut to the balance of 2
        array([0, 1, 1, 1, 1, 1, 1, 1])
        >>> occupancy_model(hf.environments.gambler().replace(horizon=3)).initial.shape
        (51,)
    """
    model = only_allowed(model)
    steps, shape = model.horizon or 1, model.nominal.shape[-3:]

    def rows(array: np.ndarray, per_entry: bool) -> np.ndarray:
        own = shape[: 2 + per_entry]
        return np.broadcast_to(array, (steps, *own)).reshape(steps * own[0], *own[1:])

    def signal(array: np.ndarray) -> np.ndarray:
        return rows(array, model.by_next_state(array))

    sums = [c for c in model.constraints if not isinstance(c, Reach)]
    signals = [signal(model.reward), *(signal(c.utility) / c.steps for c in sums)]
    parts = [rows(model.nominal, True), *signals]

    def add(array: np.ndarray, per_entry: bool) -> np.ndarray:
        parts.append(rows(array, per_entry))
        return array

    cast(UncertaintySet, model.uncertainty).map_rows(add)
    if isinstance(model.transitions, Kernel):
        parts.append(rows(model.transitions.successors, True))
    n = steps * model.states
    keys = np.concatenate([p.reshape(n, model.actions, -1) for p in parts], axis=-1)
    discount, visits = np.full(n, model.discount), float((1 + 4 * _EPS) * model.total_weight)
    rules = {i: c for i, c in enumerate(model.constraints, start=1) if isinstance(c, Reach)}
    if model.horizon is not None and rules:
        falling = np.repeat(model.discount ** np.arange(steps), model.states)
        signals = [(each.T * falling).T for each in signals]
        discount, visits = np.ones(n), float(model.horizon)
    if model.horizon is not None:
        discount[-model.states :] = 0.0
    return OccupancyModel(
        representative=(keys[:, :, None] == keys[:, None]).all(-1).argmax(-1),
        reward=signals[0],
        utilities=signals[1:],
        thresholds=[c.sign * c.threshold for c in sums],
        rules={i: _stopped(model, rule) for i, rule in rules.items()},
        initial=np.r_[model.initial, np.zeros(n - model.states)],
        discount=discount,
        visits=visits,
    )


def _stopped(model: RobustCMDP, rule: Reach) -> StoppedRule:
    """Return a rule of a model over the states of all steps."""
    steps, factor = model.horizon or 1, 1.0 if model.horizon else model.discount
    initial = [Fraction(mass) for mass in np.asarray(model.initial).tolist()]
    reached = sum((initial[s] for s in rule.target), Fraction()) / sum(initial)
    threshold = int(rule.sign) * (Fraction(rule.threshold) - reached)
    return StoppedRule(
        stays=np.tile(~rule.stops, steps),
        pays=np.tile(factor * rule.pays, steps),
        threshold=math.nextafter(float(threshold), -math.inf),
    )


def kernel_of_all_steps(model: RobustCMDP, kernel: np.ndarray | Kernel) -> np.ndarray | Kernel:
    """Return a kernel of a model with the steps of its horizon as further states.

    Arguments:
        model: the model.
        kernel: a kernel in the form of `SignalEvaluation.kernel`.
    """
    copies = allowed_copies(model)
    successors, q = rows_of(kernel)
    if copies.ndim == 3:
        q = np.broadcast_to(q, (len(copies), *q.shape[-3:]))
    q = np.take_along_axis(q, np.broadcast_to(copies, q.shape[:-1])[..., None], axis=-2)
    to = None if successors is None else np.take_along_axis(successors, copies[..., None], axis=-2)
    if model.horizon is None:
        return q if to is None else Kernel(to, q)
    if to is None:
        to = np.broadcast_to(np.arange(model.states), q.shape[-3:])
    # Nothing follows the last step, wherever it leads.
    following = (np.arange(model.horizon) + 1) % model.horizon * model.states
    shape = model.horizon * model.states, *q.shape[-2:]
    to = following[:, None, None, None] + to
    return Kernel(to.reshape(shape), np.broadcast_to(q, to.shape).reshape(shape))


def policy_of_all_steps(
    model: RobustCMDP, policy: Float[np.ndarray, "n A"]
) -> Float[np.ndarray, "*H S A"]:
    """Return a policy over the states of all steps as a policy of the model, on its allowed actions."""
    moved = np.zeros_like(policy)
    steps = model.horizon or 1
    copies = np.broadcast_to(allowed_copies(model), (steps, model.states, model.actions))
    np.add.at(moved, (np.arange(len(policy))[:, None], copies.reshape(policy.shape)), policy)
    return moved if model.horizon is None else moved.reshape(copies.shape)


def rows_of(kernel: np.ndarray | Kernel) -> tuple[np.ndarray | None, np.ndarray]:
    """Return successors (None if dense) and probabilities."""
    if isinstance(kernel, Kernel):
        return kernel.successors, kernel.probabilities
    return None, kernel
