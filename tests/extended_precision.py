"""Worst cases in extended precision, written apart from the package and for any probabilities."""

import numpy as np

import holdfast as hf

LONG = np.longdouble
LONG_EPS = np.finfo(LONG).eps


def least_value(name, p, y, radius, **fields):
    """Return min q·y over a set around the row p, which is divided by its sum first.

    Arguments:
        name: "kl", "chi-square", "total-variation", "contamination", "interval" or "wasserstein".
        p: nominal probabilities of the outcomes that members may use.
        y: targets of the same outcomes.
        radius: radius of the row.
        fields: metric, or how far each entry may go below and above p at radius one.
    """
    p, y, radius = np.asarray(p, LONG), np.asarray(y, LONG), LONG(radius)
    p, low = p / p.sum(), y.min()
    span = y.max() - low
    if span == 0:
        return low
    return low + span * _FUNCTIONS[name](p, (y - low) / span, radius, **fields)


def _kl(p, u, radius):
    if radius >= -np.log(p[u == 0].sum()):
        return LONG(0)
    if radius == 0:
        return (p * u).sum()
    mean = (p * u).sum()
    away = u - mean
    variance, third = (p * away**2).sum(), (p * away**3).sum()
    if (
        np.sqrt(2 * radius / variance) < 1e-9
    ):  # beyond the digits of a search: the expansion at β = 0
        return mean - np.sqrt(2 * radius * variance) + radius * third / (3 * variance)

    def log_mass_and_divergence(beta):
        exponent = np.log(p) - beta * u
        top = exponent.max()
        q = np.exp(exponent - top)
        log_mass = np.log(q.sum()) + top
        if beta < 0.1:
            log_mass = np.log1p((p * np.expm1(-beta * u)).sum())
        return log_mass, -beta * (q * u).sum() / q.sum() - log_mass

    low, high = LONG("1e-30"), LONG(1)
    while log_mass_and_divergence(high)[1] < radius and high < LONG("1e30"):
        high *= 16
    while high - low > 4 * LONG_EPS * high:
        middle = np.sqrt(low * high) if high > 4 * low else (low + high) / 2
        short = log_mass_and_divergence(middle)[1] < radius
        low, high = (middle, high) if short else (low, middle)
    return max(-(log_mass_and_divergence(high)[0] + radius) / high, LONG(0))


def _chi_square(p, u, radius):
    mass = p[u == 0].sum()
    if 1 - mass <= radius * mass:
        return LONG(0)
    if radius == 0:
        return (p * u).sum()
    order = np.argsort(u)
    p, u = p[order], u[order]
    best = LONG(0)
    for k in range(1, len(u) + 1):  # η between u[k − 1] and u[k]
        part, x = p[:k], u[:k]
        mass = part.sum()
        mean = (part * x).sum() / mass
        variance = (part * (x - mean) ** 2).sum() / mass
        surplus = radius * mass - p[k:].sum()
        first = x[-1] - mean
        last = u[k] - mean if k < len(u) else LONG(np.inf)
        depth = np.sqrt(variance / surplus) if surplus > 0 else last
        depth = min(max(depth, first), last)
        if 0 < depth < np.inf:
            root = np.sqrt((1 + radius) * mass) * np.sqrt(1 + variance / depth**2)
            loss = surplus * depth + (1 + radius) * mass * variance / depth
            best = max(best, mean - loss / (1 + root))
    return best


def _total_variation(p, u, radius):
    q, left, lowest = p.copy(), min(radius, LONG(1)), u.argmin()
    for k in np.argsort(-u):
        moved = min(q[k], left) if u[k] > 0 else LONG(0)
        q[k], q[lowest], left = q[k] - moved, q[lowest] + moved, left - moved
    return (q * u).sum()


def _contamination(p, u, radius):
    return (1 - min(radius, LONG(1))) * (p * u).sum()


def _interval(p, u, radius, below, above):
    factor = radius if np.isfinite(radius) else LONG("1e1000")
    low, high = np.maximum(p - factor * below, 0), np.minimum(p + factor * above, 1)
    q, left = low.copy(), 1 - low.sum()
    for k in np.argsort(u):
        more = min(high[k] - q[k], left)
        q[k], left = q[k] + more, left - more
    return (q * u).sum()


def _wasserstein(p, u, radius, metric):
    metric, sources = metric.astype(LONG), np.flatnonzero(p > 0)
    if not np.isfinite(radius):
        return LONG(0)
    if radius == 0:
        return sum(p[i] * u[metric[i] == 0].min() for i in sources)
    prices = {LONG(0)}  # the kinks of the concave dual
    for i in sources:
        gain, cost = u[:, None] - u, metric[i] - metric[i][:, None]
        prices |= set(gain[(gain > 0) & (cost > 0)] / cost[(gain > 0) & (cost > 0)])
    return max(sum(p[i] * (u + m * metric[i]).min() for i in sources) - m * radius for m in prices)


_FUNCTIONS = {
    "kl": _kl,
    "chi-square": _chi_square,
    "total-variation": _total_variation,
    "contamination": _contamination,
    "interval": _interval,
    "wasserstein": _wasserstein,
}


def least_row_value(ball, p, y, radius, place=()):
    """Return min q·y over a set of the package, from its fields alone."""
    fields = {}
    reached = np.ones(p.shape, bool)
    if isinstance(ball, hf.Interval):
        lower, upper = (np.asarray(bound)[place].astype(LONG) for bound in (ball.lower, ball.upper))
        fields = {"below": np.maximum(p - lower, 0), "above": np.maximum(upper - p, 0)}
    elif isinstance(ball, hf.Wasserstein):
        fields = {"metric": np.asarray(ball.metric)}
    elif getattr(ball, "within_support", True):
        reached = p > 0
    return least_value(ball.name, p[reached], y[reached], radius, **fields)


def worst_value(model, policy, found, signal):
    """Return the worst-case value of a signal and its accuracy, refined from an evaluation.

    Corrections (I − γP)⁻¹(TV − V), with the operator T in extended precision, are added to V. The true
    value is within residual/(1−γ) of the V with the smallest residual, whatever P is.
    """
    kernel = found.kernel.dense() if isinstance(found.kernel, hf.Kernel) else found.kernel
    chain = np.einsum("sa,sat->st", policy, kernel)
    inverse = np.linalg.inv(np.eye(model.states) - model.discount * chain).astype(LONG)
    discount, weights = LONG(model.discount), policy.astype(LONG)
    weights = weights / weights.sum(-1, keepdims=True)
    radius = np.broadcast_to(model.uncertainty.radius, policy.shape)

    def swept(values):
        result = np.zeros(model.states, LONG)
        for s, a in np.argwhere(weights > 0):
            p, after = model.nominal[s, a], np.arange(model.states)
            if isinstance(model.transitions, hf.Kernel):
                after = model.transitions.successors[s, a]
            y = signal[s, a].astype(LONG) + discount * values[after]
            least = least_row_value(model.uncertainty, p, y, radius[s, a], (s, a))
            result[s] += weights[s, a] * least
        return result

    values, residual = found.values.astype(LONG), np.inf
    for _ in range(12):
        change = swept(values) - values
        if np.abs(change).max() < residual:
            best, residual = values, np.abs(change).max()
        values = values + inverse @ change
    initial = model.initial.astype(LONG)
    value = (initial * best).sum() / initial.sum()
    return value, residual / (1 - discount) + 8 * LONG_EPS * (initial * np.abs(best)).sum()
