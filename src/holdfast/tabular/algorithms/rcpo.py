"""RCPO: robust constrained policy optimisation (Sun, He, Miao, Zou, ICML 2024), Algorithm 1.

Each iteration improves the policy against the reward's worst-case kernel inside a trust region, then
projects it onto the constraints, each under its own worst-case kernel. Where no policy meets the
linearised constraints, it takes a recovery step.
"""

from __future__ import annotations

from jaxtyping import Array, Float

from holdfast.registry import Algorithm
from holdfast.tabular.algorithms._run import Run
from holdfast.tabular.algorithms._trust_region import trust_region_loop
from holdfast.tabular.steps.tilted_policy import Tilts
from holdfast.tabular.steps.updates import Update, improve, project


def rcpo(run: Run) -> Float[Array, "S A"]:
    """Robust policy improvement, then projection, under worst-case kernels."""
    return trust_region_loop(run, improve_then_project, robust=True)


def improve_then_project(tilts: Tilts, delta: Float[Array, ""]) -> Update:
    """Equations (13) and (16), or (26) where the tilts are Taylor's."""
    improved = improve(tilts, delta)
    return project(tilts, improved)


ALGORITHM = Algorithm("rcpo", rcpo, accepts=("trust_region", "step", "safeguard", "bounds"))
