"""Arrays on disk: safetensors with a JSON header, written whole or not at all, never executed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from holdfast._support.files import atomic_write

Tree = TypeVar("Tree")
_HEADER = "holdfast"
_FORMAT = "holdfast-deep-1"


def save(path: Path, header: Mapping[str, Any], tree: Any) -> None:
    """Writes a pytree of arrays, with a header that JSON can hold and a digest of all of it."""
    data = encode(header, tree)
    with atomic_write(path) as file:
        file.write(data)


def encode(header: Mapping[str, Any], tree: Any) -> bytes:
    """What `save` writes; equal arrays and headers give equal bytes."""
    from safetensors.numpy import save as to_bytes

    arrays = named_leaves(tree)
    values = {"format": _FORMAT, **header}
    text = json.dumps(
        {"header": values, "digest": _digest(values, arrays)}, sort_keys=True, allow_nan=False
    )
    return to_bytes(arrays, metadata={_HEADER: text})


def read_header(path: Path, kind: str) -> dict[str, Any]:
    """The header of a file of one kind that `save` wrote.

    Raises:
        ValueError: the file is damaged or was not written by Holdfast; the message has its path.
    """
    return _read(path, kind)[0]


def load(path: Path, kind: str, like: Tree) -> tuple[dict[str, Any], Tree]:
    """The header and the pytree, in the form of a tree of arrays or of their shapes.

    Raises:
        ValueError: the file is damaged, foreign, or holds something else; the message has its path.
    """
    header, arrays = _read(path, kind)
    expected = named_leaves(like)
    for name, leaf in expected.items():
        if name not in arrays:
            raise ValueError(f"{path}: cannot be used here, {name} is missing")
        found = arrays[name]
        if found.shape != leaf.shape or found.dtype != leaf.dtype:
            raise ValueError(
                f"{path}: cannot be used here, {name} is {found.dtype}{list(found.shape)} "
                f"and should be {leaf.dtype}{list(leaf.shape)}"
            )
    for name in arrays:
        if name not in expected:
            raise ValueError(f"{path}: cannot be used here, {name} is not expected")
    structure = jax.tree.structure(like)
    return header, jax.tree.unflatten(structure, [arrays[name] for name in expected])


def named_leaves(tree: Any) -> dict[str, Any]:
    """The leaves of a tree by the path that leads to them, in the tree's own order."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {
        jax.tree_util.keystr(path): leaf
        if isinstance(leaf, jax.ShapeDtypeStruct)
        else np.asarray(jax.device_get(leaf), order="C")
        for path, leaf in leaves
    }


def _read(path: Path, kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    from safetensors import safe_open

    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    try:
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get(_HEADER)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    # Whatever a reader stumbles over in a file that is not one, from a bad length to an unknown type.
    except Exception as error:
        raise ValueError(f"{path}: damaged, or not a safetensors file ({error})") from error
    try:
        stored = json.loads(text or "")
        header, digest = dict(stored["header"]), stored["digest"]
        known = header["format"] == _FORMAT
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not written by Holdfast") from error
    if not known:
        raise ValueError(f"{path}: written in the format {header['format']!r}, not {_FORMAT!r}")
    if digest != _digest(header, arrays):
        raise ValueError(f"{path}: damaged, its contents do not match their digest")
    if header.get("kind") != kind:
        raise ValueError(f"{path}: holds one {header.get('kind')}, not one {kind}")
    return header, arrays


def _digest(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over the header and every array: safetensors itself does not notice a flipped bit."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
