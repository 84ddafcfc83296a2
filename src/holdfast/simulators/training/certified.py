"""Training for a certificate: training aims at a moving limit until the true limit is proved.

Every few iterations the current policy is certified from fresh episodes. Training then uses a lower
limit: the limit less the width of the certificate (its bound less the cost that the attack found).
After an attempt that fails, it also aims lower than before by at least the excess of the bound over the
limit.

*The risk.* The agent that is returned is chosen by looking at several certificates. Attempt k has
1/(k·(k + 1)) of the risk. The shares of any number of attempts add up to less than one. So all
certificates of an agent hold together with the stated confidence, whichever of them is chosen.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from holdfast._support.arguments import check_whole_number
from holdfast._support.files import plain, write_bytes, write_text
from holdfast.simulators.certificates.proof_options import ProofOptions
from holdfast.simulators.certificates.simulator_certificate import SimulatorCertificate
from holdfast.simulators.certify import certifying
from holdfast.simulators.environment import Environment, TrainingError
from holdfast.simulators.failures import host_failures
from holdfast.simulators.policy.agent import Agent, load_agent
from holdfast.simulators.stress import check_measurement
from holdfast.simulators.training import runs
from holdfast.simulators.training.learner import Learner

CERTIFICATES = "certificates.jsonl"
# Iterations between two attempts, four in a run of default length. With default sizes a certificate of
# Point Gather simulates 45 million steps for each signal, and an iteration of RCPO 0.2 million.
_EVERY = 25


@dataclasses.dataclass(frozen=True)
class CertifiedGoal:
    """The certificate that training aims at.

    Attributes:
        confidence: probability with which all certificates of an agent hold together.
        options: ranges and sample sizes of each certificate.
        every: iterations between two attempts; the last iteration is followed by one too.
    """

    confidence: float
    options: ProofOptions
    every: int

    @classmethod
    def read(cls, certified: float | None, given: Mapping[str, Any] | None) -> Self | None:
        """Return the goal in the arguments of `train`, or None if there is none.

        Raises:
            ValueError: an option is unknown, or given without `certified`.
        """
        options = dict(given or {})
        if certified is None:
            if options:
                raise ValueError(f"proof_options: they need certified, got {options}")
            return None
        every = options.pop("every", _EVERY)
        check_whole_number("every", every, least=1)
        return cls(certified, ProofOptions.read(options), every)

    def check(self, env: Environment, radius: float, memory: int, constrained: bool) -> None:
        """Raise a ValueError if no certificate of such a run can be computed."""
        settings = self.options.settings(env)
        check_measurement(settings.episodes, 0, self.confidence)
        if not constrained:
            raise ValueError("certified: the algorithm does not enforce limits")
        if not env.cost_names:
            raise ValueError(f"certified: {env.name} has no costs")
        if memory:
            raise ValueError(f"certified: a policy with a memory has no bound, got memory={memory}")
        self.options.ranges(env, radius)

    def describe(self) -> dict[str, Any]:
        """Return the goal as JSON values, for `run.json`."""
        fields = {"confidence": self.confidence, "every": self.every}
        return plain({**fields, **dataclasses.asdict(self.options)})

    def is_due(self, done: int, total: int) -> bool:
        """Return whether an attempt follows this iteration."""
        return done % self.every == 0 or done == total


class Attempts:
    """The certificates of a run so far, and the best agent of every seed.

    Arguments:
        goal: the certificate that training aims at.
        env: the simulator.
        folder: folder of the run, from which attempts up to `done` are read back; or None.
        done: iterations of the checkpoint.
    """

    def __init__(
        self, goal: CertifiedGoal, env: Environment, folder: Path | None, done: int
    ) -> None:
        self.goal, self.env, self.folder = goal, env, folder
        self.made: dict[int, int] = {}
        self.best: dict[int, Agent] = {}
        if folder is None or not (folder / CERTIFICATES).is_file():
            return
        # Attempts after the checkpoint are repeated, with the same numbers.
        rows = [row for row in runs.read_lines(folder / CERTIFICATES) if row["iteration"] <= done]
        write_text(folder / CERTIFICATES, "".join(json.dumps(row) + "\n" for row in rows))
        for row in rows:
            self.made[row["seed"]] = row["attempt"]
            if row["seed"] not in self.best:
                self.best[row["seed"]] = load_agent(self._file(row["seed"]), lambda _: env)

    def _file(self, seed: int) -> Path:
        assert self.folder is not None
        return self.folder / f"best-{seed}.safetensors"

    def follow(
        self, learners: Learner, agents: Sequence[Agent], rows: Sequence[Mapping[str, Any]]
    ) -> Learner:
        """Certify the agents after an iteration, and return the states with moved aims.

        Arguments:
            learners: the states, along a leading axis of seeds.
            agents: their agents.
            rows: the metrics of the last iteration, by seed. An agent is not certified while its
                measured costs exceed their limits, since no bound could hold.
        """
        aims = np.array(learners.inner.limits)
        for i, (agent, row) in enumerate(zip(agents, rows, strict=True)):
            if (np.asarray(row["costs"]) <= agent.limits).all():
                aims[i] = self._attempt(agent, row["iteration"] + 1, aims[i])
        return eqx.tree_at(lambda each: each.inner.limits, learners, jnp.asarray(aims))

    def results(self, agents: Sequence[Agent], done: int) -> list[Agent]:
        """Return the best agent of every seed, with its certificate."""
        for agent in agents:
            if agent.seed not in self.best:
                self._attempt(agent, done, np.asarray(agent.limits))
        return [
            dataclasses.replace(
                agent,
                policy=self.best[agent.seed].policy,
                observations=self.best[agent.seed].observations,
                certificate=self.best[agent.seed].certificate,
            )
            for agent in agents
        ]

    def _attempt(self, agent: Agent, done: int, aims: np.ndarray) -> np.ndarray:
        """Certify an agent, keep it if it is the best of its seed, and return the new aims."""
        attempt = self.made.get(agent.seed, 0) + 1
        proof = self._certificate(agent, attempt, done)
        agent = dataclasses.replace(agent, certificate=proof)
        before = self.best.get(agent.seed)
        if before is None or _merit(proof, done) >= _merit(before.certificate, -1):
            self.best[agent.seed] = agent
        self.made[agent.seed] = attempt
        aims = _moved(proof, aims)
        if self.folder is not None:
            write_bytes(self._file(agent.seed), self.best[agent.seed].to_bytes())
            row = {
                "iteration": done,
                "seed": agent.seed,
                "attempt": attempt,
                "verdict": proof.verdict,
                "costs": [dataclasses.asdict(cost) for cost in proof.costs],
                "aims": aims,
            }
            runs.append_lines(self.folder / CERTIFICATES, [plain(row)])
        return aims

    def _certificate(self, agent: Agent, attempt: int, done: int) -> SimulatorCertificate:
        goal = self.goal
        risk = 1 - goal.confidence
        # Episodes of their own: training draws from the agent's seed alone.
        seed = int(np.random.SeedSequence((agent.seed, done)).generate_state(1)[0])
        confidence = 1 - risk / (attempt * (attempt + 1))
        work = certifying(agent, self.env, goal.options, confidence, seed)
        radius = agent.settings.radius
        try:
            with host_failures(self.env):
                proof = work.bound(radius, goal.options.ranges(self.env, radius))
        except FloatingPointError as error:
            raise TrainingError(str(error)) from error
        over = [
            f"{cost.name} is only bounded by {cost.upper:.4g}, over its limit {cost.limit:g}"
            for cost in proof.costs
            if not cost.holds
        ]
        outcome = f"Not proved: {'; '.join(over)}" if over else "Proved"
        shares = (
            f"Attempt k has 1/(k·(k + 1)) of the risk {risk:.3g}, so that all attempts of this run "
            "together have at most this risk."
        )
        return dataclasses.replace(
            proof,
            confidence=goal.confidence,
            assumptions=(
                f"{outcome}, after iteration {done}, at attempt {attempt}.",
                shares,
                *proof.assumptions,
            ),
            setup={**proof.setup, "iteration": done, "attempt": attempt},
        )


def _merit(proof: SimulatorCertificate | None, done: int) -> tuple[bool, float]:
    """Return a key by which certificates are compared: proved ones first, then by reward.

    Without a declared range the reward is unknown, and a later agent counts as better.
    """
    assert proof is not None
    if all(cost.holds for cost in proof.costs):
        reward = proof.reward.nominal
        return True, reward if math.isfinite(reward) else float(done)
    return False, -max((cost.upper - cost.limit) / (abs(cost.limit) or 1.0) for cost in proof.costs)


def _moved(proof: SimulatorCertificate, aims: np.ndarray) -> np.ndarray:
    """Return the limits at which training aims after a certificate."""
    upper, found, limit = (
        np.array([getattr(cost, name) for cost in proof.costs])
        for name in ("upper", "found", "limit")
    )
    moved = limit - np.maximum(upper - found, 0.0)
    return np.where(upper <= limit, moved, np.minimum(moved, aims - (upper - limit)))
