"""Ground metrics, and the Wasserstein distance by a linear program. NumPy code, not traced."""

from __future__ import annotations

import weakref

import numpy as np
import scipy
from jaxtyping import Float
from numpy.typing import ArrayLike

# Accepted violation of symmetry and of the triangle inequality, relative to the distance: metrics
# from files with ten digits pass.
_METRIC_TOLERANCE = 1e-9
# The smallest normal number. Compiled code replaces smaller ones by zero.
_SMALLEST = float(np.finfo(np.float64).tiny)
# Rows whose sums differ by more have no transport plan. Row sums of members are checked to this too.
_MASS_TOLERANCE = 1e-9

# Metrics already checked. The check is cubic in S, and every `with_radius` makes a new set.
_checked: weakref.WeakValueDictionary[int, np.ndarray] = weakref.WeakValueDictionary()


def checked_metric(metric: ArrayLike) -> np.ndarray:
    """Return a metric as a read-only (S, S) array, or raise a ValueError.

    Checked: finite, non-negative, zero on the diagonal, symmetric, triangle inequality.
    """
    if isinstance(metric, np.ndarray) and _checked.get(id(metric)) is metric:
        return metric
    try:
        distances = np.array(metric, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"metric: expected an (S, S) array: {error}") from error
    if distances.ndim != 2 or distances.shape[0] != distances.shape[1] or not distances.size:
        raise ValueError(f"metric: expected an (S, S) array, got shape {distances.shape}")
    with np.errstate(invalid="ignore"):
        tolerance = _METRIC_TOLERANCE * distances
        for wrong, expected in (
            (~(np.isfinite(distances) & (distances >= 0)), "a finite distance of at least 0"),
            ((distances > 0) & (distances < _SMALLEST), "0 or a normal number"),
            (np.diag(np.diag(distances)) != 0, "distance 0 from a state to itself"),
            (distances - distances.T > tolerance, "the same distance both ways"),
        ):
            if wrong.any():
                i, j = (int(k) for k in np.argwhere(wrong)[0])
                back = f" and {distances[j, i]}" if "both ways" in expected else ""
                between = f"between states {i} and {j}"
                raise ValueError(
                    f"metric: expected {expected}, got {distances[i, j]}{back} {between}"
                )
    for i, row in enumerate(distances):
        detours = row[:, None] + distances
        wrong = row - detours.min(0) > tolerance[i]
        if wrong.any():
            j = int(np.argmax(wrong))
            k = int(np.argmin(detours[:, j]))
            raise ValueError(
                f"metric: expected the triangle inequality, got {row[j]} between states {i} and {j}, "
                f"but {detours[k, j]} by way of state {k}"
            )
    distances.flags.writeable = False
    _checked[id(distances)] = distances
    return distances


def distances(
    metric: Float[np.ndarray, "K K"],
    p: Float[np.ndarray, "*rows K"],
    q: Float[np.ndarray, "*rows K"],
) -> Float[np.ndarray, "*rows"]:
    """Return W₁(p, q) of each row."""
    metric, p, q = (np.asarray(array, np.float64) for array in (metric, p, q))
    found = np.empty(p.shape[:-1])
    for row in np.ndindex(*found.shape):
        found[row] = _distance(metric, p[row], q[row])
    return found


def _distance(
    metric: Float[np.ndarray, "K K"], p: Float[np.ndarray, " K"], q: Float[np.ndarray, " K"]
) -> float:
    """Return W₁ of two rows. By the triangle inequality their common mass does not move."""
    if not abs(p.sum() - q.sum()) <= _MASS_TOLERANCE:
        return np.inf
    excess = q / q.sum() - p / p.sum() if (p != q).any() else np.zeros_like(p)
    sources, sinks = np.flatnonzero(excess < 0), np.flatnonzero(excess > 0)
    if not len(sources) or not len(sinks):
        return 0.0
    gives, takes = -excess[sources], excess[sinks]
    moved = gives.sum()
    # Masses of order one make the solver's absolute tolerances relative ones.
    gives, takes = gives / moved, takes / takes.sum()
    costs = metric[np.ix_(sources, sinks)]
    largest = costs.max()
    if len(sources) == 1 or len(sinks) == 1 or largest == 0:
        return float(moved * (gives @ costs @ takes))
    ones = scipy.sparse.csr_array(np.ones((1, len(sinks))))
    leave = scipy.sparse.kron(scipy.sparse.eye_array(len(sources)), ones)
    arrive = scipy.sparse.kron(np.ones((1, len(sources))), scipy.sparse.eye_array(len(sinks)))
    solved = scipy.optimize.linprog(
        costs.ravel() / largest,
        A_eq=scipy.sparse.vstack([leave, arrive]),
        b_eq=np.r_[gives, takes],
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if solved.x is None:
        raise RuntimeError(f"transport: the linear program of a row failed: {solved.message}")
    return float(moved * (np.maximum(solved.x, 0.0) @ costs.ravel()))
