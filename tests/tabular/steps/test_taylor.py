"""Taylor steps against the paper's formulas, with g, h and H by automatic differentiation."""

import cvxpy as cp
import numpy as np
import pytest
from tests.tabular.steps.instances import (
    ACTIONS,
    CASES,
    RESIDUAL,
    STATES,
    Expansion,
    displacement,
    draws,
    run,
    solve,
    taylor_instance,
)

from holdfast.tabular.steps.improve import improve, improve_within
from holdfast.tabular.steps.project import project
from holdfast.tabular.steps.recover import recover
from holdfast.tabular.steps.taylor import taylor_update

constraints = pytest.mark.parametrize("count", [1, 3])


def improve_then_project(tilts, delta):
    return project(tilts, improve(tilts, delta))


@pytest.mark.campaign
def test_taylor_s_update_is_the_paper_s():
    for case in draws(delta=[1e-6, 1e-3, 0.1, 1.0], violation=[-10.0, -0.1, 0.0, 0.1, 10.0]):
        instance = taylor_instance(case["seed"], 1).missing([case["violation"]])
        expansion = Expansion(instance)
        update = run(taylor_update, instance, case["delta"], "taylor")
        assert update.met
        expected = expansion.policy(expansion.update(case["delta"]))
        np.testing.assert_allclose(update.policy, expected, rtol=1e-7, atol=1e-9)
        # The closed form solves the same two problems as the general steps.
        twice = run(improve_then_project, instance, case["delta"], "taylor")
        np.testing.assert_allclose(update.policy, twice.policy, rtol=1e-7, atol=1e-9)


@pytest.mark.campaign
def test_taylor_s_projection_onto_several_constraints_is_a_quadratic_program():
    compared = 0
    for case in draws(delta=[1e-4, 0.01, 0.3], size=[0.01, 1.0]):
        instance = taylor_instance(case["seed"], 3)
        noise = np.random.default_rng(case["seed"]).normal(size=3)
        instance = instance.missing(case["size"] * noise)
        expansion = Expansion(instance)
        half = displacement(instance, run(improve, instance, case["delta"], "taylor"))
        update = run(taylor_update, instance, case["delta"], "taylor")
        moved = displacement(instance, update.coefficients)
        assert update.met
        assert (expansion.h @ moved >= expansion.b - RESIDUAL * instance.scale).all()
        x = cp.Variable(len(half))
        least = solve(cp.Minimize(expansion.quadratic(x - half)), [expansion.h @ x >= expansion.b])
        if least is not None:
            compared += 1
            distance = (moved - half) @ expansion.H @ (moved - half)
            assert abs(distance - least) <= 1e-6 * max(1.0, least), case
    assert compared >= 0.5 * CASES


@pytest.mark.campaign
@constraints
def test_taylor_s_cpo_step_is_a_quadratically_constrained_program(count):
    compared = refused = 0
    for case in draws(extra=[1e-4, 0.01, 1.0], size=[0.01, 1.0]):
        instance = taylor_instance(case["seed"], count)
        noise = np.random.default_rng(case["seed"]).normal(size=count)
        instance = instance.missing(case["size"] * noise)
        expansion = Expansion(instance)
        x = cp.Variable(STATES * ACTIONS)
        kl, met = expansion.quadratic(x) / 2, [expansion.h @ x >= expansion.b]
        least = solve(cp.Minimize(kl), met)
        if least is None:
            continue
        delta = 1.01 * max(least, 0.0) + case["extra"]
        update = run(improve_within, instance, delta, "taylor")
        moved = displacement(instance, update.coefficients)
        assert update.met
        assert (expansion.h @ moved >= expansion.b - RESIDUAL * instance.scale).all()
        assert moved @ expansion.H @ moved / 2 <= delta + RESIDUAL
        best = solve(cp.Maximize(expansion.g @ x), [kl <= delta, *met])
        if best is not None:
            compared += 1
            assert abs(expansion.g @ moved - best) <= 1e-6 * instance.scale, case
        if least > 1e-4:
            refused += 1
            assert not run(improve_within, instance, 0.9 * least, "taylor").met, case
    assert compared >= 0.5 * CASES
    assert refused > 0


@pytest.mark.campaign
@constraints
def test_taylor_s_recovery_is_a_quadratically_constrained_program(count):
    compared = 0
    for case in draws(delta=[1e-4, 0.01, 1.0]):
        instance = taylor_instance(case["seed"], count)
        noise = np.random.default_rng(case["seed"]).normal(size=count)
        instance = instance.missing(1e4 + noise)
        expansion = Expansion(instance)
        update = run(recover, instance, case["delta"], "taylor")
        moved = displacement(instance, update.coefficients)
        x, lift = cp.Variable(STATES * ACTIONS), cp.Variable()
        missing = expansion.b - expansion.b.max()
        limits = [expansion.quadratic(x) / 2 <= case["delta"], expansion.h @ x - missing >= lift]
        assert moved @ expansion.H @ moved / 2 <= case["delta"] + RESIDUAL
        best = solve(cp.Maximize(lift), limits)
        if best is not None:
            compared += 1
            gained = (expansion.h @ moved - missing).min()
            assert abs(gained - best) <= 1e-6 * instance.scale, case
    assert compared >= 0.5 * CASES
