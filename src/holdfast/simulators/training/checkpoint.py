"""Checkpoints and agents on disk: safetensors with a JSON header and a digest.

A file appears complete or not at all. Reading executes nothing in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from holdfast._support.files import remove_unfinished, write_bytes
from holdfast._version import __version__
from holdfast.simulators.training import runs

Tree = TypeVar("Tree")
_HEADER = "holdfast"
_FORMAT = "holdfast-deep-1"


def save(path: Path, header: Mapping[str, Any], tree: Any) -> None:
    """Write a pytree of arrays with a header of JSON values."""
    write_bytes(path, encode(header, tree))


def encode(header: Mapping[str, Any], tree: Any) -> bytes:
    """Return the content that `save` writes; equal arrays and headers give equal bytes."""
    from safetensors.numpy import save as to_bytes

    arrays = _named_leaves(tree)
    values = {"format": _FORMAT, **header}
    text = json.dumps(
        {"header": values, "digest": _digest(values, arrays)}, sort_keys=True, allow_nan=False
    )
    return to_bytes(arrays, metadata={_HEADER: text})


def read_header(path: Path, kind: str) -> dict[str, Any]:
    """Return the header of a file of one kind.

    Raises:
        ValueError: the file is damaged or not from Holdfast; the message names it.
    """
    return _read(path, kind)[0]


def load(path: Path, kind: str, like: Tree) -> tuple[dict[str, Any], Tree]:
    """Return the header and the pytree of a file.

    Arguments:
        path: the file.
        kind: "agent" or "checkpoint".
        like: a pytree of arrays, or of their shapes, in the form of the stored one.

    Raises:
        ValueError: the file is damaged, not from Holdfast, or of another form; the message names it.
    """
    header, arrays = _read(path, kind)
    expected = _named_leaves(like)
    for name in expected.keys() | arrays.keys():
        found, leaf = (
            "nothing" if each is None else f"{each.dtype}{list(each.shape)}"
            for each in (arrays.get(name), expected.get(name))
        )
        if found != leaf:
            raise ValueError(f"{path}: does not fit, {name} is {found}, expected {leaf}")
    structure = jax.tree.structure(like)
    return header, jax.tree.unflatten(structure, [arrays[name] for name in expected])


def save_learners(
    folder: Path, description: Mapping[str, Any], learners: Any, iteration: int
) -> None:
    """Write the checkpoint of a run after `iteration` iterations."""
    header = {
        "kind": "checkpoint",
        "version": __version__,
        "run": runs.fingerprint(description),
        "iteration": iteration,
    }
    save(folder / runs.CHECKPOINT, header, learners)


def load_learners(folder: Path, description: Mapping[str, Any], shapes: Tree) -> tuple[Tree, int]:
    """Return the states in a run's checkpoint, along a leading axis of seeds, and their iteration.

    Raises:
        ValueError: the checkpoint is missing, damaged or from another run; the message names it.
    """
    path = folder / runs.CHECKPOINT
    header, learners = load(path, "checkpoint", shapes)
    if header["run"] != runs.fingerprint(description):
        raise ValueError(f"{path}: belongs to another run than {folder / runs.DESCRIPTION}")
    return learners, header["iteration"]


def resume(folder: Path, description: Mapping[str, Any], shapes: Tree) -> tuple[Tree | None, int]:
    """Return the states of the checkpoint in a folder and their iteration, or None and 0.

    The folder is restored to its content at the time of the checkpoint.

    Raises:
        ValueError: the folder contains another run, a damaged one or a longer one.
    """
    runs.check_same(folder, description)
    remove_unfinished(folder)
    path, metrics = folder / runs.CHECKPOINT, folder / runs.METRICS
    if not path.is_file():
        if runs.read_lines(metrics):
            raise ValueError(f"{path}: is missing, so that the run in {metrics} cannot continue")
        runs.write_description(folder, description)
        return None, 0
    learners, done = load_learners(folder, description, shapes)
    asked = description["settings"]["iterations"]
    if done > asked:
        raise ValueError(
            f"iterations: {folder} contains a run of {done}, more than {asked}; choose another folder"
        )
    runs.truncate(folder, done, description)
    return jax.tree.map(jnp.asarray, learners), done


def _named_leaves(tree: Any) -> dict[str, Any]:
    """Return the leaves of a tree by their path, in the order of the tree."""
    return {
        jax.tree_util.keystr(path): leaf
        if isinstance(leaf, jax.ShapeDtypeStruct)
        else np.asarray(jax.device_get(leaf), order="C")
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _read(path: Path, kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    from safetensors import safe_open

    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    try:
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get(_HEADER)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    # safetensors raises many types on a bad file, from a wrong length to an unknown dtype.
    except Exception as error:
        raise ValueError(f"{path}: damaged, or not a safetensors file ({error})") from error
    try:
        stored = json.loads(text or "")
        header, digest = dict(stored["header"]), stored["digest"]
        known = header["format"] == _FORMAT
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: not written by Holdfast") from error
    if not known:
        raise ValueError(f"{path}: has the format {header['format']!r}, expected {_FORMAT!r}")
    if digest != _digest(header, arrays):
        raise ValueError(f"{path}: damaged, its contents do not match their digest")
    if header.get("kind") != kind:
        raise ValueError(f"{path}: contains one {header.get('kind')}, expected one {kind}")
    return header, arrays


def _digest(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of header and arrays; safetensors itself does not detect a flipped bit."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
