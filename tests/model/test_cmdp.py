import io
import json
import pickle
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.model import check_policy

DENSE = np.array([[[0.9, 0.1], [0.2, 0.8]], [[0.5, 0.5], [0.0, 1.0]]])
SUCCESSORS = np.array([[[0, 1, 1], [1, 0, 0]], [[0, 1, 0], [1, 1, 1]]])
PROBABILITIES = np.array([[[0.5, 0.25, 0.25], [1, 0, 0]], [[0.2, 0.3, 0.5], [0.1, 0.2, 0.7]]])
PAIRS = np.array([[0.0, 1.0], [2.0, 3.0]])


def model(**changes):
    arguments = {"transitions": DENSE, "reward": PAIRS, "discount": 0.9}
    return hf.RobustCMDP(**arguments | changes)


def changed(array, index, value):
    array = np.array(array, dtype=np.result_type(array, type(value)))
    array[index] = value
    return array


def refused(message):
    return pytest.raises(ValueError, match=f"^{re.escape(message)}")


# --- what is accepted


def test_what_is_left_out():
    plain = model()
    assert (plain.states, plain.actions) == (2, 2)
    assert plain.constraints == ()
    assert plain.initial.tolist() == [0.5, 0.5]
    assert isinstance(plain.uncertainty, hf.KL)
    assert plain.uncertainty.radius == 0


@pytest.mark.parametrize("convert", [np.asarray, jnp.asarray, np.ndarray.tolist])
def test_arrays_come_in_as_numpy_or_jax_and_stay_as_numpy(convert):
    half = np.full((2, 2, 2), 0.5)
    made = model(
        transitions=convert(half),
        reward=convert(PAIRS),
        constraints=[hf.at_most(convert(PAIRS), 1.0)],
        initial=convert(np.array([0.25, 0.75])),
    )
    for array, expected in (
        (made.transitions, half),
        (made.reward, PAIRS),
        (made.constraints[0].signal, PAIRS),
        (made.initial, np.array([0.25, 0.75])),
    ):
        assert type(array) is np.ndarray
        assert array.dtype == np.float64
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("off", [9e-9, -9e-9])
def test_rows_that_are_nearly_one_are_renormalised(off):
    dense = changed(DENSE, (0, 1, 0), 0.2 + off)
    assert abs(model(transitions=dense).transitions[0, 1].sum() - 1) < 1e-15
    lists = hf.Kernel(SUCCESSORS, changed(PROBABILITIES, (1, 0, 1), 0.3 + off))
    assert abs(lists.probabilities[1, 0].sum() - 1) < 1e-15
    assert abs(model(initial=[0.5, 0.5 + off]).initial.sum() - 1) < 1e-15


def test_arrays_are_copies_that_cannot_be_written():
    reward, signal, initial = PAIRS.copy(), PAIRS.copy(), np.array([0.25, 0.75])
    lists = hf.Kernel(SUCCESSORS.copy(), PROBABILITIES.copy())
    dense = model(reward=reward, constraints=[hf.at_least(signal, 1.0)], initial=initial)
    for mine in (reward, signal, initial):
        mine[:] = -7
    arrays = {
        "transitions": dense.transitions,
        "reward": dense.reward,
        "signal": dense.constraints[0].signal,
        "initial": dense.initial,
        "successors": lists.successors,
        "probabilities": lists.probabilities,
    }
    for name, array in arrays.items():
        assert (array >= 0).all(), name
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_fields_cannot_be_set():
    with pytest.raises(AttributeError):
        model().discount = 0.5


def test_replace_checks_again():
    assert model().replace(discount=0.5).discount == 0.5
    with refused("discount: expected a number in [0, 1), got 2.0"):
        model().replace(discount=2.0)


def test_signals_may_have_the_kernel_s_own_layout():
    by_next_state = np.arange(8.0).reshape(2, 2, 2)
    assert model(reward=by_next_state).reward.shape == (2, 2, 2)
    by_outcome = np.arange(12.0).reshape(2, 2, 3)
    lists = hf.Kernel(SUCCESSORS, PROBABILITIES)
    assert model(transitions=lists, reward=by_outcome).reward.shape == (2, 2, 3)
    with refused("reward: expected shape (2, 2), or (2, 2, 3) where it depends on the next state"):
        model(transitions=lists, reward=by_next_state)


def test_a_cost_is_the_utility_turned_and_is_shown_as_a_cost():
    cost, utility = hf.at_most(PAIRS, 0.1), hf.at_least(PAIRS, 0.1)
    np.testing.assert_array_equal(cost.utility, -PAIRS)
    assert cost.utility_threshold == -0.1
    assert cost.shown(-3.0) == 3.0
    np.testing.assert_array_equal(utility.utility, PAIRS)
    assert utility.utility_threshold == 0.1
    assert utility.shown(3.0) == 3.0
    assert str(cost) == repr(cost) == "cost ≤ 0.1"
    assert str(hf.at_least(PAIRS, 2, name="thrift")) == "thrift ≥ 2"


def test_a_model_prints_as_one_line_without_arrays():
    made = model(
        transitions=hf.Kernel(SUCCESSORS, PROBABILITIES),
        constraints=[hf.at_most(PAIRS, 0.5, name="fuel"), hf.at_least(PAIRS, 2)],
        uncertainty=hf.KL([[0.1, 0.2], [0.1, np.inf]]),
    )
    assert str(made) == repr(made)
    assert str(made) == (
        "RobustCMDP(states=2, actions=2, constraints=[fuel ≤ 0.5, utility ≥ 2], "
        "uncertainty=KL(radius=0.1 to inf), discount=0.9)"
    )
    assert str(made.transitions) == "Kernel(states=2, actions=2, successors=3)"


# --- what is refused


@pytest.mark.parametrize(
    ("transitions", "message"),
    [
        (changed(DENSE, (0, 1, 0), 0.3), "transitions: (state 0, action 1) sums to 1.1, not 1"),
        (
            changed(DENSE, (0, 1, 0), 0.2 + 2e-8),
            "transitions: (state 0, action 1) sums to 1.00000002, not 1",
        ),
        (
            changed(DENSE, (1, 0, 1), -0.5),
            "transitions: (state 1, action 0, entry 1) has probability -0.5",
        ),
        (
            changed(DENSE, (1, 1, 0), np.nan),
            "transitions: (state 1, action 1, entry 0) has probability nan",
        ),
        (changed(DENSE, (1, 0, 0), np.inf), "transitions: (state 1, action 0) sums to inf, not 1"),
        (DENSE[0], "transitions: expected shape (states, actions, states), got (2, 2)"),
        (DENSE[:, :, :1], "transitions: expected shape (states, actions, states), got (2, 2, 1)"),
        (DENSE[:, :0], "transitions: expected shape (states, actions, states), got (2, 0, 2)"),
        ("a kernel", "transitions: expected an array of numbers"),
        ([[[1.0], [0.5, 0.5]]], "transitions: expected an array of numbers"),
        (None, "transitions: expected shape (states, actions, states), got ()"),
    ],
)
def test_bad_transitions(transitions, message):
    with refused(message):
        model(transitions=transitions)


@pytest.mark.parametrize(
    ("successors", "probabilities", "message"),
    [
        (
            changed(SUCCESSORS, (1, 0, 2), 2),
            PROBABILITIES,
            "successors: (state 1, action 0, entry 2) is 2, but states are 0 to 1",
        ),
        (
            changed(SUCCESSORS, (0, 1, 0), -1),
            PROBABILITIES,
            "successors: (state 0, action 1, entry 0) is -1, but states are 0 to 1",
        ),
        (SUCCESSORS * 1.0, PROBABILITIES, "successors: expected integers, got float64"),
        (
            SUCCESSORS[0],
            PROBABILITIES,
            "successors: expected shape (states, actions, K), got (2, 3)",
        ),
        (SUCCESSORS[:, :, :0], PROBABILITIES, "successors: expected shape (states, actions, K)"),
        ([[[0], [0, 0]]], PROBABILITIES, "successors: expected an array of numbers"),
        (
            SUCCESSORS,
            PROBABILITIES[:, :, :2],
            "probabilities: shape (2, 2, 2) differs from that of successors, (2, 2, 3)",
        ),
        (
            SUCCESSORS,
            changed(PROBABILITIES, (1, 0, 0), 0.1),
            "probabilities: (state 1, action 0) sums to 0.9, not 1",
        ),
        (
            SUCCESSORS,
            changed(PROBABILITIES, (0, 0, 2), -0.25),
            "probabilities: (state 0, action 0, entry 2) has probability -0.25",
        ),
        (
            SUCCESSORS,
            changed(PROBABILITIES, (1, 1, 1), np.nan),
            "probabilities: (state 1, action 1, entry 1) has probability nan",
        ),
    ],
)
def test_bad_successor_lists(successors, probabilities, message):
    with refused(message):
        hf.Kernel(successors, probabilities)


@pytest.mark.parametrize(
    ("signal", "message"),
    [
        (changed(PAIRS, (1, 0), np.nan), "(state 1, action 0) is nan, not a finite number"),
        (changed(PAIRS, (0, 1), -np.inf), "(state 0, action 1) is -inf, not a finite number"),
        (
            changed(np.zeros((2, 2, 2)), (1, 1, 0), np.nan),
            "(state 1, action 1, entry 0) is nan, not a finite number",
        ),
        (PAIRS[0], "expected shape (2, 2), or (2, 2, 2) where it depends on the next state, got"),
        (np.zeros((2, 2, 3)), "expected shape (2, 2), or (2, 2, 2) where it depends on the next"),
    ],
)
def test_bad_signals(signal, message):
    with refused(f"reward: {message}"):
        model(reward=signal)
    with refused(f"constraints[1]: {message}"):
        model(constraints=[hf.at_least(PAIRS, 0.0), hf.at_most(signal, 0.0)])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: model(reward="much"), "reward: expected an array of numbers"),
        (lambda: hf.at_least(["much"], 1.0), "signal: expected an array of numbers"),
        (
            lambda: model(constraints=[hf.at_least("much", 1.0)]),
            "constraints[0]: the signal 'much' is known by name only to from_log and to files",
        ),
        (lambda: hf.at_most([[1.0], [1.0, 2.0]], 1.0), "signal: expected an array of numbers"),
        (lambda: hf.at_least(PAIRS, np.nan), "threshold: expected a finite number, got nan"),
        (lambda: hf.at_most(PAIRS, np.inf), "threshold: expected a finite number, got inf"),
        (lambda: hf.at_most(PAIRS, [1.0, 2.0]), "threshold: expected a finite number, got [1.0, 2"),
        (
            lambda: hf.Constraint(PAIRS, 1.0, "below"),
            "sense: expected 'at_least' or 'at_most', got 'below'",
        ),
        (
            lambda: model(constraints=[hf.at_least(PAIRS, 1.0), (PAIRS, 2.5)]),
            "constraints[1]: expected at_least(signal, threshold), at_most(signal, threshold) or "
            "reach(states, …), got tuple",
        ),
        (
            lambda: model(constraints=hf.at_least(PAIRS, 1.0)),
            "constraints: expected a sequence, got Constraint",
        ),
    ],
)
def test_bad_constraints(make, message):
    with refused(message):
        make()


@pytest.mark.parametrize(
    ("initial", "message"),
    [
        ([0.5, 0.4], "initial: sums to 0.9, not 1"),
        ([1.5, -0.5], "initial: state 1 has probability -0.5"),
        ([np.nan, 1.0], "initial: state 0 has probability nan"),
        ([np.inf, 0.0], "initial: sums to inf, not 1"),
        ([1.0], "initial: expected shape (2,), got (1,)"),
        ([[0.5, 0.5]], "initial: expected shape (2,), got (1, 2)"),
        ("start", "initial: expected an array of numbers"),
    ],
)
def test_bad_initial(initial, message):
    with refused(message):
        model(initial=initial)


@pytest.mark.parametrize(
    ("discount", "message"),
    [
        (1.0, "discount: expected a number in [0, 1), got 1.0"),
        (1.0000001, "discount: expected a number in [0, 1), got 1.0000001"),
        (-0.1, "discount: expected a number in [0, 1), got -0.1"),
        (np.nan, "discount: expected a finite number, got nan"),
        (None, "discount: expected a finite number, got None"),
        ([0.9, 0.9], "discount: expected a finite number, got [0.9, 0.9]"),
    ],
)
def test_bad_discount(discount, message):
    with refused(message):
        model(discount=discount)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hf.KL(-0.1), "radius: expected at least 0, got -0.1"),
        (lambda: hf.KL(np.nan), "radius: expected at least 0, got nan"),
        (
            lambda: hf.KL(changed(PAIRS, (1, 0), -2.0)),
            "radius: expected at least 0, got -2.0 at (state 1, action 0)",
        ),
        (lambda: hf.KL("wide"), "radius: expected an array of numbers"),
        (
            lambda: model(uncertainty=hf.KL([0.1, 0.2])),
            "radius: expected a number or shape (2, 2), got (2,)",
        ),
        (lambda: model(uncertainty=0.1), "uncertainty: expected a set such as KL(0.1), got float"),
    ],
)
def test_bad_uncertainty(make, message):
    with refused(message):
        make()


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (
            [[0.5, 0.5]],
            "start: expected shape (2, 2), or (2,) with integer action indices, got (1, 2)",
        ),
        (
            [0.0, 1.0],
            "start: expected shape (2, 2), or (2,) with integer action indices, got (2,) of",
        ),
        ([0, 2], "start: state 1 has action 2, but actions are 0 to 1"),
        ([-1, 0], "start: state 0 has action -1, but actions are 0 to 1"),
        ([0, 1, 0], "start: expected shape (2, 2), or (2,) with integer action indices, got (3,)"),
        ([[0.5, 0.5], [0.5, 0.6]], "start: state 1 sums to 1.1, not 1"),
        ([[1.5, -0.5], [0.5, 0.5]], "start: (state 0, action 1) has probability -0.5"),
        ([[0.5, 0.5], [np.nan, 1.0]], "start: (state 1, action 0) has probability nan"),
        ("random", "start: expected an array of numbers"),
    ],
)
def test_bad_policy(policy, message):
    with refused(message):
        check_policy("start", policy, 2, 2)


@pytest.mark.parametrize("convert", [list, np.asarray, jnp.asarray, np.uint8])
def test_a_policy_may_be_given_as_action_indices(convert):
    policy = check_policy("start", convert([1, 0]), 2, 3)
    np.testing.assert_array_equal(policy, [[0, 1, 0], [1, 0, 0]])


def test_a_policy_is_renormalised():
    policy = check_policy("start", [[0.5, 0.5 + 5e-9], [1.0, 0.0]], 2, 2)
    np.testing.assert_allclose(policy.sum(-1), 1, rtol=1e-15)


# --- properties


@st.composite
def rows(draw, *shape):
    """Distributions over the last axis, some of their entries zero."""
    seed = draw(st.integers(0, 2**32 - 1))
    generator = np.random.default_rng(seed)
    weights = generator.uniform(size=shape) * (generator.uniform(size=shape) < 0.7)
    weights[..., 0] += weights.sum(-1) == 0
    return weights / weights.sum(-1, keepdims=True)


@st.composite
def kernels(draw, states, actions):
    width = draw(st.integers(1, 6))
    indices = st.integers(0, 2**32 - 1).map(
        lambda seed: np.random.default_rng(seed).integers(states, size=(states, actions, width))
    )
    return hf.Kernel(draw(indices), draw(rows(states, actions, width)))


@st.composite
def models(draw):
    states, actions = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    transitions = draw(st.one_of(kernels(states, actions), rows(states, actions, states)))
    layout = getattr(transitions, "probabilities", transitions).shape
    numbers = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def signal():
        return numbers.normal(size=draw(st.sampled_from([layout[:2], layout])))

    def constraint():
        make = draw(st.sampled_from([hf.at_least, hf.at_most]))
        name = draw(st.none() | st.text(max_size=5))
        return make(signal(), numbers.normal(), name=name)

    radii = st.sampled_from([0.0, 0.1, np.inf])
    return hf.RobustCMDP(
        transitions=transitions,
        reward=signal(),
        constraints=[constraint() for _ in range(draw(st.integers(0, 3)))],
        initial=draw(rows(states)),
        discount=draw(st.floats(0, 1, exclude_max=True)),
        uncertainty=hf.KL(
            numbers.choice([0.0, 0.3, np.inf], size=layout[:2])
            if draw(st.booleans())
            else draw(radii)
        ),
    )


@settings(deadline=None)
@given(data=st.data(), states=st.integers(1, 5), actions=st.integers(1, 3))
def test_dense_gathers_what_the_lists_say(data, states, actions):
    kernel = data.draw(kernels(states, actions))
    dense = kernel.dense()
    assert dense.shape == (states, actions, states)
    np.testing.assert_allclose(dense.sum(-1), 1, atol=1e-14)
    for s, a in np.ndindex(states, actions):
        for successor in range(states):
            listed = kernel.probabilities[s, a][kernel.successors[s, a] == successor]
            np.testing.assert_allclose(dense[s, a, successor], listed.sum(), atol=1e-15)


def assert_same(one, other):
    assert type(one.transitions) is type(other.transitions)
    if isinstance(one.transitions, hf.Kernel):
        np.testing.assert_array_equal(one.transitions.successors, other.transitions.successors)
        np.testing.assert_array_equal(
            one.transitions.probabilities, other.transitions.probabilities
        )
    else:
        np.testing.assert_array_equal(one.transitions, other.transitions)
    np.testing.assert_array_equal(one.reward, other.reward)
    np.testing.assert_array_equal(one.initial, other.initial)
    assert one.discount == other.discount
    assert type(one.uncertainty) is type(other.uncertainty)
    np.testing.assert_array_equal(one.uncertainty.radius, other.uncertainty.radius)
    assert len(one.constraints) == len(other.constraints)
    for mine, theirs in zip(one.constraints, other.constraints, strict=True):
        np.testing.assert_array_equal(mine.signal, theirs.signal)
        assert (mine.threshold, mine.sense, mine.name) == (
            theirs.threshold,
            theirs.sense,
            theirs.name,
        )


@settings(deadline=None)
@given(original=models())
def test_a_saved_model_comes_back_to_the_last_bit(original, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "round-trip.npz"
    original.save(path)
    assert_same(hf.RobustCMDP.load(path), original)


# --- files


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "deep" / "model.npz"
    hf.environments.gambler(goal=4).save(path)
    return path


def refused_with_path(path, reason=""):
    return pytest.raises(
        ValueError, match=f"^{re.escape(f'{path}: not a Holdfast model: ')}.*{re.escape(reason)}"
    )


def rewritten(path, **changes):
    """The same archive with some of its arrays changed, or left out where None."""
    with np.load(path) as file:
        arrays = dict(file) | changes
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})


def header(path, **changes):
    with np.load(path) as file:
        return np.array(json.dumps(json.loads(str(file["header"])) | changes))


def test_save_takes_the_path_as_it_is(tmp_path):
    model().save(str(tmp_path / "no-suffix"))
    assert [path.name for path in tmp_path.iterdir()] == ["no-suffix"]
    assert_same(hf.RobustCMDP.load(tmp_path / "no-suffix"), model())


def test_a_failure_in_the_middle_leaves_the_old_file(saved, monkeypatch):
    before = saved.read_bytes()

    def disk_full(file, **arrays):
        file.write(b"PK half of it")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", disk_full)
    with pytest.raises(OSError, match="disk full"):
        model().save(saved)
    with pytest.raises(OSError, match="disk full"):
        model().save(saved.with_name("new.npz"))
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_load_of_nothing(tmp_path):
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path / "absent.npz"))):
        hf.RobustCMDP.load(tmp_path / "absent.npz")


@settings(deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_harmless(data, tmp_path_factory):
    """Some bytes of an archive mean nothing, such as its dates; no other may be lost unseen."""
    original = hf.environments.gambler(goal=4)
    path = tmp_path_factory.getbasetemp() / "damaged.npz"
    original.save(path)
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        loaded, message = hf.RobustCMDP.load(path), ""
    except ValueError as error:
        loaded, message = original, str(error)
    assert not message or message.startswith(f"{path}: not a Holdfast model: ")
    assert_same(loaded, original)


@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(saved, kept):
    content = saved.read_bytes()
    saved.write_bytes(content[: int(kept * len(content))])
    with refused_with_path(saved):
        hf.RobustCMDP.load(saved)


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("member", ["header", "reward", "uncertainty_radius"])
def test_a_pickled_array_is_refused_and_not_run(saved, member):
    sprung = saved.with_name("sprung")
    rewritten(saved, **{member: np.array([Trap(sprung)], dtype=object)})
    with refused_with_path(saved, "allow_pickle=False"):
        hf.RobustCMDP.load(saved)
    assert not sprung.exists()


def test_a_pickle_is_refused_and_not_run(saved):
    sprung = saved.with_name("sprung")
    saved.write_bytes(pickle.dumps(Trap(sprung)))
    with refused_with_path(saved):
        hf.RobustCMDP.load(saved)
    assert not sprung.exists()


def test_foreign_files_are_refused(saved):
    np.savez(saved, weights=np.ones(3))
    with refused_with_path(saved, "it has no 'header'"):
        hf.RobustCMDP.load(saved)
    np.savez(saved, policy=np.ones((3, 2)))
    with refused_with_path(saved, "it is a policy"):
        hf.RobustCMDP.load(saved)
    array = io.BytesIO()
    np.save(array, np.ones(3))
    for content in (b"some text", array.getvalue()):
        saved.write_bytes(content)
        with refused_with_path(saved):
            hf.RobustCMDP.load(saved)
    with refused_with_path(saved.parent):
        hf.RobustCMDP.load(saved.parent)


def test_a_file_with_another_header_is_refused(saved):
    for text, reason in (
        (header(saved, format="holdfast-model-9"), "format 'holdfast-model-9'"),
        (header(saved, uncertainty={"set": "unheard-of"}), "'unheard-of'"),
        (header(saved, constraints=[{"sense": "at_least"}]), "it has no 'threshold'"),
        (header(saved, discount=2.0), "discount: expected a number in [0, 1), got 2.0"),
        (np.array("{"), ""),
        (np.array("[1]"), ""),
        (np.array("[" * 100_000), ""),
    ):
        rewritten(saved, header=text)
        with refused_with_path(saved, reason):
            hf.RobustCMDP.load(saved)
        hf.environments.gambler(goal=4).save(saved)


def test_what_a_file_says_is_checked_like_any_input(saved):
    with np.load(saved) as file:
        half = file["probabilities"] / 2
    rewritten(saved, probabilities=half)
    with refused_with_path(saved, "probabilities: (state 0, action 0) sums to 0.5, not 1"):
        hf.RobustCMDP.load(saved)
    rewritten(saved, probabilities=None)
    with refused_with_path(saved, "it has no 'probabilities'"):
        hf.RobustCMDP.load(saved)
