"""libcudagraph_compat.so: a CUDA program's graph calls, answered by HIP."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
LIST = ROOT / "native/compat/cuda.inc"
PROFILES = ("6.2", "7.2.0", "7.14", "10.0")


def rows() -> list[tuple[str, str]]:
    """The list's (kind, name); what only the C API calls is left out."""
    found = re.findall(r"^CUDA_(\w+)\((\w+),", LIST.read_text(encoding="utf-8"), re.MULTILINE)
    return [(kind, name) for kind, name in found if kind != "CALL"]


def run(build: Path, *arguments: str, **environment: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [build / "tests/compat", build / "libcudagraph_compat.so", build / "fake/libamdhip64.so.6", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )
    assert "Sanitizer" not in done.stderr and "runtime error" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("profile", PROFILES)
def test_every_function_gives_cudas_answer(checked: Path, tmp_path: Path, profile: str) -> None:
    """Structs, numbers, orders and edges converted, in both releases' forms; what is refused says why, once."""
    written = tmp_path / "report.json"
    code, out, err = run(checked, GFX_FAKE_PROFILE=profile, GFXGRAPH_COMPAT_REPORT=str(written), GFXGRAPH_LANG="en")
    assert code == 0 and "wrong " not in out and "absent " not in out, out
    assert "left 0" in out
    symbols = json.loads(out.split("report ", 1)[1])["symbols"]
    assert sorted(name.removesuffix("@12") for name in symbols) == sorted(name for _, name in rows())
    assert [name for name, facts in symbols.items() if not facts["calls"]] == []
    assert [name for name, facts in symbols.items() if facts.get("to") and not facts["present"]] == []
    counts, kinds = Counter(facts["how"] for facts in symbols.values()), Counter(kind for kind, _ in rows())
    assert counts["refused"] == kinds["REFUSED"]
    assert counts["mapped"] == kinds["SAME"] + kinds["CONVERTED"] + kinds["PTSZ"] + kinds["PTSZ_CHANGED"]
    told = Counter(re.findall(r"^  what: (\w+): ", err, re.MULTILINE))
    assert set(told.values()) == {1}
    assert {name for kind, name in rows() if kind == "REFUSED"} <= set(told)
    assert json.loads(written.read_text())["symbols"].keys() == symbols.keys()


@pytest.mark.parametrize("profile", PROFILES)
def test_every_nth_call_may_fail(checked: Path, profile: str) -> None:
    """No crash, nothing left but what could not be removed, and the same calls work right after."""
    code, out, _ = run(checked, "every", GFX_FAKE_PROFILE=profile, GFXGRAPH_DIAG="0")
    said = dict(line.split() for line in out.splitlines() if len(line.split()) == 2)
    assert code == 0 and said["bad"] == "0", out
    assert int(said["calls"]) > 200 and int(said["told"]) > 200


def test_a_refusal_can_be_read_in_chinese(plain: Path) -> None:
    """As the catalogue has it."""
    _, _, err = run(plain, GFXGRAPH_LANG="zh")
    assert "cudaGraphConditionalHandleCreate：HIP has no conditional nodes" in err
    assert "处理：" in err


def test_no_runtime_is_an_answer(plain: Path) -> None:
    """Where libamdhip64 cannot be had, calls answer 35 and say so; nothing crashes."""
    code = (
        "import ctypes, sys; lib = ctypes.CDLL(sys.argv[1]); g = ctypes.c_void_p();"
        "print(lib.cudaGraphCreate(ctypes.byref(g), 0))"
    )
    command = [sys.executable, "-c", code, str(plain / "libcudagraph_compat.so")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "GFXGRAPH_LANG": "en"})
    if done.stdout.strip() == "0":
        pytest.skip("there is a libamdhip64 here, and it works")
    assert done.stdout.strip() == "35" and done.stderr.startswith("native_no_runtime:"), done.stderr


# Against the genuine thing -------------------------------------------------------------------------


def genuine() -> list[Path]:
    """Every libcudart that can be found: a toolkit's, or those that pip installed."""
    places = [
        *Path("/usr/local").glob("cuda*/lib*/libcudart.so.1?"),
        *Path("/opt").glob("cuda*/lib*/libcudart.so.1?"),
    ]
    for entry in sys.path:
        places += Path(entry or ".").glob("nvidia/*/lib/libcudart.so.1?")
    return sorted({place.resolve() for place in places})


def test_every_genuine_symbol_is_answered(plain: Path) -> None:
    """No graph, capture or user-object function of a real libcudart is missing here, under its version."""
    if not genuine() or shutil.which("nm") is None:
        pytest.skip("needs a libcudart (CUDA toolkit, or pip install nvidia-cuda-runtime) and nm")
    ours = symbols(plain / "libcudagraph_compat.so")
    for library in genuine():
        theirs = {name for name in symbols(library) if is_graph(name)}
        assert len(theirs) > 90
        assert theirs <= ours, sorted(theirs - ours)


def test_the_c_api_finds_all_it_calls_in_a_genuine_libcudart() -> None:
    """Every CUDA function of the list that this release has, and all that the C API needs."""
    if not genuine():
        pytest.skip("needs a libcudart (CUDA toolkit, or pip install nvidia-cuda-runtime)")
    needed = re.findall(r"^GFX_BOTH\(\w+, (\w+),", (ROOT / "native/bridge/backend.inc").read_text(), re.MULTILINE)
    calls = re.findall(r"^CUDA_CALL\((\w+),", LIST.read_text(), re.MULTILINE)
    for library in genuine():
        handle = ctypes.CDLL(str(library))
        for name in [*(f"cuda{name}" for name in needed), *calls]:
            assert hasattr(handle, name), (library, name)


def symbols(library: Path) -> set[str]:
    done = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
    return {line.split()[-1].replace("@@", "@") for line in done.stdout.splitlines()}


def is_graph(symbol: str) -> bool:
    name = symbol.split("@")[0]
    if name.startswith("cudaGraphics"):
        return False
    return name.startswith("cudaGraph") or any(word in name for word in ("Captur", "UserObject", "GraphMem"))


def headers() -> list[Path]:
    places = [*Path("/usr/local").glob("cuda*/include"), *Path("/opt").glob("cuda*/include")]
    for entry in sys.path:
        places += Path(entry or ".").glob("nvidia/*/include")
        places += Path(entry or ".").glob("triton/backends/nvidia/include")
    return sorted({place.resolve() for place in places if (place / "crt/host_defines.h").exists()})


LAYOUTS = {
    "cudaKernelNodeParams": ("func", "gridDim", "blockDim", "sharedMemBytes", "kernelParams", "extra"),
    "cudaMemsetParams": ("dst", "pitch", "value", "elementSize", "width", "height"),
    "cudaGraphInstantiateParams": ("flags", "uploadStream", "errNode_out", "result_out"),
    "cudaGraphExecUpdateResultInfo": ("result", "errorNode", "errorFromNode"),
    "cudaGraphEdgeData": ("from_port", "to_port", "type"),
    "cudaGraphNodeParams": ("type", "kernel", "memcpy", "memset", "host", "graph", "free", "reserved2"),
}


def test_layouts_are_those_of_the_genuine_headers(tmp_path: Path) -> None:
    """Sizes and offsets compiled from CUDA's headers and from ours agree."""
    if not headers():
        pytest.skip("needs CUDA's headers (a toolkit, or pip install nvidia-cuda-runtime)")
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    lines = []
    for struct, members in LAYOUTS.items():
        lines.append(f'printf("{struct} %zu\\n", sizeof({struct}));')
        lines += [f'printf("{struct}.{member} %zu\\n", offsetof({struct}, {member}));' for member in members]
    body = "#include <cstddef>\n#include <cstdio>\nint main() {\n" + "\n".join(lines) + "\n}\n"

    def compiled(name: str, include: str, *options: str) -> str:
        source, program = tmp_path / f"{name}.cpp", tmp_path / name
        source.write_text(f"{include}\n{body}")
        command = ["g++", "-w", "-std=c++17", "-Wno-invalid-offsetof", *options, str(source), "-o", str(program)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return subprocess.run([program], capture_output=True, text=True, check=True).stdout

    ours = compiled("ours", f'#include "{ROOT}/native/compat/cuda_abi.h"')
    for i, place in enumerate(headers()):
        theirs = compiled(f"theirs{i}", "#include <driver_types.h>", f"-I{place}")
        assert theirs == ours, place


OPEN_GENUINE = """
import ctypes, sys
ctypes.CDLL(sys.argv[2])
api = ctypes.CDLL(sys.argv[1])
context, graph, text = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.create_string_buffer(2048)
assert api.gfxg_open(None, ctypes.byref(context)) == 0
api.gfxg_backend.restype = ctypes.c_char_p
record = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(lambda stream, user: 0)
status = api.gfxg_capture(context, record, None, ctypes.byref(graph))
api.gfxg_error_text(context, b"en", text, ctypes.c_size_t(2048))
print(api.gfxg_backend(context).decode(), api.gfxg_runtime_version(context), status)
print(text.value.decode())
assert api.gfxg_close(context) == 0
"""


def test_the_c_api_opens_a_genuine_libcudart(plain: Path) -> None:
    """It is chosen because it is mapped; without a device its refusal is told by name, and nothing is left."""
    if not genuine():
        pytest.skip("needs a libcudart (CUDA toolkit, or pip install nvidia-cuda-runtime)")
    for library in genuine():
        command = [sys.executable, "-c", OPEN_GENUINE, str(plain / "libhipgraph_bridge.so"), str(library)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        backend, version, status = done.stdout.split()[:3]
        assert (backend, int(version) // 1000) == ("cuda", int(library.name.split(".so.")[1].split(".")[0]))
        if status == "7":  # there is a device; the callback recorded nothing
            continue
        assert (
            "native_runtime_refused: " in done.stdout
            and "cudaStreamCreateWithFlags returned cudaError" in done.stdout
        )
