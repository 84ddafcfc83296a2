"""Cells of a grid, numbered row by row, and the moves between them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from holdfast._support.arguments import check_whole_number

# (row, column) of left, down, right, up, in Gymnasium's order; a neighbour in it is a turn.
MOVES = np.array([(0, -1), (1, 0), (0, 1), (-1, 0)])


def neighbours(shape: tuple[int, ...]) -> Int[np.ndarray, "cells moves"]:
    """The cell that each move from each cell leads to; a move off the grid stays."""
    places = np.argwhere(np.ones(shape, bool))
    row, column = np.moveaxis(np.clip(places[:, None] + MOVES, 0, np.subtract(shape, 1)), -1, 0)
    return row * shape[1] + column


def noisy_moves(
    size: int, goal: int, success: float
) -> tuple[Int[np.ndarray, "cells 4 4"], Float[np.ndarray, "cells 4 4"]]:
    """Successors and probabilities on a square grid: each move as meant, or one of the other three.

    The move that is meant happens with probability `success`, each other one with a third of the
    rest. The goal absorbs.
    """
    cells = size * size
    there = neighbours((size, size))
    successors = np.broadcast_to(there[:, None, :], (cells, 4, 4)).copy()
    successors[goal] = goal
    probabilities = np.full((4, 4), (1 - success) / 3)
    np.fill_diagonal(probabilities, success)
    return successors, np.broadcast_to(probabilities, successors.shape)


def check_cells(name: str, cells: Sequence[int], count: int, goal: int) -> list[int]:
    """Cells as a list; a ValueError where one is not on the grid, or is the goal."""
    for number in cells:
        check_whole_number(name, number, least=0)
        if number >= count:
            raise ValueError(f"{name}: cells are 0 to {count - 1}, got {number!r}")
        if number == goal:
            raise ValueError(f"{name}: cell {number} is the goal")
    return [int(number) for number in cells]
