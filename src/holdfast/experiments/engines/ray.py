"""Tasks on a Ray cluster, or on a Ray of this machine alone (`pip install "holdfast[ray]"`).

Every node needs Holdfast installed, and nothing else: models travel with their tasks, results come
back to this process, and no folder is shared.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from holdfast.experiments.engines import (
    Begun,
    Done,
    EngineOptions,
    Event,
    Failed,
    File,
    Made,
    Task,
    processors,
    worker_environment,
)

# Tasks that are handed to Ray before others have come back, for each worker: enough to keep it busy.
_AHEAD = 2


def run(tasks: Sequence[Task], folder: Path, options: EngineOptions) -> Iterator[Event]:
    """Does the tasks wherever Ray puts them."""
    del folder  # workers may be on other machines
    try:
        import ray
    except ImportError as error:
        raise ValueError('engine: Ray is not installed; pip install "holdfast[ray]"') from error
    ours = not ray.is_initialized()
    if ours:
        ray.init(**_cluster(options))
    try:
        yield from _run(ray, tasks, options)
    finally:
        if ours:
            ray.shutdown()


def _cluster(options: EngineOptions) -> dict[str, Any]:
    quiet = {"log_to_driver": False, "include_dashboard": False, "configure_logging": False}
    if options.address:
        return {"address": options.address, **quiet}
    workers = options.workers or processors()
    return {"address": "local", "num_cpus": workers * max(1, options.threads), **quiet}


def _run(ray: Any, tasks: Sequence[Task], options: EngineOptions) -> Iterator[Event]:
    threads = max(1, options.threads)
    room = int(ray.cluster_resources().get("CPU", 1)) // threads
    workers = max(1, min(options.workers or room, len(tasks)))
    environment = worker_environment(EngineOptions(workers=workers, threads=threads))
    # Ray's own retries say nothing of why; ours count and tell.
    remote = ray.remote(
        num_cpus=threads,
        max_retries=0,
        runtime_env={"env_vars": environment},
    )(_do)
    waiting = list(tasks)
    attempts = dict.fromkeys(map(id, tasks), 0)
    running: dict[Any, Task] = {}
    while waiting or running:
        while waiting and len(running) < _AHEAD * workers:
            task = waiting.pop(0)
            attempts[id(task)] += 1
            running[remote.remote(task, options.cache)] = task
            yield Begun(task)
        (ended, *_), _ = ray.wait(list(running))
        task = running.pop(ended)
        try:
            files: list[File] = ray.get(ended)
        except ray.exceptions.RayError as error:
            cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
            if isinstance(cause, KeyboardInterrupt):
                raise KeyboardInterrupt from error
            failed = Failed(task, _told(error), attempts[id(task)])
            yield failed
            if not failed.for_good:
                waiting.append(task)
        else:
            for file in files:
                yield Made(task, file)
            yield Done(task)


def _told(error: Exception) -> str:
    """A failed task's traceback as Ray brings it, or what became of its worker."""
    return "".join(traceback.format_exception_only(error)).strip()


def _do(task: Task, cache: bool) -> list[File]:
    if cache:
        from holdfast.experiments.compilation_cache import use_compilation_cache

        use_compilation_cache()
    return list(task.run(None))
