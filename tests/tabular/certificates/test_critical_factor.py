"""The critical factor against a direct sweep, closed forms and the paper's models."""

import itertools

import numpy as np
import pytest

import holdfast as hf
from holdfast.tabular.certificates import critical_factor


def margin(model, policy, factor, index=0):
    wider = model.replace(uncertainty=model.uncertainty.scaled(factor))
    return hf.evaluate(wider, policy).constraints[index].margin


def test_it_agrees_with_a_direct_sweep(oracle):
    model = oracle.random_model(0, constraints=2, slack=0.4)
    policy = hf.solve(model, iterations=15).policy
    certificate = hf.certify(model, policy, bound=False)
    assert (certificate.critical_factors > 0).all()
    assert np.isfinite(certificate.critical_factors).all()
    for i, factor in enumerate(certificate.critical_factors):
        for share in (0.25, 0.75, 1.0):
            assert margin(model, policy, share * factor, i) >= 0
        for share in (1 + 1e-6, 1.5, 2.0):
            assert margin(model, policy, share * factor, i) < 0
    assert certificate.critical_factor == certificate.critical_factors.min()


def test_two_states_have_a_closed_form():
    """Nature moves R of total variation into the state that pays nothing: 9(1/2 − R) is left."""
    model = hf.RobustCMDP(
        transitions=np.full((2, 1, 2), 0.5),
        reward=np.zeros((2, 1)),
        constraints=[hf.at_least([[1.0], [0.0]], 2.7)],
        initial=[1.0, 0.0],
        discount=0.9,
        uncertainty=hf.TotalVariation(0.1),
    )
    certificate = hf.certify(model, np.ones((2, 1)))
    # V = 1 + 0.9·q/(1 − 0.9) with q = 1/2 − f/10, and 2.7 = 1 + 9·q.
    assert certificate.critical_factor == pytest.approx((0.5 - 1.7 / 9) / 0.1, rel=1e-8)


def test_nominally_infeasible_is_nan_and_unbreakable_is_infinite():
    kernel = np.full((2, 1, 2), 0.5)
    signal = np.array([[1.0], [0.0]])
    model = hf.RobustCMDP(
        transitions=kernel,
        reward=np.zeros((2, 1)),
        constraints=[hf.at_least(signal, 100.0), hf.at_least(signal, -1.0)],
        discount=0.9,
        uncertainty=hf.KL(0.1),
    )
    certificate = hf.certify(model, np.ones((2, 1)))
    assert np.isnan(certificate.critical_factors[0])
    assert certificate.critical_factors[1] == np.inf
    assert np.isnan(certificate.critical_factor)


def test_rounding_at_the_root_does_not_end_the_search(monkeypatch):
    """Two evaluations at one factor differ by rounding, and here by their sign at the factor one."""
    rounding = itertools.cycle([1e-16, -1e-16])
    monkeypatch.setattr(
        critical_factor._Margin, "_evaluated", lambda self, factor: 1.0 - factor + next(rounding)
    )
    policy = np.full((17, 8), 1 / 8)
    certificate = hf.certify(hf.environments.gambler(), policy, bound=False)
    assert certificate.critical_factor == pytest.approx(1.0, rel=1e-8)


@pytest.mark.parametrize("name", ["gambler", "frozen-lake"])
def test_rcpo_holds_its_radius_and_pcpo_does_not(name):
    model = hf.environments.MODELS[name]()
    robust = hf.certify(model, hf.solve(model, "rcpo", iterations=40).policy, bound=False)
    assert robust.critical_factor >= 1 - 1e-6
    nominal = hf.certify(model, hf.solve(model, "pcpo", iterations=100).policy, bound=False)
    assert not nominal.critical_factor >= 1
