"""Grid worlds: the map is read off the model, and policy, pushes and episodes are put on it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float

from holdfast.environments.grid import MOVES, neighbours
from holdfast.model import Kernel, RobustCMDP
from holdfast.report.page.content import Grid, Pushes, Walk

_EPISODES, _MOST_STEPS = 3, 60
# Larger maps have cells too small to see.
_MOST_CELLS = 400
NOMINAL = "nominal"


def under_policy(
    kernel: np.ndarray | Kernel, policy: Float[np.ndarray, "S A"]
) -> Float[np.ndarray, "S S"]:
    """Return P(s'|s) under a policy.

    Example:
        >>> import numpy as np, holdfast as hf
        >>> lists = hf.Kernel(
        ...     successors=[[[0, 1]], [[1, 1]]], probabilities=[[[0.25, 0.75]], [[0.5, 0.5]]]
        ... )
        >>> under_policy(lists, np.ones((2, 1))).tolist()
        [[0.25, 0.75], [0.0, 1.0]]
    """
    return np.einsum("sa,sat->st", policy, _dense(kernel))


def _dense(kernel: np.ndarray | Kernel) -> Float[np.ndarray, "S A S"]:
    return kernel.dense() if isinstance(kernel, Kernel) else kernel


def map_of(model: RobustCMDP) -> tuple[str, ...] | None:
    """Return the rows of the map in the letters of `frozen_lake`, or None for other models.

    A grid world has four actions: left, down, right and up, in Gymnasium's order. Each action can reach
    the cell in its direction, and none leads farther than to a neighbour. Some cells absorb: goals pay a
    reward on entry, holes do not. S is a cell in which an episode may start.

    Example:
        >>> import holdfast as hf
        >>> map_of(hf.environments.frozen_lake(rows=("SFF", "FHG"), utility_cells=[1]))
        ('SSS', 'SHG')
        >>> map_of(hf.environments.gambler()) is None
        True
    """
    if model.actions != 4 or not 4 <= model.states <= _MOST_CELLS:
        return None
    reached = _dense(model.transitions) > 0
    states = np.arange(model.states)
    absorbing = reached[states, :, states].all(1) & (reached.sum(2) == 1).all(1)
    for rows in range(2, model.states // 2 + 1):
        if model.states % rows == 0:
            shape = (rows, model.states // rows)
            if _moves_on(reached, absorbing, neighbours(shape)):
                return _letters(model, absorbing, shape)
    return None


def _moves_on(
    reached: Bool[np.ndarray, "S A S"], absorbing: Bool[np.ndarray, " S"], to: np.ndarray
) -> bool:
    states = np.arange(len(reached))
    allowed = np.zeros((len(reached), len(reached)), bool)
    allowed[states[:, None], to] = True
    moving = ~absorbing
    meant = reached[states[:, None], np.arange(4), to][moving]
    astray = (reached.any(1) & ~allowed)[moving]
    return bool(absorbing.any() and moving.any() and meant.all() and not astray.any())


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
    """Return successors, probabilities and a signal, each with one entry per possible next state."""
    if isinstance(kernel, Kernel):
        successors, p = kernel.successors, kernel.probabilities
    else:
        p = kernel
        successors = np.broadcast_to(np.arange(p.shape[2]), p.shape)
    values = signal if signal.ndim == 3 else signal[..., None]
    return successors, p, np.broadcast_to(values, p.shape)


def signal_names(model: RobustCMDP) -> list[str]:
    """Return the names of the constraints, in the model's order; equal names are numbered.

    Example:
        >>> import holdfast as hf
        >>> signal_names(hf.environments.frozen_lake())
        ['utility']
    """
    names = [c.label for c in model.constraints]
    return [
        name if names.count(name) == 1 else f"{name} {i}" for i, name in enumerate(names, start=1)
    ]


def grid_block(
    rows: tuple[str, ...],
    model: RobustCMDP,
    policy: Float[np.ndarray, "S A"],
    worst: Mapping[str, np.ndarray | Kernel],
) -> Grid:
    """Return the map with the policy, nature's pushes and episodes under every kernel.

    Arguments:
        rows: the map, as `map_of` returns it.
        model: the model of the grid world.
        policy: the policy that acts.
        worst: worst-case kernels by signal.
    """
    kernels = {NOMINAL: model.transitions, **{f"worst case for {n}": k for n, k in worst.items()}}
    paid = [(np.asarray(c.signal).reshape(model.states, -1) != 0).any(1) for c in model.constraints]
    marked = paid[0] if paid else np.zeros(model.states, bool)
    names = signal_names(model)
    return Grid(
        key="map",
        title="The policy and nature on the map",
        about="The length of a blue arrow is the probability of the action. A purple arrow is nature's "
        "push: the shift of the mean next cell in the worst case.",
        letters=rows,
        marked=np.flatnonzero(marked).tolist() if not marked.all() else [],
        marked_name=names[0] if names else "",
        moves=np.asarray(MOVES)[:, ::-1],
        policy=policy,
        pushes=[
            Pushes(name, _pushes((len(rows), len(rows[0])), model, policy, kernel))
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
    shape: tuple[int, int], model: RobustCMDP, policy: np.ndarray, kernel: np.ndarray | Kernel
) -> Float[np.ndarray, "S 2"]:
    """Return the shift (right, down) of the mean next cell, from the nominal kernel to another."""
    change = under_policy(kernel, policy) - under_policy(model.transitions, policy)
    places = np.argwhere(np.ones(shape, bool))
    return (change @ places)[:, ::-1]


def _walk(
    name: str, model: RobustCMDP, policy: np.ndarray, kernel: np.ndarray | Kernel, seed: int
) -> Walk:
    """Return an episode until a cell absorbs; a seed starts in the same cell under every kernel."""
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
    return Walk(name, cells, actions, paid)
