"""Interval MDPs for Storm: random models, their DRN files, and Storm's answers."""

import tempfile
from pathlib import Path

import numpy as np

import holdfast as hf


def interval_model(seed, states, actions=2, width=3, horizon=8):
    """Return a random interval model with lists of distinct successors, its first state initial."""
    rng = np.random.default_rng(seed)
    offsets = np.stack([rng.permuted(np.arange(1, states))[:width] for _ in range(64)])
    rows = offsets[rng.integers(0, len(offsets), (states, actions))]
    successors = (np.arange(states)[:, None, None] + rows) % states
    p = rng.dirichlet(np.ones(width), (states, actions))
    slack = rng.uniform(0.1, 0.5, (states, actions, 1))
    return hf.RobustCMDP(
        transitions=hf.Kernel(successors, p),
        reward=np.zeros((states, actions)),
        initial=np.eye(1, states)[0],
        discount=1.0,
        horizon=horizon,
        uncertainty=hf.Interval(p * (1 - slack), np.minimum(p * (1 + slack), 1.0)),
    )


def write_drn(model, path, goal, hole=()):
    """Write a model in Storm's explicit format, with the labels "goal" and "hole"."""
    kernel, bounds = model.transitions, model.uncertainty
    lines = ["@type: MDP", "@parameters", "", "@reward_models", "", "@nr_states"]
    lines += [str(model.states), "@nr_choices", str(model.states * model.actions), "@model"]
    for s in range(model.states):
        labels = ["init"] * (s == 0) + ["goal"] * (s in goal) + ["hole"] * (s in hole)
        lines.append(" ".join([f"state {s}", *labels]))
        for a in range(model.actions):
            lines.append(f"\taction {a}")
            entries = zip(
                kernel.successors[s, a], bounds.lower[s, a], bounds.upper[s, a], strict=True
            )
            lines += [f"\t\t{t} : [{low!r}, {high!r}]" for t, low, high in sorted(_plain(entries))]
    Path(path).write_text("\n".join(lines) + "\n")


def storm_model(model, goal, hole=()):
    """Return the model as Storm builds it."""
    import stormpy

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.drn"
        write_drn(model, path, set(goal), set(hole))
        return stormpy.build_model_from_drn[stormpy.Interval](str(path))


def storm_value(built, question):
    """Return Storm's answer in the first state: the best policy against the worst kernel."""
    import stormpy

    found = stormpy.model_checking(
        built,
        stormpy.parse_property(question),
        uncertainty_resolution_mode=stormpy.UncertaintyResolutionMode.ROBUST,
    )
    return found.get_value(0)


def _plain(entries):
    return [(int(t), float(low), float(high)) for t, low, high in entries]
