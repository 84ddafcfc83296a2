"""The verb `audit`: parameter sweeps, attacks and certificates for a policy of any library."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from holdfast._support.arguments import check_number
from holdfast._support.files import write_json
from holdfast.simulators.certificates.attack_plan import Callback
from holdfast.simulators.certificates.simulator_certificate import SimulatorCertificate
from holdfast.simulators.certificates.stress_result import ATTACK, Stress
from holdfast.verbs import as_agent, as_simulator, certify, stress

AUDIT, STRESS, REQUEST = "audit.json", "stress.json", "request.json"
# Files of the certificates: of drawn actions, or of the only way to act, and of most likely actions.
CERTIFICATES = {False: "proof.json", True: "proof-most-likely.json"}


@dataclasses.dataclass(frozen=True)
class Audit:
    """The result of `audit`. Printing it shows the verdict, the tests and the certificates.

    Attributes:
        verdict: "broken" if a test of `stress` (attack, noise or parameter) or an attack of a
            certificate exceeds a limit; otherwise "holds" if every certificate proves every limit, and
            else "undecided".
        reasons: one sentence per limit; for an undecided limit, what could decide it. One sentence more
            for every other test that exceeds a limit.
        stress: sweeps and attacks.
        certificates: the bounds for drawn and for most likely actions, or for the only way to act; empty
            if they could not be computed.

    Example:
        >>> import holdfast as hf
        >>> [field.name for field in dataclasses.fields(hf.Audit)]
        ['verdict', 'reasons', 'stress', 'certificates']
    """

    verdict: str
    reasons: tuple[str, ...]
    stress: Stress
    certificates: tuple[SimulatorCertificate, ...]

    def __str__(self) -> str:
        verdict = f"{self.verdict}: {' '.join(self.reasons)}"
        return "\n\n".join([verdict, str(self.stress), *map(str, self.certificates)])

    __repr__ = __str__


def audit(
    policy: Any,
    environment: Any,
    *,
    radius: float,
    cost_limit: float | Sequence[float] | None = None,
    confidence: float = 0.95,
    parameters: Mapping[str, Sequence[float]] | None = None,
    trust: bool = False,
    statistics: Any = None,
    out: str | PathLike[str] | None = None,
    seed: int = 0,
    callback: Callback | None = None,
    attack_options: Mapping[str, Any] | None = None,
    proof_options: Mapping[str, Any] | None = None,
) -> Audit:
    """Attack a policy, bound its costs from above, and say whether its limits hold.

    A policy that can draw its actions or take the most likely ones may be deployed either way: both
    are attacked, and both are bounded, each with half of the risk 1 − confidence.

    With `out` every part is written when it is done. After an interrupt the same call resumes, and
    `holdfast report` shows the folder.

    Arguments:
        policy: a policy of any library, as in `as_agent`.
        environment: name, simulator, table or Gymnasium environment.
        radius: radius of the KL ball of the disturbance, for attacks and certificates.
        cost_limit: limit of each cost; by default the environment's own.
        confidence: confidence of all certificates together, and level of each interval of an attack.
        parameters: values to try for physical parameters, one at a time.
        trust: whether code that is stored in a file of the policy may run.
        statistics: `VecNormalize` statistics of a Stable-Baselines3 model.
        out: folder of the results.
        seed: seed of everything that is drawn.
        callback: called with the number of steps done, their total, and the next step.
        attack_options: further arguments of `stress`, such as `episodes` and `updates`.
        proof_options: further arguments of `certify`, such as `cost_range`, `episodes` and `updates`;
            with `deterministic` only one way to act is bounded.

    Raises:
        ValueError: an argument cannot be used; the message names it, before any work.

    Example:
        >>> import holdfast as hf
        >>> def right(observation):
        ...     return 1
        >>> env = hf.environments.TableSimulator(hf.environments.n_chain(nodes=3), horizon=3)
        >>> found = hf.audit(
        ...     right,
        ...     env,
        ...     radius=0.02,
        ...     cost_limit=-1,
        ...     attack_options={"episodes": 100, "updates": 1, "kernels": "auto", "restarts": 1},
        ...     proof_options={"episodes": 500, "draws": 8, "updates": 10},
        ... )
        >>> found.verdict
        'holds'
    """
    check_number("radius", radius, above=True)
    env = as_simulator(environment)
    agent = as_agent(policy, env, cost_limit=cost_limit, trust=trust, statistics=statistics)
    common = {"seed": seed, "confidence": confidence}
    attacks = {"radii": [radius], "parameters": parameters, **(attack_options or {}), **common}
    bounds = {**(proof_options or {}), **common}
    both = agent.draws_actions and "deterministic" not in bounds
    ways = (False, True) if both else (bool(bounds.get("deterministic", False)),)
    folder = None if out is None else Path(out)
    request = {
        "policy": agent.label,
        "environment": env.description(),
        "limits": list(agent.limits),
        "radius": radius,
        "attacks": attacks,
        "bounds": bounds,
    }
    plain = json.loads(json.dumps(request, default=str))
    before = None if folder is None else folder / REQUEST
    if before is not None and before.exists() and json.loads(before.read_text()) != plain:
        raise ValueError(f"out: {folder} holds an audit with other arguments")

    def done(name: str, load: Any, make: Any) -> Any:
        if folder is not None and (folder / name).exists():
            return load(folder / name)
        made = make()
        if folder is not None and made is not None:
            # Written with the first result: refused arguments leave no folder behind.
            write_json(folder / REQUEST, plain)
            made.save(folder / name)
        return made

    stressed: Stress = done(
        STRESS, Stress.load, lambda: stress(agent, environment=env, callback=callback, **attacks)
    )
    refusal = ""

    def prove(deterministic: bool) -> SimulatorCertificate | None:
        nonlocal refusal
        share = {"deterministic": deterministic, "confidence": 1 - (1 - confidence) / len(ways)}
        try:
            return certify(env, agent, radius=radius, callback=callback, **{**bounds, **share})
        except ValueError as error:  # for example, an undeclared range
            refusal = str(error)
            return None

    proofs = [
        done(CERTIFICATES[way], SimulatorCertificate.load, functools.partial(prove, way))
        for way in ways
    ]
    found = _judged(stressed, tuple(filter(None, proofs)), refusal, radius)
    if folder is not None:
        write_json(
            folder / AUDIT,
            {"verdict": found.verdict, "reasons": list(found.reasons), "policy": agent.label},
        )
    return found


def _judged(
    stressed: Stress, proofs: tuple[SimulatorCertificate, ...], refusal: str, radius: float
) -> Audit:
    reasons, broken, open_ = [], False, False
    several = len({row.actions for row in stressed.rows}) > 1
    for i, (name, limit) in enumerate(zip(stressed.cost_names, stressed.limits, strict=True)):
        # Values with the way to act that they are about, if there are several.
        lows = [
            (row.costs[i].low, row.actions if several else "")
            for row in stressed.rows
            if row.kind == ATTACK
        ]
        acting = [proof.setup.get("actions", "") for proof in proofs]
        lows += [(proof.costs[i].found, way) for proof, way in zip(proofs, acting, strict=True)]
        found, way = max(lows, default=(-math.inf, ""))
        upper = max((proof.costs[i].upper for proof in proofs), default=math.inf)
        if found > limit:
            broken = True
            reasons.append(
                f"An attack within radius {radius:g} makes {name} at least {found:.4g}{_with(way)}, "
                f"over its limit {limit:g}."
            )
        elif upper <= limit:
            # Two certificates are about both ways.
            only = _with(acting[0]) if len(acting) == 1 else ""
            reasons.append(
                f"{name} is at most {upper:.4g} within radius {radius:g}{only}, under its "
                f"limit {limit:g}."
            )
        else:
            open_ = True
            reasons.append(_what_would_decide(name, limit, found, upper, refusal))
    for row in stressed.rows:
        over = [
            n
            for n, c, limit in zip(stressed.cost_names, row.costs, stressed.limits, strict=True)
            if row.kind != ATTACK and c.low > limit
        ]
        if over:
            broken = True
            reasons.append(f"{row.label}: {', '.join(over)} over the limit.")
    verdict = "broken" if broken else "undecided" if open_ else "holds"
    return Audit(verdict, tuple(reasons), stressed, proofs)


def _with(way: str) -> str:
    return f" with {way} actions" if way else ""


def _what_would_decide(name: str, limit: float, found: float, upper: float, refusal: str) -> str:
    if refusal:
        return (
            f"{name}: attacks found {found:.4g}, under its limit {limit:g}, but nothing is proved: "
            f"{refusal}."
        )
    return (
        f"{name}: attacks found {found:.4g}, but only {upper:.4g} is proved, and its limit is "
        f"{limit:g}. More episodes or updates, a smaller radius or a smaller most_cost lower the "
        "proved bound. A stronger attack might exceed the limit."
    )
