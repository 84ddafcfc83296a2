"""TensorBoard's events of a training run, where TensorBoard is installed."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from holdfast.simulators.training import runs
from holdfast.simulators.training.runs import Row, limits_of


class Events(Protocol):
    """Takes rows for TensorBoard."""

    def write(self, rows: Iterable[Row]) -> None:
        """Those rows are on disk."""


@contextlib.contextmanager
def event_log(folder: Path, description: Mapping[str, Any]) -> Iterator[Events | None]:
    """TensorBoard's events of a run, in a folder for each seed; None where it is not installed.

    They are written afresh from the metrics whenever a run goes on, so that no step is there twice and
    none is missing. Nothing that happens to them stops a run.
    """
    try:
        events = _TensorBoard(folder / runs.TENSORBOARD, description)
    except ImportError:
        yield None
        return
    # Installed but broken, in one of the ways in which a protocol buffer can be.
    except Exception as error:
        warnings.warn(f"TensorBoard gets no events: {error}", stacklevel=2)
        yield None
        return
    events.write(runs.read_lines(folder / runs.METRICS))
    try:
        yield events
    finally:
        events.close()


class _TensorBoard:
    def __init__(self, folder: Path, description: Mapping[str, Any]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary, self._description = Event, Summary, description
        self._writers = {}
        for seed in description["seeds"]:
            place = folder / f"seed-{seed}"
            for old in place.glob("events.out.tfevents.*"):
                old.unlink()
            self._writers[seed] = EventFileWriter(str(place))

    def write(self, rows: Iterable[Row]) -> None:
        if not self._writers:
            return
        try:
            for row in rows:
                values = [
                    self._summary.Value(tag=tag, simple_value=float(value))
                    for tag, value in _scalars(row, self._description)
                ]
                self._writers[row["seed"]].add_event(
                    self._event(
                        wall_time=time.time(),
                        step=row["iteration"],
                        summary=self._summary(value=values),
                    )
                )
            for writer in self._writers.values():
                writer.flush()
        except Exception as error:
            warnings.warn(f"TensorBoard gets no more events: {error}", stacklevel=2)
            self.close()

    def close(self) -> None:
        writers, self._writers = self._writers, {}
        for writer in writers.values():
            with contextlib.suppress(Exception):
                writer.close()


def _scalars(row: Row, description: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    where = "worst_case" if description["robust"] else "nominal"
    yield f"{where}/reward", row["reward"]
    for i, (name, limit) in enumerate(limits_of(description)):
        name = name.replace(" ", "_")
        yield f"{where}/{name}", row["costs"][i]
        if description["constrained"]:
            yield f"margin/{name}", limit - row["costs"][i]
            yield f"inner_limit/{name}", row["inner_limits"][i]
        if description["robust"]:
            yield f"nominal/{name}", row["nominal_costs"][i]
    if description["robust"]:
        yield "nominal/reward", row["nominal_reward"]
    for name in ("kl", "accepted", "backtracks", "recovered"):
        yield f"update/{name}", row[name]
