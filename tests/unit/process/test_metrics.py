"""Counters as text for Prometheus: of one process, of several, and through prometheus-client."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gfxgraph.core.counters import Counters
from gfxgraph.process import metrics

TEXT = """\
# HELP gfxgraph_captures_total Graphs captured
# TYPE gfxgraph_captures_total counter
gfxgraph_captures_total{pid="7"} 3
"""


def snapshot():
    counters = Counters()
    counters.add("capture", 3)
    counters.add("replay", 10)
    counters.event("fallback", 'a "quoted" reason\nof two lines')
    counters.event("fallback", "another \\ reason")
    counters.event("fallback", "another \\ reason")
    counters.replay_took(7.5, 2)
    return {"enabled_at": 1.0, **counters.snapshot()}


def test_every_counter_has_its_line():
    """The text begins as the format asks, and holds each value under its name."""
    text = metrics.metrics_text(snapshot(), {"pid": "7"})
    assert text.startswith(TEXT)
    for line in (
        'gfxgraph_replays_total{pid="7"} 10',
        r'gfxgraph_fallbacks_total{pid="7",reason="a \"quoted\" reason\nof two lines"} 1',
        r'gfxgraph_fallbacks_total{pid="7",reason="another \\ reason"} 2',
        'gfxgraph_replay_cpu_seconds{pid="7"} 3.75e-06',
        'gfxgraph_enabled{pid="7"} 1',
    ):
        assert f"{line}\n" in text


def test_what_is_written_is_read_back():
    """Names, kinds, help, labels with every special character, and values."""
    parser = pytest.importorskip("prometheus_client.parser")
    made = {family.name: family for family in metrics.families(snapshot(), {"pid": "7"}) if family.samples}
    found = list(parser.text_string_to_metric_families(metrics.render(made.values())))
    assert len(found) == len(made)
    for family in found:
        wanted = made.get(family.name) or made[f"{family.name}_total"]
        assert (family.type, family.documentation) == (wanted.kind, wanted.help)
        assert [(each.labels, each.value) for each in family.samples] == [*wanted.samples]


def test_before_anything_happened():
    """A process where the bridge is off has the counters, all zero."""
    text = metrics.metrics_text({"enabled_at": None, **Counters().snapshot()})
    assert "gfxgraph_captures_total 0\n" in text and "gfxgraph_enabled 0\n" in text
    assert "fallbacks" not in text


def test_the_dead_are_left_out(tmp_path):
    """A process that has ended without removing its file does not count."""
    metrics.write(str(tmp_path), snapshot())
    other = metrics.metrics_text(snapshot(), {"pid": "4242"})
    metrics.file_in(str(tmp_path), 4242).write_text(other)
    alive = {os.getpid(), 4242}
    assert len([*metrics.texts(str(tmp_path), alive.__contains__)]) == 2
    alive.remove(4242)
    (mine,) = metrics.texts(str(tmp_path), alive.__contains__)
    assert f'gfxgraph_captures_total{{pid="{os.getpid()}"}} 3' in mine


SERVER = """
import os, sys
import torch
from prometheus_client import CollectorRegistry, REGISTRY, generate_latest, multiprocess

print(generate_latest(REGISTRY).decode())
print("-- several processes")
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry, path=sys.argv[1])
print(generate_latest(registry).decode())
"""


def test_an_engines_endpoint_answers_for_its_workers(tmp_path):
    """A server's process answers, through prometheus-client in both its ways, with what a worker counted."""
    pytest.importorskip("prometheus_client")
    pytest.importorskip("torch")
    folder = tmp_path / "metrics"
    metrics.write(str(folder), snapshot())  # this process is the worker
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "client").mkdir()
    run = [sys.executable, "-m", "gfxgraph", "run", "--simulate=cuda", tmp_path / "server.py", tmp_path / "client"]
    environment = os.environ | {"GFXGRAPH_METRICS": str(folder)}
    said = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=120)
    assert said.returncode == 0, said.stderr
    for answer in said.stdout.split("-- several processes"):
        assert f'gfxgraph_replays_total{{pid="{os.getpid()}"}} 10.0' in answer
        assert answer.count("gfxgraph_enabled{") == 2
    # The server's own file went with it.
    assert [path.name for path in folder.iterdir()] == [metrics.file_in(str(folder)).name]


def test_the_dashboard_asks_for_metrics_that_there_are():
    """Every metric named in docs/grafana.json is one that the process or its coverage gives."""
    import json
    import re
    from pathlib import Path

    from gfxgraph.core.counters import Counters
    from gfxgraph.process import metrics
    from gfxgraph.reporting.coverage import Coverage, as_families
    from gfxgraph.reporting.memory_use import memory_families

    named = set(re.findall(r"gfxgraph_\w+", (Path(__file__).parents[3] / "docs" / "grafana.json").read_text()))
    given = {family.name for family in metrics.families(Counters().snapshot() | {"avg_replay_us": 3.0})}
    given |= {name for name, *_ in memory_families(None) + as_families(Coverage(1, 1))}
    assert named <= given and json.loads((Path(__file__).parents[3] / "docs" / "grafana.json").read_text())["panels"]
