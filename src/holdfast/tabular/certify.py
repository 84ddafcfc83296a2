"""The verb `certify`: what has been proved about a policy."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from holdfast._model import RobustCMDP
from holdfast.tabular.evaluate import Evaluation, evaluate


@dataclasses.dataclass(frozen=True, eq=False)
class Certificate:
    """What has been proved about a policy in the worst case over the uncertainty set.

    Attributes:
        feasible: whether every margin, less the numerical error, is at least zero.
        margins: (m,) worst-case margin of every constraint; negative is violated.
        reward: worst-case reward.
        error: bound on the numerical error of the reward and of every margin.
        evaluation: where these come from.
        model: the model they are about.
    """

    feasible: bool
    margins: Float[np.ndarray, " m"]
    reward: float
    error: float
    evaluation: Evaluation
    model: RobustCMDP = dataclasses.field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """The certificate as plain numbers, for JSON."""
        pairs = zip(self.model.constraints, self.evaluation.constraints, strict=True)
        return {
            "feasible": self.feasible,
            "reward": {"worst": self.reward, "nominal": self.evaluation.reward.nominal},
            "constraints": [
                {
                    "constraint": str(constraint),
                    "threshold": constraint.threshold,
                    "worst": found.worst,
                    "nominal": found.nominal,
                    "margin": found.margin,
                    "holds": found.margin - self.error >= 0,
                }
                for constraint, found in pairs
            ],
            "error": self.error,
        }

    def __str__(self) -> str:
        numbers = self.to_dict()
        width = max([6, *(len(c["constraint"]) for c in numbers["constraints"])])
        lines = [
            f"{'feasible in the worst case' if self.feasible else 'NOT feasible in the worst case'}"
            f" (numerical error ≤ {self.error:.1e})",
            f"{'':{width}}  {'worst case':>12}  {'nominal':>12}  {'margin':>12}",
            f"{'reward':{width}}  {self.reward:12.6g}  {numbers['reward']['nominal']:12.6g}",
        ]
        lines += [
            f"{c['constraint']:{width}}  {c['worst']:12.6g}  {c['nominal']:12.6g}  {c['margin']:12.6g}"
            f"{'' if c['holds'] else '  violated'}"
            for c in numbers["constraints"]
        ]
        return "\n".join(lines)


def certify(model: RobustCMDP, policy: ArrayLike) -> Certificate:
    """Proves what can be proved about a policy: whether it keeps its constraints, and by how much.

    Arguments:
        model: the model.
        policy: (S, A), rows that sum to one.

    Example:
        >>> import holdfast as hf
        >>> import numpy as np
        >>> timid = np.eye(8)[np.zeros(17, int)]        # always stake 1
        >>> certificate = hf.certify(hf.environments.gambler(), timid)
        >>> certificate.feasible
        True
    """
    evaluation = evaluate(model, policy)
    return Certificate(
        feasible=evaluation.feasible,
        margins=evaluation.margins,
        reward=evaluation.reward.worst,
        error=evaluation.error,
        evaluation=evaluation,
        model=model,
    )
