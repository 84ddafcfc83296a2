"""The projection (16) against a convex solver."""

import dataclasses

import numpy as np
import pytest
from tests.tabular.steps.instances import (
    CASES,
    STATES,
    assert_met,
    assert_policy,
    draws,
    least_distance,
    random_instance,
    run,
    taylor_instance,
    with_room,
)

from holdfast.tabular.steps.improve import improve, improve_within
from holdfast.tabular.steps.project import project
from holdfast.tabular.steps.recover import recover

constraints = pytest.mark.parametrize("count", [1, 3])
steps = pytest.mark.parametrize("step", ["exact", "taylor"])


def improve_then_project(tilts, delta):
    half = improve(tilts, delta)
    return tilts.policy(half), half, project(tilts, half)


@pytest.mark.campaign
@constraints
def test_projection_equals_a_convex_solver(count):
    compared = 0
    for case in draws(vanishing=[False, True], ties=[False, True], room=[0.5, 0.1, 0.01]):
        instance = random_instance(
            case["seed"], count, vanishing=case["vanishing"], ties=case["ties"]
        )
        instance = with_room(instance, case["seed"], case["room"])
        half, _, update = run(improve_then_project, instance, 0.01)
        assert_met(instance, update)
        least = least_distance(instance, half)
        if least is not None:
            compared += 1
            distance = instance.kl(update.policy, half)
            assert abs(distance - least) <= 1e-6 * max(1.0, least), case
    assert compared >= 0.5 * CASES


@constraints
def test_constraints_that_no_policy_meets_are_reported(count):
    for case in draws(vanishing=[False, True], ties=[False, True], room=[-0.01, -0.1, -1.0]):
        instance = random_instance(
            case["seed"], count, vanishing=case["vanishing"], ties=case["ties"]
        )
        instance = with_room(instance, case["seed"], case["room"])
        update = run(improve_then_project, instance, 0.01)[2]
        assert not update.met, case
        assert_policy(update.policy)
        assert not run(improve_within, instance, 10.0).met, case


@constraints
def test_a_policy_that_meets_its_constraints_is_its_own_projection(count):
    for case in draws():
        instance = random_instance(case["seed"], count)
        instance = instance.missing(-np.random.default_rng(case["seed"]).random(count))
        half, c, update = run(improve_then_project, instance, 1e-9)
        assert update.met
        np.testing.assert_allclose(update.policy, half, rtol=1e-14)
        np.testing.assert_array_equal(update.coefficients, c)


@constraints
def test_the_projection_satisfies_the_bregman_inequality(count):
    """Equation (33) for a π_k that meets its constraints, and (34), which drops the last divergence."""
    moved = 0
    for case in draws():
        instance = random_instance(case["seed"], count)
        instance = instance.missing(np.full(count, -1e-3 * instance.scale))
        half, _, update = run(improve_then_project, instance, 0.1)
        assert instance.margins(instance.policy).min() > 0
        whole = instance.kl(instance.policy, half)
        kept = instance.kl(instance.policy, update.policy)
        moved += instance.kl(update.policy, half) > 1e-4
        assert whole >= kept + instance.kl(update.policy, half) - 1e-9, case
        assert whole >= kept - 1e-9, case
    assert moved >= 3


@steps
def test_without_constraints_every_step_is_the_improvement(step):
    for case in draws(delta=[1e-3, 0.1, 100.0]):
        instance = random_instance(case["seed"], 0)
        half, c, update = run(improve_then_project, instance, case["delta"], step)
        within = run(improve_within, instance, case["delta"], step)
        assert update.met
        assert within.met
        np.testing.assert_array_equal(update.coefficients, c)
        np.testing.assert_allclose(within.policy, half, atol=1e-6)


@steps
def test_actions_without_mass_stay_without(step):
    """Padded actions have no mass, and their advantages may be anything."""
    instance = random_instance(0, 3)
    policy = np.c_[instance.policy[:, :-1], np.zeros(STATES)]
    policy = policy / policy.sum(-1, keepdims=True)
    padded = dataclasses.replace(instance, policy=policy).missing([0.1, 0.2, -0.2])
    half, _, update = run(improve_then_project, padded, 0.1, step)
    recovered = run(recover, padded, 0.1, step)
    within = run(improve_within, padded, 0.1, step)
    for moved in (half, update.policy, recovered.policy, within.policy):
        assert_policy(moved)
        assert (moved[:, -1] == 0).all()


@steps
@constraints
def test_a_constraint_that_nothing_moves_is_reported(step, count):
    instance = taylor_instance(0, count)
    advantages = instance.advantages * np.r_[1.0, np.zeros(count)][:, None, None]
    instance = dataclasses.replace(instance, advantages=advantages).missing(np.full(count, 0.1))
    assert_reported(instance, step)


@steps
def test_constraints_that_contradict_each_other_are_reported(step):
    instance = taylor_instance(0, 3)
    advantages, occupancy = instance.advantages.copy(), instance.occupancy.copy()
    advantages[2], occupancy[2] = -advantages[1], occupancy[1]
    instance = dataclasses.replace(instance, advantages=advantages, occupancy=occupancy)
    assert_reported(instance.missing([0.1, 0.1, -1.0]), step)


def assert_reported(instance, step):
    update = run(improve_then_project, instance, 0.01, step)[2]
    within = run(improve_within, instance, 0.01, step)
    assert not update.met
    assert not within.met
    for moved in (update, within, run(recover, instance, 0.01, step)):
        assert_policy(moved.policy)


@constraints
def test_values_that_are_not_finite_end_without_a_projection(count):
    """With several constraints the search once never ended."""
    instance = random_instance(0, count)
    advantages = instance.advantages.copy()
    advantages[-1, 0] = np.nan
    spoiled = dataclasses.replace(instance, advantages=advantages)
    assert not run(improve_then_project, spoiled, 0.01)[2].met
