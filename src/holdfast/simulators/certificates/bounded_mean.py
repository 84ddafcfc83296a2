"""Finite-sample confidence limits of the mean of bounded numbers, and of a probability."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float

# Largest fraction of the capital bet on one observation. Values close to one are best for rare large
# observations, the usual case here; at exactly one the first of them would end the test.
_LARGEST_BET = 0.9
# Bisection steps: the limit is found to 2⁻⁴⁰ of the range, far below the width of any limit.
_STEPS = 40


def upper_limit(x: Float[np.ndarray, " n"], risk: float) -> float:
    """Return a number that the mean exceeds with probability at most `risk`.

    It is the smaller of two limits that have half of the risk each: Maurer and Pontil's empirical
    Bernstein bound (2009, theorem 4), and Waudby-Smith and Ramdas's betting (2024).

    Arguments:
        x: independent draws in [0, 1], at least two.
        risk: probability of failure.

    Example:
        >>> x = np.random.default_rng(0).uniform(size=1000)
        >>> 0.5 < upper_limit(x, 0.01) < 0.56
        True
        >>> round(upper_limit(np.zeros(1000), 0.01), 4)  # about log(2/0.01)/1000
        0.0059
    """
    x = np.asarray(x, float)
    if len(x) < 2 or not ((x >= 0) & (x <= 1)).all():
        return 1.0
    return min(_empirical_bernstein(x, risk / 2), _betting(x, risk / 2))


def lower_limit(x: Float[np.ndarray, " n"], risk: float) -> float:
    """Return a number that the mean is below with probability at most `risk`, as in `upper_limit`."""
    return 1 - upper_limit(1 - np.asarray(x, float), risk)


def _empirical_bernstein(x: np.ndarray, risk: float) -> float:
    n, log = len(x), math.log(2 / risk)
    spread = math.sqrt(2 * float(x.var(ddof=1)) * log / n)
    return min(1.0, float(x.mean()) + spread + 7 * log / (3 * (n - 1)))


def _betting(x: np.ndarray, risk: float) -> float:
    """Return the largest mean that the betting test does not reject (Waudby-Smith and Ramdas 2024).

    Against the mean m the capital is Π(1 + bet·(m − x)), a martingale if the mean is m. By Ville's
    inequality it ever reaches 1/risk with probability at most risk. Bets depend on earlier numbers only.
    The capital grows with m, so that bisection finds the limit.
    """
    n, log = len(x), math.log(1 / risk)
    count = np.arange(1, n + 1)
    means = (0.5 + np.cumsum(x)) / (count + 1)
    variances = (0.25 + np.cumsum((x - means) ** 2)) / (count + 1)
    before = np.concatenate([[0.25], variances[:-1]])
    bets = np.sqrt(2 * log / (before * n))

    def refuted(mean: float) -> bool:
        bounded = np.minimum(bets, _LARGEST_BET / max(1 - mean, 1e-12))
        return bool(np.cumsum(np.log1p(bounded * (mean - x))).max() >= log)

    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if refuted(middle) else (middle, high)
    return high


def share_limit(successes: int, trials: int, risk: float) -> float:
    """Return the exact binomial upper limit of a probability (Clopper and Pearson 1934).

    Example:
        >>> round(share_limit(0, 100, 0.05), 4)  # 1 − 0.05^(1/100)
        0.0295
    """
    from scipy.stats import beta

    return (
        1.0 if successes >= trials else float(beta.ppf(1 - risk, successes + 1, trials - successes))
    )


def divergence_bound(
    values: tuple[Float[np.ndarray, " n"], Float[np.ndarray, " m"]],
    highest: float,
    budget: float,
    risk: float,
) -> tuple[float, float]:
    """Return an upper limit of the largest mean over distributions within a KL ball, and its α.

    For every α > 0 the largest mean over KL(Q‖P) ≤ budget is at most
    α·budget + α·log E_P[exp(value/α)] (Donsker and Varadhan). α is chosen on the first draws. The second
    ones give the confidence limit of E_P[exp((value − highest)/α)], a mean of numbers in [0, 1].

    Arguments:
        values: draws under P for the choice of α, and independent ones for the limit.
        highest: a number that no value exceeds, by construction.
        budget: radius of the ball, in nats.
        risk: probability that the limit fails.
    """
    chosen_on, limited_on = (np.asarray(each, float) for each in values)

    def bound(draws: np.ndarray, alpha: float) -> float:
        return (
            alpha * budget
            + highest
            + alpha
            * math.log(upper_limit(np.exp(np.minimum((draws - highest) / alpha, 0.0)), risk))
        )

    spread = max(highest - float(chosen_on.min()), 1e-12)
    # From a value at which the exponential tells only the largest draws apart to a nearly linear one.
    alphas = spread * np.geomspace(1e-3, 1e2, 41)
    alpha = min(alphas, key=lambda each: bound(chosen_on, each))
    return min(bound(limited_on, alpha), highest), float(alpha)
