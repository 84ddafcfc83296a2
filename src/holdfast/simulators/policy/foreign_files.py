"""Policies of other libraries as functions of observations: Stable-Baselines3, ONNX, TorchScript.

Reading a Stable-Baselines3 archive, its `VecNormalize` statistics or a TorchScript file can run code
that is stored in the file. These need `trust=True`. An ONNX file holds only a graph of operators.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
import zipfile
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

_TORCHSCRIPT = (".pt", ".pth", ".ts", ".torchscript")


@dataclasses.dataclass(frozen=True)
class ForeignFunction:
    """What a foreign policy computes.

    Attributes:
        name: name in messages and results.
        call: function from observations in the environment's own form, and the seed of drawn actions
            or None for the most likely ones, to actions.
        takes_rows: whether `call` takes several observations at once; None if that is not known.
        inputs: number of entries of an observation that the policy expects; None if it does not say.
        draws: whether the policy draws actions by the seed.
        memory: the object with `reset` of a policy with a memory, of which every episode has a copy.
    """

    name: str
    call: Callable[[Any, int | None], Any]
    takes_rows: bool | None = None
    inputs: int | None = None
    draws: bool = False
    memory: Any = None


def read_function(policy: Any, *, trust: bool = False, statistics: Any = None) -> ForeignFunction:
    """Return the function of a foreign policy.

    Arguments:
        policy: a Stable-Baselines3 model or its .zip file, an .onnx file, a TorchScript file, a function
            of the observation, or an object that can be called and has a `reset`.
        trust: whether code that is stored in a file may run.
        statistics: a `VecNormalize` object or its file, for a Stable-Baselines3 model.

    Raises:
        ValueError: the policy cannot be used, or its file needs `trust`.
    """
    path = Path(policy) if isinstance(policy, str | PathLike) else None
    if path is not None and not path.exists():
        raise ValueError(f"policy: there is no file {str(path)!r}")
    is_model = path is None and _is_sb3(policy)
    if statistics is not None and not (is_model or (path is not None and path.suffix == ".zip")):
        raise ValueError("statistics: only a Stable-Baselines3 model has them")
    if path is not None and path.suffix == ".zip":
        return _of_sb3(_read_zip(path, trust), statistics, trust)
    if path is not None and path.suffix == ".onnx":
        return _read_onnx(path)
    if path is not None and path.suffix in _TORCHSCRIPT:
        return _read_torchscript(path, trust)
    if path is not None:
        raise ValueError(
            "policy: expected a file of train, a .zip of Stable-Baselines3, an .onnx file or a "
            f"TorchScript file ({', '.join(_TORCHSCRIPT)}), got {str(path)!r}"
        )
    if is_model:
        return _of_sb3(policy, statistics, trust)
    if not callable(policy):
        raise ValueError(
            "policy: expected an Agent, a Stable-Baselines3 model, a file or a function of the "
            f"observation, got {type(policy).__name__}"
        )
    name = getattr(policy, "__name__", type(policy).__name__)
    memory = policy if callable(getattr(policy, "reset", None)) else None
    return ForeignFunction(name, lambda seen, _: policy(seen), memory=memory)


def _needs_trust(what: str, path: Path) -> ValueError:
    return ValueError(
        f"trust: reading {what} can run code that is stored in it; pass trust=True if you know where "
        f"it comes from, got {str(path)!r}"
    )


def _is_sb3(policy: Any) -> bool:
    return all(hasattr(policy, name) for name in ("predict", "observation_space", "action_space"))


def _of_sb3(model: Any, statistics: Any, trust: bool) -> ForeignFunction:
    from gymnasium import spaces

    if statistics is None and hasattr(model, "get_vec_normalize_env"):
        statistics = model.get_vec_normalize_env()
    elif isinstance(statistics, str | PathLike):
        statistics = _read_statistics(Path(statistics), trust)
    if statistics is not None and not hasattr(statistics, "normalize_obs"):
        raise ValueError(
            f"statistics: expected a VecNormalize or its file, got {type(statistics).__name__}"
        )

    def call(seen: Any, seed: int | None) -> Any:
        import torch

        if isinstance(model.observation_space, spaces.Box):
            seen = np.reshape(seen, (-1, *model.observation_space.shape))
        if statistics is not None:
            seen = statistics.normalize_obs(seen)
        if seed is None:
            return model.predict(seen, deterministic=True)[0]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return model.predict(seen, deterministic=False)[0]

    inputs = int(spaces.flatdim(model.observation_space))
    return ForeignFunction(type(model).__name__, call, takes_rows=True, inputs=inputs, draws=True)


def _read_zip(path: Path, trust: bool) -> Any:
    if not trust:
        raise _needs_trust("a Stable-Baselines3 archive", path)
    try:
        import stable_baselines3
    except ImportError as error:
        raise ValueError("policy: stable-baselines3 is not installed, which wrote it") from error
    try:
        with zipfile.ZipFile(path) as archive:
            data = json.loads(archive.read("data"))
        kind = str(data["policy_class"].get(":type:", "")) + str(data["policy_class"])
    except (KeyError, AttributeError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"policy: {str(path)!r} is not an archive of Stable-Baselines3") from error
    # The archive names the class of the networks. PPO and A2C share theirs; only PPO clips.
    known = {".sac.": "SAC", ".td3.": "TD3", ".dqn.": "DQN"}
    algorithm = next((name for part, name in known.items() if part in kind), None)
    algorithm = algorithm or ("PPO" if "clip_range" in data else "A2C")
    try:
        return getattr(stable_baselines3, algorithm).load(path, device="cpu")
    except Exception as error:  # whatever the code in the file raises
        raise ValueError(
            f"policy: {str(path)!r} could not be read as {algorithm} ({error})"
        ) from error


def _read_statistics(path: Path, trust: bool) -> Any:
    if not trust:
        raise _needs_trust("VecNormalize statistics", path)
    try:
        with path.open("rb") as file:
            return pickle.load(file)
    except (OSError, pickle.UnpicklingError, EOFError) as error:
        raise ValueError(f"statistics: {str(path)!r} could not be read ({error})") from error


def _read_onnx(path: Path) -> ForeignFunction:
    try:
        import onnxruntime
    except ImportError as error:
        raise ValueError(
            'policy: onnxruntime is not installed; pip install "holdfast[onnx]"'
        ) from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors reach the user as exceptions
    try:
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # the classes of onnxruntime's errors are not public
        raise ValueError(f"policy: {str(path)!r} is not an ONNX graph ({error})") from error
    given, results = session.get_inputs(), session.get_outputs()
    for what, found in (("input", given), ("output", results)):
        if len(found) != 1:
            names = ", ".join(each.name for each in found)
            raise ValueError(
                f"policy: expected an ONNX graph with one {what}, got {len(found)} ({names})"
            )
    shape, name = given[0].shape, given[0].name

    def call(seen: Any, _: int | None) -> Any:
        return session.run(None, {name: np.asarray(seen, np.float32)})[0]

    rows = len(shape) == 2 and not isinstance(shape[0], int)
    # A graph for a batch of one is called with one row at a time.
    one = call if len(shape) == 1 else lambda seen, seed: call(np.asarray(seen)[None], seed)[0]
    inputs = shape[-1] if shape and isinstance(shape[-1], int) else None
    return ForeignFunction(path.name, call if rows else one, takes_rows=rows, inputs=inputs)


def _read_torchscript(path: Path, trust: bool) -> ForeignFunction:
    if not trust:
        raise _needs_trust("a TorchScript file", path)
    try:
        import torch
    except ImportError as error:
        raise ValueError("policy: torch is not installed, which TorchScript needs") from error
    try:
        module = torch.jit.load(str(path), map_location="cpu").eval()
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"policy: {str(path)!r} is not a TorchScript file ({reason})") from error

    def call(seen: Any, _: int | None) -> Any:
        with torch.no_grad():
            return module(torch.as_tensor(np.asarray(seen, np.float32))).numpy()

    return ForeignFunction(path.name, call)
