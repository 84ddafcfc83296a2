"""What the algorithms have in common, and what each of them ignores."""

import numpy as np
import pytest

import holdfast as hf


@pytest.fixture(scope="module")
def first(chain, tiny):
    """The first update of an algorithm: the policies' weights, and the rows."""

    def train(algorithm, cost_limit):
        rows = []
        agents = hf.train(
            chain, algorithm, iterations=1, cost_limit=cost_limit, callback=rows.extend, **tiny
        )
        return np.stack([np.asarray(agent.policy.network.weights[0]) for agent in agents]), rows

    return train


def test_with_limits_out_of_the_way_all_make_the_same_update(first):
    improved, rows = first("trpo", 1e3)
    assert all(row["accepted"] and 0 < row["kl"] <= 0.01 for row in rows)
    for algorithm in ("pcpo", "cpo"):
        weights, own = first(algorithm, 1e3)
        np.testing.assert_allclose(weights, improved, rtol=1e-3, atol=1e-5)
        assert not any(row["recovered"] for row in own)


def test_a_limit_out_of_reach_makes_all_recover_but_trpo(first):
    free, _ = first("trpo", 1e3)
    limited, rows = first("trpo", -1e3)
    np.testing.assert_array_equal(limited, free)
    assert not any(row["recovered"] for row in rows)
    (pcpo, own), (cpo, others) = first("pcpo", -1e3), first("cpo", -1e3)
    assert all(row["recovered"] and not row["met"] for row in [*own, *others])
    np.testing.assert_allclose(pcpo, cpo, rtol=1e-4, atol=1e-6)
    assert np.abs(pcpo - free).max() > 0.01
