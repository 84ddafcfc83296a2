"""Grids: cells numbered row by row, and the moves between them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int

from holdfast._support.arguments import check_probability, check_whole_number
from holdfast.model import Kernel

# (row, column) of left, down, right and up, in Gymnasium's order; neighbours in it differ by a turn.
MOVES = np.array([(0, -1), (1, 0), (0, 1), (-1, 0)])


def neighbours(shape: tuple[int, ...]) -> Int[np.ndarray, "cells moves"]:
    """Return the cell to which each move from each cell leads; a move off the grid stays.

    Example:
        >>> neighbours((2, 2)).tolist()
        [[0, 2, 1, 0], [0, 3, 1, 1], [2, 2, 3, 0], [2, 3, 3, 1]]
    """
    places = np.argwhere(np.ones(shape, bool))
    row, column = np.moveaxis(np.clip(places[:, None] + MOVES, 0, np.subtract(shape, 1)), -1, 0)
    return row * shape[1] + column


def noisy_moves(size: int, success: float) -> tuple[Kernel, Bool[np.ndarray, " cells"]]:
    """Return the kernel of a square grid whose moves fail, and the indicator of its last cell.

    The last cell absorbs. The intended move happens with probability `success`, each other move with a
    third of the rest.
    """
    check_whole_number("size", size, least=2)
    check_probability("success", success)
    successors = np.repeat(neighbours((size, size))[:, None], 4, axis=1)
    successors[-1] = size * size - 1
    probabilities = np.full((4, 4), (1 - success) / 3)
    np.fill_diagonal(probabilities, success)
    kernel = Kernel(successors, np.broadcast_to(probabilities, successors.shape))
    return kernel, np.arange(size * size) == size * size - 1


def indicator_of_cells(
    name: str, cells: Sequence[int], absorbing: Bool[np.ndarray, " cells"]
) -> np.ndarray:
    """Return the signal, of shape (cells, 4), that is 1 in some cells and 0 elsewhere.

    Raises:
        ValueError: a cell is not on the grid, or absorbs; the message starts with `name`.
    """
    for cell in cells:
        check_whole_number(name, cell, least=0)
        if cell >= absorbing.size:
            raise ValueError(f"{name}: cells are 0 to {absorbing.size - 1}, got {cell!r}")
        if absorbing[cell]:
            raise ValueError(f"{name}: expected cells that do not absorb, got {cell}")
    signal = np.zeros((absorbing.size, 4))
    signal[list(cells)] = 1.0
    return signal
