"""Work on a Ray cluster, or on a Ray of this machine (`pip install "holdfast[ray]"`).

Every node needs Holdfast installed. Models travel with their items, results return to this process, and
no folder is shared.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from holdfast.experiments import engines
from holdfast.experiments.engines import EngineOptions, File, Reply, WorkEvent, WorkItem

# Items handed to Ray per worker: one that runs and one that waits, so that no worker is idle.
_AHEAD = 2
_QUIET: dict[str, Any] = {
    "log_to_driver": False,
    "include_dashboard": False,
    "configure_logging": False,
}


def run(items: Sequence[WorkItem], folder: Path, options: EngineOptions) -> Iterator[WorkEvent]:
    """Do the items wherever Ray places them.

    Raises:
        ValueError: Ray is not installed, or no cluster answers at the address within the number of
            seconds in the environment variable HOLDFAST_RAY_TIMEOUT, 30 by default.
    """
    try:
        import ray
    except ImportError as error:
        raise ValueError('engine: Ray is not installed; pip install "holdfast[ray]"') from error
    threads = max(1, options.threads)
    ours = not ray.is_initialized()
    if ours and options.address:
        _connect(ray, options.address)
    elif ours:
        cpus = threads * (options.workers or engines.processors())
        ray.init(address="local", num_cpus=cpus, **_QUIET)
    try:
        room = int(ray.cluster_resources().get("CPU", 1)) // threads
        workers = max(1, min(options.workers or room, len(items)))
        environment = engines.worker_environment(EngineOptions(workers=workers, threads=threads))
        # No retries by Ray: `work_through` counts attempts and reports their reasons.
        remote = ray.remote(num_cpus=threads, max_retries=0, runtime_env={"env_vars": environment})(
            _do
        )
        slots = [_RaySlot(remote) for _ in range(_AHEAD * workers)]
        yield from engines.work_through(items, folder, slots)
    finally:
        if ours:
            ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    """Connect to a cluster in a thread, because Ray itself waits for minutes and cannot be stopped."""
    seconds = float(os.environ.get("HOLDFAST_RAY_TIMEOUT", "30"))
    errors: list[str] = []

    def connect() -> None:
        try:
            ray.init(address=address, **_QUIET)
        except Exception as error:
            errors.append(str(error))

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        errors.append(f"no answer within {seconds:g} s (HOLDFAST_RAY_TIMEOUT sets the limit)")
    if errors:
        raise ValueError(f"address: no Ray cluster at {address}: {errors[0]}")


class _RaySlot:
    """A place in Ray's queue; files come back when the whole item is done."""

    def __init__(self, remote: Any) -> None:
        self._remote = remote

    def begin(self, item: WorkItem, folder: Path) -> Reply:
        """Hand an item to Ray."""
        del folder  # workers may be on other machines
        return self._remote.remote(item, engines.registered_names()).future()

    def resume(self) -> Reply:
        """Never called, since no files follow."""
        raise NotImplementedError


def _do(item: WorkItem, names: Sequence[dict[str, str]]) -> tuple[list[File], bool]:
    engines.prepare_worker(names)
    return list(item.run(None)), False
