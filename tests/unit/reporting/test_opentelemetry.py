"""Counters as OpenTelemetry metrics, read back through the SDK's own reader."""

import sys

import pytest

import gfxgraph
from gfxgraph.errors import ActivationError
from gfxgraph.process import metrics
from gfxgraph.reporting import opentelemetry


def test_without_the_package_it_says_what_to_install(monkeypatch):
    """Nothing of gfxgraph depends on it."""
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ActivationError, match="pip install opentelemetry-sdk"):
        gfxgraph.publish_metrics()


def test_every_counter_is_an_instrument(monkeypatch):
    """A reader gets the counts of now with their labels; published twice they are there once."""
    pytest.importorskip("opentelemetry.sdk.metrics")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    monkeypatch.setattr(opentelemetry, "AT_ONCE_S", -1.0)
    counted = {"replay_count": 7, "fallbacks": {"no kernel": 2}, "enabled_at": 1.0}
    monkeypatch.setattr(metrics, "current", lambda: counted)
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    gfxgraph.publish_metrics(provider)
    gfxgraph.publish_metrics(provider)
    (resource,) = reader.get_metrics_data().resource_metrics
    (scope,) = resource.scope_metrics
    found = {metric.name: metric for metric in scope.metrics}
    assert len(found) == len(scope.metrics) and scope.scope.name == "gfxgraph"
    (replays,) = found["gfxgraph.replays"].data.data_points
    (fallbacks,) = found["gfxgraph.fallbacks"].data.data_points
    assert (replays.value, fallbacks.value, dict(fallbacks.attributes)) == (7, 2, {"reason": "no kernel"})
    assert found["gfxgraph.replays"].data.is_monotonic
    counted["replay_count"] = 9
    (again,) = reader.get_metrics_data().resource_metrics
    (replays,) = next(m for m in again.scope_metrics[0].metrics if m.name == "gfxgraph.replays").data.data_points
    assert replays.value == 9
    provider.shutdown()
