"""The recovery step against a convex solver."""

import pytest
from tests.tabular.steps.instances import (
    CASES,
    assert_inside,
    best_violated_margin,
    draws,
    least_distance,
    random_instance,
    run,
    with_room,
)

from holdfast.tabular.steps.recover import recover

constraints = pytest.mark.parametrize("count", [1, 3])


def compare(instance, delta):
    """Compare the recovery step with the solver; return whether the solver was sure."""
    update = run(recover, instance, delta)
    assert_inside(instance, update.policy, delta)
    best = best_violated_margin(instance, delta)
    if best is None:
        return False
    smallest = instance.margins(update.policy)[instance.violated].min()
    assert abs(smallest - best) <= 1e-6 * instance.scale
    return True


@pytest.mark.campaign
@constraints
def test_recovery_where_no_policy_meets_the_constraints(count):
    compared = 0
    for case in draws(
        vanishing=[False, True], ties=[False, True], room=[-1.0, -0.1], delta=[1e-3, 0.03, 0.3]
    ):
        instance = random_instance(
            case["seed"], count, vanishing=case["vanishing"], ties=case["ties"]
        )
        instance = with_room(instance, case["seed"], case["room"])
        if len(instance.violated):
            compared += compare(instance, case["delta"])
    assert compared >= 0.5 * CASES


@pytest.mark.campaign
@constraints
def test_recovery_of_constraints_outside_the_trust_region(count):
    compared = 0
    for case in draws(share=[0.9, 0.1, 1e-3]):
        instance = with_room(random_instance(case["seed"], count), case["seed"], 0.1)
        least = least_distance(instance)
        if len(instance.violated) and least is not None and least > 1e-4:
            compared += compare(instance, case["share"] * least)
    assert compared >= 0.5 * CASES


def test_recovery_does_not_stop_at_the_threshold():
    """The violated margin is as large as it can be, as if it were the only constraint."""
    compared = sum(
        compare(random_instance(case["seed"], 3).missing([1e-3, -1.0, -1.0]), 0.1)
        for case in draws()
    )
    assert compared >= 0.5 * CASES
