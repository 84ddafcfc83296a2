"""The improvement (13) and CPO's step (8) against a convex solver."""

import dataclasses

import numpy as np
import pytest
from tests.tabular.steps.instances import (
    ACTIONS,
    CASES,
    DISCOUNT,
    STATES,
    Instance,
    assert_inside,
    assert_met,
    best_reward,
    draws,
    least_distance,
    random_instance,
    run,
    with_room,
)

from holdfast.tabular.steps.improve import improve, improve_within

constraints = pytest.mark.parametrize("count", [1, 3])


def improved(tilts, delta):
    return tilts.policy(improve(tilts, delta))


@pytest.mark.campaign
def test_improvement_equals_a_convex_solver():
    compared = 0
    deltas = [1e-6, 1e-3, 0.01, 0.1, 1.0, 10.0, 1e3]
    for case in draws(vanishing=[False, True], ties=[False, True], delta=deltas):
        instance = random_instance(case["seed"], 1, vanishing=case["vanishing"], ties=case["ties"])
        policy = run(improved, instance, case["delta"])
        assert_inside(instance, policy, case["delta"])
        best = best_reward(instance, case["delta"], constrained=False)
        if best is not None:
            compared += 1
            assert abs(instance.reward(policy) - best) <= 1e-6 * instance.scale, case
    assert compared >= 0.5 * CASES


def test_a_large_trust_region_conditions_on_the_maximisers():
    for case in draws(ties=[False, True]):
        instance = random_instance(case["seed"], 1, ties=case["ties"])
        advantages = instance.advantages[0]
        best = np.isclose(advantages, advantages.max(-1, keepdims=True), atol=1e-12)
        conditioned = np.where(best, instance.policy, 0.0)
        conditioned = conditioned / conditioned.sum(-1, keepdims=True)
        target = instance.reward(conditioned)
        for delta in (instance.kl(conditioned) * (1 + 1e-9), 1e6):
            policy = run(improved, instance, delta)
            assert_inside(instance, policy, delta)
            assert abs(instance.reward(policy) - target) <= 1e-6 * instance.scale, case
        np.testing.assert_allclose(policy, conditioned, atol=1e-6)


@pytest.mark.parametrize("step", ["exact", "taylor"])
def test_nothing_to_gain_moves_nothing(step):
    instance = random_instance(0, 1)
    flat = dataclasses.replace(instance, advantages=np.zeros_like(instance.advantages))
    np.testing.assert_allclose(run(improved, flat, 0.1, step), instance.policy, rtol=1e-12)


@pytest.mark.campaign
@constraints
def test_cpo_s_step_equals_a_convex_solver(count):
    compared = 0
    for case in draws(
        vanishing=[False, True], ties=[False, True], room=[0.5, 0.1], extra=[1e-3, 0.03, 0.3]
    ):
        instance = random_instance(
            case["seed"], count, vanishing=case["vanishing"], ties=case["ties"]
        )
        instance = with_room(instance, case["seed"], case["room"])
        least = least_distance(instance)
        if least is None:
            continue
        delta = least * 1.01 + case["extra"]
        update = run(improve_within, instance, delta)
        assert_met(instance, update)
        assert_inside(instance, update.policy, delta)
        best = best_reward(instance, delta, constrained=True)
        if best is not None:
            compared += 1
            assert abs(instance.reward(update.policy) - best) <= 1e-6 * instance.scale, case
    assert compared >= 0.5 * CASES


def test_rounding_does_not_decide_whether_constraints_are_met():
    """Rounding a logit of 1e9 moves a row by 1e-7, in a state without occupancy under the reward."""
    instance = with_room(random_instance(4, 3, vanishing=True, ties=True), 4, 0.1)
    delta = least_distance(instance) * 1.01 + 0.3
    rng = np.random.default_rng(0)
    for _ in range(20):
        noise = 1e-15 * rng.normal(size=instance.advantages.shape)
        rounded = dataclasses.replace(instance, advantages=instance.advantages * (1 + noise))
        assert_met(instance, run(improve_within, rounded, delta))


@pytest.mark.parametrize(
    ("delta", "slack", "best"),
    [(0.01, 0.0, 1 / 3), (1.0, 0.0, 1 / 3), (1.0, 0.1, 1 / 3 + 0.2), (100.0, 1 / 3, 1.0)],
)
def test_constraints_may_leave_no_use_for_the_trust_region(delta, slack, best):
    """By hand: the second and the third action must keep a share of 1/3 − slack each."""
    shares = np.array([[1.0, 0.0, -1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    advantages = np.repeat((shares - shares.mean(-1, keepdims=True))[:, None], STATES, axis=1)
    instance = Instance(
        policy=np.full((STATES, ACTIONS), 1 / 3),
        advantages=advantages,
        occupancy=np.full((4, STATES), 1 / STATES),
        values=np.zeros(4),
        thresholds=-np.r_[slack, slack, 1.0] / (1 - DISCOUNT),
    )
    update = run(improve_within, instance, delta)
    assert_met(instance, update)
    rest = (1 - best) / 2
    target = np.tile([best, rest, rest], (STATES, 1))
    assert instance.kl(target) < delta
    np.testing.assert_allclose(update.policy, target, atol=1e-6)


@constraints
def test_constraints_outside_the_trust_region_are_reported(count):
    compared = 0
    for case in draws(vanishing=[False, True], share=[0.9, 0.5, 0.01]):
        instance = random_instance(case["seed"], count, vanishing=case["vanishing"])
        instance = with_room(instance, case["seed"], 0.1)
        least = least_distance(instance)
        if least is not None and least > 1e-4:
            compared += 1
            assert not run(improve_within, instance, case["share"] * least).met, case
    assert compared >= 0.5 * CASES
