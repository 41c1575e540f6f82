"""The C API's ``cuda`` backend on a real GPU: the scenarios that real HIP runs on the emulator.

    python test_native_c_api.py SCENARIO FOLDER LIBCUDART KERNELS

runs one of them, with the libraries in FOLDER; each has a process of its own, as on the emulator.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "emulator"), str(HERE.parent.parent / "src")]

import c_api_scenarios  # noqa: E402
import cuda_tools  # noqa: E402
import pytest  # noqa: E402

from gfxgraph.selftest.native.hip_calls import HipCalls  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

# CUDA's own functions are what the compat library stands in for.
SCENARIOS = sorted(set(c_api_scenarios.SCENARIOS) - {"compat"})

_outcomes: dict[str, Any] = {}


class CudaMachine(HipCalls):
    """The same few calls, by CUDA's names; a kernel has no module here, so its stub launches it."""

    def __init__(self, runtime: str, kernels: str) -> None:
        self.hip = ctypes.CDLL(runtime, mode=ctypes.RTLD_GLOBAL)
        self.stubs = ctypes.CDLL(kernels)
        self.functions: dict[str, int] = {}
        self.hip.hipGetLastError = self.hip.cudaGetLastError

    def __call__(self, symbol: str, *args: Any) -> None:
        super().__call__(symbol.replace("hip", "cuda", 1), *args)

    def status(self, symbol: str, *args: Any) -> int:
        return super().status(symbol.replace("hip", "cuda", 1), *args)

    def add_by_module(self, out: int, source: int, value: int, stream: int) -> None:
        self.add_by_stub(out, source, value, stream)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """FOLDER, LIBCUDART and KERNELS."""
    cuda_tools.device()
    folder = tmp_path_factory.mktemp("bridge")
    cuda_tools.build_library("bridge", folder)
    kernels = folder / "libkernels.so"
    cuda_tools.compile_cuda(HERE / "native_kernels.cu", kernels, "shared", "-shared", "-Xcompiler=-fPIC")
    return [str(folder), str(cuda_tools.cudart()), str(kernels)]


@pytest.mark.parametrize("name", SCENARIOS)
def test_on_cuda(name: str, built: list[str]) -> None:
    """The scenario's own docstring states the fact."""
    done = subprocess.run([sys.executable, __file__, name, *built], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}{done.stderr}"
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["backend"] == "cuda" and told["version"] >= 12000
    _outcomes[name] = told["facts"]
    where = os.environ.get("GFXGRAPH_GPU_RESULTS")
    if where:
        summary = {
            "what": "the C API on libcudart: every scenario that real HIP runs on the emulator",
            "device": cuda_tools.device()[0],
            "commit": cuda_tools.commit(),
            "runtime": told["version"],
            "passed": len(_outcomes),
            "of": len(SCENARIOS),
            "scenarios": _outcomes,
        }
        (Path(where) / "native_c_api_gpu.json").write_text(json.dumps(summary, indent=1) + "\n")


def main(name: str, folder: str, runtime: str, kernels: str) -> None:
    gpu = CudaMachine(runtime, kernels)
    api = c_api_scenarios.CApi(folder)
    backend = api.library.gfxg_backend(api.context).decode()
    version = api.library.gfxg_runtime_version(api.context)
    facts = c_api_scenarios.SCENARIOS[name](api, gpu)
    assert api.library.gfxg_close(api.context) == 0, api.text()
    print(json.dumps({"backend": backend, "version": version, "facts": facts}))


if __name__ == "__main__":
    main(*sys.argv[1:])
