"""``gfxgraph run --report``, ``check`` and ``report`` as users type them: what is printed, and the exit status."""

import json
import os
import re
import subprocess
import sys
import threading
import time

import pytest
from tests.warm_python import warm_python

from gfxgraph.config import Config
from gfxgraph.hardware.time_limit import Aside

pytest.importorskip("torch")

from gfxgraph.reporting import write_process_file

IN_MAIN = """
import time
import gfxgraph, torch

def main():
    x = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2 + 1
    for _ in range(3):
        graph.replay()
    x * 2
    step = gfxgraph.graphed(lambda x: x * 2, dynamic={"x": {0: "batch"}}, buckets=[4])
    for n in (3, 3, 3, 4, 3):
        step(torch.ones(n, 8, device="cuda"))
    time.sleep(0.3)

main()
"""
FUNCTION = "import torch\n\n\ndef step(x):\n    print('hello')\n    return x[x > 0]\n"


def gfxgraph(*words, cwd):
    # What `run` starts is to find gfxgraph as Python starts.
    python = sys.executable if words[0] == "run" else warm_python()
    command = [python, "-m", "gfxgraph", *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


def test_the_report_has_what_was_gone_by_the_end(tmp_path):
    """Graphs that main() held: nodes and replays."""
    (tmp_path / "program.py").write_text(IN_MAIN)
    done = gfxgraph("run", "--simulate=cuda", "--report", "out.html", "program.py", cwd=tmp_path)
    assert done.returncode == 0 and not done.stdout, done.stderr
    made = (tmp_path / "out.html").read_text()
    (process,) = json.loads(re.search(r'<script id="data".*?>(.*?)</script>', made, re.S)[1])["processes"]
    plain = next(capture for capture in process["captures"] if "program.py:9" in capture["name"])
    assert (plain["n_replays"], plain["n_nodes"], plain["is_gone"]) == (3, 2, True)


def test_nothing_is_written_after_the_end(monkeypatch):
    """A periodic write that is under way as the program ends does not replace the last one, which has more."""
    written, begun, ended = [], threading.Event(), threading.Event()

    def write(folder, report):
        begun.set()
        time.sleep(0 if report else 0.05)
        written.append(report)

    monkeypatch.setattr(write_process_file, "write", write)
    monkeypatch.setattr(write_process_file, "process_report", lambda with_nodes=True: with_nodes)
    monkeypatch.setattr(write_process_file, "PERIOD_S", 0.01)
    of = Config(report="x"), os.getpid(), ended
    writer = threading.Thread(target=write_process_file._keep_writing, args=of, daemon=True)
    writer.start()
    assert begun.wait(5)
    write_process_file._end(*of, writer, Aside())
    writer.join(5)
    assert written[-1] is True and not writer.is_alive()


def test_a_page_that_was_not_written_is_no_success(tmp_path):
    """Where nothing was seen there is no page: status 2, and the file's name."""
    (tmp_path / "program.py").write_text("x = 1\n")
    done = gfxgraph("run", "--simulate=cuda", "--report", "out.html", "program.py", cwd=tmp_path)
    assert done.returncode == 2 and "out.html was not written" in done.stderr


def test_check_prints_findings_apart_from_the_functions_output(tmp_path):
    """JSON on stdout alone; what the function prints goes to stderr; SARIF to its file; status 1."""
    (tmp_path / "model.py").write_text(FUNCTION)
    arg = "torch.randn(4, device='cuda')"
    done = gfxgraph("check", "model:step", "--arg", arg, "--json", cwd=tmp_path)
    assert done.returncode == 1 and "hello" in done.stderr
    table = json.loads(done.stdout)
    assert [(f["op"], f["line"]) for f in table["findings"]] == [("aten::index", 6)]


def test_what_cannot_be_done_ends_with_two(tmp_path):
    """A function that is not there, and a folder without data: one line that says so, status 2."""
    done = gfxgraph("report", tmp_path / "nothing", cwd=tmp_path)
    assert done.returncode == 2 and "GFXGRAPH_REPORT=" in done.stderr
