"""Limits on the distance between counted frequencies and the true distribution.

Counts x of n independent draws from a distribution p over k outcomes have frequencies p̂ = x/n. Each
limit here fails with at most a given risk. There are two kinds, named after the way n came about:

- *fixed*: n does not depend on the outcomes.
- *adaptive*: n may depend on them in any way, for example "stop when the numbers look good". The limit
  holds for all n at once (it is *time-uniform*).

`divergence_limit` (fixed). Guo and Richardson, "Chernoff-type concentration of empirical probabilities
in relative entropy", arXiv 2003.08614: for 0 ≤ λ ≤ 1,

    E[exp(λ·n·KL(p̂‖p))] ≤ G(λ) = Σ_m C(m + k − 2, k − 2)·n!/(nᵐ(n − m)!)·λᵐ.

A short proof: p_j^{1−λ}·p̂_j^λ ≤ (1 − λ)·p_j + λ·p̂_j, so the expectation is at most the sum over x of
n!/Πx_j!·Π((1 − λ)p_j + λx_j/n)^{x_j}. By Abel's binomial theorem for k terms that sum is G(λ), for every
p. Markov's inequality gives P(n·KL ≥ t) ≤ G(λ)·e^{−λt}. At λ = 1 it is at most the method of types,
and for n → ∞ it becomes Agrawal's inequality, G(λ) = (1 − λ)^{1−k} (IEEE Transactions on Information
Theory 2020). So it is never worse than these two.

For few outcomes and many draws another limit is smaller. By the chain rule n·KL(p̂‖p) is a sum of k − 1
terms N·KL of two outcomes each: the first against the rest, the second against what is then left, and
so on. Given the previous terms, each exceeds t with probability at most 2e^{−t} (Chernoff, on both
sides). So it is stochastically smaller than log 2 + an exponential variable, and the sum is smaller
than (k − 1)·log 2 + a gamma variable of shape k − 1.

`mixture_limit` (adaptive, and so fixed too). If outcomes are predicted by a Dirichlet mixture, the ratio
of the predicted probability of all outcomes so far to their true probability is a martingale with mean
one. Ville's inequality: it ever reaches 1/risk with at most this risk. (Method of mixtures: Robbins,
"Statistical methods related to the law of the iterated logarithm", Annals of Mathematical Statistics
1970. Predictor: Krichevsky, Trofimov, "The performance of universal encoding", IEEE Transactions on
Information Theory 1981.)

`upper_limits`, `lower_limits`: one probability. Fixed: Clopper, Pearson, "The use of confidence or
fiducial limits illustrated in the case of the binomial", Biometrika 1934. Adaptive: `mixture_limit` for
two outcomes, also known as the beta-binomial confidence sequence.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import scipy
from jaxtyping import Float

Sampling: TypeAlias = Literal["fixed", "adaptive"]

# Limits on one probability are loosened by this share of their divergence. It covers the rounding error
# of the log-gamma functions, below 1e-12 of it.
_ROUNDING = 1e-9
# Roots are moved outwards by four units in the last place, more than the rounding error of a step.
_LAST_DIGITS = 4 * float(np.finfo(float).eps)
# Distances of λ from one, relative to the best distance for n → ∞. The best λ for n draws is between
# that one and one. The limit is flat around it: a finer grid gains less than 0.1 %.
_DISTANCES = (1.0, 0.93, 0.86, 0.78, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)
# Numbers of draws are rounded up to eight binary digits, which makes the limit larger by at most 0.2 %
# and leaves few different ones; from 2²⁰ draws on the limit for n → ∞ is as good.
_DIGITS, _MANY = 8, 2.0**20
# Entries per batch: 8 MiB per array.
_BATCH = 1 << 20


def divergence_limit(
    n: Float[np.ndarray, " N"], size: Float[np.ndarray, " N"], risk: float
) -> Float[np.ndarray, " N"]:
    """Return a t with P(n·KL(p̂‖p) ≥ t) ≤ risk, for a fixed number n of draws over `size` outcomes.

    Example:
        >>> divergence_limit(np.array([10.0]), np.array([3.0]), 0.05).round(2)
        array([5.68])
    """
    unit = 2.0 ** np.maximum(np.ceil(np.log2(n)) - _DIGITS, 0)
    rounded = np.ceil(n / unit) * unit
    rounded = np.where(rounded < _MANY, rounded, np.inf)
    pairs, back = np.unique(np.stack([rounded, size], -1), axis=0, return_inverse=True)
    draws, free = pairs[:, 0], pairs[:, 1] - 1
    cost = -np.log(risk)
    # Agrawal's bound equals the risk at t/free − log(t/free) = 1 + cost/free, t > free.
    # At t = free the equation is singular and SciPy returns NaN; `fmax` stays above by 1e-9 there.
    agrawal = free * np.fmax(-scipy.special.lambertw(-np.exp(-1 - cost / free), -1).real, 1 + 1e-9)
    gamma = scipy.special.gammainccinv(free, risk) + free * np.log(2)
    # The terms have their mean at λt or below and a standard deviation of about t/√free.
    terms = np.minimum(np.ceil(agrawal * (1 + 12 / np.sqrt(free)) + 40), draws)
    limit = np.minimum(agrawal, gamma)
    step = max(1, _BATCH // int(terms.max() + 1))
    order = np.argsort(terms)
    for rows in np.split(order, range(step, len(order), step)):
        found = _guo_richardson(draws[rows], free[rows], agrawal[rows], cost, terms[rows].max())
        limit[rows] = np.minimum(limit[rows], found)
    return limit[back.ravel()]


def _guo_richardson(
    n: Float[np.ndarray, " N"],
    free: Float[np.ndarray, " N"],
    agrawal: Float[np.ndarray, " N"],
    cost: float,
    terms: float,
) -> Float[np.ndarray, " N"]:
    """Return the smallest (log G(λ) + cost)/λ on a grid of λ, with G cut off after some terms.

    The ratio of a term to the one before falls with m, so the terms that are cut off sum to at most a
    geometric series. They are added.
    """
    m = np.arange(1, terms + 1)
    some = np.maximum(1 - (m - 1) / n[:, None], 0.0)
    with np.errstate(divide="ignore"):
        steps = np.log1p((free[:, None] - 1) / m) + np.log(some)
    logs = np.concatenate([np.zeros((len(n), 1)), np.cumsum(steps, -1)], -1)
    m = np.arange(terms + 1)
    ratio = (1 + (free - 1) / (terms + 1)) * np.maximum(1 - terms / n, 0.0)
    best = np.full(n.shape, np.inf)
    # λ = 1 − free/t is the best one for Agrawal's bound. Every λ in (0, 1] is valid.
    outermost = np.minimum(free / agrawal, 0.999)
    for distance in _DISTANCES:
        price = 1 - distance * outermost
        log_terms = logs + m * np.log(price)[:, None]
        last = price * ratio
        with np.errstate(divide="ignore"):
            rest = np.log(last) - np.log1p(-np.minimum(last, 0.999))
            total = np.logaddexp(
                scipy.special.logsumexp(log_terms, axis=-1), log_terms[:, -1] + rest
            )
        value = (total + cost) / price
        best = np.where(last < 0.999, np.minimum(best, value), best)
    return best


def mixture_limit(
    counts: Float[np.ndarray, "N K"], size: Float[np.ndarray, " N"], risk: float
) -> Float[np.ndarray, " N"]:
    """Return a t with P(n·KL(p̂‖p) ≥ t for some n) ≤ risk. It depends on the counts.

    With α in every component of the Dirichlet distribution, t = −log(risk) + (log-likelihood of p̂) −
    (log-probability predicted). The prior is a mixture of three α: 1/2 is the best for rows in which
    every outcome was seen, and 1/k for rows in which few were.

    Arguments:
        counts: columns without a visit may be missing.
        size: k, the number of possible outcomes.
        risk: probability that the limit is ever exceeded.

    Example:
        >>> mixture_limit(np.array([[8.0, 1.0, 1.0]]), np.array([3.0]), 0.05).round(2)
        array([5.5])
    """
    regrets = [
        _regret(counts, size, alpha) - np.log(weight)
        for alpha, weight in (
            (np.full_like(size, 0.5), 0.6),
            ((2 * size) ** -0.5, 0.2),
            (1 / size, 0.2),
        )
    ]
    return -scipy.special.logsumexp(-np.stack(regrets), axis=0) - np.log(risk)


def subset_limit(
    n: Float[np.ndarray, " N"], size: Float[np.ndarray, " N"], risk: float, sampling: Sampling
) -> Float[np.ndarray, " N"]:
    """Return a t with P(2n·TV(p̂, p)² ≥ t) ≤ risk; if adaptive, for some n.

    Fixed: Weissman, Ordentlich, Seroussi, Verdú, Weinberger, "Inequalities for the L1 deviation of the
    empirical distribution", HP Labs 2003: the total variation is the largest excess p(J) − p̂(J) of the
    2^k − 2 proper subsets J, and Hoeffding's inequality holds for each.

    Adaptive: the 2^{k−1} − 1 partitions {J, rest} have two outcomes each. n·KL(p̂(J)‖p(J)) exceeds
    `mixture_limit` with at most its risk, and is at least 2n(p̂(J) − p(J))² (Pinsker). With α = 1/2 alone
    that limit is at most −log(risk) + ½·log n + log 2, whatever the counts.
    """
    # log(2^k − 2), for k of at least two.
    subsets = size * np.log(2) + np.log1p(-(2.0 ** (1 - size)))
    return subsets - np.log(risk) + (0.5 * np.log(n) if sampling == "adaptive" else 0.0)


def upper_limits(
    seen: np.ndarray, visits: np.ndarray, risk: float | np.ndarray, sampling: Sampling
) -> np.ndarray:
    """Return upper limits on a probability with this many successes.

    Fixed: the true probability is above with at most half the risk. Adaptive: it is above, or below
    `lower_limits`, with at most the risk.

    Example:
        >>> upper_limits(np.array([0.0, 10.0]), np.array([10.0, 10.0]), 0.1, "fixed").round(3)
        array([0.259, 1.   ])
        >>> upper_limits(np.array([0.0, 10.0]), np.array([10.0, 10.0]), 0.1, "adaptive").round(3)
        array([0.332, 1.   ])
    """
    missed = visits - seen
    if sampling == "fixed":
        return np.where(
            missed > 0, scipy.special.betainccinv(seen + 1, np.maximum(missed, 1.0), risk / 2), 1.0
        )
    return largest_probability(seen / visits, _two_outcomes(seen, missed, risk))


def lower_limits(
    seen: np.ndarray, visits: np.ndarray, risk: float | np.ndarray, sampling: Sampling
) -> np.ndarray:
    """Return lower limits on a probability with this many successes; see `upper_limits`."""
    missed = visits - seen
    if sampling == "fixed":
        return np.where(
            seen > 0, scipy.special.betaincinv(np.maximum(seen, 1.0), missed + 1, risk / 2), 0.0
        )
    return smallest_probability(seen / visits, _two_outcomes(seen, missed, risk))


def _two_outcomes(seen: np.ndarray, missed: np.ndarray, risk: float | np.ndarray) -> np.ndarray:
    """Return the limit on KL(p̂‖p) of two outcomes with α = 1/2, slightly loosened."""
    counts = np.stack([seen, missed], -1)
    half = np.full(seen.shape, 0.5)
    limit = _regret(counts, np.full(seen.shape, 2.0), half) - np.log(risk)
    return limit / (seen + missed) * (1 + _ROUNDING)


def _regret(counts: np.ndarray, size: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Return log-likelihood of the frequencies − log-probability under a symmetric Dirichlet mixture."""
    entries = _log_gamma_excess(counts, alpha[..., None]) - scipy.special.gammaln(alpha)[..., None]
    whole = _log_gamma_excess(counts.sum(-1), size * alpha) - scipy.special.gammaln(size * alpha)
    return whole - np.where(counts > 0, entries, 0.0).sum(-1)


def _log_gamma_excess(x: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Return log Γ(x + a) − x·log x + x.

    The three terms are of order x·log x, and their sum of order log x. Above 20 it is written with
    Stirling's series, in which the large parts cancel; the error there is below 1e-12.
    """
    z = x + a
    large = z > 20
    safe, positive = np.where(large, z, 20.0), np.where(x > 0, x, 1.0)
    series = (1 / 12 - (1 / 360 - 1 / (1260 * safe**2)) / safe**2) / safe
    growth = np.where(x > 0, x * np.log1p(a / positive), 0.0)
    stirling = growth + (a - 0.5) * np.log(safe) - a + 0.5 * np.log(2 * np.pi) + series
    return np.where(
        large,
        stirling,
        scipy.special.gammaln(np.where(large, 1.0, z)) - scipy.special.xlogy(x, x) + x,
    )


def kl_terms(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a·log(a/b) − a + b, non-negative and exact for a near b; b for a = 0."""
    excess = (a - b) / b
    some = excess > -1
    log = np.log1p(np.where(some, excess, 0.0))
    return np.where(some, b * ((1 + excess) * log - excess), b)


def entropy(p: np.ndarray) -> np.ndarray:
    """Return the entropy of two outcomes with probabilities p and 1 − p."""
    return -scipy.special.xlogy(p, p) - scipy.special.xlogy(1 - p, 1 - p)


def largest_probability(p: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Return the largest u with p·log(p/u) + (1 − p)·log((1 − p)/(1 − u)) ≤ bound, or slightly more."""
    rest = 1 - p
    furthest = -np.expm1(-(bound + entropy(p)) / np.where(rest > 0, rest, 1.0))
    u = np.where(rest > 0, np.minimum(furthest, p + np.sqrt(bound / 2)), 1.0)
    # The divergence is convex in u, so Newton's method from the right stays on the right. It converges
    # quadratically; 30 steps are more than any float64 needs.
    for _ in range(30):
        inside = (u < 1) & (u > p)
        v = np.where(inside, u, 0.5 * (1 + p))
        excess = kl_terms(p, v) + kl_terms(rest, np.where(v < 1, 1 - v, 1.0)) - bound
        move = excess * v * (1 - v) / np.where(v > p, v - p, 1.0)
        nearer = np.where(inside & (excess > 0), np.maximum(v - move, p), u)
        if (nearer == u).all():
            break
        u = nearer
    return np.minimum(u * (1 + _LAST_DIGITS), 1.0)


def smallest_probability(p: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Return the smallest u with p·log(p/u) + (1 − p)·log((1 − p)/(1 − u)) ≤ bound, or slightly less.

    Newton's method in y = log(u/p), in which the divergence is convex too, from the left. A u below
    1e-300 is given as zero.
    """
    rest, some = 1 - p, p > 0
    positive = np.where(some, p, 1.0)
    y = -(bound - scipy.special.xlogy(rest, rest)) / positive
    y = np.where(some & (y > -690), y, -690.0)
    for _ in range(30):
        u = positive * np.exp(y)
        inside = some & (y > -690) & (u < p)
        v = np.where(inside, u, 0.5 * positive)
        excess = kl_terms(positive, v) + kl_terms(np.where(some, rest, 0.0), 1 - v) - bound
        move = excess * (1 - v) / (positive - v)
        nearer = np.where(inside & (excess > 0), np.minimum(y + move, 0.0), y)
        if (nearer == y).all():
            break
        y = nearer
    return np.where(some & (y > -690), positive * np.exp(y) * (1 - _LAST_DIGITS), 0.0)
