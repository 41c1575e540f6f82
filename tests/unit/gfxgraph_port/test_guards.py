"""Guards: what excludes AMD, what only seems to, and what the reports say of it."""

from __future__ import annotations

import pytest

from gfxgraph_port.archs import select
from gfxgraph_port.guards.names import judge
from gfxgraph_port.guards.worlds import NVIDIA, UNKNOWN, DeviceKind
from tests.unit.gfxgraph_port.conftest import Run, codes

GATE = "torch.cuda.get_device_capability() >= (9, 0)"
HEAD = "import os\nimport sys\nimport pytest\nimport torch\nis_rocm = torch.version.hip is not None\n"

GUARDED = {
    "if": f"if torch.version.hip is None:\n    x = {GATE}\n",
    "else": f"if is_rocm:\n    x = 1\nelse:\n    x = {GATE}\n",
    "elif": f"if is_rocm:\n    x = 1\nelif foo():\n    x = {GATE}\n",
    "ternary": f"x = {GATE} if torch.version.cuda else False\n",
    "and": f"x = {GATE} and not is_rocm\n",
    "or": f"x = is_rocm or {GATE}\n",
    "return": f"def f():\n    if is_rocm:\n        return 0\n    return {GATE}\n",
    "raise": f"def f():\n    if is_rocm:\n        raise ValueError\n    return {GATE}\n",
    "continue": f"for i in y:\n    if is_rocm:\n        continue\n    x = {GATE}\n",
    "assert": f"def f():\n    assert not is_rocm\n    return {GATE}\n",
    "skip": f"def test_a():\n    if is_rocm:\n        pytest.skip('no')\n    assert {GATE}\n",
    "skipif": f"@pytest.mark.skipif(is_rocm, reason='no')\ndef test_a():\n    assert {GATE}\n",
    "pytestmark": f"pytestmark = pytest.mark.skipif(torch.version.hip is not None, reason='')\nx = {GATE}\n",
    "helper": f"def on_amd():\n    return bool(torch.version.hip)\n\nif not on_amd():\n    x = {GATE}\n",
    "system": f"SYSTEM = find()\nif SYSTEM == 'rocm':\n    x = 1\nelif SYSTEM == 'cuda':\n    x = {GATE}\n",
    "env-or-version": f"V = os.getenv('CUDA_VERSION') or torch.version.cuda\nif V:\n    x = {GATE}\n",
    "getattr": f"if getattr(torch.version, 'hip', None) is None:\n    x = {GATE}\n",
    "type-checking": f"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    x = {GATE}\n",
    "comprehension": f"x = [{GATE} for _ in y if not is_rocm]\n",
}  # fmt: skip
OPEN = {
    "is_available": f"if torch.cuda.is_available():\n    x = {GATE}\n",
    "device-type": f"if t.device.type == 'cuda':\n    x = {GATE}\n",
    "hasattr": f"if hasattr(torch, 'cuda'):\n    x = {GATE}\n",
    "wrong-arm": f"if is_rocm:\n    x = {GATE}\n",
    "unknown": f"if use_fast:\n    x = {GATE}\n",
    "and-unknown": f"x = fast and {GATE}\n",
    "public-helper": f"def nv():\n    return {GATE}\n\nx = None if is_rocm else nv()\ny = nv()\n",
    "rebound": f"is_rocm = read()\nif not is_rocm:\n    pass\nx = {GATE}\n",
    "option": f"if not args.use_hip_attention_kernels:\n    x = {GATE}\n",
}


@pytest.mark.parametrize("name", GUARDED)
def test_guarded_code_is_not_reported(run: Run, name: str) -> None:
    """A capability gate under a guard that excludes AMD is no finding, but is listed as guarded."""
    report = run({"m.py": HEAD + GUARDED[name]})
    assert "capability-gate" not in codes(report), name
    assert any(f.code == "capability-gate" and f.guarded_by for f in report.guarded), name


@pytest.mark.parametrize("name", OPEN)
def test_unguarded_code_is_reported(run: Run, name: str) -> None:
    """What does not exclude AMD leaves the finding standing."""
    assert "capability-gate" in codes(run({"m.py": HEAD + OPEN[name]})), name


def test_guards_are_followed_into_other_files(run: Run) -> None:
    """A guard imported under another name is evaluated where it is defined."""
    files = {
        "pkg/__init__.py": "",
        "pkg/env.py": "import torch\n\ndef vendor_is_ours():\n    return torch.version.hip is not None\n",
        "pkg/use.py": f"import torch\nfrom .env import vendor_is_ours as ours\nx = not ours() and {GATE}\n",
        "pkg/bad.py": f"import torch\nfrom .env import something as ours\nx = not ours() and {GATE}\n",
    }
    assert [f.path for f in run(files).findings] == ["pkg/bad.py"]


def test_architecture_guards_keep_the_others(run: Run) -> None:
    """A guard for one architecture leaves the finding for the rest, which are named."""
    text = "import torch\narch = name()\nif not arch.startswith('gfx94'):\n    x = y.to(torch.float8_e4m3fn)\n"
    assert "fp8-e4m3fn-hardcoded" not in codes(run({"m.py": text}, arch="gfx942"))
    text = "import torch\narch = name()\nif arch in ('gfx942', 'gfx90a', 'gfx1030'):\n    WARP_SIZE = 32\n"
    found = [f for f in run({"m.py": text}).findings if f.code == "warp-size-32"]
    assert found and found[0].archs == ("gfx90a", "gfx942")


@pytest.mark.parametrize(
    ("arch", "expected"), [("gfx90a", True), ("gfx1030", False), ("gfx1250", False), ("RDNA2,CDNA3", True)]
)
def test_width_comes_from_the_table(run: Run, arch: str, expected: bool) -> None:
    """A warp of 32 is wrong on 64-lane architectures only, whoever made the card."""
    report = run({"k.hip.h": "#include <hip/hip_runtime.h>\n#define WARP_SIZE 32\n"}, arch=arch)
    assert ("warp-size-32" in codes(report)) is expected


CPP_GUARDED = {
    "ifndef": '#ifndef USE_ROCM\n__device__ void f() { asm volatile("mov.u32 %0, %%laneid;"); }\n#endif\n',
    "else": '#if defined(__HIP_PLATFORM_AMD__)\n#else\n__device__ void f() { asm("ld.global.nc %0;"); }\n#endif\n',
    "elif": '#ifdef USE_CUDA\n__device__ void f() { asm("ld.global.nc %0;"); }\n#elif defined(USE_ROCM)\n#endif\n',
    "project": '#ifdef MY_HIP\n#else\n__device__ void f() { asm("ld.global.nc %0;"); }\n#endif\n',
    "nested": '#ifndef USE_ROCM\n#if FOO\n__device__ void f() { asm("ld.global.nc %0;"); }\n#endif\n#endif\n',
    "two": '#if !defined(USE_ROCM) || X\n#ifndef USE_ROCM\n__device__ void f() { asm("trap;"); }\n#endif\n#endif\n',
}


@pytest.mark.parametrize("name", CPP_GUARDED)
def test_cpp_arms(run: Run, name: str) -> None:
    """PTX in an arm that HIP never compiles is no finding."""
    assert "inline-ptx" not in codes(run({"k.cu": CPP_GUARDED[name]})), name


def test_every_arm_is_parsed(run: Run) -> None:
    """An arm that cuts through a statement is still read, and each arm is judged by itself."""
    text = (
        "__device__ float f(float v) {\n#ifdef FAST\n  if (v > 0) {\n#else\n  {\n"
        '    asm("trap;");\n#endif\n  }\n  return v;\n}\n'
    )
    assert [f.line for f in run({"k.cu": text}).findings if f.code == "inline-ptx"] == [6]


def test_macros_are_closed_over_headers(run: Run) -> None:
    """A macro that only the NVIDIA arm of another file defines is undefined on AMD, and the reverse."""
    header = "#ifdef USE_ROCM\n#define OURS 1\n#else\n#define HAS_PTX 1\n#endif\n"
    use = '#ifdef HAS_PTX\n__device__ void f() { asm("ld.global.nc %0;"); }\n#endif\n'
    other = '#ifndef OURS\n__device__ void g() { asm("ld.global.nc %0;"); }\n#endif\n'
    report = run({"a.h": header, "b.cu": use, "c.cu": other})
    assert "inline-ptx" not in codes(report)
    assert codes(run({"b.cu": use})).count("inline-ptx") == 1


def test_wave_64_only_in_amd_arms(run: Run) -> None:
    """64 lanes are wrong in an AMD arm, and right under an architecture test."""
    assert "wave-64-hardcoded" in codes(run({"k.cu": "#ifdef USE_ROCM\n#define WARP_SIZE 64\n#endif\n"}))
    assert "wave-64-hardcoded" not in codes(run({"k.cu": "#ifdef __gfx90a__\n#define WARP_SIZE 64\n#endif\n"}))


def test_platform_twins(run: Run) -> None:
    """A file with an AMD twin is NVIDIA's; without the twin it is reported."""
    docker = {"Dockerfile": "FROM nvidia/cuda:12.4.1-base\n"}
    assert codes(run(docker)) == ["docker-cuda-base"]
    assert not run({**docker, "Dockerfile.rocm": "FROM rocm/pytorch:latest\n"}).findings
    inner = f"import torch\nx = {GATE}\n"
    assert not run({"plat/cuda.py": inner, "plat/rocm.py": "x = 1\n"}).findings


def test_shell_and_cmake_branches(run: Run) -> None:
    """Branches of shell scripts and CMake count as guards."""
    shell = 'if [ "$BACKEND" = rocm ]; then\n  echo hi\nelse\n  pip install torch==2.5.0+cu124\nfi\n'
    assert not run({"i.sh": shell}).findings
    assert codes(run({"i.sh": "pip install torch==2.5.0+cu124\n"})) == ["cuda-wheel-index"]
    cmake = "if(USE_ROCM)\n  enable_language(HIP)\nelse()\n  find_package(CUDAToolkit REQUIRED)\nendif()\n"
    assert not run({"CMakeLists.txt": cmake, "i.sh": ""}).findings


@pytest.mark.parametrize(
    ("name", "rdna2", "cdna3", "nvidia"),
    [
        ("is_rocm", True, True, False),
        ("IS_HIP_EXTENSION", True, True, False),
        ("is_cdna", False, True, False),
        ("is_MI300", False, True, False),
        ("on_gfx9", False, True, False),
        ("is_nvidia", False, False, True),
        ("use_cuda", UNKNOWN, UNKNOWN, UNKNOWN),
        ("is_not_rocm", False, False, True),
        ("use_hip_fused_adam_w", UNKNOWN, UNKNOWN, False),
        ("ship", UNKNOWN, UNKNOWN, UNKNOWN),
    ],
)
def test_names(name: str, rdna2: object, cdna3: object, nvidia: object) -> None:
    """A name is judged by its words."""
    worlds = (DeviceKind(select("gfx1030")[0]), DeviceKind(select("gfx942")[0]), NVIDIA)
    assert tuple(judge(name, w) for w in worlds) == (rdna2, cdna3, nvidia)
