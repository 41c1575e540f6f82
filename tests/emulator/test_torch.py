"""PyTorch's own HIP code on AMD's own libamdhip64, on AMD's emulator (rocjitsu): plain, and with gfxgraph.

Needs a python whose torch is built for ROCm with kernels for gfx1030; skipped, with the reason, where it or the
emulator is not there. The simulator's account of the same calls is checked against the same table where torch is a
CPU build. Faults, timing and concurrency are the emulator's own, not AMD hardware's.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from test_hip_driver import TIMEOUT_S, emulator, run  # noqa: E402, F401

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.emulator, pytest.mark.timeout(TIMEOUT_S + 30)]

PROGRAM = str(HERE / "torch_programs.py")
CAPTURING = "operation not permitted when stream is capturing"
PAGEABLE = "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned"
DIED = "operation failed due to a previous error during capture"

# What HIP 7.15 and torch 2.12.1 did: at the call, at the end of the capture, at a replay, to the stream afterwards.
HARMLESS = ["ok", "ok", "right", "ok"]
REFUSED = [CAPTURING, "ok", "right", "ok"]  # by torch's own check: the capture lives on
FATAL = [CAPTURING, DIED, "none", "ok"]
UNSAFE = {
    "nothing": HARMLESS,
    "item": REFUSED,
    "to the host": [PAGEABLE, "ok", "right", "ok"],
    "from the host": [PAGEABLE, "ok", "right", "ok"],
    "from pinned memory": HARMLESS,
    "nonzero": REFUSED,
    "synchronize": FATAL,
    "synchronize the stream": FATAL,
    "synchronize another stream": FATAL,
    "allocate": HARMLESS,
    "empty_cache": HARMLESS,
    "query a new event": HARMLESS,
    "query a recorded event": ["operation not permitted on an event last recorded in a capturing stream", *FATAL[1:]],
    "random numbers": HARMLESS,
    "on the default stream": HARMLESS,  # runs at once, and is not recorded
    "mem_get_info": HARMLESS,
    "an unjoined stream": ["ok", "capturing stream has unjoined work", "none", PAGEABLE],
}


@pytest.fixture(scope="session")
def machine(emulator: list[str]) -> list[str]:  # noqa: F811
    """The emulator, where this python's torch can use it."""
    if torch.version.hip is None:
        pytest.skip(f"needs a torch built for ROCm: this is {torch.__version__}, without HIP")
    return emulator


def facts(machine: list[str], *command: str) -> Any:
    done = run(machine, *command)
    lines = [line for line in done.stdout.splitlines() if line.startswith("FACTS ")]
    assert done.returncode == 0 and len(lines) == 1, f"exit {done.returncode}\n{done.stdout}{done.stderr}"
    return json.loads(lines[0].removeprefix("FACTS "))


BRIDGED = ("-m", "gfxgraph", "run", PROGRAM)
both_ways = pytest.mark.parametrize("command", [(PROGRAM,), BRIDGED], ids=["plain", "gfxgraph"])


@both_ways
def test_a_tensor_a_stream_and_an_event(machine: list[str], command: tuple[str, ...]) -> None:
    found = facts(machine, *command, "first_steps")
    assert found == {"hip": torch.version.hip, "sum": [3.0] * 4, "queried": True}


@both_ways
def test_a_graph(machine: list[str], command: tuple[str, ...]) -> None:
    """Each replay is what eager execution gives for the new input, with random numbers of its own."""
    found = facts(machine, *command, "graph")
    assert found["equal"] == [True] * 3 and found["different_draws"] == 3
    assert found["graph"].split(".")[0] == ("torch" if command == (PROGRAM,) else "gfxgraph")


@both_ways
def test_streams_in_a_graph_and_graphs_in_a_pool(machine: list[str], command: tuple[str, ...]) -> None:
    assert facts(machine, *command, "two_streams") == {"y": [21.0] * 4, "z": [42.0] * 4}


def test_the_first_matrix_product_in_a_capture(machine: list[str]) -> None:
    """hipBLASLt begins there, meets the capture and ends the process; with gfxgraph the graph is right."""
    plain = run(machine, PROGRAM, "cold_graph")
    assert plain.returncode != 0 and "FACTS" not in plain.stdout and "hipblaslt" in plain.stderr
    assert facts(machine, *BRIDGED, "cold_graph")["equal"] == [True] * 3


def test_a_capture_that_dies_leaves_its_pool_usable(machine: list[str]) -> None:
    """On torch alone no capture can use that pool again; with gfxgraph both captures are right."""
    refused = "beginAllocateToPool: already recording to mempool_id"
    plain = facts(machine, PROGRAM, "died_in_a_pool")
    assert (plain["status"], plain["died"], plain["after it"]) == (900, DIED, refused)
    found = facts(machine, *BRIDGED, "died_in_a_pool")
    assert (found["status"], found["died"], found["after it"]) == (900, "ok", "ok")
    assert found["result of died"] == found["result of after it"] == [10.0] * 4


def test_calls_that_a_capture_forbids(machine: list[str]) -> None:
    assert facts(machine, PROGRAM, "unsafe") == UNSAFE


@pytest.mark.skipif(torch.version.hip is not None, reason="the simulator is for a CPU build of torch")
def test_the_simulator_says_the_same() -> None:
    """Its profile of this runtime, with torch 2.12's own check before a copy to the host."""
    assert facts([], PROGRAM, "unsafe", "--simulate", "hip-7.14") == UNSAFE
