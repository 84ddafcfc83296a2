"""Training for a certificate, on tables whose worst case is computed exactly."""

import json

import numpy as np
import pytest
from tests.simulators.certificates.known_simulators import DrawnMass

import holdfast as hf
from holdfast.environments import PointGather, TableSimulator
from holdfast.simulators.certificates.simulator_certificate import (
    CertifiedCost,
    CertifiedReward,
    SimulatorCertificate,
)
from holdfast.simulators.training.certified import CERTIFICATES, _moved

HORIZON, RADIUS, LIMIT = 3, 0.02, 0.6
SMALL = {"episodes": 2000, "draws": 16, "updates": 60, "every": 3}
TRAINING = {
    "cost_limit": LIMIT,
    "batch_size": 600,
    "trust_region": 0.1,
    "adversary": {"batch_size": 150, "updates": 1, "learning_rate": 0.1},
}


def table(**options):
    """Bold pays 1 and often leads to the worn state, where every step costs 1; careful rarely does."""
    kernel = np.array([[[0.4, 0.6], [0.95, 0.05]], [[0.5, 0.5], [0.5, 0.5]]])
    return hf.RobustCMDP(
        transitions=kernel,
        reward=np.array([[1.0, 0.0], [1.0, 0.0]]),
        constraints=[hf.at_most(np.array([[0.0, 0.0], [1.0, 1.0]]), LIMIT, name="wear")],
        initial=np.array([1.0, 0.0]),
        **options,
    )


@pytest.fixture(scope="module")
def env():
    return TableSimulator(
        table(discount=0.9, uncertainty=hf.KL(RADIUS)), name="wear", horizon=HORIZON
    )


def worst_case(agent, radius):
    """Return the worst-case cost of an agent, by exact evaluation."""
    logits = np.asarray(agent.policy.network(np.eye(2, dtype=np.float32)), float)
    policy = np.exp(logits - logits.max(1, keepdims=True))
    policy /= policy.sum(1, keepdims=True)
    model = table(discount=1.0, horizon=HORIZON, uncertainty=hf.KL(radius))
    return hf.evaluate(model, np.tile(policy, (HORIZON, 1, 1))).constraints[0].worst


@pytest.fixture(scope="module")
def folder(env, tmp_path_factory):
    """A run that is interrupted after its first attempt, and resumed."""
    out = tmp_path_factory.mktemp("certified") / "run"
    arguments = {"radius": RADIUS, "certified": 0.9, "proof_options": SMALL, **TRAINING}
    hf.train(
        env, iterations=9, out=out, callback=lambda rows: rows[-1]["iteration"] == 3, **arguments
    )
    hf.train(env, iterations=9, out=out, **arguments)
    return out


def test_the_bound_and_the_true_worst_case_are_within_the_limit(folder, env):
    agent = hf.load(folder, environment=env)
    proof, truth = agent.certificate, worst_case(agent, RADIUS)
    cost = proof.costs[0]
    assert proof.verdict == "holds"
    assert proof.confidence == 0.9
    assert cost.found <= truth <= cost.upper <= LIMIT
    assert proof.assumptions[0].startswith("Proved, after iteration")
    assert "of the risk 0.1" in proof.assumptions[1]
    # The policy still earns: a policy that is always careful has none of the reward.
    assert proof.reward.nominal > 0.1


def test_every_attempt_is_kept_with_its_share_of_the_risk(folder):
    rows = [json.loads(line) for line in (folder / CERTIFICATES).read_text().splitlines()]
    assert [row["attempt"] for row in rows] == list(range(1, len(rows) + 1))
    # Every third iteration; a run that is stopped makes up for a missing attempt.
    assert {row["iteration"] for row in rows} <= {3, 4, 6, 9}
    assert len({row["iteration"] for row in rows}) == len(rows)
    proof = hf.load(folder).certificate
    attempt = proof.setup["attempt"]
    # Two signals share the risk of the attempt.
    assert proof.setup["risk_per_signal"] == pytest.approx(0.1 / (attempt * (attempt + 1)) / 2)
    described = json.loads((folder / "run.json").read_text())["certified"]
    assert (described["confidence"], described["every"]) == (0.9, 3)


def test_what_cannot_be_proved_is_returned_with_a_warning(env):
    options = {"episodes": 100, "every": 2}
    with pytest.warns(UserWarning, match=r"pcpo-0: Not proved: wear is only bounded by"):
        agent = hf.train(
            env, "pcpo", iterations=1, certified=0.999, proof_options=options,
            **{**TRAINING, "cost_limit": 0.01},
        )  # fmt: skip
    proof = agent.certificate
    assert proof.method == "nominal kernel"
    assert proof.verdict != "holds"
    assert proof.costs[0].found <= worst_case(agent, 0.0) <= proof.costs[0].upper


@pytest.mark.long
def test_a_draw_once_an_episode_is_proved():
    # Action 0 costs 1 with a mass under 0.8, which nature makes more likely; action 1 is safe.
    agent = hf.train(
        DrawnMass(), radius=0.1, certified=0.9, iterations=4,
        proof_options={"episodes": 2000, "most_cost": 1, "every": 2},
        **{**TRAINING, "cost_limit": 0.15},
    )  # fmt: skip
    assert agent.certificate.method == "once an episode"
    assert agent.certificate.verdict == "holds"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"certified": 1.0}, "confidence: expected a number between 0 and 1"),
        ({"certified": None}, "proof_options: they need certified"),
        ({"proof_options": {"episode": 5}}, "no option 'episode'; did you mean episodes"),
        ({"proof_options": {"every": 0}}, "every: expected a whole number"),
        ({"proof_options": {"draws": 0}}, "draws: expected a whole number"),
        ({"proof_options": {"cost_range": (1, 0)}}, "cost_range: expected two finite numbers"),
        ({"memory": 1}, "certified: a policy with a memory has no bound"),
        ({"algorithm": "trpo"}, "certified: the algorithm does not enforce limits"),
    ],
)
def test_bad_arguments_are_refused_before_any_work(changes, message):
    arguments = {"algorithm": "pcpo", "certified": 0.9, "proof_options": {"episodes": 100}}
    with pytest.raises(ValueError, match=message):
        hf.train(PointGather(), cost_limit=0.1, iterations=1, **{**arguments, **changes})


def test_training_aims_at_the_limit_less_the_width_of_the_certificate():
    def proof(found, upper):
        cost = CertifiedCost("cost", 1.0, found, upper, found)
        reward = CertifiedReward(0.0, 0.0, 0.0)
        return SimulatorCertificate("env", "p", "every step", 0.1, 0.9, (cost,), reward, (), {})

    aims = np.array([1.0])
    assert _moved(proof(0.5, 0.8), aims) == pytest.approx([0.7])  # proved: 1 − 0.3
    assert _moved(proof(0.5, 1.2), aims) == pytest.approx([0.3])  # 1 − 0.7, below 1 − 0.2
    # The second failure with the same width lowers the aim by the excess.
    assert _moved(proof(0.9, 1.1), np.array([0.7])) == pytest.approx([0.6])
