"""`holdfast audit`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, UseAppendAction, arg

from holdfast.cli._shared import FailedError, check_writable, option, refused
from holdfast.cli.stress import parameter_values

# Exit codes by verdict; 1 and 2 are failures.
EXIT_CODES = {"holds": 0, "broken": 3, "undecided": 4}


@dataclasses.dataclass(frozen=True)
class AuditCommand:
    """Attack a policy of any library, bound its costs from above, and say whether its limits hold.

    POLICY is a .zip of Stable-Baselines3, an .onnx file, a TorchScript file, module:NAME of a function
    of the observation, or an agent of holdfast train. A policy that can draw its actions or take the
    most likely ones is attacked and bounded both ways. The folder receives stress.json, proof.json,
    proof-most-likely.json and audit.json; after an interrupt the same command resumes, and
    holdfast report shows the folder.

    Examples:
      holdfast audit ppo.zip --trust --env Pendulum-v1 --channel "actions 0.2" --cost spin
        --cost-range 0 1 --cost-limit 25 --radius 0.05
      holdfast audit policy.onnx --env Hopper-v5 --channel "parameters mass=0.1" --speed-limit 1
        --cost-range 0 1 --cost-limit 25 --radius 0.1 --confidence 0.99

    Exit codes: 0 the limits hold, 3 a limit is broken, 4 undecided, 1 the simulator or the policy
    failed, 2 bad input, 130 interrupted.
    """

    policy: Annotated[Positional[str], arg(metavar="POLICY")]
    """File of the policy, or module:NAME of a function."""
    env: Annotated[str, arg(metavar="ID")]
    """Name of an environment such as point-gather, or id of a Gymnasium environment."""
    radius: Annotated[float, arg(metavar="R")]
    """Radius of the KL ball around the nominal distribution of the disturbance, in nats."""
    cost_limit: Annotated[tuple[float, ...], option("C ...", "the environment's own")] = ()
    """Limit of each cost on a whole episode."""
    confidence: Annotated[float, arg(metavar="P")] = 0.95
    """Probability with which all statements of the certificates hold together."""
    channel: Annotated[
        UseAppendAction[tuple[str, ...]],
        arg(metavar="TEXT", help_behavior_hint="(repeatable; default: none)"),
    ] = ()
    """Disturbance of a Gymnasium environment with its scale, as in holdfast train."""
    cost: Annotated[str, option("KEY", "cost")] = ""
    """Key of the cost in the info of a Gymnasium environment."""
    speed_limit: Annotated[float | None, option("V", "none")] = None
    """Speed above which a step of a Gymnasium environment costs 1, as the only cost."""
    cost_range: Annotated[tuple[float, float] | None, option("LOW HIGH", "the environment's")] = (
        None
    )
    """Lowest and highest cost of one step."""
    most_cost: Annotated[float | None, option("C", "none")] = None
    """Cap on the cost of an episode; larger costs are clipped."""
    horizon: Annotated[int | None, option("N", "the environment's own")] = None
    """Number of steps of an episode of a Gymnasium environment."""
    parameters: Annotated[tuple[str, ...], option("NAME=V,V ...", "none")] = ()
    """Physical parameters of the simulator, with the values to test."""
    trust: bool = False
    """Run code that is stored in the file of the policy: .zip and TorchScript files need it."""
    statistics: Annotated[str, option("FILE", "none")] = ""
    """File of the VecNormalize statistics of a Stable-Baselines3 model."""
    episodes: Annotated[int | None, option("N", "20000, or fewer outside JAX")] = None
    """Number of episodes per attack, and of fresh episodes of the certificate."""
    updates: Annotated[int | None, option("N", "100 for attacks, 300 for the bound")] = None
    """Number of batches that an adversary and the functions of the bound learn from."""
    repeats: Annotated[int | None, option("N", "1")] = None
    """Number of episodes of the certificate for each draw made once an episode. Their mean counts."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """Seed of all random numbers."""
    json: bool = False
    """Print the verdict as JSON."""
    out: Annotated[str, option("DIR", "runs/audit/ENV-POLICY")] = ""
    """Folder for the results."""

    def run(self) -> int:
        """Audit the policy and print the verdict."""
        name = f"{self.env}-{Path(self.policy).stem}".replace("/", "-").replace(":", "-")
        out = Path(self.out or Path("runs/audit") / name)
        with refused():
            check_writable(out)
            parameters = dict(map(parameter_values, self.parameters))
        from holdfast._support.files import to_json
        from holdfast.auditing import audit
        from holdfast.report.training import tests_on
        from holdfast.simulators.environment import TrainingError

        sizes = {k: getattr(self, k) for k in ("episodes", "updates") if getattr(self, k)}
        proof = ("cost_range", "most_cost", "repeats")
        ranges = {k: getattr(self, k) for k in proof if getattr(self, k)}
        try:
            with refused(), tests_on(sys.stderr) as progress:
                found = audit(
                    self.policy,
                    self._simulator(),
                    radius=self.radius,
                    cost_limit=self.cost_limit or None,
                    confidence=self.confidence,
                    parameters=parameters or None,
                    trust=self.trust,
                    statistics=self.statistics or None,
                    out=out,
                    seed=self.seed,
                    callback=progress,
                    attack_options=sizes,
                    proof_options={**sizes, **ranges},
                )
        except (FloatingPointError, TrainingError) as error:
            raise FailedError(str(error)) from error
        if self.json:
            print(to_json({"verdict": found.verdict, "reasons": list(found.reasons)}))
        else:
            print(found)
            print(f"written to {out}; next: holdfast report {out} -o report.html")
        return EXIT_CODES[found.verdict]

    def _simulator(self) -> Any:
        from holdfast.cli._shared import named_simulator

        options = {k: getattr(self, k) for k in ("channel", "cost", "speed_limit", "horizon")}
        return named_simulator(self.env, options)
