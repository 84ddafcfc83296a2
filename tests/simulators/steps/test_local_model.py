"""The update of the deep part against a convex solver, on random instances with a known matrix H."""

import functools
import warnings
from typing import NamedTuple

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from holdfast.simulators.steps import local_model as quadratic

RESIDUAL = 1e-8
OBJECTIVE = 1e-6
# In float32, relative to what the trust region allows; see test_single_precision.
SINGLE = 5e-5

# How many instances for each number of constraints: 200 in all. How many parameters each has.
BATCHES = {1: 66, 2: 67, 3: 67}
PARAMETERS = {0: 6, 1: 6, 2: 12, 3: 12, 8: 12}

# Nothing is gained by shrinking a seed.
light = settings(max_examples=40, deadline=None, derandomize=True, phases=[Phase.generate])
seeds = st.integers(0, 2**32 - 1)
steps = pytest.mark.parametrize("name", ["rcpo_step", "cpo_step"])


# --- instances


class Instance(NamedTuple):
    """A local problem in all its n dimensions; a batch has one axis more in front of each field."""

    g: np.ndarray  # (n,)
    h: np.ndarray  # (m, n)
    H: np.ndarray  # (n, n)
    b: np.ndarray  # (m,)
    delta: np.ndarray  # ()

    @property
    def root(self):
        """L with H = LLᵀ: xᵀHx = ‖Lᵀx‖²."""
        return np.linalg.cholesky(self.H)

    def kl(self, x):
        return 0.5 * x @ self.H @ x

    def scaled(self, reward, constraints):
        """In other units: the step must not change."""
        constraints = np.broadcast_to(constraints, self.b.shape)
        return self._replace(
            g=self.g * reward, h=self.h * constraints[:, None], b=self.b * constraints
        )

    def with_constraint(self, h, b):
        return self._replace(h=np.vstack([self.h, h]), b=np.append(self.b, b))

    def reach(self):
        """How far the trust region lets each constraint move."""
        inverse = np.linalg.solve(self.H, self.h.T)
        return np.sqrt(2 * self.delta * np.sum(self.h.T * inverse, axis=0))


def instance(rng, m):
    """A random problem; b is drawn in units of the reach, so that every case is common."""
    n = PARAMETERS[m]
    matrix = rng.normal(size=(n, n))
    H = matrix @ matrix.T / n + 0.3 * np.eye(n)
    g, h = rng.normal(size=n), rng.normal(size=(m, n))
    # Some constraints nearly agree, some (nearly) contradict, some oppose the reward.
    kind = rng.random()
    if m > 1 and kind < 0.4:
        h[1] = rng.choice([-1.0, 1.0]) * h[0] + 0.4 * rng.normal(size=n)
    elif m > 1 and kind < 0.5:
        h[1] = -0.8 * h[0]
    if m == 1 and kind < 0.5:
        h[0] = -g + 0.7 * rng.normal(size=n)
    elif m > 2 and kind < 0.7:
        h[2] = -g + 0.7 * rng.normal(size=n)
    problem = Instance(g, h, H, np.zeros(m), np.float64(rng.uniform(0.005, 0.05)))
    low, high = [(-1.2, 0.0), (-0.5, 0.7), (0.2, 1.5)][rng.integers(3)]
    return problem._replace(b=problem.reach() * rng.uniform(low, high, size=m))


def stack(problems):
    return Instance(*(np.stack(fields) for fields in zip(*problems, strict=True)))


def unstack(batch):
    return [Instance(*fields) for fields in zip(*batch, strict=True)]


@functools.cache
def batch(m):
    rng = np.random.default_rng(m)
    return stack([instance(rng, m) for _ in range(BATCHES[m])])


# --- the code under test, compiled once for each m and precision


def local_model(g, h, inverse_g, inverse_h, b, delta):
    gradients, inverses = jnp.vstack([g, h]), jnp.vstack([inverse_g, inverse_h])
    return quadratic.local_model(gradients, inverses, b, delta)


def rcpo_step(model):
    """The update of RCPO and PCPO, as their iterations compose it."""
    step = quadratic.project(model, quadratic.improve(model))
    return quadratic.recover_unless(quadratic.is_recoverable(model), model, step)


def cpo_step(model):
    step = quadratic.improve_within(model)
    return quadratic.recover_unless(step.met, model, step)


def everything(g, h, inverse_g, inverse_h, b, delta):
    """All the steps of a problem, expanded, with what they say of themselves."""
    model = local_model(g, h, inverse_g, inverse_h, b, delta)
    made = {
        "rcpo_step": rcpo_step(model),
        "cpo_step": cpo_step(model),
        "project": quadratic.project(model, quadratic.improve(model)),
        "improve_within": quadratic.improve_within(model),
        "recover": quadratic.recover(model),
    }
    answers = {name: (model.step(s.coefficients), s.met, s.recovered) for name, s in made.items()}
    answers["is_recoverable"] = quadratic.is_recoverable(model)
    answers["improve"] = model.step(quadratic.improve(model))
    answers["coefficients"] = (made["rcpo_step"].coefficients, made["cpo_step"].coefficients)
    return answers


one_by_one = jax.jit(everything)


def arguments(problem, dtype=np.float64):
    g, h, H, b, delta = problem
    inverse = np.linalg.solve(H, np.vstack([g[None], h]).T).T
    return tuple(np.asarray(x, dtype) for x in (g, h, inverse[0], inverse[1:], b, delta))


def solve(problem, dtype=np.float64):
    with jax.enable_x64(dtype == np.float64):
        return jax.tree.map(np.asarray, one_by_one(*arguments(problem, dtype)))


@functools.cache
def answers(m):
    return [solve(problem) for problem in unstack(batch(m))]


# --- the oracle


def optimal(objective, constraints):
    """The optimal value; None where the constraints contradict."""
    problem = cp.Problem(objective, constraints)
    # As accurate as the solver will have it: the last is its default.
    for accuracy in (1e-10, 1e-9, 1e-8):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            problem.solve(
                cp.CLARABEL, tol_gap_abs=accuracy, tol_gap_rel=accuracy, tol_feas=accuracy
            )
        if problem.status == cp.INFEASIBLE:
            return None
        if problem.status == cp.OPTIMAL:
            break
    assert problem.status == cp.OPTIMAL
    return problem.value


class Truth(NamedTuple):
    """What the convex solver says of a problem. Lengths are √(2·KL)."""

    needed: float | None  # the length of the shortest feasible step, None if there is none
    within: float | None  # CPO's gain
    distance: float | None  # from the improvement to the feasible set, length
    active: int  # constraints with a multiplier in the projection
    margin: float | None  # the best smallest violated margin


def truth(problem):
    g, h, _, b, delta = problem
    radius = np.sqrt(2 * delta)
    # In the coordinates z = Lᵀx/√(2δ) the trust region is the unit ball.
    gz = radius * np.linalg.solve(problem.root, g)
    hz = radius * np.linalg.solve(problem.root, h.T).T
    z = cp.Variable(len(g))
    meets = hz @ z >= b
    in_region = cp.norm(z) <= 1
    half = gz / np.linalg.norm(gz)
    needed = optimal(cp.Minimize(cp.sum_squares(z)), [meets])
    distance, within, active, margin = None, None, 0, None
    if needed is not None:
        needed = radius * np.sqrt(max(needed, 0.0))
        distance = radius * np.sqrt(max(optimal(cp.Minimize(cp.sum_squares(z - half)), [meets]), 0))
        active = int(np.sum(meets.dual_value > 1e-4))
        if needed <= radius:
            within = optimal(cp.Maximize(gz @ z), [meets, in_region])
    if np.any(b > 0):
        margin = optimal(cp.Maximize(cp.min(hz[b > 0] @ z - b[b > 0])), [in_region])
    return Truth(needed, within, distance, active, margin)


@functools.cache
def truths(m):
    return [truth(problem) for problem in unstack(batch(m))]


def case(problem, true):
    if true.needed is None or true.needed > np.sqrt(2 * problem.delta):
        return "infeasible"
    if np.any(problem.b > 0):
        return "recoverable"
    return "inactive" if true.active == 0 else "active"


@functools.cache
def cases(m):
    return [case(p, t) for p, t in zip(unstack(batch(m)), truths(m), strict=True)]


def instances():
    for m in BATCHES:
        for i, (problem, true) in enumerate(zip(unstack(batch(m)), truths(m), strict=True)):
            yield problem, true, cases(m)[i], answers(m)[i]


def close(value, expected):
    return abs(value - expected) <= OBJECTIVE * max(1.0, abs(expected))


# --- against the oracle


def test_every_case_was_generated():
    count = dict.fromkeys(("inactive", "active", "recoverable", "infeasible"), 0)
    some, all_of_several, far, contradictory, total = 0, 0, 0, 0, 0
    for problem, true, name, _ in instances():
        total += 1
        count[name] += 1
        some += len(problem.b) > 1 and 0 < true.active < len(problem.b)
        all_of_several += 1 < true.active == len(problem.b)
        far += name == "infeasible" and np.sum(problem.b > 0) > 1
        contradictory += true.needed is None
    assert total == 200
    assert min(count.values()) >= 25, count
    assert min(some, all_of_several, far) >= 15, (some, all_of_several, far)
    assert contradictory >= 3


def test_improvement():
    for problem, _, _, answer in list(instances())[::10]:
        x = answer["improve"]
        assert problem.kl(x) == pytest.approx(problem.delta, rel=1e-10)
        step = cp.Variable(len(x))
        in_region = cp.norm(problem.root.T @ step) <= np.sqrt(2 * problem.delta)
        assert close(problem.g @ x, optimal(cp.Maximize(problem.g @ step), [in_region]))


def test_recoverable_where_the_solver_says_so():
    for _, _, name, answer in instances():
        assert answer["is_recoverable"] == (name != "infeasible")
        assert answer["improve_within"][1] == (name != "infeasible")
        assert answer["rcpo_step"][2] == answer["cpo_step"][2] == (name == "infeasible")


def test_projection():
    met = 0
    for problem, true, name, answer in instances():
        x, says_met, _ = answer["project"]
        assert says_met == (true.needed is not None)
        if true.needed is None:
            continue
        met += 1
        assert np.all(problem.h @ x - problem.b >= -RESIDUAL)
        moved = x - answer["improve"]
        # The distance itself, not its square: the square would hide an error of 1e-3.
        assert close(np.sqrt(2 * problem.kl(moved)), true.distance)
        if name != "infeasible":
            np.testing.assert_array_equal(answer["rcpo_step"][0], x)
    assert met >= 150


def test_improvement_within():
    for problem, true, name, answer in instances():
        if name == "infeasible":
            continue
        x, met, recovered = answer["cpo_step"]
        assert met
        assert not recovered
        assert np.all(problem.h @ x - problem.b >= -RESIDUAL)
        assert problem.kl(x) <= problem.delta * (1 + RESIDUAL)
        assert close(problem.g @ x, true.within)


def test_recovery():
    for problem, true, name, answer in instances():
        violated = problem.b > 0
        x = answer["recover"][0]
        assert problem.kl(x) <= problem.delta * (1 + RESIDUAL)
        if not violated.any():
            assert np.all(x == 0)
            continue
        margins = problem.h @ x - problem.b
        assert close(np.min(margins[violated]), true.margin)
        if name == "infeasible":
            assert np.min(margins) < 0
            assert not answer["recover"][1]
            np.testing.assert_array_equal(answer["rcpo_step"][0], x)
            np.testing.assert_array_equal(answer["cpo_step"][0], x)


@pytest.mark.parametrize("m", [1, 3])
def test_single_precision(m):
    """Gradients over orders of magnitude, in float32, against the checked answers in float64.

    The recoveries are left alone: margins compare in the constraints' own units. Tolerances are
    relative to what the trust region allows: 5e-5 of the reach of a constraint, of the reward's gain.
    """
    rng = np.random.default_rng(m)
    factors = 10.0 ** rng.uniform(-2, 0, size=(BATCHES[m], m))
    rewards = 10.0 ** rng.uniform(-1, 1, size=BATCHES[m])
    problems = [
        problem.scaled(reward, factor)
        for problem, reward, factor in zip(unstack(batch(m)), rewards, factors, strict=True)
    ]
    checked = 0
    for i, problem in enumerate(problems):
        exact, answer = answers(m)[i], solve(problem, np.float32)
        # Not where the trust region is within rounding of just touching the constraints.
        shortest = np.inf if truths(m)[i].needed is None else truths(m)[i].needed
        if abs(shortest / np.sqrt(2 * problem.delta) - 1) < 1e-3:
            continue
        assert answer["is_recoverable"] == exact["is_recoverable"]
        x, met, _ = answer["recover"]
        assert x.dtype == np.float32
        assert problem.kl(x) <= problem.delta * (1 + SINGLE)
        if not exact["is_recoverable"]:
            continue
        checked += 1
        most = problem.g @ exact["improve"]
        for name in ("rcpo_step", "cpo_step"):
            x, met, _ = answer[name]
            assert met
            assert np.all(problem.h @ x - problem.b >= -SINGLE * problem.reach())
            assert abs(problem.g @ (x - exact[name][0])) <= SINGLE * most
    assert checked >= 30


def test_the_sign_error_of_public_code_would_be_caught():
    """Infeasible but recoverable, one constraint: r flipped in CPO's dual gives another step."""

    def closed_form(problem, sign):
        """max gᵀx, ½xᵀHx ≤ δ, hᵀx ≥ b: x = (H⁻¹g + νH⁻¹h)/λ, with r in the dual times `sign`."""
        g, (h,), H, (b,), delta = problem
        inverse_g, inverse_h = np.linalg.solve(H, g), np.linalg.solve(H, h)
        q, r, s = g @ inverse_g, sign * (g @ inverse_h), h @ inverse_h
        # b > 0 and so the constraint or the trust region alone may bind: ν = max(0, (λb − r)/S).
        lam = np.sqrt((q - r**2 / s) / (2 * delta - b**2 / s))
        if lam * b < r:
            lam = np.sqrt(q / (2 * delta))
        return (inverse_g + max(0.0, (lam * b - r) / s) * inverse_h) / lam

    seen, violated, caught = 0, 0, 0
    for problem, _, name, answer in instances():
        if name != "recoverable" or len(problem.b) > 1:
            continue
        seen += 1
        x = answer["cpo_step"][0]
        np.testing.assert_allclose(x, closed_form(problem, 1), atol=1e-9)
        wrong = closed_form(problem, -1)
        is_violated = problem.h[0] @ wrong < problem.b[0] - 1e-4
        is_outside = problem.kl(wrong) > problem.delta * (1 + 1e-4)
        violated += is_violated
        caught += is_violated or is_outside
    # Where gᵀH⁻¹h is next to zero its sign says nothing.
    assert seen >= 15
    assert caught >= 0.9 * seen
    assert violated >= 10


def test_as_many_constraints_as_are_accepted():
    rng = np.random.default_rng(8)
    problem = instance(rng, 8)
    for sign in (-0.3, 0.2):
        problem = problem._replace(b=problem.reach() * sign * rng.uniform(0.2, 1, size=8))
        true, answer = truth(problem), solve(problem)
        x = answer["project"][0]
        assert np.all(problem.h @ x - problem.b >= -RESIDUAL)
        assert close(np.sqrt(2 * problem.kl(x - answer["improve"])), true.distance)
        assert answer["is_recoverable"] == (case(problem, true) != "infeasible")
        if answer["is_recoverable"]:
            assert close(problem.g @ answer["cpo_step"][0], true.within)


def test_too_many_constraints():
    g, h = jnp.ones(2), jnp.ones((9, 2))
    with pytest.raises(ValueError, match="needed: expected at most 8 constraints, got 9"):
        local_model(g, h, g, h, jnp.ones(9), 0.1)


# --- properties


def problem_of(seed, m):
    rng = np.random.default_rng(seed)
    return instance(rng, m), rng


def same(x, y, problem):
    """Whether two steps are the same to 1e-7 of the trust region."""
    return np.sqrt(2 * problem.kl(x - y)) <= 1e-7 * max(1.0, np.sqrt(2 * problem.kl(x)))


@steps
@light
@given(seeds)
def test_order_does_not_matter(name, seed):
    problem, rng = problem_of(seed, 3)
    order = rng.permutation(3)
    shuffled = problem._replace(h=problem.h[order], b=problem.b[order])
    for step in (name, "recover"):
        assert same(solve(problem)[step][0], solve(shuffled)[step][0], problem)


def test_order_permutes_the_coefficients():
    problem = problem_of(5, 3)[0]
    order = np.array([2, 0, 1])
    shuffled = problem._replace(h=problem.h[order], b=problem.b[order])
    for c, turned in zip(
        solve(problem)["coefficients"], solve(shuffled)["coefficients"], strict=True
    ):
        np.testing.assert_allclose(turned, c[np.append(0, 1 + order)], atol=1e-10)


@steps
@light
@given(seeds)
def test_an_idle_constraint_changes_nothing(name, seed):
    problem, rng = problem_of(seed, 2)
    step, met, recovered = solve(problem)[name]
    more = problem.with_constraint(rng.normal(size=problem.h.shape[1]), 0.0)
    # Idle at the step, and nowhere in the trust region, so that what is in reach stays the same.
    idle = min(more.h[-1] @ step, -more.reach()[-1]) - 1e-3
    more = more._replace(b=np.append(problem.b, idle))
    again, met_again, recovered_again = solve(more)[name]
    assert same(step, again, problem)
    assert (met, recovered) == (met_again, recovered_again)


@steps
@light
@given(seeds, st.integers(-3, 3))
def test_units_do_not_matter(name, seed, exponent):
    problem, rng = problem_of(seed, 2)
    step, met, recovered = solve(problem)[name]
    # In a recovery the smallest margin is compared in the constraints' units: one factor for all.
    factors = 10.0 ** (exponent if recovered else exponent * rng.uniform(-1, 1, size=2))
    again, met_again, recovered_again = solve(problem.scaled(10.0**-exponent, factors))[name]
    assert same(step, again, problem)
    assert (met, recovered) == (met_again, recovered_again)


@steps
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@light
@given(seeds)
def test_a_constraint_given_twice_changes_nothing(name, dtype, seed):
    problem, rng = problem_of(seed, 2)
    twice = rng.integers(2)
    more = problem.with_constraint(problem.h[twice], problem.b[twice])
    step, met, recovered = solve(problem)[name]
    again, met_again, recovered_again = solve(more, dtype)[name]
    if dtype == np.float64:
        assert same(step, again, problem)
        assert (met, recovered) == (met_again, recovered_again)
    else:
        assert np.all(np.isfinite(again))
        if met and met_again:
            assert np.all(problem.h @ again - problem.b >= -SINGLE * problem.reach())
            most = problem.g @ solve(problem)["improve"]
            assert abs(problem.g @ (step - again)) <= SINGLE * most


@light
@given(seeds)
def test_without_constraints_it_is_the_trust_region_step(seed):
    problem, _ = problem_of(seed, 0)
    answer = solve(problem)
    x = np.linalg.solve(problem.H, problem.g)
    x *= np.sqrt(2 * problem.delta / (problem.g @ x))
    for name in ("rcpo_step", "cpo_step", "project", "improve_within"):
        step, met, recovered = answer[name]
        np.testing.assert_allclose(step, x, rtol=1e-10)
        assert met
        assert not recovered
    assert answer["is_recoverable"]
    assert np.all(answer["recover"][0] == 0)


def test_vmap_equals_loop():
    def both(*problem):
        model = local_model(*problem)
        made = rcpo_step(model), cpo_step(model)
        return [(model.step(step.coefficients), step.met, step.recovered) for step in made]

    problems = unstack(batch(2))[:20]
    with jax.enable_x64(True):
        stacked = tuple(np.stack(x) for x in zip(*map(arguments, problems), strict=True))
        together = jax.jit(jax.vmap(both))(*stacked)
    for name, batched in zip(("rcpo_step", "cpo_step"), together, strict=True):
        one_by_one = zip(*(answer[name] for answer in answers(2)[:20]), strict=True)
        for a, b in zip(batched, one_by_one, strict=True):
            np.testing.assert_allclose(a, np.stack(b), rtol=1e-9, atol=1e-11)
        assert 0 < np.sum(batched[2]) < len(problems)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@light
@given(
    seeds,
    st.booleans(),
    st.lists(st.sampled_from(["zero", "copy", "opposite", "reward", "tiny"]), max_size=2),
    st.sampled_from([1e-12, 1e-3, 1.0]),
)
def test_always_finite(dtype, seed, no_reward, spoilt, delta):
    problem, rng = problem_of(seed, 3)
    g, h, b = problem.g * (not no_reward), problem.h.copy(), problem.b.copy()
    for row, kind in enumerate(spoilt, start=1):
        h[row] = {"zero": 0 * g, "copy": h[0], "opposite": -h[0], "reward": -g, "tiny": 1e-18 * g}[
            kind
        ]
        b[row] *= rng.choice([-1, 0, 1, 1e3])
    problem = problem._replace(g=g, h=h, b=b, delta=np.float64(delta))
    for leaf in jax.tree.leaves(solve(problem, dtype)):
        assert np.all(np.isfinite(leaf))


# --- corners


def test_a_need_that_is_not_a_number_is_not_met():
    problem = problem_of(1, 3)[0]
    answer = solve(problem._replace(b=np.array([np.nan, -1.0, -1.0])))
    for name in ("rcpo_step", "cpo_step"):
        step, met, _ = answer[name]
        assert np.all(np.isfinite(step))
        assert not met


def plane(g, h, b, delta=0.5):
    """A problem with H = I; δ = ½ makes the trust region the unit ball.

    It is filled up to a shape that is compiled already: idle parameters, and an idle third constraint.
    """
    if len(b) == 2:
        h, b = [*h, [0, 0, 0, 1]], [*b, -1.5]
    n = PARAMETERS[len(b)]
    g = np.pad(np.array(g, float), (0, n - len(g)))
    h = np.array([np.pad(np.array(row, float), (0, n - len(row))) for row in h])
    return Instance(g, h, np.eye(n), np.array(b, float), np.float64(delta))


corners = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@corners
def test_reward_in_the_span_of_the_active_constraint(dtype):
    # Every feasible step on hᵀx = b is as good as any other.
    problem = plane([1, 0, 0], [[-1, 0, 0], [0, 1, 0]], [-0.25, 0.5])
    step, met, recovered = solve(problem, dtype)["cpo_step"]
    assert met
    assert not recovered
    assert step[0] == pytest.approx(0.25, abs=1e-6)
    assert step[1] >= 0.5 - 1e-6
    assert problem.kl(step) <= 0.5 + 1e-6


@corners
@pytest.mark.parametrize("seed", range(10))
def test_reward_that_rounding_leaves_next_to_the_span(dtype, seed):
    problem, rng = problem_of(seed, 3)
    problem = problem._replace(g=-rng.uniform(0.1, 1, size=2) @ problem.h[:2])
    problem = problem._replace(b=problem.reach() * rng.uniform(-0.3, -0.1, size=3))
    step, met, _ = solve(problem, dtype)["cpo_step"]
    accuracy = SINGLE if dtype == np.float32 else RESIDUAL
    assert met
    assert problem.kl(step) <= problem.delta * (1 + accuracy)
    assert np.all(problem.h @ step - problem.b >= -accuracy * problem.reach())
    assert problem.g @ step == pytest.approx(truth(problem).within, rel=10 * accuracy)


@corners
def test_trust_region_that_just_touches(dtype):
    tolerance = np.finfo(dtype).eps
    for b, met in [(1 - 1e-3, True), (1, True), (1 + 1e-3, False)]:
        answer = solve(plane([0, 1], [[1, 0]], [b]), dtype)
        assert answer["is_recoverable"] == answer["improve_within"][1] == met
        exact = [1, 0] if b >= 1 else [b, np.sqrt(1 - b**2)]
        np.testing.assert_allclose(answer["cpo_step"][0][:2], exact, atol=20 * np.sqrt(tolerance))


@corners
def test_no_reward(dtype):
    answer = solve(plane([0, 0], [[1, 0]], [0.5]), dtype)
    assert np.all(answer["improve"] == 0)
    for name in ("rcpo_step", "cpo_step"):
        np.testing.assert_allclose(answer[name][0][:2], [0.5, 0], atol=1e-6)
        assert answer[name][1]


@corners
@pytest.mark.parametrize(("b", "met"), [(0.1, False), (0.0, True), (-0.1, True)])
def test_constraint_that_nothing_moves(dtype, b, met):
    answer = solve(plane([1, 0], [[0, 0], [0, 1]], [b, 0.5]), dtype)
    for name in ("project", "improve_within", "rcpo_step", "cpo_step"):
        assert answer[name][1] == met
    assert answer["is_recoverable"] == met
    # The other constraint is recovered all the same.
    if not met:
        np.testing.assert_allclose(answer["rcpo_step"][0][:2], [0, 1], atol=1e-6)


@corners
def test_constraints_that_contradict(dtype):
    answer = solve(plane([0, 1], [[1, 0], [-1, 0]], [0.5, 0.25]), dtype)
    assert not answer["project"][1]
    assert not answer["is_recoverable"]
    step, met, recovered = answer["rcpo_step"]
    assert recovered
    assert not met
    # The margins meet half-way: x − 0.5 = −x − 0.25.
    assert step[0] == pytest.approx(0.125, abs=1e-6)


@corners
def test_recovery_of_one_constraint(dtype):
    problem, _ = problem_of(3, 1)
    problem = problem._replace(b=2 * problem.reach())
    x = np.linalg.solve(problem.H, problem.h[0])
    x *= np.sqrt(2 * problem.delta / (problem.h[0] @ x))
    step, met, recovered = solve(problem, dtype)["rcpo_step"]
    np.testing.assert_allclose(step, x, atol=1e-5 if dtype == np.float32 else 1e-12)
    assert recovered
    assert not met


def test_recovery_where_all_could_be_met():
    answer = solve(plane([0, 1], [[1, 0], [0, 1]], [0.1, 0.3]))
    step, met, _ = answer["recover"]
    # x − 0.1 = y − 0.3 on the circle.
    assert step[0] - 0.1 == pytest.approx(step[1] - 0.3)
    assert np.linalg.norm(step) == pytest.approx(1)
    assert met


def test_projection_may_leave_the_trust_region():
    problem = plane([1, 0], [[0, 1]], [0.9])
    step, met, recovered = solve(problem)["rcpo_step"]
    np.testing.assert_allclose(step[:2], [1, 0.9])
    assert met
    assert not recovered
    assert problem.kl(step) > problem.delta
