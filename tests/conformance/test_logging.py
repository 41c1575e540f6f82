"""Logs reach the application: records propagate, with fields; our own handler writes only where nobody listens."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.warm_python import warm_python

PROGRAM = """
import json, logging, sys
CONFIGURE
import torch, gfxgraph
gfxgraph.enable(simulate="hip", validate=False)
LATER
graph, x = torch.cuda.CUDAGraph(), torch.ones(4, device="cuda")
with torch.cuda.graph(graph):
    if (x * 2).sum().item() > 0:
        y = x + 1
"""
JSON_HANDLER = """
class Fields(logging.Handler):
    def emit(self, record):
        if hasattr(record, "event"):
            print(json.dumps({name: getattr(record, name) for name in ("event", "reason", "op", "line")}))
logging.getLogger().addHandler(Fields())
"""


def run(configure="", later="", **environment):
    code = PROGRAM.replace("CONFIGURE", configure).replace("LATER", later)
    return subprocess.run(
        [warm_python(), "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**_environment(), **environment},
    )


def _environment():
    import os

    kept = {key: value for key, value in os.environ.items() if key not in ("GFXGRAPH_LOG", "HGB_LOG_LEVEL")}
    return {**kept, "CUDA_VISIBLE_DEVICES": ""}  # where there is a GPU, it is not simulated


def test_an_application_gets_each_record_once_with_its_fields():
    """A JSON handler on the root logger, configured before or after, has event, reason, op and line; stderr nothing."""
    for where in ("configure", "later"):
        done = run(**{where: JSON_HANDLER}, GFXGRAPH_LOG="info")
        found = [json.loads(line) for line in done.stdout.splitlines()]
        (split,) = (each for each in found if each["event"] == "split")
        assert split["op"] == "Tensor.item" and split["reason"] == "a value read by the host" and ":" in split["line"]
        assert "split: " not in done.stderr, done.stderr


@pytest.mark.parametrize("name", ["GFXGRAPH_LOG", "HGB_LOG_LEVEL"])
def test_our_handler_writes_where_nobody_configured_logging(name):
    """On stderr, at the level of either variable."""
    done = run(**{name: "info"})
    assert "gfxgraph: INFO: split: a value read by the host" in done.stderr
    assert "gfxgraph: INFO" not in run(**{name: "error"}).stderr
