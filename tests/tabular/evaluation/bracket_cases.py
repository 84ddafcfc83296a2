"""Random and degenerate models, with their worst-case values in long double.

The tests and `benchmarks/brackets.py` share them.
"""

import numpy as np
from tests.tabular.evaluation import long_double

import holdfast as hf

TINY = np.finfo(float).tiny
DISCOUNTS = [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.999999]
RADII = [0.0, 1e-15, 1e-9, 1e-4, 0.02, 0.1, 0.5, 1.0, 3.0, 30.0, 700.0, np.inf]
# Shapes: few, so that all models of one kind of set share their compiled programs.
STATES, ACTIONS = 5, 3


def rows_of(rng, shape):
    """Rows with zeros, certain outcomes, and probabilities down to 2.3e-308."""
    rows = np.array(
        [rng.dirichlet(np.full(shape[-1], rng.choice([0.2, 1.0]))) for _ in range(shape[0])]
    )
    kind = rng.random((shape[0], 1))
    rows = np.where((kind < 0.3) & (rng.random(shape) < 0.5), 0.0, rows)
    small = 10.0 ** -rng.uniform(0, 307.6, shape)
    rows = np.where((kind > 0.5) & (rng.random(shape) < 0.4), rows * small, rows)
    edge = rng.choice([2.3e-308, 1e-300, 1e-160, 1e-17], shape)
    rows = np.where((kind > 0.8) & (rng.random(shape) < 0.4), edge, rows)
    rows = np.where(rows < 2.3e-308, 0.0, rows)
    certain = rows.sum(-1) <= TINY
    rows[certain, rng.integers(shape[-1], size=certain.sum())] = 1.0
    rows = rows / rows.sum(-1, keepdims=True)
    return np.where((rows > 0) & (rows < 2.3e-308), 2.3e-308, rows)


def signal_of(rng, shape):
    """Signals of very different sizes, with offsets, ties, zeros and both signs."""
    signal = rng.normal(size=shape)
    kind = rng.integers(6)
    if kind == 0:
        signal = np.round(signal)
    elif kind == 1:
        signal = np.abs(signal) * (rng.random(shape) < 0.2)
    elif kind == 2:
        signal = 1.0 + 1e-9 * signal
    elif kind == 3:
        signal = np.full(shape, rng.normal())
    elif kind == 4:
        signal = signal * 10.0 ** rng.uniform(-12, 0, shape)
    return signal * 10.0 ** rng.uniform(-9, 12)


def radius_of(rng, p):
    """Radii from zero to infinity, some just above or below the one that reaches an outcome."""
    radius = rng.choice(RADII, p.shape[:2])
    smallest = np.where(p > 0, p, 1.0).min(-1)
    near = -np.log(smallest) * (1 + rng.choice([-1e-3, -1e-12, 0.0, 1e-12, 1e-3], p.shape[:2]))
    return np.where(rng.random(p.shape[:2]) < 0.3, np.maximum(near, 0.0), radius)


def bounds_of(rng, p):
    low, high, closed = rng.random((3, *p.shape))
    lower = np.where(closed < 0.2, p, p * low)
    upper = np.where(closed > 0.7, p, p + (1 - p) * high)
    return np.where(lower < 2.3e-308, 0.0, lower), upper


def metric_of(rng, states):
    places = rng.random((states, rng.integers(1, 3))) * 10.0 ** rng.uniform(-3, 3)
    return np.abs(places[:, None] - places[None]).sum(-1)


# For each kind of set: how to make one for rows p, and its reference.
def _make(cls, **options):
    return lambda rng, p: (cls(radius_of(rng, p), **options), {})


def _make_interval(rng, p):
    lower, upper = bounds_of(rng, p)
    return hf.Interval(
        lower, upper, radius=rng.choice([0.0, 0.5, 1.0, 2.0, np.inf], p.shape[:2])
    ), {
        "lower": lower,
        "upper": upper,
    }


def _make_wasserstein(rng, p):
    metric = metric_of(rng, p.shape[0])
    radius = rng.choice(RADII, p.shape[:2]) * rng.choice([1e-3, 1.0])
    return hf.Wasserstein(radius, metric=metric), {"metric": metric}


KINDS = {
    "kl": (_make(hf.KL), long_double.kl, {}),
    "kl lists": (_make(hf.KL), long_double.kl, {}),
    "chi-square": (_make(hf.ChiSquare), long_double.chi_square, {}),
    "total variation": (_make(hf.TotalVariation), long_double.total_variation, {"within": False}),
    "total variation within": (
        _make(hf.TotalVariation, within_support=True),
        long_double.total_variation,
        {"within": True},
    ),
    "contamination": (_make(hf.Contamination), long_double.contamination, {"within": False}),
    "contamination within": (
        _make(hf.Contamination, within_support=True),
        long_double.contamination,
        {"within": True},
    ),
    "interval": (_make_interval, long_double.interval, {}),
    "wasserstein": (_make_wasserstein, long_double.wasserstein, {}),
}


def draw(rng, kind):
    """Return a model, a policy, and what the reference needs."""
    make, _, _ = KINDS[kind]
    lists = kind.endswith("lists")
    width = 4 if lists else STATES
    p = rows_of(rng, (STATES * ACTIONS, width)).reshape(STATES, ACTIONS, width)
    successors = np.broadcast_to(np.arange(width), p.shape)
    if lists:
        successors = np.array([rng.permutation(STATES)[:width] for _ in range(STATES * ACTIONS)])
        successors = successors.reshape(p.shape)
    uncertainty, own = make(rng, p)
    shape = (STATES, ACTIONS) if rng.random() < 0.5 else p.shape
    signals = [signal_of(rng, shape), signal_of(rng, shape)]
    initial = rows_of(rng, (1, STATES))[0]
    policy = rows_of(rng, (STATES, ACTIONS))
    model = hf.RobustCMDP(
        transitions=hf.Kernel(successors, p) if lists else p,
        reward=signals[0],
        constraints=[hf.at_least(signals[1], 0.0)],
        initial=initial,
        discount=rng.choice(DISCOUNTS),
        uncertainty=uncertainty,
    )
    signals = [np.broadcast_to(s if s.ndim == 3 else s[..., None], p.shape) for s in signals]
    given = {"p": p, "successors": successors, "policy": policy, "initial": initial} | own
    given |= {"radius": np.asarray(uncertainty.radius), "signals": np.stack(signals)}
    return model, policy, given | {"discount": model.discount}


def reference(kind, cases):
    """Return the worst-case values (N, signals) in long double, and bounds on their errors."""
    _, respond, options = KINDS[kind]
    stacked = {name: np.stack([case[name] for case in cases]) for name in cases[0]}
    p, policy = (long_double.normalised(stacked[name]) for name in ("p", "policy"))
    initial = long_double.normalised(stacked["initial"])
    successors, discount = stacked["successors"], stacked["discount"]
    count, n = np.arange(STATES), np.arange(len(cases))[:, None, None, None]
    own = {name: stacked[name] for name in ("lower", "upper") if name in stacked}
    if "metric" in stacked:
        own["metric"] = stacked["metric"][:, None, None]
    found = []
    for i in range(2):
        signal = stacked["signals"][:, i].astype(np.longdouble)

        def responses(values, signal=signal):
            y = (
                signal
                + np.asarray(discount, np.longdouble)[:, None, None, None] * values[n, successors]
            )
            q, lower = respond(p, y, stacked["radius"], **options, **own)
            dense = (q[..., None] * (successors[..., None] == count)).sum(-2)
            return dense, (q * signal).sum(-1), lower, (q * y).sum(-1)

        values, error = long_double.worst_values(responses, policy, discount, STATES)
        found.append(((initial * values).sum(-1), error))
    value, error = zip(*found, strict=True)
    return np.stack(value, -1), np.stack(error, -1)


def compared(kind, seeds):
    """Return claimed errors, distances from the truth, errors of the reference, values, and discounts.

    All but the discounts, (N,), have the shape (N, signals).
    """
    drawn = [draw(np.random.default_rng([len(kind), seed]), kind) for seed in seeds]
    evaluations = [hf.evaluate(model, policy) for model, policy, _ in drawn]
    signals = [[e.reward, *e.constraints] for e in evaluations]
    worst = np.array([[s.worst for s in each] for each in signals])
    claimed = np.array([[s.error for s in each] for each in signals])
    true, doubt = reference(kind, [given for _, _, given in drawn])
    return claimed, np.abs(worst - true), doubt, true, np.array([m.discount for m, _, _ in drawn])


def width(claimed, away, true):
    """Return claimed error / max(true error, eps·|value|), zero where both are zero."""
    scale = np.maximum(away, np.finfo(float).eps * np.abs(true))
    return np.asarray(claimed / np.where(scale > 0, scale, np.inf), float)
