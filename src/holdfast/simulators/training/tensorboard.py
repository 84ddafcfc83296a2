"""TensorBoard events of a training run, if TensorBoard is installed."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast.simulators.training import runs
from holdfast.simulators.training.runs import Row, limits_of


@contextlib.contextmanager
def event_log(
    folder: Path, description: Mapping[str, Any]
) -> Iterator[Callable[[Iterable[Row]], None]]:
    """Yield a function that writes rows as events, in one folder per seed.

    The function does nothing if TensorBoard is not installed. A run that resumes writes its events anew
    from the metrics, so that every step is there once. No failure of TensorBoard stops a run.
    """
    writers = _writers(folder / runs.TENSORBOARD, description["seeds"])

    def close() -> None:
        for writer in writers.values():
            with contextlib.suppress(Exception):
                writer.close()
        writers.clear()

    def write(rows: Iterable[Row]) -> None:
        try:
            for row in rows if writers else ():
                for tag, value in scalars(row, description):
                    writers[row["seed"]].add_scalar(tag, float(value), row["iteration"])
            for writer in writers.values():
                writer.flush()
        except Exception as error:
            warnings.warn(f"TensorBoard receives no more events: {error}", stacklevel=2)
            close()

    write(runs.read_lines(folder / runs.METRICS))
    try:
        yield write
    finally:
        close()


def _writers(folder: Path, seeds: Iterable[int]) -> dict[int, Any]:
    """Return a writer for every seed, and none if TensorBoard cannot be used."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from tensorboard.summary import Writer
        writers = {}
        for seed in seeds:
            place = folder / f"seed-{seed}"
            for old in place.glob("events.out.tfevents.*"):
                old.unlink()
            writers[seed] = Writer(str(place))
        return writers
    except ImportError:
        return {}
    # An installed TensorBoard can fail in many ways, most often over its version of protobuf.
    except Exception as error:
        warnings.warn(f"TensorBoard receives no events: {error}", stacklevel=2)
        return {}


def scalars(row: Row, description: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a row with their names in a log."""
    where = "worst_case" if description["robust"] else "nominal"
    yield f"{where}/reward", row["reward"]
    for i, (name, limit) in enumerate(limits_of(description)):
        name = name.replace(" ", "_")
        yield f"{where}/{name}", row["costs"][i]
        likely = row.get("likely_costs", row["costs"])[i]
        yield f"{where}/{name}_of_most_likely_actions", likely
        if description["constrained"]:
            yield f"margin/{name}", limit - max(row["costs"][i], likely)
            yield f"inner_limit/{name}", row["inner_limits"][i]
        if description["robust"]:
            yield f"nominal/{name}", row["nominal_costs"][i]
    if description["robust"]:
        yield "nominal/reward", row["nominal_reward"]
    for i, value in enumerate(row.get("multipliers", ())):
        yield f"multiplier/{description['costs'][i].replace(' ', '_')}", value
    for name in ("kl", "accepted", "backtracks", "recovered", "passes"):
        if name in row:
            yield f"update/{name}", row[name]
