"""Model files: detection of the format, and error messages for files that are not models."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from holdfast._support.files import write_bytes
from holdfast.model.cmdp import RobustCMDP
from holdfast.model.drn import read_drn
from holdfast.model.explicit import ExplicitModel, ModelRules, to_model
from holdfast.model.npz import model_from_bytes, model_to_bytes
from holdfast.model.prism import read_prism
from holdfast.model.umb import read_umb, write_umb

# Formats of other tools by the end of the file name.
_READERS: dict[str, Callable[[Path], ExplicitModel]] = {
    ".umb": read_umb,
    ".drn": read_drn,
    ".tra": read_prism,
}
_BESIDE = {".lab": "labels", ".srew": "state rewards", ".trew": "transition rewards"}
_FIT = "a log; `holdfast fit` or hf.from_log makes a model of it"
# Number of bytes that tell what a file is.
_START = 4096
# What files are, by their first bytes.
_MAGIC = {
    b"\x89PNG": "a picture",
    b"\xff\xd8\xff": "a picture",
    b"GIF8": "a picture",
    b"%PDF": "a PDF document",
    b"PAR1": _FIT,
    b"\x93NUMPY": "a single array; a model file has several",
    b"\x89HDF": "an HDF5 file",
}


def load_model(path: str | os.PathLike[str], rules: ModelRules | None = None) -> RobustCMDP:
    """Return the model in a file of any format that is known here.

    Arguments:
        path: the file.
        rules: discount, horizon, reward and constraints for a file of another tool.

    Raises:
        ValueError: the file is damaged, or is no model; the message names the file and what it is.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    suffix = path.suffix.lower()
    if suffix in _READERS:
        try:
            return to_model(_READERS[suffix](path), rules or ModelRules())
        except Exception as error:  # a damaged file can raise nearly any error
            text = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"{path}: not a {suffix} model that can be read: {text}") from error
    if rules is not None:
        raise ValueError(
            f"{path}: discount, horizon, reward and constraints are for files of other tools"
        )
    try:
        with path.open("rb") as file:
            start = file.read(_START)
    except OSError as error:
        raise ValueError(f"{path}: not a Holdfast model: {error}") from error
    kind = _kind(path, start)
    if kind:
        raise ValueError(f"{path}: not a Holdfast model: it looks like {kind}")
    return model_from_bytes(path, str(path))


def save_model(model: RobustCMDP, path: str | os.PathLike[str]) -> None:
    """Write a model to a `.umb` file if the path ends so, and to a `.npz` file otherwise."""
    if Path(path).suffix.lower() == ".umb":
        write_umb(model, path)
    else:
        write_bytes(path, model_to_bytes(model))


def _kind(path: Path, start: bytes) -> str:
    """Return the type of a file that cannot be a model, from its first bytes; "" if it may be one."""
    suffix = path.suffix.lower()
    if suffix in _BESIDE:
        return f"the {_BESIDE[suffix]} of a PRISM model; load its .tra file"
    for magic, kind in _MAGIC.items():
        if start.startswith(magic):
            return kind
    if suffix in (".csv", ".tsv", ".parquet"):
        return _FIT
    first = start.partition(b"\n")[0]
    if first.count(b",") > 1 and first.isascii() and b"\0" not in start:
        return _FIT
    return ""
