"""Arrays in `.npy` and `.npz` files that somebody else may have made.

Only known names are read. What a file declares is compared with what it contains before memory is
allocated, so that a few bytes cannot ask for gigabytes. Nothing in a file is executed.
"""

from __future__ import annotations

import io
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

# Deflate expands a byte to at most 1,032; a larger declared size is false.
_LARGEST_RATIO = 1032
# Arrays of at least this many bytes are mapped: smaller ones are read faster.
_LEAST_MAPPED = 1 << 22
_HEADERS: dict[tuple[int, int], Callable[..., Any]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


class ArchiveError(ValueError):
    """A file is not an archive of arrays, or is damaged."""


def read_arrays(
    content: bytes | str | os.PathLike[str], known: Callable[[str], bool]
) -> dict[str, np.ndarray]:
    """Return the arrays of a `.npz` file whose names are known; the others are not read.

    Large arrays of a file that is not compressed are mapped, read-only: they are read when they are
    used, and the file has to stay as it is.

    Arguments:
        content: the content of the file, or its path.
        known: whether an array of this name is wanted.

    Raises:
        ArchiveError: the file is no archive, is damaged, or declares more than it contains.
        OSError: the file cannot be read.

    Example:
        >>> file = io.BytesIO()
        >>> np.savez_compressed(file, policy=np.eye(2), other=np.zeros(3))
        >>> list(read_arrays(file.getvalue(), lambda name: name == "policy"))
        ['policy']
    """
    path = None if isinstance(content, bytes) else Path(content)
    opened = io.BytesIO(content) if isinstance(content, bytes) else Path(content).open("rb")  # noqa: SIM115
    try:
        with opened, zipfile.ZipFile(opened) as archive:
            members = {
                member.filename.removesuffix(".npy"): member
                for member in archive.infolist()
                if member.filename.endswith(".npy")
            }
            return {
                name: _member(archive, member, path)
                for name, member in members.items()
                if known(name)
            }
    except ArchiveError:
        raise
    # A damaged archive raises these and, in the header of an array, nearly anything.
    except (
        *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, OverflowError),
        *(ValueError, TypeError, LookupError, NotImplementedError, RuntimeError, MemoryError),
        *(SyntaxError, AttributeError),
    ) as error:
        raise ArchiveError(f"damaged, or not an archive of arrays ({error})") from error


def read_array(path: str | os.PathLike[str]) -> np.ndarray:
    """Return the array of a `.npy` file.

    Raises:
        ArchiveError: the file is not such a file, is damaged, or declares more than it contains.
        OSError: the file cannot be read.
    """
    data = Path(path).read_bytes()
    try:
        return _array(io.BytesIO(data), len(data))
    except ArchiveError:
        raise
    except Exception as error:  # the header of an array may raise nearly anything
        raise ArchiveError(f"damaged, or not a .npy file ({error})") from error


def is_array(path: str | os.PathLike[str]) -> bool:
    """Return whether a file begins like a `.npy` file."""
    with Path(path).open("rb") as file:
        return file.read(6) == b"\x93NUMPY"


def _member(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path | None = None
) -> np.ndarray:
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ArchiveError(f"{member.filename} is packed in a way that NumPy does not write")
    if member.file_size > _LARGEST_RATIO * (member.compress_size + 1):
        raise ArchiveError(
            f"{member.filename} declares {member.file_size:,} bytes in {member.compress_size:,}"
        )
    with archive.open(member) as file:
        stored = member.compress_type == zipfile.ZIP_STORED
        if path is None or not stored or member.file_size < _LEAST_MAPPED:
            return _array(file, member.file_size)
        shape, is_fortran, dtype = _described(file, member.file_size)
        skipped = file.tell()
    with path.open("rb") as plain:
        # Lengths of the name and of the extra field, which come before the content.
        plain.seek(member.header_offset + 26)
        before = sum(struct.unpack("<HH", plain.read(4)))
    start = member.header_offset + 30 + before + skipped
    order = "F" if is_fortran else "C"
    return np.memmap(path, dtype, "r", offset=start, shape=shape, order=order)  # type: ignore[call-overload]


def _array(file: IO[bytes], size: int) -> np.ndarray:
    """Return the array that follows in a file of `size` bytes."""
    shape, is_fortran, dtype = _described(file, size)
    data = bytearray(file.read(size - file.tell()))
    return np.frombuffer(data, dtype).reshape(shape, order="F" if is_fortran else "C")


def _described(file: IO[bytes], size: int) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return shape, order and type of the array that follows in a file of `size` bytes."""
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise ArchiveError(f"an array in version {version} of NumPy's format")
    shape, is_fortran, dtype = _HEADERS[version](file)
    if dtype.kind not in "fiubU" or not dtype.itemsize or dtype.hasobject:
        raise ArchiveError(f"an array of type {dtype}; expected numbers (allow_pickle=False)")
    asked, left = math.prod(shape) * dtype.itemsize, size - file.tell()
    if asked != left:
        raise ArchiveError(f"an array of {asked:,} bytes in {left:,}")
    return shape, is_fortran, dtype
