"""The loop that RCPO, PCPO and CPO share, and the safeguard that keeps a feasible policy feasible."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from holdfast.tabular.algorithms._gradient import kept_alive
from holdfast.tabular.algorithms._run import Run, is_feasible, worst_margins
from holdfast.tabular.evaluation.values import Outlook, without_kernel
from holdfast.tabular.evaluation.worst_case import outlook_under
from holdfast.tabular.steps.tilted_policy import Step, Tilts
from holdfast.tabular.steps.updates import Update, improve_within, project, recover

# How often a policy that missed its constraints is linearised and projected again.
_REPROJECTIONS = 6
# A step that was refused is tried again with this share of its trust region, down to the smallest.
_SHRINK = 0.25
_SMALLEST_TRUST_REGION = 1e-11
# A replacement has to gain this much, relative to the reward.
_SMALLEST_GAIN = 1e-9
# Policies closer than this are the same but for rounding.
_SAME_POLICY = 1e-15
# How many refused policies' worst-case kernels are kept as cuts.
_CUTS = 3
# Cuts whose advantages agree to this, relative to the largest, are the same cut.
_SAME_CUT = 1e-9


class PolicyUpdate(Protocol):
    """An algorithm's own step from a policy linearised at its outlook."""

    def __call__(self, tilts: Tilts, delta: Float[Array, ""]) -> Update:
        """The next policy, and whether it meets the linearised constraints."""


class View(Protocol):
    """How an algorithm sees the world: nominally, or in the worst case."""

    def __call__(self, policy: Array, start: Outlook | None) -> Outlook:
        """The policy's outlook."""


class _Step(NamedTuple):
    policy: Array
    outlook: Outlook
    recovered: bool
    trust_region: float


def trust_region_loop(run: Run, update: PolicyUpdate, *, robust: bool) -> Array:
    """Applies an update `iterations` times and returns the last policy.

    Arguments:
        run: the model and the options.
        update: the algorithm's own step.
        robust: whether it sees worst cases, or the nominal kernel only.
    """
    view: View = run.worst_case if robust else run.nominal_case
    policy, outlook = run.policy, run.worst if robust else run.nominal
    retry = run.options.trust_region
    for _ in range(run.options.iterations):
        step = _plain_step(run, update, view, policy, outlook)
        if run.options.safeguard == "project":
            kept = _safeguarded(run, view, policy, outlook, step, retry, robust=robust)
            if kept is None:
                break
            step = kept
            if step.trust_region < run.options.trust_region:
                retry = min(run.options.trust_region, step.trust_region / _SHRINK)
        if np.abs(np.asarray(step.policy) - np.asarray(policy)).max() <= _SAME_POLICY:
            break
        policy, outlook = step.policy, step.outlook
        run.record(
            policy,
            nominal=None if robust else outlook,
            worst=outlook if robust else None,
            recovered=step.recovered,
            trust_region=step.trust_region,
        )
    # A step is deterministic: where one changed nothing, every further one would end alike.
    while len(run.rows) <= run.options.iterations:
        run.repeat()
    return policy


def _plain_step(
    run: Run, update: PolicyUpdate, view: View, policy: Array, outlook: Outlook
) -> _Step:
    """The algorithm's own step, as its paper has it.

    Where that has no solution, a recovery step: the smallest violated margin is raised as far as
    the trust region allows.
    """
    delta = run.options.trust_region
    moved, met = _update(run, update, policy, outlook, run.table.thresholds, delta)
    if not met:
        moved, _ = _update(run, recover, policy, outlook, run.table.thresholds, delta)
    return _Step(moved, view(moved, outlook), not met, delta)


def _safeguarded(
    run: Run,
    view: View,
    policy: Array,
    outlook: Outlook,
    step: _Step,
    retry: float,
    *,
    robust: bool,
) -> _Step | None:
    """The step, mended or replaced so that a feasible policy stays feasible and loses no reward.

    A step that misses the constraints is linearised and projected again. One that is still refused
    is replaced by steps of equation (8), which spends the whole trust region along the constraints
    instead of being thrown back onto them, within ever smaller trust regions. The worst-case values
    have kinks, where the worst-case kernel jumps and one linearisation says too little: so the
    kernels that refuted a step join the linearisation as cuts.

    Returns:
        None where nothing better than to stay was found.
    """
    thresholds = run.thresholds
    moved, seen = _project_until_feasible(run, view, step.policy, step.outlook)
    step = step._replace(policy=moved, outlook=seen)
    if not is_feasible(outlook, thresholds):
        return step

    now, error = _reward(outlook), float(np.asarray(outlook.error)[0])
    if is_feasible(seen, thresholds) and _reward(seen) >= now - error:
        return step
    worthwhile = now + max(error, _SMALLEST_GAIN * max(1.0, abs(now)))
    bundle = _Bundle.at(outlook, run.table.thresholds)
    delta = retry
    while delta >= _SMALLEST_TRUST_REGION:
        for _ in range(_CUTS):
            fresh = False
            if robust:
                bundle, added = bundle.cut(outlook_under(run.table, policy, seen))
                fresh = bool(added)
            moved, _ = _update(run, _within, policy, bundle.outlook, bundle.thresholds, delta)
            moved, seen = _project_until_feasible(run, view, moved, view(moved, outlook))
            if is_feasible(seen, thresholds) and _reward(seen) >= worthwhile:
                return _Step(moved, seen, False, delta)
            if not fresh:
                break
        delta *= _SHRINK
    return None


def _within(tilts: Tilts, delta: Float[Array, ""]) -> Update:
    # How much of the trust region a replacement uses matters little.
    return improve_within(tilts, delta, accuracy=0.1)


class _Bundle(eqx.Module):
    """A policy's outlook with cuts: the same policy under kernels that refuted a step from it.

    Under each of them the constraints are to hold and the reward is not to fall. There is always
    room for the same number of cuts, so that one compilation serves; an empty one asks nothing.
    """

    outlook: Outlook
    thresholds: Float[Array, " rows"]
    next_cut: Int[Array, ""]

    @classmethod
    @eqx.filter_jit
    def at(cls, outlook: Outlook, thresholds: Float[Array, " m"]) -> _Bundle:
        outlook = without_kernel(outlook)
        empty = jax.tree.map(jnp.zeros_like, outlook)
        rows = jax.tree.map(lambda *parts: jnp.concatenate(parts), outlook, *[empty] * _CUTS)
        asked = jnp.full(_CUTS * (len(thresholds) + 1), -jnp.inf)
        return cls(rows, jnp.concatenate([thresholds, asked]), jnp.array(0))

    @eqx.filter_jit
    def cut(self, crossed: Outlook) -> tuple[_Bundle, Bool[Array, ""]]:
        """The bundle with one more cut, in place of the oldest where it is full.

        What is there already is left out, since equal constraints only slow the step down. The
        second value says whether anything new was added.
        """
        crossed = without_kernel(crossed)
        own = len(crossed.value)
        start = own * (1 + self.next_cut % _CUTS)
        known = self.outlook.advantages.reshape(1 + _CUTS, own, *crossed.advantages.shape[1:])
        size = jnp.abs(crossed.advantages).max((-2, -1))
        apart = jnp.abs(known - crossed.advantages).max((-2, -1)).min(0)
        new = apart > _SAME_CUT * size

        def put(rows: Array, cut: Array, start: Array) -> Array:
            return lax.dynamic_update_slice_in_dim(rows, cut, start, axis=0)

        rows = jax.tree.map(lambda a, b: put(a, b, start), self.outlook, crossed)
        asked = jnp.concatenate([self.outlook.value[:1], self.thresholds[: own - 1]])
        asked = jnp.where(new, asked, -jnp.inf)
        bundle = _Bundle(rows, put(self.thresholds, asked, start - 1), self.next_cut + 1)
        return bundle, new.any()


def _project_until_feasible(
    run: Run, view: View, policy: Array, outlook: Outlook
) -> tuple[Array, Outlook]:
    """Linearises at the new policy itself and projects again, a handful of times.

    The linearised projection overshoots; each repetition starts from the last one's true margins,
    as Newton's method would.
    """
    best = policy, outlook
    for _ in range(_REPROJECTIONS):
        if is_feasible(outlook, run.thresholds):
            break
        policy = _reproject(policy, outlook, run.table.thresholds, run.table.discount)
        outlook = view(policy, outlook)
        if _smallest_margin(run, outlook) > _smallest_margin(run, best[1]):
            best = policy, outlook
    return best


def _update(
    run: Run,
    update: PolicyUpdate,
    policy: Array,
    outlook: Outlook,
    thresholds: Array,
    delta: float,
) -> tuple[Array, Array]:
    discount, step = run.table.discount, run.options.step
    return _compiled_update(update, policy, outlook, thresholds, discount, jnp.asarray(delta), step)


@eqx.filter_jit
def _compiled_update(
    update: Callable,
    policy: Array,
    outlook: Outlook,
    thresholds: Array,
    discount: Array,
    delta: Array,
    step: Step,
) -> tuple[Array, Array]:
    found = update(Tilts.at(policy, outlook, thresholds, discount, step), delta)
    return kept_alive(found.policy, policy), found.met


@eqx.filter_jit
def _reproject(policy: Array, outlook: Outlook, thresholds: Array, discount: Array) -> Array:
    # Aim inside by what the evaluation may be off, or the last projection ends just outside.
    inside = thresholds + 4 * outlook.error.max() + 1e-10 * (1 + jnp.abs(thresholds))
    tilts = Tilts.at(policy, outlook, inside, discount, "exact")
    return kept_alive(project(tilts, jnp.zeros(len(tilts.features))).policy, policy)


def _smallest_margin(run: Run, outlook: Outlook) -> float:
    return float(worst_margins(outlook, run.thresholds).min())


def _reward(outlook: Outlook) -> float:
    return float(np.asarray(outlook.value)[0])
