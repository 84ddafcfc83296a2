import os
import re

import jax
import numpy as np
import pytest

import holdfast as hf

CAMPAIGN = bool(os.environ.get("HOLDFAST_CAMPAIGN"))
PAPER = ["gambler", "n-chain", "frozen-lake"]
SHAPES = [
    {"lists": False, "next_state_signals": False},
    {"lists": False, "next_state_signals": True},
    {"lists": True, "next_state_signals": False},
    {"lists": True, "next_state_signals": True},
]


@pytest.mark.parametrize("shape", SHAPES)
def test_worst_values_equal_an_independent_value_iteration(oracle, shape):
    seed = SHAPES.index(shape)
    model = oracle.random_model(seed, discount=0.6, **shape)
    policy = oracle.random_policy(model, np.random.default_rng(seed))
    evaluation = hf.evaluate(model, policy)
    expected = oracle.robust_values(model, model.reward, policy)
    np.testing.assert_allclose(evaluation.reward.values, expected, atol=1e-7)
    assert evaluation.reward.worst == pytest.approx(model.initial @ expected, abs=1e-7)
    utility = oracle.robust_values(model, model.constraints[0].signal, policy)
    assert evaluation.constraints[0].worst == pytest.approx(model.initial @ utility, abs=1e-7)
    assert evaluation.error < 1e-9


@pytest.mark.parametrize("shape", SHAPES)
def test_the_worst_kernel_is_a_member_and_gives_the_worst_value(oracle, shape):
    model = oracle.random_model(7, **shape)
    policy = oracle.random_policy(model, np.random.default_rng(7))
    evaluation = hf.evaluate(model, policy)
    for found, signal in [
        (evaluation.reward, model.reward),
        (evaluation.constraints[0], model.constraints[0].signal),
    ]:
        values = oracle.values_under(model, found.kernel, signal, policy)
        assert model.initial @ values == pytest.approx(found.worst, abs=1e-9)
        nominal, worst = model.transitions, found.kernel
        if isinstance(nominal, hf.Kernel):
            assert isinstance(worst, hf.Kernel)
            np.testing.assert_array_equal(nominal.successors, worst.successors)
        else:
            # KL(q‖p) of dense rows, computed here and not by the set.
            with np.errstate(divide="ignore", invalid="ignore"):
                terms = np.where(worst > 0, worst * np.log(worst / nominal), 0.0)
            assert terms.sum(-1).max() <= 0.1 * (1 + 1e-9)


def test_occupancies_and_advantages_satisfy_their_definitions(oracle):
    model = oracle.random_model(3)
    rng = np.random.default_rng(3)
    policy, other = oracle.random_policy(model, rng), oracle.random_policy(model, rng)
    found = hf.evaluate(model, policy).reward
    chain = np.einsum("sa,sat->st", policy, found.kernel)
    identity = np.eye(model.states)
    occupancy = (1 - model.discount) * np.linalg.solve(
        identity - model.discount * chain.T, model.initial
    )
    np.testing.assert_allclose(found.occupancy, occupancy, atol=1e-10)
    assert found.occupancy.sum() == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose((policy * found.advantages).sum(-1), 0, atol=1e-9)
    # The performance difference lemma, under one fixed kernel.
    shifted = oracle.values_under(model, found.kernel, model.reward, other)
    moved = np.einsum("sa,sat->st", other, found.kernel)
    visits = np.linalg.solve(identity - model.discount * moved.T, model.initial)
    gain = visits @ (other * found.advantages).sum(-1)
    assert model.initial @ shifted - found.worst == pytest.approx(gain, abs=1e-8)


@pytest.mark.parametrize("name", PAPER)
def test_never_better_than_nominal_and_monotone_in_the_radius(oracle, name):
    model = hf.environments.MODELS[name]()
    policy = oracle.random_policy(model, np.random.default_rng(0))
    worst = []
    for radius in [0.0, 0.01, 0.05, 0.1, 0.5, 2.0, np.inf]:
        found = hf.evaluate(model.replace(uncertainty=hf.KL(radius)), policy)
        assert found.reward.worst <= found.reward.nominal + found.error
        worst.append(found.reward.worst)
    assert worst[0] == pytest.approx(found.reward.nominal, abs=1e-9)
    assert np.all(np.diff(worst) <= 1e-9)
    # The value depends on the radius, strictly where nothing is degenerate.
    assert np.all(np.diff(worst[:5]) < -1e-6)


def test_an_infinite_radius_frees_nature_within_the_support(oracle):
    model = oracle.random_model(5, discount=0.7).replace(uncertainty=hf.KL(np.inf))
    policy = oracle.random_policy(model, np.random.default_rng(5))
    found = hf.evaluate(model, policy).reward
    values = np.zeros(model.states)
    for _ in range(500):
        values = (policy * (model.reward + model.discount * values.min())).sum(-1)
    np.testing.assert_allclose(found.values, values, atol=1e-9)


@pytest.mark.parametrize(
    "method",
    [
        "projected-gradient",
        hf.ProjectedGradient(geometry="kl"),
        # Without the scaling, rarely visited rows take hundreds of steps.
        pytest.param(hf.ProjectedGradient(scaled=False), marks=pytest.mark.long),
        "tilted",
    ],
)
def test_dual_projected_gradient_and_tilting_agree(oracle, method):
    for name in PAPER if CAMPAIGN else PAPER[:1]:
        model = hf.environments.MODELS[name]()
        policy = oracle.random_policy(model, np.random.default_rng(1))
        found = [hf.evaluate(model, policy, worst_case=each) for each in ("dual", method)]
        evaluation = found[1]
        assert evaluation.reward.worst == pytest.approx(found[0].reward.worst, abs=1e-6)
        assert evaluation.constraints[0].worst == pytest.approx(
            found[0].constraints[0].worst, abs=1e-6
        )
        assert evaluation.error < 1e-6


@pytest.mark.parametrize("next_state_signals", [False, True])
def test_tilting_with_poor_features_says_how_far_off_it_is(oracle, next_state_signals):
    model = oracle.random_model(2, next_state_signals=next_state_signals)
    policy = oracle.random_policy(model, np.random.default_rng(2))
    truth = hf.evaluate(model, policy).reward.worst
    features = np.random.default_rng(0).random((model.states, 1))
    found = hf.evaluate(model, policy, worst_case=hf.Tilted(features=features)).reward
    assert truth + 1e-4 < found.worst <= found.nominal
    assert found.worst - found.error <= truth
    # Features of (s, a, s') that hold the targets' own direction reach the worst case.
    rich = np.concatenate(
        [
            np.broadcast_to(np.eye(model.states), (*model.transitions.shape, model.states)),
            np.broadcast_to(
                model.reward if next_state_signals else model.reward[..., None],
                model.transitions.shape,
            )[..., None],
        ],
        axis=-1,
    )
    found = hf.evaluate(model, policy, worst_case=hf.Tilted(features=rich)).reward
    assert found.worst == pytest.approx(truth, abs=1e-6)


def test_next_state_features_miss_a_reward_on_the_transition(oracle):
    model = oracle.random_model(4, next_state_signals=True)
    policy = oracle.random_policy(model, np.random.default_rng(4))
    truth = hf.evaluate(model, policy).reward.worst
    only_next = hf.Tilted(features=np.eye(model.states))
    found = hf.evaluate(model, policy, worst_case=only_next).reward
    assert found.worst > truth + 1e-4
    assert found.error >= found.worst - truth


@pytest.mark.parametrize(("max_steps", "least"), [(1, 0.01), (3, 0.0)])
@pytest.mark.parametrize("name", PAPER)
def test_a_response_stopped_early_shows_as_a_large_error(oracle, name, max_steps, least):
    model = hf.environments.MODELS[name]()
    policy = oracle.random_policy(model, np.random.default_rng(2))
    truth = hf.evaluate(model, policy)
    hasty = model.replace(uncertainty=hf.KL(model.uncertainty.radius, max_steps=max_steps))
    found = hf.evaluate(hasty, policy)
    for early, exact in zip(
        (found.reward, *found.constraints), (truth.reward, *truth.constraints), strict=True
    ):
        assert early.worst >= exact.worst - exact.error
        assert early.worst - early.error <= exact.worst
    assert found.error > least


class Cheating(hf.KL):
    """A set whose responses leave it."""

    def respond(self, p, y, guess=None):
        response = super().respond(p, y, guess)
        lowest = y == y.min(-1, keepdims=True)
        kernel = 0.5 * response.kernel + 0.5 * lowest / lowest.sum(-1, keepdims=True)
        return response._replace(kernel=kernel)


def test_a_kernel_outside_the_set_certifies_nothing(oracle):
    model = oracle.random_model(1)
    policy = oracle.random_policy(model, np.random.default_rng(1))
    found = hf.evaluate(model.replace(uncertainty=Cheating(0.1)), policy)
    truth = hf.evaluate(model, policy)
    # The values are too low. The error reaches up to a member of the set, and so to the truth.
    assert found.reward.worst < truth.reward.worst - 0.1
    assert found.reward.worst + found.reward.error >= truth.reward.worst + truth.reward.error
    assert found.error > 0.1
    assert not found.feasible


def test_a_cost_reads_as_a_cost(oracle):
    model = oracle.random_model(6, constraints=2)
    policy = oracle.random_policy(model, np.random.default_rng(6))
    cost, limit = model.constraints[1].signal, model.constraints[1].threshold
    found = hf.evaluate(model, policy).constraints[1]
    turned = model.replace(constraints=[hf.at_least(-cost, -limit)])
    same = hf.evaluate(turned, policy).constraints[0]
    assert found.worst == pytest.approx(-same.worst, abs=1e-10)
    assert found.margin == pytest.approx(same.margin, abs=1e-10)
    assert found.margin == pytest.approx(limit - found.worst, abs=1e-10)
    assert found.worst >= found.nominal
    np.testing.assert_allclose(found.values, -same.values, atol=1e-10)
    np.testing.assert_allclose(found.advantages, -same.advantages, atol=1e-10)


def test_arrays_may_be_jax_and_the_precision_setting_is_left_alone(oracle):
    model = oracle.random_model(8)
    policy = oracle.random_policy(model, np.random.default_rng(8))
    before = jax.config.jax_enable_x64
    found = hf.evaluate(model, jax.numpy.asarray(policy))
    assert jax.config.jax_enable_x64 == before
    assert isinstance(found.reward.values, np.ndarray)
    assert found.reward.values.dtype == np.float64
    assert found.reward.worst == pytest.approx(hf.evaluate(model, policy).reward.worst, abs=1e-5)


def test_larger_models_are_evaluated_block_by_block_alike(oracle):
    """Beyond the size up to which all rows are taken at once."""
    model = oracle.random_model(0, states=130, actions=2, constraints=0, discount=0.9)
    policy = oracle.random_policy(model, np.random.default_rng(0))
    found = hf.evaluate(model, policy)
    values = oracle.values_under(model, found.reward.kernel, model.reward, policy)
    assert model.initial @ values == pytest.approx(found.reward.worst, abs=1e-9)
    assert found.error < 1e-9


@pytest.mark.parametrize(
    ("worst_case", "message"),
    [
        ("worst", "worst_case: unknown method 'worst'; there are 'dual'"),
        (hf.Tilted(features=np.ones((3, 2))), r"features: expected shape \(5, m\)"),
    ],
)
def test_bad_methods_are_refused(oracle, worst_case, message):
    model = oracle.random_model(0)
    with pytest.raises(ValueError, match=message):
        hf.evaluate(
            model, oracle.random_policy(model, np.random.default_rng(0)), worst_case=worst_case
        )


def test_bad_policies_are_refused(oracle):
    model = oracle.random_model(0)
    with pytest.raises(ValueError, match=r"policy: state 2 sums to 0\.9"):
        hf.evaluate(
            model, np.full((5, 3), 1 / 3) - 0.1 * (np.arange(5) == 2)[:, None] * np.eye(3)[0]
        )
    expected = "policy: expected shape (5, 3), or (5,) with integer action indices, got (4, 3)"
    with pytest.raises(ValueError, match=re.escape(expected)):
        hf.evaluate(model, np.full((4, 3), 1 / 3))
