"""Sensitivity of a policy, and sweeps over limits and radii."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import scipy.stats

import holdfast as hf
from holdfast.cli.main import main


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"lists": True, "next_state_signals": True},
        {"uncertainty": hf.TotalVariation(0.1)},
    ],
    ids=["dense", "lists", "anywhere"],
)
def test_what_nature_gains_in_pairs_is_the_whole_loss(oracle, changes):
    options = {key: value for key, value in changes.items() if key != "uncertainty"}
    model = oracle.random_model(5, constraints=2, **options)
    if "uncertainty" in changes:
        model = model.replace(uncertainty=changes["uncertainty"])
    policy = oracle.random_policy(model, np.random.default_rng(0))
    found = hf.sensitivity(model, policy, factors=[1.0])
    evaluation = found.evaluations[0]
    total = sum(pair.losses for pair in found.pairs)
    signals = (evaluation.reward, *evaluation.constraints)
    distances = [abs(each.nominal - each.worst) for each in signals]
    np.testing.assert_allclose(total, distances, atol=1e-9)
    assert all((pair.losses >= -1e-9).all() for pair in found.pairs)


def test_pairs_with_large_shares_are_those_worth_knowing(oracle):
    """The order of the shares is nearly that of the gains when one pair at a time has no uncertainty."""
    model = oracle.random_model(6).replace(state_names=list("abcde"), action_names=["x", "y", "z"])
    policy = oracle.random_policy(model, np.random.default_rng(1))
    found = hf.sensitivity(model, policy, factors=[0.0, 1.0])
    nominal, worst = (each.reward.worst for each in found.evaluations)
    assert nominal == pytest.approx(found.evaluations[1].reward.nominal)
    gains = []
    for pair in found.pairs:
        radius = np.full((5, 3), 0.1)
        radius["abcde".index(pair.state), "xyz".index(pair.action)] = 0.0
        known = hf.evaluate(model.replace(uncertainty=hf.KL(radius)), policy).reward.worst
        gains.append(known - worst)
    assert min(gains) >= -1e-9
    shares = [pair.losses[0] for pair in found.pairs]
    assert scipy.stats.spearmanr(shares, gains).statistic > 0.8
    assert f"{found.pairs[0].state} / {found.pairs[0].action}: " in str(found)


def test_a_shadow_price_bounds_what_a_looser_limit_is_worth():
    model = hf.environments.gambler()
    policy = hf.solve(model, iterations=60).policy
    found = hf.sensitivity(model, policy, factors=[1.0])
    (price,) = found.prices
    assert price > 0
    signal = model.constraints[0].signal
    relaxed = hf.solve(model.replace(constraints=[hf.at_least(signal, 1.0)]), iterations=60)
    most = found.upper_bound + price * 1.5
    assert (
        found.evaluations[0].reward.worst - 1e-2 <= relaxed.evaluation.reward.worst <= most + 1e-9
    )


def test_a_front_is_monotone_and_below_its_upper_side(tmp_path, capsys):
    values = "utility=3,1,99"
    assert (
        main(["sweep", "gambler", "--limit", values, "--iterations", "60", "--out", str(tmp_path)])
        == 0
    )
    with (tmp_path / "sweep.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["limit of utility"]) for row in rows] == [1, 3, 99]
    assert [row["status"] for row in rows] == ["feasible"] * 2 + ["infeasible"]
    rewards = [float(row["reward"]) for row in rows[:2]]
    uppers = [float(row["upper_bound"]) for row in rows]
    assert rewards == sorted(rewards, reverse=True)
    assert uppers == sorted(uppers, reverse=True)
    assert all(a <= b + 1e-9 for a, b in zip(rewards, uppers, strict=False))
    assert uppers[2] == -np.inf
    assert (tmp_path / "sweep.png").stat().st_size > 1000
    assert "limit of utility" in capsys.readouterr().out


def test_what_a_sweep_refuses(capsys):
    with pytest.raises(
        ValueError, match="limit, radius, models: expected exactly one of them, got none"
    ):
        hf.sweep("gambler")
    with pytest.raises(
        ValueError, match="limit: there is no constraint 'utilty'; did you mean utility"
    ):
        hf.sweep("gambler", limit={"utilty": [1.0]})
    with pytest.raises(
        ValueError, match="model: required with limit or radius, not allowed with models"
    ):
        hf.sweep(radius=[1.0])
    assert main(["sweep", "gambler", "--limit", "utility=x"]) == 2
    assert "--limit: expected NAME=NUMBER" in capsys.readouterr().err
