"""The counters of ``gfxgraph.stats()`` and of coverage as OpenTelemetry metrics, using only the official API.

The API provides instruments before a program has set its provider, and does nothing if it never sets one, so
this may be called at any time. Values are read when the provider collects, once for all instruments.

Source: opentelemetry.metrics, ``get_meter`` and observable instruments; API 1.30 and later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from gfxgraph.errors import ActivationError
from gfxgraph.process.metrics import Family, current_families, families
from gfxgraph.process.process import log
from gfxgraph.reporting.coverage import Coverage, as_families
from gfxgraph.reporting.memory import memory_families

AT_ONCE_S = 0.5
"""Instruments read within this time get values from the same snapshot."""
_published: list[Any] = []


def publish_metrics(meter_provider: Any = None) -> None:
    """Publish this process's counters through OpenTelemetry from now on; repeated calls do nothing.

    Args:
        meter_provider: by default the process's own, even if it is set later.

    Raises:
        ActivationError: `no_opentelemetry`, if the package opentelemetry-api is not installed.
    """
    try:
        # lazily: an optional dependency
        from opentelemetry import metrics
    except ImportError as error:
        raise ActivationError("no_opentelemetry", quote=str(error)) from error
    if meter_provider in _published:
        return
    _published.append(meter_provider)
    # lazily: the version is read from package metadata
    from gfxgraph import __version__

    meter = metrics.get_meter("gfxgraph", __version__, meter_provider)
    look = _MetricsSnapshot()
    for family in known_families():
        make = meter.create_observable_counter if family.kind == "counter" else meter.create_observable_gauge
        unit = "s" if family.name.removesuffix("_total").endswith("seconds") else "1"
        make(
            name_of(family),
            callbacks=[_callback(look, family.name, metrics.Observation)],
            unit=unit,
            description=family.help,
        )


def publish_if_there() -> None:
    """Like ``publish_metrics``, for processes enabled only by GFXGRAPH_OPENTELEMETRY."""
    try:
        publish_metrics()
    except ActivationError as error:
        log.warning("%s", error)


def name_of(family: Family) -> str:
    """The metric's name in OpenTelemetry's spelling, which its Prometheus exporters turn back into ours."""
    return family.name.removesuffix("_total").replace("_", ".", 1)


def known_families() -> list[Family]:
    """Every possible metric, even if nothing was counted yet."""
    seen = as_families(Coverage(graph_launches=1)) + memory_families(None)
    return [*families({"avg_replay_us": 0.0}), *(Family(name, kind, text) for name, kind, text, _ in seen)]


class _MetricsSnapshot:
    """The current metrics by name, refreshed from time to time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at = float("-inf")
        self._found: dict[str, Family] = {}

    def __call__(self, name: str) -> Family | None:
        with self._lock:
            if time.monotonic() - self._at > AT_ONCE_S:
                self._found = {family.name: family for family in current_families()}
                self._at = time.monotonic()
            return self._found.get(name)


def _callback(look: _MetricsSnapshot, name: str, observation: Any) -> Callable[[Any], Iterator[Any]]:
    def observe(_options: Any) -> Iterator[Any]:
        family = look(name)
        for labels, value in family.samples if family is not None else ():
            yield observation(value, dict(labels))

    return observe
