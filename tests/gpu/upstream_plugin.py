"""A pytest plugin for upstream.py: notes every outcome as it comes, and fills in what another torch lacks.

Outcomes are appended line by line, so that what is known survives a run that is cut off.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys

import pytest

OUTCOMES = os.environ.get("UPSTREAM_OUTCOMES", "")
EXPECTED = os.environ.get("UPSTREAM_EXPECTED", "")  # "stock" or "gfxgraph"
DETAIL_CHARS = 1500


@contextlib.contextmanager
def blas_library_context(backend):
    """As torch.testing has it since 2.12."""
    import torch

    before = torch.backends.cuda.preferred_blas_library()
    torch.backends.cuda.preferred_blas_library(backend)
    try:
        yield
    finally:
        torch.backends.cuda.preferred_blas_library(before)


ADDED = {
    "torch.testing._internal.common_cuda": {
        "blas_library_context": blas_library_context,
        "PLATFORM_SUPPORTS_WORKQUEUE_CONFIG": False,
    },
    # Its name until torch 2.9.
    "torch.testing._internal.inductor_utils": {"HAS_CUDA": lambda module: module.HAS_CUDA_AND_TRITON},
}
"""Names that the tests of another torch import from its own test helpers; none is about graphs."""


def pytest_sessionstart(session):
    """Make sure that what is compared is what was meant to be."""
    if hasattr(session.config, "workerinput") or not is_controller(session.config):
        fill_in()
    if EXPECTED == "gfxgraph":
        import torch  # noqa: F401  (activates)

        import gfxgraph

        if not gfxgraph.is_enabled():
            pytest.exit("gfxgraph is not enabled in this process", returncode=3)
    elif "gfxgraph" in sys.modules:
        pytest.exit("gfxgraph is loaded in a process meant for stock torch", returncode=3)


def is_controller(config):
    """True in the process that distributes tests and runs none itself."""
    return bool(config.getoption("numprocesses", None)) and not hasattr(config, "workerinput")


def fill_in():
    for module_name, names in ADDED.items():
        try:
            module = __import__(module_name, fromlist=["*"])
        except ImportError:
            continue
        for name, value in names.items():
            if not hasattr(module, name):
                setattr(module, name, value(module) if name == "HAS_CUDA" else value)


class Recorder:
    """Writes one line a phase; the reader takes the worst phase of a test."""

    def pytest_runtest_logreport(self, report):
        if report.when != "call" and report.outcome == "passed":
            return
        detail = "" if report.outcome == "passed" else str(report.longrepr)[-DETAIL_CHARS:]
        line = {
            "test": report.nodeid,
            "outcome": report.outcome,
            "seconds": report.duration,
            "detail": detail,
        }
        with open(OUTCOMES, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def pytest_configure(config):
    # Workers send their reports to the controller, which sees them all, those of crashed workers included.
    if OUTCOMES and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(), "upstream-recorder")
