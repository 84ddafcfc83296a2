"""Worst-case values in extended precision, as a reference: NumPy only, none of the package's code.

Everything works on a batch: rows have shape (N, S, A, K), values (N, S). A response is a bracket: a
lower bound on the minimum over the set, and the value of a member. Both are computed in `np.longdouble`,
whose rounding error is 2,000 times smaller than that of float64 on x86.
"""

from __future__ import annotations

import numpy as np

LONG = np.longdouble
EPS = float(np.finfo(LONG).eps)
# Bisection halves the logarithm of a multiplier over this range. The value depends on the multiplier to
# second order, so that 70 halvings leave an error far below EPS.
_HALVINGS = 70


def normalised(rows):
    rows = np.asarray(rows, LONG)
    return rows / rows.sum(-1, keepdims=True)


def worst_values(responses, joint, discount, count, rounds=60):
    """Return V and a bound on its error, by nature's policy iteration.

    Arguments:
        responses: function of V, (N, S), to a kernel (N, S, A, S), its mean signal (N, S, A), and the
            lower and upper ends of min q·y, (N, S, A).
        joint: the policies, (N, S, A).
        discount: (N,).
        count: number of states.
        rounds: limit on the number of rounds.
    """
    gamma = np.asarray(discount, LONG)[:, None]
    values = np.zeros((len(joint), count), LONG)
    best = None
    for _ in range(rounds):
        kernel, signal, lower, upper = responses(values)
        low, high = (joint * lower).sum(-1), (joint * upper).sum(-1)
        away = np.maximum(np.abs(high - values).max(-1), np.abs(values - low).max(-1))
        size = np.abs(joint * np.maximum(np.abs(lower), np.abs(upper))).sum(-1).max(-1)
        error = (away + 64 * count * EPS * size) / (1 - gamma[:, 0])
        if best is None:
            best = values, error
        else:
            better = error < best[1]
            best = np.where(better[:, None], values, best[0]), np.where(better, error, best[1])
        chain = (joint[..., None] * kernel).sum(-2)
        system = np.eye(count, dtype=LONG) - gamma[..., None] * chain
        new = solve(system, (joint * signal).sum(-1))
        if (np.abs(new - values) <= 4 * EPS * np.abs(new)).all():
            break
        values = new
    return best


def solve(matrix, right):
    """Solve a batch of linear systems by elimination with partial pivoting, in long double."""
    matrix, right = matrix.copy(), right.copy()
    batch, n = np.arange(len(matrix)), matrix.shape[-1]
    for k in range(n):
        pivot = k + np.abs(matrix[:, k:, k]).argmax(-1)
        for array in (matrix, right):
            array[batch, k], array[batch, pivot] = (
                array[batch, pivot].copy(),
                array[batch, k].copy(),
            )
        factor = matrix[:, k + 1 :, k] / matrix[:, k, k, None]
        matrix[:, k + 1 :] -= factor[..., None] * matrix[:, None, k]
        right[:, k + 1 :] -= factor * right[:, k, None]
    for k in reversed(range(n)):
        right[:, k] -= (matrix[:, k, k + 1 :] * right[:, k + 1 :]).sum(-1)
        right[:, k] /= matrix[:, k, k]
    return right


# --- responses: (q, lower end) for rows p, targets y and radii R; all broadcast over leading axes


def kl(p, y, radius):
    """KL(q‖p) ≤ R: the best dual value over a bisection in log β, and a member mixed towards p."""
    support = p > 0
    low = np.where(support, y, np.inf).min(-1, keepdims=True)
    span = np.where(support, y, -np.inf).max(-1, keepdims=True) - low
    u = np.where(support, (y - low) / np.where(span > 0, span, 1), 0)
    log_p = np.where(support, np.log(np.where(support, p, 1)), -np.inf)
    at_minimum = support & (u == 0)
    pointed = np.where(at_minimum, p, 0)
    mass = pointed.sum(-1, keepdims=True)
    radius = np.asarray(radius, LONG)[..., None]
    reached = -np.log(mass) <= radius
    trivial = (radius == 0) | (span == 0) | reached

    def tilt(beta):
        weight = log_p - beta * u
        top = weight.max(-1, keepdims=True)
        weight = np.exp(weight - top)
        log_mass = top + np.log(weight.sum(-1, keepdims=True))
        # For small β the plain logarithm would lose β² to rounding.
        gained = (p * np.expm1(-np.minimum(beta, 1) * u)).sum(-1, keepdims=True)
        log_mass = np.where(beta < 0.4, np.log1p(gained), log_mass)
        q = weight / weight.sum(-1, keepdims=True)
        return q, log_mass, -beta * (q * u).sum(-1, keepdims=True) - log_mass

    below = np.full(radius.shape, LONG(-60))
    above = np.full(radius.shape, LONG(120))
    lower = np.full(radius.shape, -np.inf, LONG)
    kernel = p
    for _ in range(_HALVINGS):
        middle = (below + above) / 2
        q, log_mass, divergence = tilt(np.exp(middle))
        inside = divergence <= radius
        below, above = np.where(inside, middle, below), np.where(inside, above, middle)
        lower = np.maximum(lower, -(log_mass + radius) / np.exp(middle))
        kernel = np.where(inside, q, kernel)
    kernel = np.where(reached & (radius > 0), pointed / mass, np.where(trivial, p, kernel))
    lower = np.where(trivial, (p * u).sum(-1, keepdims=True), lower)
    lower = np.where(reached & (radius > 0), 0, np.maximum(lower, 0))
    return kernel, (low + span * lower)[..., 0]


def chi_square(p, y, radius):
    """Σ(q − p)²/p ≤ R: q ∝ p·max(η − y, 0), by bisection in log(η − min y)."""
    support = p > 0
    low = np.where(support, y, np.inf).min(-1, keepdims=True)
    span = np.where(support, y, -np.inf).max(-1, keepdims=True) - low
    u = np.where(support, (y - low) / np.where(span > 0, span, 1), 0)
    at_minimum = support & (u == 0)
    pointed = np.where(at_minimum, p, 0)
    mass = pointed.sum(-1, keepdims=True)
    radius = np.asarray(radius, LONG)[..., None]
    rest = np.where(at_minimum, 0, p).sum(-1, keepdims=True)
    reached = (rest <= radius * mass) & (radius > 0)
    trivial = (radius == 0) | (span == 0) | reached
    finite = np.where(trivial, 1, radius)
    mean, second = (p * u).sum(-1, keepdims=True), (p * u * u).sum(-1, keepdims=True)
    gaps = np.where(u > 0, u, np.inf).min(-1, keepdims=True)
    below = np.log(np.where(np.isfinite(gaps), gaps, 1)) - 1
    above = np.full(radius.shape, LONG(60))
    lower = np.full(radius.shape, -np.inf, LONG)
    kernel = p
    for _ in range(_HALVINGS):
        middle = (below + above) / 2
        eta = np.exp(middle)
        part = np.maximum(eta - u, 0)
        first = (p * part).sum(-1, keepdims=True)
        inside = (p * ((part - first) / first) ** 2).sum(-1, keepdims=True) <= finite
        below, above = np.where(inside, below, middle), np.where(inside, middle, above)
        # η − √((1 + R)·Σ p·part²), with the difference of squares written out: η² would cancel.
        over = (p * np.maximum(u - eta, 0) ** 2).sum(-1, keepdims=True)
        squares = -finite * eta**2 + (1 + finite) * (2 * eta * mean - second + over)
        root = np.sqrt((1 + finite) * (p * part * part).sum(-1, keepdims=True))
        lower = np.maximum(lower, squares / (eta + root))
        kernel = np.where(inside, p * part / first, kernel)
    kernel = np.where(reached, pointed / mass, np.where(trivial, p, kernel))
    lower = np.where(trivial, (p * u).sum(-1, keepdims=True), np.maximum(lower, 0))
    lower = np.where(reached, 0, lower)
    return kernel, (low + span * lower)[..., 0]


def _towards_smallest(p, y, moved, allowed):
    """Return p with `moved` mass taken from the largest targets and given to the smallest allowed."""
    order = np.argsort(-y, axis=-1, kind="stable")
    sorted_p = np.take_along_axis(p, order, -1)
    before = np.cumsum(sorted_p, -1) - sorted_p
    taken = np.clip(moved[..., None] - before, 0, sorted_p)
    kernel = p.copy()
    np.put_along_axis(kernel, order, sorted_p - taken, -1)
    smallest = np.where(allowed, y, np.inf).argmin(-1)[..., None]
    extra = taken.sum(-1, keepdims=True)
    np.put_along_axis(kernel, smallest, np.take_along_axis(kernel, smallest, -1) + extra, -1)
    return kernel


def total_variation(p, y, radius, within):
    allowed = p > 0 if within else np.ones(p.shape, bool)
    moved = np.minimum(np.asarray(radius, LONG), 1)
    kernel = _towards_smallest(p, y, np.broadcast_to(moved, p.shape[:-1]), allowed)
    return kernel, (kernel * y).sum(-1)


def contamination(p, y, radius, within):
    allowed = p > 0 if within else np.ones(p.shape, bool)
    share = np.minimum(np.asarray(radius, LONG), 1)[..., None]
    corner = np.arange(p.shape[-1]) == np.where(allowed, y, np.inf).argmin(-1)[..., None]
    kernel = (1 - share) * p + share * corner
    return kernel, (kernel * y).sum(-1)


def interval(p, y, radius, lower, upper):
    """Bounds scaled about p by the radius; start at the lower ones and fill the smallest targets."""
    radius = np.asarray(radius, LONG)[..., None]
    lower, upper = np.asarray(lower, LONG), np.asarray(upper, LONG)
    # An interval that ends at p is closed there, whatever normalising p has changed in its last bit.
    rounding = 4 * np.finfo(float).eps * p
    with np.errstate(invalid="ignore"):
        down = np.where(p > lower + rounding, radius * (p - lower), 0)
        up = np.where(upper > p + rounding, radius * (upper - p), 0)
    least, most = np.clip(p - down, 0, 1), np.clip(p + up, 0, 1)
    order = np.argsort(y, axis=-1, kind="stable")
    room = np.take_along_axis(most - least, order, -1)
    left = 1 - least.sum(-1, keepdims=True)
    filled = np.clip(left - (np.cumsum(room, -1) - room), 0, room)
    kernel = least.copy()
    np.put_along_axis(kernel, order, np.take_along_axis(least, order, -1) + filled, -1)
    return kernel, (kernel * y).sum(-1)


def wasserstein(p, y, radius, metric):
    """The dual at every breakpoint of the price, exactly; the plan mixes the two that meet there."""
    k = p.shape[-1]
    metric = np.asarray(metric, LONG)
    radius = np.broadcast_to(np.asarray(radius, LONG), p.shape[:-1])
    gaps = y[..., None, :, None] - y[..., None, None, :]  # y_j − y_k
    farther = metric[..., :, None, :] - metric[..., :, :, None]  # d_ik − d_ij
    with np.errstate(divide="ignore", invalid="ignore"):
        prices = np.where(farther > 0, gaps / np.where(farther > 0, farther, 1), 0)
    prices = np.maximum(prices.reshape(*p.shape[:-1], -1), 0)
    prices = np.concatenate([np.zeros((*p.shape[:-1], 1), LONG), prices], -1)

    def ends(price):
        """Return the nearest and the farthest plan among the best at a price, with their costs."""
        total = y[..., None, :] + price[..., None, None] * metric
        size = np.abs(total).max(-1, keepdims=True)
        tied = total <= total.min(-1, keepdims=True) + 64 * EPS * size
        plans = []
        for sign in (1, -1):
            plan = np.arange(k) == np.where(tied, sign * metric, np.inf).argmin(-1)[..., None]
            plans += [(p[..., None] * plan).sum(-2), (p * (plan * metric).sum(-1)).sum(-1)]
        return plans, (p * total.min(-1)).sum(-1)

    # The cost of the best plan falls with the price. The dual is largest at the smallest price at which
    # the radius pays for the nearest of the best plans.
    best_price = np.full(p.shape[:-1], np.inf, LONG)
    for j in range(prices.shape[-1]):
        (_, cheap, _, _), _ = ends(prices[..., j])
        payable = cheap <= radius
        best_price = np.where(payable, np.minimum(best_price, prices[..., j]), best_price)
    # Beyond the last breakpoint nothing moves, except over a distance of zero.
    still = np.isinf(best_price)
    best_price = np.where(still, prices.max(-1) * 2, best_price)
    (near, cheap, far, dear), value = ends(best_price)
    spent = np.where(best_price > 0, best_price * np.where(np.isinf(radius), 0, radius), 0)
    room = np.where(dear > cheap, dear - cheap, 1)
    share = np.clip(np.where(dear > radius, (radius - cheap) / room, 1), 0, 1)[..., None]
    return (1 - share) * near + share * far, value - spent
