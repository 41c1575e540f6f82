"""startup.supervise: AMD's three endings, each by a process that stands in for a faulting program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gfxgraph.startup import supervise as supervising
from gfxgraph.startup.supervise import run_guarded

# What a program at tier 2 has written when its third node of nine has begun; then it ends as the argument says.
PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
from gfxgraph.core import flight_page
from gfxgraph.core.fault_report import NodeInfo, TensorUse
from gfxgraph.core.flight_page import Page, Phase
from dataclasses import asdict
from gfxgraph.core.memory_map import Allocation

home = Path(os.environ["GFXGRAPH_FLIGHT"]) / f"flight-{os.getpid()}-1"
home.mkdir()
use = TensorUse("input", "kv_cache", "[512, 1024] float32", 0x10000, 2 << 20)
nodes = [NodeInfo(n, "kernel", f"kernel_{n}", "aten::gather", f"model.py:{40 + n}", (use,)) for n in range(9)]
table = {"where": "model.py:39", "nodes": [node.as_dict() for node in nodes]}
(home / flight_page.graph_file(1, 0)).write_text(json.dumps(table))
memory = [asdict(Allocation(0x10000, 2 << 20, "kv_cache", "model.py:31", "[512, 1024] float32"))]
(home / flight_page.MEMORY_FILE).write_text(json.dumps(memory))
phase = Phase[os.environ.get("PHASE", "RUNNING")]
page = Page(os.getpid(), phase, 1, 0, 2, 9, 5, time.monotonic_ns(), 7)
(home / flight_page.RECORDER_FILE).write_bytes(page.pack())
print("on stdout", flush=True)
exec(sys.argv[1])
"""
ABORTS = (
    'os.write(2, b"Memory access fault by GPU node-1 (Agent handle: 0x5d0) on address 0x2101ff. '
    'Reason: Page not present or supervisor privilege.\\n"); os.abort()'
)
FAULT = """\
memory_fault: the GPU touched memory that it may not
  what: node 2 of 9 (kernel_2), launched by aten::gather at model.py:42, ended replay 5 with {status}
  why:  the address: {address}; it lies: {nearest}
        the node works on:
        input `kv_cache` [512, 1024] float32 at 0x10000 (2 MiB)
  do:   check the indices that aten::gather is given, and that every tensor in it still lives
        look for the write itself: GFXGRAPH_GUARD=deep puts red zones around every allocation of the graph
  more: gfxgraph explain memory_fault"""
FAULT_ZH = """\
memory_fault: GPU 访问了非法内存
  现象：第 2 个节点（共 9 个，kernel_2）由 model.py:42 处的 aten::gather 启动，使第 5 次重放以 {status} 结束
"""


class Run:
    """One supervised run: its status, what was reported, and what stayed behind."""

    def __init__(self, folder: Path, ending: str, limit_s: float = 30.0, **variables: str) -> None:
        folder.mkdir(exist_ok=True)
        program = folder / "program.py"
        program.write_text(PROGRAM)
        self.said: list[str] = []
        source = str(Path(supervising.__file__).parents[2])
        environment = dict(os.environ, XDG_STATE_HOME=str(folder / "state"), PYTHONPATH=source, GFXGRAPH_LANG="en")
        argv = [sys.executable, str(program), ending]
        self.status = run_guarded(argv, environment | variables, limit_s, self.said.append)
        self.report = "".join(self.said).strip()
        self.left = [path for path in (folder / "state").rglob("*") if path.is_file()]


def test_the_first_ending_an_abort_after_rocrs_words(tmp_path: Path) -> None:
    """SIGABRT: the recorder names the node, stderr the address, and both are put together."""
    run = Run(tmp_path, ABORTS)
    assert run.status == -signal.SIGABRT
    line = "Memory access fault by GPU node-1 (Agent handle: 0x5d0) on address 0x2101ff. "
    assert run.report == FAULT.format(
        status=f"SIGABRT: {line}Reason: Page not present or supervisor privilege.",
        address="0x2101ff",
        nearest="512 bytes past the end of `kv_cache`, [512, 1024] float32, 2 MiB, allocated at model.py:31",
    )
    assert run.left == []


def test_the_report_is_in_the_language_asked_for(tmp_path: Path) -> None:
    """GFXGRAPH_LANG of the program's environment."""
    run = Run(tmp_path, "os.abort()", GFXGRAPH_LANG="zh")
    assert run.report.startswith(FAULT_ZH.format(status="SIGABRT"))


def test_the_second_ending_a_sticky_error(tmp_path: Path) -> None:
    """The program raised GfxGraphFault itself: told again only where it swallowed that."""
    fault = '(home / "fault.json").write_text(json.dumps({"text": "memory_fault: title\\n  what: it"})); '
    swallowed = Run(tmp_path / "a", fault + "sys.exit(3)", PHASE="FAULTED")
    assert (swallowed.status, swallowed.report) == (3, "memory_fault: title\n  what: it")
    shown = Run(tmp_path / "b", fault + 'sys.exit("E: memory_fault: title")', PHASE="FAULTED")
    assert (shown.status, shown.report) == (1, "")
    # A library that raises its own error leaves the recorder at the node.
    raised = Run(tmp_path / "c", 'sys.exit("RuntimeError: HIP error: an illegal memory access was encountered")')
    assert raised.status == 1
    assert raised.report.startswith(
        FAULT.splitlines()[0]
        + "\n  what: node 2 of 9 (kernel_2), launched by aten::gather at model.py:42, ended replay 5 "
        "with exit status 1: HIP error: an illegal memory access was encountered"
    )


def test_the_third_ending_a_hang(tmp_path: Path) -> None:
    """No node done for the limit: reported, then ended, by force where asking does not help."""
    begun = time.monotonic()
    stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    supervising._PATIENCE_S, before = 0.5, supervising._PATIENCE_S
    try:
        run = Run(tmp_path, stubborn, limit_s=0.5)
    finally:
        supervising._PATIENCE_S = before
    assert run.status == -signal.SIGKILL
    assert time.monotonic() - begun < 120
    assert run.report == (
        "replay_hang: a replay did not finish\n"
        "  what: the graph captured at model.py:39 was still running after 0.5 s; last node begun: "
        "2 (kernel_2), aten::gather at model.py:42\n"
        "  why:  a kernel waits for something that never comes, or the runtime lost a completion signal\n"
        "  do:   see whether this release is known for it: gfxgraph doctor --why\n"
        "        try export DEBUG_HIP_GRAPH_SEGMENT_SCHEDULING=0\n"
        "  more: gfxgraph explain replay_hang"
    )
    assert run.left == []


@pytest.mark.parametrize(("ending", "status"), [("sys.exit(0)", 0), ("sys.exit(7)", 7)])
def test_a_program_that_ends_by_itself_keeps_its_status(tmp_path: Path, ending: str, status: int) -> None:
    """Without a node underway nothing is reported and nothing stays."""
    run = Run(tmp_path, ending, PHASE="IDLE")
    assert (run.status, run.report, run.left) == (status, "", [])


def test_other_deaths_are_not_called_memory_faults(tmp_path: Path) -> None:
    """The out-of-memory killer's SIGKILL, a SIGTERM somebody sent."""
    assert Run(tmp_path / "a", "os.kill(os.getpid(), signal.SIGKILL)").report == ""
    assert Run(tmp_path / "b", "os.kill(os.getpid(), signal.SIGTERM)").report == ""


def test_the_command_ends_as_the_program_did(tmp_path: Path) -> None:
    """stdout and stderr pass through, and the shell sees the very same signal."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    state = tmp_path / "state"
    source = str(Path(supervising.__file__).parents[2])
    environment = dict(os.environ, XDG_STATE_HOME=str(state), PYTHONPATH=source, GFXGRAPH_LANG="en")
    command = [sys.executable, "-m", "gfxgraph", "run", "--guard", "2", "--simulate", str(program), ABORTS]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == -signal.SIGABRT
    assert run.stdout == "on stdout\n"
    assert run.stderr.startswith("Memory access fault by GPU node-1")
    assert "512 bytes past the end of `kv_cache`" in run.stderr
    assert not [path for path in state.rglob("*") if path.is_file()]


def test_what_a_program_said_is_explained_where_it_failed(capfd):
    """A shell script's stderr, a native death after AMD's words, and a healthy program, which is left alone."""
    from gfxgraph.startup import supervise

    tensile = "rocBLAS error: Cannot read /opt/rocm/lib/rocblas/library/TensileLibrary.dat"
    for script, status, told in (
        (f"echo '{tensile}' >&2; exit 3", 3, "rocblas_missing_tensile: "),
        (
            "echo 'Memory access fault by GPU node-1 on address 0x2. Reason: Unknown.' >&2; kill -ABRT $$",
            -6,
            "illegal_",
        ),
        (f"echo '{tensile}' >&2; exit 0", 0, ""),
    ):
        assert supervise.run(["/bin/sh", "-c", script], os.environ | {"GFXGRAPH_LANG": "en"}) == status
        said = capfd.readouterr().err
        assert ("\n" + told in said) if told else said == tensile + "\n"


def test_a_child_left_behind_keeps_its_stderr(tmp_path):
    """What the program started and left running may go on writing after the supervisor has ended."""
    script = f"(sleep 1.5; echo late >&2; echo $? > {tmp_path}/late) & exit 0"
    code = (
        f"from gfxgraph.startup import supervise; import os; supervise.run(['/bin/sh', '-c', {script!r}], os.environ)"
    )
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 0 and (tmp_path / "late").read_text() == "0\n" and "late" in done.stderr
