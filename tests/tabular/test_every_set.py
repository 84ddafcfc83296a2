"""Every verb with every set: a new line in the registry is covered without being told."""

import numpy as np
import pytest

import holdfast as hf
from holdfast.uncertainty import SETS

STATES, ACTIONS = 4, 2
LINE = np.abs(np.subtract.outer(np.arange(STATES), np.arange(STATES))).astype(float)
# How a set is made for the model below; by a radius alone, unless it is named here.
MADE = {
    "interval": lambda p: hf.Interval(0.5 * p, np.minimum(1.0, 1.3 * p + 0.05)),
    "wasserstein": lambda _: hf.Wasserstein(0.2, metric=LINE),
}
every_set = pytest.mark.parametrize("name", SETS)


def made(name, p):
    return MADE[name](p) if name in MADE else SETS[name](0.1)


def small_model(name):
    """Four states in a ring with a step to either side, sparse rows, one constraint."""
    rng = np.random.default_rng(0)
    kernel = np.zeros((STATES, ACTIONS, STATES))
    for s in range(STATES):
        for a, step in enumerate((1, -1)):
            kernel[s, a, [(s + step) % STATES, s]] = rng.dirichlet([3.0, 1.0])
    return hf.RobustCMDP(
        transitions=kernel,
        reward=rng.random((STATES, ACTIONS)),
        constraints=[hf.at_most(rng.random((STATES, ACTIONS)), 3.0)],
        discount=0.8,
        uncertainty=made(name, kernel),
    )


def value_iteration(model, signal, policy):
    """The worst case of a utility by plain sweeps around the set's own responses."""
    values = np.zeros(STATES)
    for _ in range(150):
        y = np.broadcast_to(signal[..., None] + model.discount * values, model.transitions.shape)
        worst = model.uncertainty.respond(model.transitions, y).value
        values = (policy * worst).sum(-1)
    return values @ model.initial


@every_set
def test_every_verb_works(name, tmp_path):
    model = small_model(name)
    solution = hf.solve(model, iterations=4)
    policy = solution.policy
    found = hf.evaluate(model, policy)
    assert found.error <= 1e-9
    assert found.reward.worst == pytest.approx(
        value_iteration(model, model.reward, policy), abs=1e-8
    )
    cost = model.constraints[0]
    assert found.constraints[0].worst == pytest.approx(
        -value_iteration(model, -cost.signal, policy), abs=1e-8
    )
    assert found.reward.worst < found.reward.nominal
    kernel = found.reward.kernel
    assert model.uncertainty.contains(model.transitions, kernel).all()

    certificate = hf.certify(model, policy)
    assert certificate.upper_bound >= certificate.reward
    assert np.isnan(certificate.critical_factor) or certificate.critical_factor > 0

    model.save(tmp_path / "model.npz")
    again = hf.evaluate(hf.RobustCMDP.load(tmp_path / "model.npz"), policy)
    assert again.reward.worst == found.reward.worst


@every_set
def test_projected_gradients_find_the_same(name):
    model = small_model(name)
    policy = np.full((STATES, ACTIONS), 0.5)
    exact = hf.evaluate(model, policy)
    found = hf.evaluate(model, policy, worst_case="projected-gradient")
    assert found.reward.worst == pytest.approx(exact.reward.worst, abs=1e-6)
    assert found.reward.worst >= exact.reward.worst - exact.error
    assert found.error <= 1e-6


@every_set
def test_lists_give_what_a_dense_kernel_gives(name):
    model = small_model(name)
    order = np.argsort(model.transitions == 0, axis=-1, kind="stable")[..., :2]
    if name == "interval":
        # Bounds belong to the entries that are listed: without mass beyond them.
        listed = model.transitions > 0
        bounds = model.uncertainty
        model = model.replace(uncertainty=hf.Interval(bounds.lower * listed, bounds.upper * listed))
        taken = [np.take_along_axis(np.asarray(b), order, -1) for b in (bounds.lower, bounds.upper)]
        uncertainty = hf.Interval(*taken)
    else:
        uncertainty = model.uncertainty
    lists = model.replace(
        transitions=hf.Kernel(order, np.take_along_axis(model.transitions, order, -1)),
        uncertainty=uncertainty,
    )
    policy = np.full((STATES, ACTIONS), 0.5)
    dense, listed = hf.evaluate(model, policy), hf.evaluate(lists, policy)
    assert listed.reward.worst == pytest.approx(dense.reward.worst, abs=1e-9)
    assert isinstance(listed.reward.kernel, hf.Kernel)
    np.testing.assert_allclose(listed.reward.kernel.dense(), dense.reward.kernel, atol=1e-6)


def test_sets_that_lead_anywhere_refuse_signals_of_listed_successors():
    kernel = hf.Kernel(np.zeros((2, 1, 1), int), np.ones((2, 1, 1)))
    with pytest.raises(
        ValueError, match=r"^reward: it is given for listed successors, but this total"
    ):
        hf.RobustCMDP(
            transitions=kernel,
            reward=np.zeros((2, 1, 1)),
            discount=0.9,
            uncertainty=hf.TotalVariation(0.1),
        )


def test_tilting_is_for_kl_sets():
    with pytest.raises(ValueError, match="supports KL sets only"):
        hf.evaluate(small_model("chi-square"), np.full((4, 2), 0.5), worst_case="tilted")
    mirror = hf.ProjectedGradient(geometry="kl")
    with pytest.raises(ValueError, match="'kl' is for KL sets"):
        hf.evaluate(small_model("chi-square"), np.full((4, 2), 0.5), worst_case=mirror)


def test_scalar_bounds_fit_any_model():
    model = small_model("kl").replace(uncertainty=hf.Interval(0.0, 1.0, radius=0.1))
    array = model.replace(
        uncertainty=hf.Interval(
            np.zeros_like(model.transitions), np.ones_like(model.transitions), radius=0.1
        )
    )
    policy = np.full((STATES, ACTIONS), 0.5)
    assert hf.evaluate(model, policy).reward.worst == hf.evaluate(array, policy).reward.worst
