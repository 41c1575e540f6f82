"""Adds our counters to an engine's ``/metrics``, through prometheus-client if the engine uses it.

With ``GFXGRAPH_METRICS=FOLDER`` each process writes its counters there, and every process that imports
prometheus-client adds the counters of all processes to its answers: to the default registry, and to what it
collects from several processes (``PROMETHEUS_MULTIPROC_DIR``, as in SGLang's server and in vLLM's with several
front ends). The library is the engine's; gfxgraph does not need it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from gfxgraph.process import metrics
from gfxgraph.process.imports import watch
from gfxgraph.process.process import attempt

PERIOD_S = 5.0
_publishing: set[int] = set()


def publish(folder: str) -> None:
    """Write this process's counters to ``folder``, and publish those of all processes. Repeated calls do nothing."""
    if os.getpid() in _publishing:
        return
    _publishing.add(os.getpid())
    _keep_writing(folder)
    os.register_at_fork(after_in_child=functools.partial(publish, folder))
    for module, then in (("prometheus_client", _register), ("prometheus_client.multiprocess", _add_to_collection)):
        if module in sys.modules:
            then(folder)
        else:
            watch(module, functools.partial(then, folder))


def _keep_writing(folder: str) -> None:
    owner, ended = os.getpid(), threading.Event()
    what = f"counters were not written to {folder}"

    def write() -> None:
        if os.getpid() == owner:
            metrics.write(folder)

    def run() -> None:
        while not ended.wait(PERIOD_S):
            attempt(write, what)

    def end() -> None:
        if os.getpid() == owner:
            ended.set()
            with contextlib.suppress(OSError):  # the failure to write has already been reported
                metrics.file_in(folder).unlink(missing_ok=True)  # its counters end with the process

    attempt(write, what)
    threading.Thread(target=run, name="gfxgraph-metrics", daemon=True).start()
    atexit.register(end)


def collect(folder: str) -> Iterator[Any]:
    """The metrics of all processes as prometheus-client's objects; this process's are current."""
    metrics.write(folder)
    found: dict[str, Any] = {}
    for text in metrics.texts(folder):
        for family in import_module("prometheus_client.parser").text_string_to_metric_families(text):
            known = found.setdefault(family.name, family)
            known.samples += family.samples if known is not family else []
    yield from found.values()


class _Collector:
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def collect(self) -> Iterator[Any]:
        return collect(self.folder)

    def describe(self) -> list[Any]:
        return []  # called at registration, before anything was counted


def _register(folder: str) -> None:
    registry = sys.modules["prometheus_client"].REGISTRY
    if not getattr(registry, "_gfxgraph", False):
        registry._gfxgraph = True
        registry.register(_Collector(folder))


def _add_to_collection(folder: str) -> None:
    owner = sys.modules["prometheus_client.multiprocess"].MultiProcessCollector
    original = owner.collect
    if getattr(original, "_gfxgraph", False):
        return

    @functools.wraps(original)
    def with_ours(self: object) -> Any:
        return [*original(self), *collect(folder)]

    with_ours._gfxgraph = True  # type: ignore[attr-defined]
    owner.collect = with_ours
