"""Objects of the gathering tasks: their positions, the sensors that see them, and their features.

`sensors` and `object_features` have any number of leading axes, and compute with JAX or with NumPy.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt

T = TypeVar("T", Array, np.ndarray)

# All numbers are the published ones: objects, half the width of the arena, cells on which objects may
# lie, distance of the centre of mass ahead of the body's origin, and sectors of the sensors.
APPLES, BOMBS = 2, 8
OBJECTS = APPLES + BOMBS
ARENA = 6.0
CELLS = 35
MASS_AHEAD = 0.042583
BINS = 10

_CELLS_A_SIDE, _CELL_OF_ORIGIN = 6, 21
# Slopes of the nine rays between neighbouring sectors: left = slope × ahead.
_BIN_SLOPES = np.tan(np.pi * (np.arange(1, BINS) / BINS - 0.5)).astype(np.float32)


def distinct_cells(bits: UInt[Array, "10"]) -> Int[Array, "10"]:
    """Return ten different cells from 32 random bits each, with equal probability for every order.

    Cell i is first drawn among the 35 − i remaining cells, by its rank among them. Then, from the last
    draw to the first, every later rank that is not below an earlier one moves up by one. This is much
    faster here than sorting random keys. The remainder of 32 random bits favours a cell by less than
    1e-8.

    Example:
        >>> import jax
        >>> len(set(distinct_cells(jax.random.bits(jax.random.key(0), (10,))).tolist()))
        10
    """
    remaining = np.arange(CELLS, CELLS - OBJECTS, -1, dtype=np.uint32)
    cells = (bits % remaining).astype(jnp.int32)
    for i in reversed(range(OBJECTS)):
        drawn_later = np.arange(OBJECTS) > i
        cells += drawn_later & (cells >= cells[i])
    return cells


def cell_positions(cells: Int[Array, " n"]) -> Float[Array, "n 2"]:
    """Return x and y of cells 0 to 34, which are {−6, −4, …, 4}² without the origin.

    Example:
        >>> import jax.numpy as jnp
        >>> cell_positions(jnp.array([0, 20, 21, 34])).tolist()
        [[-6.0, -6.0], [0.0, -2.0], [0.0, 2.0], [4.0, 4.0]]
    """
    cells = cells + (cells >= _CELL_OF_ORIGIN)
    column, row = cells // _CELLS_A_SIDE, cells % _CELLS_A_SIDE
    return (2 * jnp.stack([column, row], axis=1)).astype(jnp.float32) - ARENA


def in_body_frame(
    pose: Float[Array, "3"], objects: Float[Array, "n 2"]
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Return how far ahead of the centre of mass and how far to its left each object lies.

    Example:
        >>> import jax.numpy as jnp
        >>> ahead, left = in_body_frame(jnp.zeros(3), jnp.array([[2.0, 0.0], [0.0, 4.0]]))
        >>> [f"{a:.2f} ahead, {b:.0f} left" for a, b in zip(ahead, left, strict=True)]
        ['1.96 ahead, 0 left', '-0.04 ahead, 4 left']
    """
    x, y, heading = pose
    cosine, sine = jnp.cos(heading), jnp.sin(heading)
    east, north = objects[:, 0] - x, objects[:, 1] - y
    return cosine * east + sine * north - MASS_AHEAD, cosine * north - sine * east


def sensors(
    ahead: Float[T, "*rows 10"],
    left: Float[T, "*rows 10"],
    present: Bool[T, "*rows 10"],
    sensor_range: Float[Array, ""] | float,
    xp: Any = jnp,
) -> Float[T, "*rows 20"]:
    """Return the readings for apples, then for bombs, each in ten sectors from right to left.

    The sector of an object is the number of rays to its right, which equals the floor of
    (angle + π/2)/(π/10) without computing the angle.

    Arguments:
        ahead: distance of each object ahead of the robot.
        left: distance of each object to the left of the robot.
        present: whether each object is still there.
        sensor_range: distance beyond which objects are not seen.
        xp: the array library, `jax.numpy` or `numpy`.

    Example:
        >>> import jax.numpy as jnp
        >>> ahead, left = jnp.full(10, 3.0), jnp.full(10, -0.1)
        >>> readings = sensors(ahead, left, jnp.arange(10) == 0, 6.0)
        >>> readings[:10].round(1).tolist()
        [0.0, 0.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0]
    """
    distance = xp.sqrt(ahead**2 + left**2)
    seen = present & (ahead >= 0) & (distance <= sensor_range)
    reading = xp.where(seen, 1 - distance / sensor_range, 0.0)
    sector: Any = sum((left >= slope * ahead).astype(np.int32) for slope in _BIN_SLOPES)
    in_sector = sector[..., None, :] == np.arange(BINS, dtype=np.int32)[:, None]
    readings = xp.where(in_sector, reading[..., None, :], 0.0)
    apples, bombs = readings[..., :APPLES].max(-1), readings[..., APPLES:].max(-1)
    return xp.concatenate([apples, bombs], axis=-1)


def object_features(
    first: Float[T, "*rows 10"],
    second: Float[T, "*rows 10"],
    present: Bool[T, "*rows 10"],
    catch_distance: Float[Array, ""] | float,
    xp: Any = jnp,
) -> Float[T, "*rows 40"]:
    """Return four numbers for each object: apples before bombs, the nearest first, caught ones last.

    The numbers are the place of the object, with the distance d replaced by tanh(d/2);
    tanh(d − catch distance); and whether it is still there. A caught object reads (0, 0, 1, 0).

    Arguments:
        first: first coordinate of each object, from the robot's centre of mass.
        second: second coordinate.
        present: whether each object is still there.
        catch_distance: distance within which objects are caught.
        xp: the array library, `jax.numpy` or `numpy`.

    Example:
        >>> place = np.arange(1.0, 11.0)
        >>> object_features(place, place, place > 1, 1.0, np).reshape(10, 4)[1].tolist()
        [0.0, 0.0, 1.0, 0.0]
    """
    # At least 1e-6, so that the direction to an object at distance zero is not 0/0.
    distance = xp.sqrt(xp.maximum(first**2 + second**2, 1e-12))
    squash = xp.where(present, xp.tanh(distance / 2) / distance, 0.0)
    clearance = xp.where(present, xp.tanh(distance - catch_distance), 1.0)
    objects = xp.stack([squash * first, squash * second, clearance, present], axis=-1)
    keys = xp.where(present, distance, np.inf)
    apples = sorted_rows(keys[..., :APPLES], objects[..., :APPLES, :], xp)
    bombs = sorted_rows(keys[..., APPLES:], objects[..., APPLES:, :], xp)
    return xp.concatenate([apples, bombs], axis=-2).reshape(*keys.shape[:-1], -1)


def sorted_rows(
    keys: Float[T, "*rows n"], rows: Float[T, "*rows n k"], xp: Any = jnp
) -> Float[T, "*rows n k"]:
    """Return rows by rising key; equal keys keep their order.

    A row's place is the number of rows before it. For ten rows this is faster than a sort.

    Example:
        >>> import jax.numpy as jnp
        >>> sorted_rows(jnp.array([2.0, 1.0]), jnp.array([[7.0], [8.0]])).tolist()
        [[8.0], [7.0]]
    """
    index = np.arange(keys.shape[-1], dtype=np.int32)
    earlier = index[None, :] < index[:, None]
    other, own = keys[..., None, :], keys[..., :, None]
    place = ((other < own) | ((other == own) & earlier)).sum(-1, dtype=np.int32)
    in_place = place[..., None, :] == index[:, None]
    return xp.where(in_place[..., None], rows[..., None, :, :], 0.0).sum(-2)


def normal_from(bits: UInt[Array, " n"]) -> Float[Array, " n"]:
    """Return standard normal numbers from 32 random bits each.

    Example:
        >>> import jax
        >>> numbers = normal_from(jax.random.bits(jax.random.key(0), (10_000,)))
        >>> abs(float(numbers.mean())) < 0.05, abs(float(numbers.std()) - 1) < 0.05
        (True, True)
    """
    # Midpoints of 2²⁴ equal parts of (−1, 1), because the ends would map to infinity.
    uniform = (bits >> 8).astype(jnp.float32) * 2.0**-23 + (2.0**-24 - 1)
    return math.sqrt(2) * lax.erf_inv(uniform)
