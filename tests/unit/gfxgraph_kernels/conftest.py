"""Triton's interpreter for the tests of this folder.

Triton decides once, when it is imported, whether it interprets. Tests that need the interpreter therefore run in a
process that was started with TRITON_INTERPRET=1, by test_kernels_interpreter.py; elsewhere they are skipped.
"""

from __future__ import annotations

import importlib.util
import os

import pytest

torch = pytest.importorskip("torch")
HAS_TRITON = importlib.util.find_spec("triton") is not None
IS_INTERPRETING = HAS_TRITON and os.environ.get("TRITON_INTERPRET") == "1"


@pytest.fixture(scope="session")
def triton_interpreter():
    """The kernels, in the interpreter."""
    if not IS_INTERPRETING:
        pytest.skip("runs in the process of test_kernels_interpreter.py")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=["kernels", "composed"])
def way(request, monkeypatch):
    """Both ways to answer: Triton's kernels, and torch's own operations where there is no Triton."""
    from gfxgraph_kernels import launching

    if (request.param == "kernels") != IS_INTERPRETING:
        pytest.skip("the other way, in the other process")
    if request.param == "kernels":
        request.getfixturevalue("triton_interpreter")
    else:
        monkeypatch.setattr(launching, "has_triton", lambda: False)
    before = launching.fallbacks()
    yield request.param
    made = sum((launching.fallbacks()[key] - before.get(key, 0)) for key in launching.fallbacks())
    assert bool(made) == (request.param == "composed"), launching.fallbacks()
