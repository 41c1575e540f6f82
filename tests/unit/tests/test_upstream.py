"""tests/gpu/upstream.py: what counts as a lost test."""

from __future__ import annotations

import json
from pathlib import Path

RUNNER = Path(__file__).parents[2] / "gpu" / "upstream.py"
TESTS = """
import os, time, unittest, torch
on, limit_kept = "GFXGRAPH" in os.environ, os.environ.get("GFXGRAPH_ON_UNSAFE") == "raise"
assert hasattr(torch, "switched_on") == on

class TestCuda(unittest.TestCase):
    def test_graph_fine(self): pass
    def test_graph_lost(self): assert not on, "lost here"
    def test_graph_asserts_the_limit(self): assert not on or limit_kept
    def test_graph_broken_anyway(self): assert False
    def test_graph_skipped_under_ours(self): on and self.skipTest("hm")
    def test_graph_crash(self): on and os.abort()
    def test_graph_hang(self):
        while on: time.sleep(0.1)
    def test_unrelated(self): assert False

class TestMemPool(unittest.TestCase):
    def test_all_of_it(self): pass
"""


def test_lost_tests_are_found(sandbox):
    """Failures, crashes, hangs and skips that stock torch does not have are lost; those of stock are not."""
    sandbox.torch("cuda")
    sandbox.script(TESTS, "tests/test_cuda.py")
    sandbox.script("def test_trees(): pass\n", "tests/inductor/test_cudagraph_trees.py")
    line = [
        "--tests",
        sandbox.folder / "tests",
        "--out",
        "report.json",
        "--processes",
        2,
        "--test-timeout-s",
        1,
    ]
    done = sandbox.python(RUNNER, *line)
    assert done.returncode == 1, done.stdout + done.stderr
    report = json.loads((sandbox.folder / "report.json").read_text())
    name = "test_cuda.py::TestCuda::test_graph_{}".format
    assert report["lost"] == sorted(map(name, ["crash", "hang", "lost", "skipped_under_ours"]))
    assert report["lost_but_pass_under_raise"] == [name("asserts_the_limit")]
    assert report["failed_on_stock"] == [name("broken_anyway")]
    assert report["not_run"] == []
    assert report["n_selected"] == 9
    assert report["tests"]["test_cuda.py::TestMemPool::test_all_of_it"] == {
        "stock": "passed",
        "gfxgraph": "passed",
    }
    assert "inductor/test_cudagraph_trees.py::test_trees" in report["tests"]
    assert "lost here" in report["details"][name("lost")]["together"]


def test_an_earlier_report_is_not_believed_about_what_fails_here(sandbox):
    """A test that stock torch passed elsewhere and fails on this machine is not lost; one that it passes is."""
    sandbox.torch("cuda")
    sandbox.script(
        "import os, unittest\n"
        "class TestCuda(unittest.TestCase):\n"
        "    def test_graph_of_machine(self): assert False\n"
        "    def test_graph_lost(self): assert 'GFXGRAPH' not in os.environ\n",
        "tests/test_cuda.py",
    )
    sandbox.script("", "tests/inductor/test_cudagraph_trees.py")
    name = "test_cuda.py::TestCuda::test_graph_{}".format
    known = dict.fromkeys([name("of_machine"), name("lost")], {"stock": "passed", "gfxgraph": "passed"})
    earlier = {"tests": known, "failed_on_stock": [], "counts": {"stock": {"passed": 2}}}
    (sandbox.folder / "earlier.json").write_text(json.dumps(earlier))
    line = ["--tests", sandbox.folder / "tests", "--out", "report.json", "--processes", 1]
    sandbox.python(RUNNER, *line, "--stock-from", sandbox.folder / "earlier.json")
    report = json.loads((sandbox.folder / "report.json").read_text())
    assert report["lost"] == [name("lost")] and report["failed_on_stock"] == [name("of_machine")]


def test_a_run_that_is_not_what_it_should_be_proves_nothing(sandbox):
    """Where gfxgraph is not enabled the tests do not run under its name."""
    sandbox.torch("cuda")
    init = sandbox.folder / "lib/gfxgraph/__init__.py"
    init.write_text(init.read_text().replace("return True", "return False"))
    sandbox.script("class TestCuda:\n def test_graph(self): pass\n", "tests/test_cuda.py")
    sandbox.script("", "tests/inductor/test_cudagraph_trees.py")
    done = sandbox.python(RUNNER, "--tests", sandbox.folder / "tests", "--out", "report.json", "--processes", 1)
    assert done.returncode == 1
    assert json.loads((sandbox.folder / "report.json").read_text())["lost"] == ["test_cuda.py::TestCuda::test_graph"]


def test_a_file_that_cannot_be_imported_proves_nothing(sandbox):
    """Nothing runs, and the report names it: the other file's tests are not all that there are."""
    sandbox.torch("cuda")
    sandbox.script("class TestCuda:\n def test_graph(self): pass\n", "tests/test_cuda.py")
    sandbox.script("from torch import no_such_name\n", "tests/inductor/test_cudagraph_trees.py")
    done = sandbox.python(RUNNER, "--tests", sandbox.folder / "tests", "--out", "report.json", "--processes", 1)
    report = json.loads((sandbox.folder / "report.json").read_text())
    assert done.returncode == 3 and report["not_collected"] == ["inductor/test_cudagraph_trees.py"]
    assert "lost" not in report and "no_such_name" in done.stdout
