"""Grid worlds: the map is read off the table, and policy, pushes and episodes are put on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from holdfast.environments.grid import MOVES, neighbours
from holdfast.model import Kernel, RobustCMDP
from holdfast.report.page.content import Grid, Pushes, Walk, numbers, table_of_numbers
from holdfast.report.page.kernels import under_policy

_EPISODES, _MOST_STEPS = 3, 60
NOMINAL = "nominal"


class Map(NamedTuple):
    """A grid world's map, as `frozen_lake` takes one, of a model with a state for each cell."""

    letters: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.letters), len(self.letters[0])

    @property
    def places(self) -> Int[np.ndarray, "cells 2"]:
        """Row and column of every cell."""
        return np.argwhere(np.ones(self.shape, bool))


def map_of(model: RobustCMDP) -> Map | None:
    """The map that a model's table moves on, if it is a grid world's; of any size.

    A grid world has four actions, left, down, right and up in Gymnasium's order; each may lead to where
    it is meant to, and none farther than to a neighbour; some cells absorb. Those that pay on entry
    are goals, the others holes. S is where an episode may begin.

    Example:
        >>> import holdfast as hf
        >>> map_of(hf.environments.frozen_lake(rows=("SFF", "FHG"), utility_cells=[1]))
        Map(letters=('SSS', 'SHG'))
        >>> map_of(hf.environments.gambler()) is None
        True
    """
    if model.actions != 4 or not 4 <= model.states <= 400:
        return None
    kernel = model.transitions
    reached = (kernel.dense() if isinstance(kernel, Kernel) else kernel) > 0
    states = np.arange(model.states)
    absorbing = reached[states, :, states].all(1) & (reached.sum(2) == 1).all(1)
    for rows in range(2, model.states // 2 + 1):
        if model.states % rows == 0:
            shape = (rows, model.states // rows)
            if _moves_on(reached, absorbing, neighbours(shape)):
                return Map(_letters(model, absorbing, shape))
    return None


def _moves_on(
    reached: Bool[np.ndarray, "S A S"], absorbing: Bool[np.ndarray, " S"], to: np.ndarray
) -> bool:
    states = np.arange(len(reached))
    allowed = np.zeros((len(reached), len(reached)), bool)
    allowed[states[:, None], to] = True
    moving = ~absorbing
    meant = reached[states[:, None], np.arange(4), to]
    return bool(
        absorbing.any()
        and moving.any()
        and meant[moving].all()
        and not (reached.any(1) & ~allowed)[moving].any()
    )


def _letters(
    model: RobustCMDP, absorbing: Bool[np.ndarray, " S"], shape: tuple[int, int]
) -> tuple[str, ...]:
    pays = np.zeros(model.states)
    successors, p, reward = _entries(model.transitions, model.reward)
    np.maximum.at(pays, successors.ravel(), np.where(p > 0, reward, 0.0).ravel())
    ice = np.where(np.asarray(model.initial) > 0, "S", "F")
    letters = np.where(absorbing, np.where(pays > 0, "G", "H"), ice)
    return tuple("".join(row) for row in letters.reshape(shape))


def _entries(
    kernel: np.ndarray | Kernel, signal: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Successors, probabilities and a signal, one entry for each possible next state."""
    if isinstance(kernel, Kernel):
        successors, p = kernel.successors, kernel.probabilities
    else:
        p = kernel
        successors = np.broadcast_to(np.arange(p.shape[2]), p.shape)
    return (
        successors,
        p,
        np.broadcast_to(signal if signal.ndim == 3 else signal[..., None], p.shape),
    )


def signal_names(model: RobustCMDP) -> list[str]:
    """What the constraints are called, in the model's order, each name once.

    Example:
        >>> import holdfast as hf
        >>> signal_names(hf.environments.frozen_lake())
        ['utility']
    """
    names = [c.name or ("utility" if c.sign > 0 else "cost") for c in model.constraints]
    return [
        name if names.count(name) == 1 else f"{name} {i}" for i, name in enumerate(names, start=1)
    ]


def grid_block(
    where: Map,
    model: RobustCMDP,
    policy: Float[np.ndarray, "S A"],
    worst: Mapping[str, np.ndarray | Kernel],
) -> Grid:
    """The map with the policy, nature's pushes and episodes under every kernel.

    Arguments:
        where: the map.
        model: that moves on it.
        policy: that acts.
        worst: worst-case kernels, by what they are the worst for.
    """
    kernels = {NOMINAL: model.transitions, **{f"worst case for {n}": k for n, k in worst.items()}}
    paid = [(np.asarray(c.signal).reshape(model.states, -1) != 0).any(1) for c in model.constraints]
    marked = paid[0] if paid else np.zeros(model.states, bool)
    names = signal_names(model)
    return Grid(
        key="map",
        title="The policy and nature on the map",
        about="Blue arrows are the policy, as long as an action is likely. A purple arrow is nature's "
        "push: where the worst case moves the mean of the next cell.",
        letters=where.letters,
        marked=np.flatnonzero(marked).tolist() if not marked.all() else [],
        marked_name=names[0] if names else "",
        moves=[[int(right), int(down)] for down, right in MOVES],
        policy=table_of_numbers(policy),
        pushes=[
            Pushes(name, table_of_numbers(_pushes(where, model, policy, kernel)))
            for name, kernel in kernels.items()
            if name != NOMINAL
        ],
        walks=[
            _walk(f"{name}, episode {seed + 1}", model, policy, kernel, seed)
            for name, kernel in kernels.items()
            for seed in range(_EPISODES)
        ],
    )


def _pushes(
    where: Map, model: RobustCMDP, policy: np.ndarray, kernel: np.ndarray | Kernel
) -> Float[np.ndarray, "S 2"]:
    """(right, down) from the nominal mean of the next cell to the worst case's."""
    change = under_policy(kernel, policy) - under_policy(model.transitions, policy)
    return (change @ where.places)[:, ::-1]


def _walk(
    name: str, model: RobustCMDP, policy: np.ndarray, kernel: np.ndarray | Kernel, seed: int
) -> Walk:
    """An episode until a cell absorbs; the same seed starts in the same cell under every kernel."""
    generator = np.random.default_rng(seed)
    successors, p, reward = _entries(kernel, model.reward)
    signals = {"reward": reward} | {
        name: _entries(kernel, constraint.signal)[2]
        for name, constraint in zip(signal_names(model), model.constraints, strict=True)
    }
    initial = np.asarray(model.initial)
    cell = int(generator.choice(model.states, p=initial / initial.sum()))
    cells, actions = [cell], []
    paid: dict[str, list[float]] = {each: [0.0] for each in signals}
    for _ in range(_MOST_STEPS):
        action = int(generator.choice(model.actions, p=policy[cell] / policy[cell].sum()))
        entry = int(generator.choice(p.shape[2], p=p[cell, action] / p[cell, action].sum()))
        for each, values in signals.items():
            paid[each].append(paid[each][-1] + float(values[cell, action, entry]))
        cell = int(successors[cell, action, entry])
        cells.append(cell)
        actions.append(action)
        if (p[cell] * (successors[cell] != cell)).sum() == 0:
            break
    return Walk(name, cells, actions, {each: numbers(values) for each, values in paid.items()})
