"""Random models of all six sets, and a search for policies that is independent of the bounds.

The tests and `benchmarks/random_gaps.py` share them.
"""

import numpy as np

import holdfast as hf

SETS = ["kl", "total-variation", "chi-square", "contamination", "wasserstein", "interval"]


def uncertainty(kind, rng, transitions):
    states = transitions.shape[0]
    radius = float(rng.choice([0.02, 0.05, 0.1, 0.2]))
    if kind == "wasserstein":
        points = rng.random((states, 2))
        return hf.Wasserstein(radius, metric=np.linalg.norm(points[:, None] - points, axis=-1))
    if kind == "interval":
        lower = np.maximum(transitions - radius, 0.0)
        return hf.Interval(lower, np.minimum(transitions + radius, 1.0))
    makers = {
        "kl": hf.KL,
        "total-variation": hf.TotalVariation,
        "chi-square": hf.ChiSquare,
        "contamination": hf.Contamination,
    }
    return makers[kind](radius)


def random_model(seed, shape=None):
    """A model with 2 to 8 states, 1 to 3 constraints and one of the six sets, and a feasible policy.

    The thresholds are a random policy's worst-case values, less a little. A given shape, (states,
    actions), saves compilation.
    """
    rng = np.random.default_rng([13, seed])
    shape = (int(rng.integers(2, 9)), int(rng.integers(2, 4))) if shape is None else shape
    states, actions = shape
    transitions = rng.dirichlet(np.full(states, 0.5), shape)
    transitions = np.where(transitions < 1e-3, 0.0, transitions)
    transitions /= transitions.sum(-1, keepdims=True)
    model = hf.RobustCMDP(
        transitions=transitions,
        reward=rng.normal(size=shape),
        initial=rng.dirichlet(np.ones(states)),
        discount=float(rng.choice([0.6, 0.8, 0.9])),
        uncertainty=uncertainty(SETS[seed % 6], rng, transitions),
    )
    policy = rng.dirichlet(np.full(actions, 0.7), states)
    signals = rng.normal(size=(int(rng.integers(1, 4)), *shape))
    values = [hf.evaluate(model.replace(reward=s), policy).reward.worst for s in signals]
    limits = [hf.at_least(s, v - 0.01) for s, v in zip(signals, values, strict=True)]
    return model.replace(constraints=limits), policy


def best_found(model, starts, rng, rounds, many):
    """The best feasible policy of a random search around the best of the starts, by `hf.evaluate`."""
    best, reward = None, -np.inf
    tried, spread = starts, 0.3
    for _ in range(rounds):
        for policy in tried:
            evaluation = hf.evaluate(model, policy)
            if evaluation.feasible and evaluation.reward.worst > reward:
                best, reward = policy, evaluation.reward.worst
        others = rng.dirichlet(np.full(model.actions, 0.3), (many, model.states))
        tried, spread = (1 - spread) * best + spread * others, spread / 3
    return reward


def certified(seed, quick=False):
    """Return the certificate of RCPO's policy in a random model, and the best reward of a search.

    RCPO starts again from the policies that a short branch and bound could not exclude. The search
    starts from RCPO's policies of other starting points, among them local optima that differ from the
    certified policy. If `quick`, the model has one shape, and everything is shorter.
    """
    model, policy = random_model(seed, (4, 2) if quick else None)
    further = {} if quick else {"certify": True, "nodes": 20}
    found = hf.solve(model, iterations=60, initial_policy=policy, **further).policy
    certificate = hf.certify(model, found, nodes=60 if quick else None, seconds=30, target=0.01)
    seeds, rng = range(1 if quick else 3), np.random.default_rng(seed)
    others = [hf.solve(model, iterations=60, seed=each).policy for each in seeds]
    rounds, many = (4, 12) if quick else (6, 40)
    return certificate, best_found(model, [*others, policy, found], rng, rounds, many)
