"""Programs that know nothing of us, on the real libamdhip64 under AMD's emulator, and under the preload library.

Each captures or builds a graph of its own kernels, replays it with three inputs, and checks the results against NumPy
itself. Under the library every result has the same bits, also where a launch is refused or no exec may be made.
Needed, each for itself, else skipped (`pip install --target FOLDER`, with the needs of the package):

GFXGRAPH_CLIENT_TRITON      folder with triton 3.8.0
GFXGRAPH_CLIENT_CUPY        with cupy-rocm-7-0 14.2.0: HIP 7, and ROCm's libraries that it is linked to
GFXGRAPH_CLIENT_QUADRANTS   with quadrants 1.4.0, which needs Python 3.12, and ld.lld
GFXGRAPH_CLIENT_ROCM        with rocm-bindings-hip and rocm-bindings-core 10.0
GFXGRAPH_CLIENT_ONNXRUNTIME with onnxruntime-rocm 1.22.2.post3 and onnx: HIP 7, and the libraries that it is linked to
GFXGRAPH_CLIENT_..._PYTHON  its interpreter, where it is not this one

llama.cpp is in test_llama_cpp.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import results
from test_hip_driver import HERE, build, emulator  # noqa: F401
from test_hip_preload import preload  # noqa: F401

TIMEOUT_S = 300
REPLAYS = 3
WHAT = "programs on libamdhip64, without and under libgfxgraph_preload.so; results alike to the bit"
CLIENTS = ("triton", "cupy", "quadrants", "rocm", "onnxruntime")
HIP_7 = "libamdhip64.so.7"
NEEDS_HIP_7 = {"cupy", "onnxruntime"}
# On HIP 7.2.4 a thread of the runtime dies soon after its start, without the library.
DIES_ON_HIP_7 = {"quadrants"}
SETTINGS: dict[str, dict[str, str]] = {
    "as it is": {},
    "a refused launch": {"GFXGRAPH_PRELOAD_REFUSE_LAUNCH": "1"},
    "node by node": {"GFXGRAPH_PRELOAD_NODE_LIMIT": "1"},
    "thread_local": {"GFXGRAPH_PRELOAD_CAPTURE_MODE": "thread_local"},
}

pytestmark = [pytest.mark.emulator, pytest.mark.timeout(2 * TIMEOUT_S)]

_outcomes: dict[str, Any] = {}


@dataclass
class Ran:
    client: str
    values: list[str]
    report: dict[str, Any]

    @property
    def hip(self) -> str:
        number = self.report["runtime_version"]
        return f"{number // 10_000_000}.{number // 100_000 % 100}.{number % 100_000}"


def opens(library: str) -> bool:
    """Whether the loader finds it; in a process of its own, which it may change."""
    return (
        subprocess.run(
            [sys.executable, "-c", f"import ctypes; ctypes.CDLL({library!r})"], capture_output=True
        ).returncode
        == 0
    )


class Client:
    """One program; ``run`` starts it on the emulated GPU."""

    def __init__(self, name: str, emulator: list[str], library: Path, folder: Path) -> None:  # noqa: F811
        setting = f"GFXGRAPH_CLIENT_{name.upper()}"
        packages = os.environ.get(setting)
        if not packages:
            pytest.skip(f"{setting} names no folder with the packages of {name}")
        if name in NEEDS_HIP_7 and not opens(HIP_7):
            pytest.skip(f"{name} is linked to {HIP_7}, which is not here")
        if name in DIES_ON_HIP_7 and opens(HIP_7):
            pytest.skip(f"{name} dies of a segmentation fault with {HIP_7} on the emulator, without us too")
        self.name, self.library, self.folder = name, library, folder
        python = os.environ.get(f"{setting}_PYTHON") or sys.executable
        self.command = [*emulator, python, str(HERE / "clients" / f"{name}_client.py")]
        self.environ = {**os.environ, "PYTHONPATH": packages, "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(folder)}

    def run(self, preloaded: bool = True, **settings: str) -> Ran:
        report = self.folder / "report.json"
        report.unlink(missing_ok=True)
        environ = {**self.environ, "GFXGRAPH_PRELOAD_REPORT": str(report), **settings}
        if preloaded:
            environ["LD_PRELOAD"] = str(self.library)
        done = subprocess.run(self.command, capture_output=True, text=True, env=environ, timeout=TIMEOUT_S)
        lines = [line for line in done.stdout.splitlines() if line.startswith('{"client"')]
        assert done.returncode == 0 and len(lines) == 1, f"exit {done.returncode}\n{done.stdout}{done.stderr}"[-3000:]
        told = json.loads(report.read_text()) if report.exists() else {}
        return Ran(**json.loads(lines[0]), report=told)


@pytest.fixture(scope="module", params=CLIENTS)
def client(
    request: pytest.FixtureRequest,
    emulator: list[str],  # noqa: F811
    preload: Path,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Client:
    return Client(request.param, emulator, preload, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def plain(client: Client) -> Ran:
    """Without the library; the program checks its results itself."""
    ran = client.run(preloaded=False)
    assert ran.report == {} and len(ran.values) == REPLAYS
    return ran


@pytest.fixture(scope="module", autouse=True)
def client_summary() -> Iterator[None]:
    """Write what was run and seen, where asked to; each program's run without the library is its control."""
    yield
    for hip in {each["hip"] for each in _outcomes.values()}:
        here = {name: each for name, each in _outcomes.items() if each["hip"] == hip}
        controls = {name for name in here if name.endswith("without the library")}
        results.keep("clients", WHAT, hip, here, controls, replays=REPLAYS)


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_same_results(client: Client, plain: Ran, setting: str) -> None:
    """Bit for bit those without the library; the counts are those of one graph, replayed."""
    ran = client.run(**SETTINGS[setting])
    report, fallback = ran.report, ran.report["fallback"]
    key = f"{client.name} {plain.client}, {setting}"
    _outcomes[f"{client.name} {plain.client}, without the library"] = {"hip": ran.hip, "passed": True}
    _outcomes[key] = {"hip": ran.hip, "passed": False}
    assert ran.values == plain.values
    calls = {symbol: call["calls"] for symbol, call in report["calls"].items()}
    assert calls["hipGraphLaunch"] == REPLAYS
    assert report["captures"] == calls.get("hipStreamBeginCapture", 0) and report["captures_failed"] == 0
    assert report["not_recorded"] == {} and report["failures"] == []
    (made,) = report["execs"]
    assert made["nodes"] >= 2 and made["launches"] == REPLAYS
    walked = {"a refused launch": 1, "node by node": REPLAYS}.get(setting, 0)
    assert fallback == {
        "instantiate": int(setting == "node by node"),
        "launch": int(setting == "a refused launch"),
        "refused": 0,
        "nodes": walked * made["nodes"],
    }
    assert bool(report["deepbind_cleared"]) == (client.name == "quadrants")
    _outcomes[key] = {"hip": ran.hip, "passed": True, "nodes": made["nodes"], "calls": calls, "fallback": fallback}
