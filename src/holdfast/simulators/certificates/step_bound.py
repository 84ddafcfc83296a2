"""An upper bound on the worst-case cost where nature chooses the disturbance of every step.

Take any functions U_t(s) with U_H = 0, ν_t(s,a) and λ_t(s,a) > 0, and let y = c + U_{t+1}(s'). Cut y at
b = ν + L·λ. For every distribution q of the disturbance with KL(q‖p) ≤ R

    E_q[y] ≤ E_p[G] + E_q[(y − b)⁺],   G = λR + ν + λ·(exp(min((y − ν)/λ, L)) − 1),

since min over λ and ν of E_p[G] is the worst response to min(y, b). Induction over the steps gives
V* ≤ E U_0 + sup_Q E_Q[W] with W = Σ_t (E_p[G|s_t] − U_t(s_t)) + (y_t − b_t)⁺, and KL(Q‖P) ≤ H·R by the
chain rule, hence V* ≤ E U_0 + α·H·R + α·log E_P[exp(W/α)] for every α > 0. Means of n fresh draws at
each visited state take the place of E_p[G|s_t]; they are independent of the episode's own draws.

*The range.* A confidence limit needs a bound on W. Let D be the largest cost of an episode, and `left`
the part of D that is not used up. An episode is stopped once the sum so far plus `left` exceeds
D + patience. The rest costs at most `left`, so W gains left − U_t. λ is bounded such that E_p[G] − U_t
is at most `reach`. A step without a stop adds at most reach + (y − b)⁺, and left falls by c, so that
W ≤ D + patience + reach whether the episode stops after it or not.

As λ → 0, W tends to C − U_0 (C: cost of the episode): the bound for a nature that may spend its whole
budget H·R in one step. Training increases λ where that lowers the bound.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float

from holdfast._support.compilation import compiled_simulation
from holdfast.simulators.certificates.attack import FrozenPolicy
from holdfast.simulators.certificates.bounded_signal import BoundedSignal
from holdfast.simulators.certificates.step_functions import PATIENCE, StepFunctions
from holdfast.simulators.environment import Outcomes, State, Step
from holdfast.simulators.nature.tilted import TiltedKernel
from holdfast.simulators.policy.foreign import ForeignPolicy
from holdfast.simulators.training.rollout import Nominal, Situation

# Weight of the misfit of U while it is fitted; the bound itself is of order one.
_FIT_WEIGHT = 30.0
# Candidates among which the attack chooses.
_CANDIDATES = 64


class Bounding(NamedTuple):
    """The fixed part of a bound: the policy, the signal, the radius and the number of fresh draws."""

    frozen: FrozenPolicy
    signal: BoundedSignal
    radius: Float[Array, ""]
    draws: int
    chunks: int

    @property
    def steps(self) -> int:
        """The steps of an episode."""
        return len(self.signal.weights)


class _Place(NamedTuple):
    """Episodes at one time: their states, observations, and the part of the total not used up."""

    states: State
    observations: Array
    left: Array


def _act(work: Bounding, place: _Place, key: Array, time: Array) -> Array:
    frozen = work.frozen
    seen = place.observations
    seen = seen if frozen.observations is None else frozen.observations(seen)
    actions = frozen.policy.act(seen, key, time, frozen.deterministic)
    return frozen.policy.to_environment(actions)


def _nominal(work: Bounding, place: _Place, actions: Array, key: Array, kernel: Any) -> Array:
    """Return one disturbance per row; a tilted kernel gets its lookahead as a pair (kernel, y)."""
    env = work.frozen.env
    nothing = jnp.zeros((len(place.left), 0))
    logs = nothing
    if isinstance(env.disturbance, Outcomes):
        logs = jnp.log(jax.vmap(env.outcome_probabilities)(place.states, actions))
    if kernel is None:
        return Nominal.create(env).draw(key, Situation(nothing, logs, lambda w: w))
    tilted, lookahead = kernel
    return tilted.draw(key, Situation(nothing, logs, lambda w: lax.map(lookahead, w)))


def _after(
    work: Bounding, functions: StepFunctions, there: Step, time: Array, left: Array
) -> tuple[Array, Array, Array]:
    """Return c and U_{t+1} of a step of every row, and whether a value was outside its range."""
    cost, cut = work.signal.paid(there, time, left)
    features = jax.vmap(work.frozen.env.features)(there.state)
    u = functions.u(features, (time + 1) / work.steps, left - cost, work.signal.total)
    over = there.terminated | (time + 1 >= work.steps)
    return cost, jnp.where(over, 0.0, u), cut


def _fresh_mean(
    work: Bounding, functions: StepFunctions, place: _Place, u: Array, own: Array, now: tuple
) -> Float[Array, " rows"]:
    """Return the mean of G over fresh actions and disturbances at the states."""
    time, key = now
    env = work.frozen.env
    # Functions and policies with a memory are not called again. The action that they took is then part
    # of the state, which is valid, and exact if the policy is deterministic.
    policy = work.frozen.policy
    again = work.frozen.deterministic is not True and getattr(policy, "draws", True)

    def one(key: Array) -> Array:
        act, noise = jax.random.split(key)
        actions = _act(work, place, act, time) if again else own
        there = env.step_rows(place.states, actions, _nominal(work, place, actions, noise, None))
        cost, after, _ = _after(work, functions, there, time, place.left)
        lam, nu = _multipliers(work, functions, place, actions, u, time)
        exponent = jnp.minimum((cost + after - nu) / lam, functions.cut(work.radius))
        return lam * work.radius + nu + lam * jnp.expm1(exponent)

    def some(total: Array, keys: Array) -> tuple[Array, None]:
        # Policies outside JAX answer one batch after the other.
        many = (
            lax.map(one, keys)
            if isinstance(policy, ForeignPolicy) or env.is_hosted
            else (jax.vmap(one)(keys))
        )
        return total + many.sum(0), None

    keys = jax.random.split(key, (work.chunks, work.draws // work.chunks))
    total, _ = lax.scan(some, jnp.zeros_like(u), keys)
    return total / (work.chunks * (work.draws // work.chunks))


def _multipliers(
    work: Bounding, functions: StepFunctions, place: _Place, actions: Array, u: Array, time: Array
) -> tuple[Array, Array]:
    nature = jax.vmap(work.frozen.env.nature_features)(place.states, actions)
    return functions.multipliers(nature, time / work.steps, place.left, u, work.signal, work.radius)


class Excess(NamedTuple):
    """W and U_0 of episodes.

    Attributes:
        w: W of each episode.
        u0: U_0 of each episode.
        cost: cost of each episode.
        outside: number of values outside the declared range.
        misfit: mean squared distance of U_t from the cost that follows, in units of the total.
    """

    w: Float[Array, " episodes"]
    u0: Float[Array, " episodes"]
    cost: Float[Array, " episodes"]
    outside: Float[Array, ""]
    misfit: Float[Array, ""]


def excess(work: Bounding, functions: StepFunctions, key: Array, episodes: int) -> Excess:
    """Return W of nominal episodes."""
    env, total = work.frozen.env, work.signal.total
    start_key, key = jax.random.split(key)
    states, observations = env.reset_rows(jax.random.split(start_key, episodes))
    features = jax.vmap(env.features)(states)
    left = jnp.full(episodes, total)
    u0 = functions.u(features, jnp.zeros(()), left, total)

    def step(carry: tuple, now: tuple) -> tuple[tuple, tuple]:
        place, u, w, going, alive = carry
        time, key = now
        act, noise, fresh = jax.random.split(key, 3)
        stop = going & (w + place.left > (1 + PATIENCE) * total)
        w = w + jnp.where(stop, place.left - u, 0.0)
        going = going & ~stop
        actions = _act(work, place, act, time)
        g = _fresh_mean(work, functions, place, u, actions, (time, fresh))
        there = env.step_rows(place.states, actions, _nominal(work, place, actions, noise, None))
        cost, after, cut = _after(work, functions, there, time, place.left)
        lam, nu = _multipliers(work, functions, place, actions, u, time)
        surprise = jnp.maximum(cost + after - nu - functions.cut(work.radius) * lam, 0.0)
        w = w + jnp.where(going, g - u + surprise, 0.0)
        place = _Place(there.state, there.observation, place.left - jnp.where(alive, cost, 0.0))
        # Nothing can be paid once the total is used up.
        going = going & ~there.terminated & (place.left > 0)
        record = ((cut & alive).sum(), u, alive, place.left)
        return (place, after, w, going, alive & ~there.terminated), record

    every = jnp.ones(episodes, bool)
    begin = (_Place(states, observations, left), u0, jnp.zeros(episodes), every, every)
    times = (jnp.arange(work.steps), jax.random.split(key, work.steps))
    (place, _, w, _, _), (outside, us, lived, lefts) = lax.scan(step, begin, times)
    before = jnp.concatenate([left[None], lefts[:-1]])
    misfits = jnp.where(lived, (us - (before - place.left)) / total, 0.0) ** 2
    return Excess(w, u0, total - place.left, outside.sum(), misfits.sum() / lived.sum())


measured_excess = compiled_simulation(excess)


@compiled_simulation
def first_values(
    work: Bounding, functions: StepFunctions, key: Array, episodes: int
) -> Float[Array, " episodes"]:
    """Return U_0 of fresh initial states."""
    env = work.frozen.env
    states, _ = env.reset_rows(jax.random.split(key, episodes))
    left = jnp.full(episodes, work.signal.total)
    return functions.u(jax.vmap(env.features)(states), jnp.zeros(()), left, work.signal.total)


@compiled_simulation
def attacked_costs(
    work: Bounding, functions: StepFunctions, key: Array, episodes: int
) -> Float[Array, " episodes"]:
    """Return the costs of episodes under the worst response to U among 64 nominal candidates."""
    env, signal = work.frozen.env, work.signal
    kernel = TiltedKernel(work.radius, Nominal.create(env).size, _CANDIDATES)
    start_key, key = jax.random.split(key)
    states, observations = env.reset_rows(jax.random.split(start_key, episodes))

    def step(carry: tuple, now: tuple) -> tuple[tuple, None]:
        place, alive = carry
        time, key = now
        act, noise = jax.random.split(key)
        actions = _act(work, place, act, time)

        def minus_y(candidate: Array) -> Array:
            there = env.step_rows(place.states, actions, candidate)
            cost, after, _ = _after(work, functions, there, time, place.left)
            return -(cost + after)

        drawn = _nominal(work, place, actions, noise, (kernel, minus_y))
        there = env.step_rows(place.states, actions, drawn)
        cost, _ = signal.paid(there, time, place.left)
        place = _Place(there.state, there.observation, place.left - jnp.where(alive, cost, 0.0))
        return (place, alive & ~there.terminated), None

    begin = (
        _Place(states, observations, jnp.full(episodes, signal.total)),
        jnp.ones(episodes, bool),
    )
    times = (jnp.arange(work.steps), jax.random.split(key, work.steps))
    (place, _), _ = lax.scan(step, begin, times)
    return signal.total - place.left


@compiled_simulation
def learn(
    work: Bounding,
    functions: StepFunctions,
    key: Array,
    batch: tuple[int, int],
    rate: float,
    evidence: Float[Array, ""],
) -> tuple[StepFunctions, Float[Array, " updates"]]:
    """Return the functions after Adam steps on the bound itself, and the bound before each step.

    The loss includes the statistical part: a limit of the mean of exp(W/α) exceeds the mean by about
    exp(highest/α)·log(1/risk)/N, also if nothing large was seen.

    Arguments:
        work: the fixed part; its draws are those of each batch.
        functions: the functions to start from.
        key: random key of the batches.
        batch: number of updates, and episodes in each batch.
        rate: largest learning rate of Adam, which falls to 0.
        evidence: log(1/risk)/N of the limit that is to follow.
    """
    updates, episodes = batch
    adam = optax.adam(optax.cosine_decay_schedule(rate, updates))

    def loss(learned: Any, fixed: Any, key: Array, fitting: Array) -> tuple[Array, Array]:
        functions = eqx.combine(learned, fixed)
        total = work.signal.total
        alpha = total * jnp.exp(functions.logits[1])
        found = excess(work, functions, key, episodes)
        seen = jax.nn.logsumexp(found.w / alpha) - math.log(episodes)
        unseen = jnp.log(evidence) + functions.highest(total) / alpha
        bound = found.u0.mean() + alpha * (work.radius * work.steps + jnp.logaddexp(seen, unseen))
        bound = bound / total
        return bound + _FIT_WEIGHT * fitting * found.misfit, bound

    spec = jax.tree.map(lambda _: False, functions)
    spec = eqx.tree_at(
        lambda f: (f.value, f.dual, f.logits),
        spec,
        replace=(True, True, True),
        is_leaf=lambda leaf: leaf is False,
    )
    learned, fixed = eqx.partition(functions, spec)

    def update(carry: tuple, now: tuple) -> tuple[tuple, Array]:
        learned, state = carry
        (_, value), slope = eqx.filter_value_and_grad(loss, has_aux=True)(learned, fixed, *now)
        # A batch without finite slopes changes nothing.
        norm = optax.tree.norm(slope)
        scale = jnp.where(jnp.isfinite(norm), jnp.minimum(1.0, 1 / (norm + 1e-9)), 0.0)
        slope = jax.tree.map(lambda leaf: jnp.where(scale > 0, leaf * scale, 0.0), slope)
        changes, state = adam.update(slope, state, learned)
        return (optax.apply_updates(learned, changes), state), value * work.signal.total

    start = (learned, adam.init(learned))
    # In the first half the loss also fits U to the nominal cost, which is close to the worst-case cost.
    fitting = jnp.maximum(1 - 2 * jnp.arange(updates) / updates, 0.0)
    (learned, _), history = lax.scan(update, start, (jax.random.split(key, updates), fitting))
    return eqx.combine(learned, fixed), history


def in_parts(count: int, at_once: int) -> list[int]:
    """Return the sizes of equal parts, each of at most `at_once`."""
    parts = -(-count // at_once)
    return [len(each) for each in np.array_split(np.arange(count), parts)]
