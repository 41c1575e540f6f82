"""ROCm, PyTorch, wheels that do not fit together, engines and accelerators. Nothing is imported."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from gfxgraph import config
from gfxgraph.hardware import versions
from gfxgraph.hardware.checks.check import Check, CheckResult, CheckState, Site
from gfxgraph.hardware.device import override_for
from gfxgraph.hardware.software import (
    distribution_versions,
    migraphx_available,
    other_gfxgraph,
    runtime_version,
    tree_version,
)

_INDEX = "--index-url https://download.pytorch.org/whl/rocm7.2"
_LEAST_TORCH = (2, 9)
_WITHOUT_GFX10 = (3, 9)
_ENGINES = {
    "vLLM": ("vllm",),
    "SGLang": ("sglang",),
    "transformers": ("transformers",),
    "ONNX Runtime": ("onnxruntime-rocm", "onnxruntime-migraphx", "onnxruntime", "onnxruntime-gpu"),
    "MIGraphX": ("migraphx", "torch-migraphx"),
    "AITER": ("aiter", "amd-aiter"),
    "Triton": ("triton-rocm", "pytorch-triton-rocm", "triton"),
    "FlashAttention": ("flash-attn", "flash_attn"),
    "bitsandbytes": ("bitsandbytes",),
    "llama.cpp": ("llama-cpp-python", "llama_cpp_python"),
    "native bridge": ("gfxgraph-native",),
}
_PROGRAMS = {"llama.cpp": ("llama-cli", "llama-server"), "ollama": ("ollama",), "candle": ("candle", "candle-cli")}


def rocm(site: Site) -> list[CheckResult]:
    """Which ROCm trees there are, and which is in use."""
    if not site.rocm:
        if site.torch.kind == "rocm":
            text = "no system ROCm; PyTorch brings its own", "没有系统级 ROCm，使用 PyTorch 自带的"
            return [CheckResult("ROCm", CheckState.GREEN, *text)]
        if site.gpus:
            text = "no ROCm installed", "没有安装 ROCm"
            return [CheckResult("ROCm", CheckState.AMBER, *text, "sudo amdgpu-install --usecase=rocm")]
        return []
    shown = ", ".join(f"{tree_version(site.machine, one) or '?'} in {one.path}" for one in site.rocm)
    first = runtime_version(site.machine, config.variables(["LD_LIBRARY_PATH"]).get("LD_LIBRARY_PATH", ""))
    text = shown, shown
    if first != runtime_version(site.machine):
        text = (
            f"{shown}; by LD_LIBRARY_PATH programs load HIP {first}",
            f"{shown}；LD_LIBRARY_PATH 使程序加载 HIP {first}",
        )
    found = [CheckResult("ROCm", CheckState.GREEN, *text)]
    # A later tree also counts when the current one has no runtime at all.
    if len({one.version for one in site.rocm}) > 1:
        text = (
            f"{len(site.rocm)} versions side by side; programs load whichever the loader finds first",
            f"并存 {len(site.rocm)} 个版本，程序会加载最先找到的那个",
        )
        found.append(CheckResult("ROCm", CheckState.AMBER, *text, f"export ROCM_PATH={site.rocm[0].path}"))
    return found


def pytorch(site: Site) -> list[CheckResult]:
    """PyTorch is a ROCm build, new enough, and of the installed ROCm's major version."""
    torch = site.torch
    gpu = bool(site.gpus)
    if torch.kind == "none":
        text = "PyTorch is not installed", "没有安装 PyTorch"
        return [CheckResult("PyTorch", CheckState.AMBER, *text, f"pip install torch {_INDEX}" if gpu else "")]
    if torch.kind != "rocm":
        build = f"CUDA {torch.cuda}" if torch.kind == "cuda" else "CPU"
        text = f"{torch.version} is a {build} build, not ROCm", f"{torch.version} 是 {build} 版本，不是 ROCm"
        state = CheckState.RED if gpu else CheckState.AMBER
        return [CheckResult("PyTorch", state, *text, f"pip install --force-reinstall torch {_INDEX}")]
    shown = f"{torch.version}, HIP {torch.hip}"
    if versions.parse(torch.version) < _LEAST_TORCH:
        text = f"{shown} is older than 2.9", f"{shown} 低于 2.9"
        return [CheckResult("PyTorch", CheckState.RED, *text, f"pip install --upgrade torch {_INDEX}")]
    found = [CheckResult("PyTorch", CheckState.GREEN, shown, shown)]
    theirs = versions.parse(torch.rocm) or versions.rocm_of_hip(versions.parse(torch.hip))
    ours = versions.parse(site.rocm[0].version) if site.rocm else ()
    if ours and theirs and ours[0] != theirs[0]:
        pair = versions.show(theirs[:2]), versions.show(ours)
        text = (
            f"built for ROCm {pair[0]}, installed is {pair[1]}: extensions built here will not load",
            f"为 ROCm {pair[0]} 编译，系统中是 {pair[1]}：在本机编译的扩展将无法加载",
        )
        found.append(CheckResult("PyTorch", CheckState.AMBER, *text, f"pip install --force-reinstall torch {_INDEX}"))
    return found


def kernels_for_card(site: Site) -> list[CheckResult]:
    """The installed rocBLAS has kernels for the card; without them the first matmul fails."""
    if site.torch.kind != "rocm" or not site.gpus:
        return []
    built = _built_targets(Path(site.torch.path) / "lib" / "rocblas" / "library")
    found = []
    for card in site.gpus if built else ():
        seen_as = override_for(card, site.machine) or card.arch
        if seen_as in built or card.is_integrated:
            continue
        known = card.architecture
        shown = f"{card.arch}: this PyTorch has kernels for {', '.join(sorted(built))}"
        text = shown, f"{card.arch}：此 PyTorch 只含 {', '.join(sorted(built))} 的内核"
        fix = f"export HSA_OVERRIDE_GFX_VERSION={known.override}" if known and known.override else ""
        found.append(CheckResult("kernels", CheckState.RED, *text, fix or f"pip install --upgrade torch {_INDEX}"))
    return found


def _built_targets(folder: Path) -> set[str]:
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:
        return set()
    return {match[1] for name in names if (match := re.search(r"_(gfx[0-9a-f]+)\.", name))}


def wheels(site: Site) -> list[CheckResult]:
    """Packages built for another platform than PyTorch was."""
    if site.torch.kind != "rocm":
        return []
    found = []
    companions = distribution_versions(["torchvision", "torchaudio"])
    wrong = {name: version for name, version in companions.items() if "+cu" in version or "+cpu" in version}
    for name, version in wrong.items():
        text = f"{name} {version} beside a ROCm PyTorch", f"{name} {version} 与 ROCm 版 PyTorch 不匹配"
        found.append(CheckResult("wheels", CheckState.RED, *text, f"pip install --force-reinstall {name} {_INDEX}"))
    tritons = distribution_versions(["triton", "triton-rocm", "pytorch-triton-rocm"])
    if len(tritons) > 1:
        shown = ", ".join(f"{name} {version}" for name, version in tritons.items())
        text = f"two Tritons overwrite each other: {shown}", f"同时安装了多个 Triton，会互相覆盖：{shown}"
        fix = f"pip uninstall -y {' '.join(tritons)} && pip install --force-reinstall torch {_INDEX}"
        found.append(CheckResult("wheels", CheckState.AMBER, *text, fix))
    old = sorted({arch for gpu in site.gpus if (arch := override_for(gpu, site.machine) or gpu.arch)[:5] == "gfx10"})
    if old and any(versions.parse(version) >= _WITHOUT_GFX10 for version in tritons.values()):
        text = f"Triton 3.9 compiles no longer for {', '.join(old)}", f"Triton 3.9 不再为 {'、'.join(old)} 编译"
        found.append(CheckResult("wheels", CheckState.AMBER, *text, "pip install 'triton<3.9'"))
    onnx = distribution_versions(["onnxruntime", "onnxruntime-gpu", "onnxruntime-rocm", "onnxruntime-migraphx"])
    if len(onnx) > 1 or "onnxruntime-gpu" in onnx:
        shown = ", ".join(onnx)
        text = f"{shown}: the CPU or CUDA one hides ROCm's", f"{shown}：CPU 或 CUDA 版会遮盖 ROCm 版"
        fix = "pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime-migraphx"
        found.append(CheckResult("wheels", CheckState.AMBER, *text, fix))
    return found


def engines(site: Site) -> list[CheckResult]:
    """Engines and accelerators found; never a fault, only a list."""
    found = []
    for engine, names in _ENGINES.items():
        for version in list(distribution_versions(names).values())[:1]:
            found.append(f"{engine} {version}")
    for program, names in _PROGRAMS.items():
        where = next((path for name in names if (path := shutil.which(name))), "")
        if where:
            found.append(f"{program} ({where})")
    if not any(item.startswith("MIGraphX") for item in found):
        if migraphx_available(site.machine, site.rocm):
            found.append("MIGraphX (library)")
    library = config.load().lib
    if library:
        found.append(f"native library {library}" if Path(library).exists() else "native library (missing)")
    shown = ", ".join(found)
    return [CheckResult("engines", CheckState.GREEN, shown or "none found", shown or "没有找到")]


def namesake(site: Site) -> list[CheckResult]:
    """Another project's gfxgraph is installed beside this one."""
    version, folder = other_gfxgraph(site.search)
    if not version:
        return []
    text = (
        f"gfxgraph {version} in {folder} is another project's; which of the two is imported depends on the path",
        f"{folder} 中的 gfxgraph {version} 是另一个项目；导入哪一个取决于搜索路径",
    )
    return [CheckResult("gfxgraph", CheckState.AMBER, *text, "pip uninstall gfxgraph, then install this one again")]


CHECKS: tuple[Check, ...] = (namesake, rocm, pytorch, kernels_for_card, wheels, engines)
