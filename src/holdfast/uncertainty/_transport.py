"""On the host: ground metrics, and the transport distance by a linear program."""

from __future__ import annotations

import weakref

import numpy as np
import scipy.optimize
import scipy.sparse
from jaxtyping import Float
from numpy.typing import ArrayLike

# What the triangle inequality and symmetry may miss, relative to the distance itself.
_METRIC_TOLERANCE = 1e-9
# Masses that differ by more are not carried into one another at all.
_MASS_TOLERANCE = 1e-9

# Metrics that were checked, so that a set is scaled or laid out without checking its metric again.
_checked: weakref.WeakValueDictionary[int, np.ndarray] = weakref.WeakValueDictionary()


def checked_metric(metric: ArrayLike) -> np.ndarray:
    """A metric as a read-only array of its own."""
    if isinstance(metric, np.ndarray) and _checked.get(id(metric)) is metric:
        return metric
    try:
        distances = np.array(metric, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"metric: expected an (S, S) array: {error}") from error
    if distances.ndim != 2 or distances.shape[0] != distances.shape[1] or not distances.size:
        raise ValueError(f"metric: expected an (S, S) array, got shape {distances.shape}")
    tolerance = _METRIC_TOLERANCE * distances
    with np.errstate(invalid="ignore"):
        for wrong, expected in (
            (~(np.isfinite(distances) & (distances >= 0)), "a finite distance of at least 0"),
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
    """W₁ of each row by a linear program."""
    metric, p, q = (np.asarray(array, np.float64) for array in (metric, p, q))
    found = np.empty(p.shape[:-1])
    for row in np.ndindex(*found.shape):
        found[row] = _distance(metric, p[row], q[row])
    return found


def _distance(
    metric: Float[np.ndarray, "K K"], p: Float[np.ndarray, " K"], q: Float[np.ndarray, " K"]
) -> float:
    """W₁ of two rows. What they share stays where it is, by the triangle inequality."""
    if not abs(p.sum() - q.sum()) <= _MASS_TOLERANCE:
        return np.inf
    excess = q / q.sum() - p / p.sum() if (p != q).any() else np.zeros_like(p)
    sources, sinks = np.flatnonzero(excess < 0), np.flatnonzero(excess > 0)
    if not len(sources) or not len(sinks):
        return 0.0
    gives, takes = -excess[sources], excess[sinks]
    moved = gives.sum()
    # Of order one, so that the solver's tolerances are relative ones.
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
        raise RuntimeError(f"the transport problem of a row was not solved: {solved.message}")
    return float(moved * (np.maximum(solved.x, 0.0) @ costs.ravel()))
