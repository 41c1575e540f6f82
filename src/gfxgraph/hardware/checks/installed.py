"""ROCm, PyTorch, wheels that do not fit together, engines and accelerators. Nothing is imported."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

from gfxgraph import config
from gfxgraph.hardware import versions
from gfxgraph.hardware.checks.check import Check, CheckResult, CheckState, Site, finding
from gfxgraph.hardware.device import override_for
from gfxgraph.hardware.software import (
    distribution_versions,
    migraphx_available,
    other_gfxgraph,
    runtime_version,
    tree_version,
)

_INDEX = "--index-url https://download.pytorch.org/whl/rocm7.2"
_CPU_INDEX = "--index-url https://download.pytorch.org/whl/cpu"
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
            return [finding("rocm_in_torch")]
        return [finding("rocm_none")] if site.gpus else []
    shown = ", ".join(f"{tree_version(site.machine, one) or '?'} in {one.path}" for one in site.rocm)
    first = runtime_version(site.machine, config.variables(["LD_LIBRARY_PATH"]).get("LD_LIBRARY_PATH", ""))
    by_path = first != runtime_version(site.machine)
    found = [finding("rocm_by_path" if by_path else "rocm", shown=shown, hip=first)]
    # A later tree also counts when the current one has no runtime at all.
    if len({one.version for one in site.rocm}) > 1:
        found.append(finding("rocm_several", n=len(site.rocm), path=site.rocm[0].path))
    return found


def pytorch(site: Site) -> list[CheckResult]:
    """PyTorch is a ROCm build, new enough, and of the installed ROCm's major version."""
    torch = site.torch
    gpu = bool(site.gpus)
    if torch.kind == "none":
        return [
            finding("torch_none", fix=f"pip install torch {_INDEX}" if gpu else f"pip install torch {_CPU_INDEX}")
        ]
    if torch.kind != "rocm":
        build = f"CUDA {torch.cuda}" if torch.kind == "cuda" else "CPU"
        other = finding("torch_not_rocm", version=torch.version, build=build, index=_INDEX)
        return [replace(other, state=CheckState.RED) if gpu else other]
    shown = f"{torch.version}, HIP {torch.hip}"
    if versions.parse(torch.version) < _LEAST_TORCH:
        return [finding("torch_old", shown=shown, index=_INDEX)]
    found = [finding("torch", shown=shown)]
    theirs = versions.parse(torch.rocm) or versions.rocm_of_hip(versions.parse(torch.hip))
    ours = versions.parse(site.rocm[0].version) if site.rocm else ()
    if ours and theirs and ours[0] != theirs[0]:
        pair = {"theirs": versions.show(theirs[:2]), "ours": versions.show(ours)}
        found.append(finding("torch_of_other_rocm", index=_INDEX, **pair))
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
        fix = f"export HSA_OVERRIDE_GFX_VERSION={known.override}" if known and known.override else ""
        fix = fix or f"pip install --upgrade torch {_INDEX}"
        found.append(finding("kernels_missing", arch=card.arch, built=", ".join(sorted(built)), fix=fix))
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
        found.append(finding("wheel_of_other_platform", package=name, version=version, index=_INDEX))
    tritons = distribution_versions(["triton", "triton-rocm", "pytorch-triton-rocm"])
    if len(tritons) > 1:
        shown = ", ".join(f"{name} {version}" for name, version in tritons.items())
        found.append(finding("tritons", shown=shown, names=" ".join(tritons), index=_INDEX))
    old = sorted({arch for gpu in site.gpus if (arch := override_for(gpu, site.machine) or gpu.arch)[:5] == "gfx10"})
    if old and any(versions.parse(version) >= _WITHOUT_GFX10 for version in tritons.values()):
        found.append(finding("triton_without_gfx10", archs=", ".join(old)))
    onnx = distribution_versions(["onnxruntime", "onnxruntime-gpu", "onnxruntime-rocm", "onnxruntime-migraphx"])
    if len(onnx) > 1 or "onnxruntime-gpu" in onnx:
        found.append(finding("onnx_hidden", shown=", ".join(onnx)))
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
    return [finding("engines", shown=shown) if shown else finding("engines_none")]


def namesake(site: Site) -> list[CheckResult]:
    """Another project's gfxgraph is installed beside this one."""
    version, folder = other_gfxgraph(site.search)
    return [finding("namesake", version=version, folder=folder)] if version else []


CHECKS: tuple[Check, ...] = (namesake, rocm, pytorch, kernels_for_card, wheels, engines)
