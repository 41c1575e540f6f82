"""``gfxgraph run --coverage``, ``check`` and ``report`` as users type them: what is printed, and the exit status."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.warm_python import warm_python

from gfxgraph.config import Config

pytest.importorskip("torch")

from gfxgraph.reporting import leave

PROGRAM = """
import torch
w = torch.randn(8, 8, device="cuda")
x = torch.randn(4, 8, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = torch.relu(x @ w) + 1
for _ in range(20):
    graph.replay()
    y.sum()
"""
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


def test_run_says_what_ran_in_graphs(tmp_path):
    """One line on stderr, the eager line in the table, status 1 below the least, and the page."""
    (tmp_path / "program.py").write_text(PROGRAM)
    page = tmp_path / "out.html"
    options = ("--coverage-table", "--min-coverage", "0.9", "--report", page)
    done = gfxgraph("run", "--simulate=cuda", *options, "program.py", cwd=tmp_path)
    assert done.returncode == 1 and not done.stdout
    assert "gfxgraph coverage: 73.2% of launches in graphs" in done.stderr  # 60 of 82: two are made by randn
    assert "aten::sum" in done.stderr and "program.py:10" in done.stderr
    assert "less than the 90.0% asked for" in done.stderr
    assert '"captures":[{' in page.read_text() and "program.py" in page.read_text()


def test_the_report_has_what_was_gone_by_the_end(tmp_path):
    """Graphs that main() held: nodes and replays, memory by bucket, padding (the first call traces), counts."""
    (tmp_path / "program.py").write_text(IN_MAIN)
    done = gfxgraph("run", "--simulate=cuda", "--coverage-table", "--report", "out.html", "program.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"aten::mul  .*program.py:12\n +no capture covers this line", done.stderr)
    made = (tmp_path / "out.html").read_text()
    (process,) = json.loads(re.search(r'<script id="data".*?>(.*?)</script>', made, re.S)[1])["processes"]
    plain = next(capture for capture in process["captures"] if "program.py:9" in capture["name"])
    assert (plain["n_replays"], plain["n_nodes"], plain["is_gone"]) == (3, 2, True)
    history = process["history"]
    columns = dict(zip(history["fields"], zip(*history["moments"])))
    assert columns["replays"][-1] == process["stats"]["replay_count"] > 3 and columns["captures"][-1] >= 2
    (device,) = history["devices"]
    assert device["cap_bytes"] > device["graph_bytes"] > 0 and device["captures"][0]["signature"] == "batch=4"
    (row,) = history["padding"]
    assert (row["bucket"], row["calls"], row["elements"], row["elements_run"]) == ("batch=4", 4, 13, 16)


def test_nothing_is_written_after_the_end(monkeypatch):
    """A periodic write that is under way as the program ends does not replace the last one, which has more."""
    written, begun, ended = [], threading.Event(), threading.Event()

    def write(folder, with_nodes=True):
        begun.set()
        time.sleep(0 if with_nodes else 0.05)
        written.append(with_nodes)

    monkeypatch.setattr(leave, "write", write)
    monkeypatch.setattr(leave, "PERIOD_S", 0.01)
    of = Config(report="x"), os.getpid(), ended
    writer = threading.Thread(target=leave._keep_writing, args=of, daemon=True)
    writer.start()
    assert begun.wait(5)
    leave._end(*of, writer)
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
    done = gfxgraph("check", "model:step", "--arg", arg, "--json", "--sarif", "f.sarif", cwd=tmp_path)
    assert done.returncode == 1 and "hello" in done.stderr
    table = json.loads(done.stdout)
    assert [(f["op"], f["line"]) for f in table["findings"]] == [("print", 5), ("aten::index", 6)]
    assert len(json.loads((tmp_path / "f.sarif").read_text())["runs"][0]["results"]) == 2


def test_what_cannot_be_done_ends_with_two(tmp_path):
    """A function that is not there, and a folder without data: one line that says so, status 2."""
    done = gfxgraph("report", tmp_path / "nothing", cwd=tmp_path)
    assert done.returncode == 2 and "GFXGRAPH_REPORT=" in done.stderr


def test_top_reads_what_a_process_wrote(tmp_path):
    """A process's own figures, found through its environment; one that writes none is refused with what to do."""
    from click.testing import CliRunner
    from tests.unit.reporting.made import process

    from gfxgraph.cli.top import command

    environment = {"PATH": "/usr/bin:/bin", "GFXGRAPH_REPORT": str(tmp_path)}
    with subprocess.Popen(["sleep", "600"], env=environment) as writes, subprocess.Popen(["sleep", "600"]) as silent:
        try:
            while not Path(f"/proc/{writes.pid}/environ").read_bytes():  # Popen returns a moment before it is there
                time.sleep(0.01)
            early = CliRunner().invoke(command, [str(writes.pid), "--once"])
            (tmp_path / f"gfxgraph-{writes.pid}.json").write_text(json.dumps(process() | {"pid": writes.pid}))
            done = CliRunner().invoke(command, [str(writes.pid), "--once"])
            refused = CliRunner().invoke(command, [str(silent.pid), "--once"])
        finally:
            writes.kill()
            silent.kill()
    assert early.exit_code == 2 and "nothing yet" in early.output
    assert done.exit_code == 0 and "900 replays" in done.output and "aten::argmax" in done.output
    assert refused.exit_code == 2 and "GFXGRAPH_REPORT=FOLDER" in refused.output
