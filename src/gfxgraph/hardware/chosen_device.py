"""The device that decisions are made for, and what kind of PyTorch is here."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, replace
from typing import Any

from gfxgraph import config
from gfxgraph.errors import ConfigError
from gfxgraph.hardware.architectures import Architecture, architecture, architectures, name_of_override
from gfxgraph.hardware.machine import Machine
from gfxgraph.hardware.software import find_torch
from gfxgraph.hardware.topology import Gpu, gpus

SIMULATED = "gfx1030"
"""What every HIP profile of the simulator imitates."""
_FACTS = ("family", "wavefronts", "lds_kib", "matrix", "bf16", "fp8", "xnack")


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One GPU as programs will see it; ``source`` says where the architecture comes from.

    ``source`` is "GFXGRAPH_ARCH", "HSA_OVERRIDE_GFX_VERSION", "kfd", "torch", "simulator" or "none".
    """

    arch: str = ""
    name: str = ""
    family: str = ""
    cu: int = 0
    wavefront: int = 0
    wavefronts: tuple[int, ...] = ()
    vram_bytes: int = 0
    lds_kib: int = 0
    matrix: str = ""
    bf16: str = ""
    fp8: str = ""
    xnack: bool = False
    support: str = ""
    source: str = "none"
    physical_arch: str = ""

    @property
    def vram_mb(self) -> int:
        """The device's memory in MiB."""
        return self.vram_bytes >> 20

    def as_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        return asdict(self)


def device_info(index: int = 0, machine: Machine | None = None) -> DeviceInfo:
    """Describe the GPU that decisions are made for.

    GFXGRAPH_ARCH wins, then HSA_OVERRIDE_GFX_VERSION (which libhsakmt applies before HIP sees the
    device), then what the kernel says. torch is not imported; where a program has imported it and
    there is no KFD (another vendor's GPU, Windows), its answer is used.

    Args:
        index: which GPU, in KFD order. A discrete GPU goes before an integrated one.
        machine: where to read; this machine where None.

    Returns:
        What is known of it; ``arch`` is empty where no GPU was found.

    Raises:
        ValueError: the index is no whole number from 0 on.
        ConfigError: `bad_setting`, GFXGRAPH_ARCH names no architecture that is known.
    """
    if not isinstance(index, int) or index < 0:
        raise ValueError(f"device_info() takes a whole number, 0 or more, not {index!r}")
    here = machine or Machine()
    cards = sorted(gpus(here), key=lambda gpu: gpu.is_integrated)
    gpu = cards[index] if index < len(cards) else None
    stated = config.variables(["GFXGRAPH_ARCH"], None if machine is None else here.environ).get("GFXGRAPH_ARCH", "")
    settings = config.load(None if machine is None else here.environ)
    if stated.strip() and architecture(settings.arch) is None:
        allowed = f"one of {', '.join(architectures())}"
        raise ConfigError("bad_setting", variable="GFXGRAPH_ARCH", value=stated, allowed=allowed)
    if settings.arch:
        return _describe(settings.arch, gpu, "GFXGRAPH_ARCH")
    if gpu is None:
        found = _from_torch(index) if machine is None else DeviceInfo()
        is_simulated = not found.arch and machine is None and settings.simulate.startswith("hip")
        return _describe(SIMULATED, None, "simulator") if is_simulated else found
    override = override_for(gpu, here)
    if override and override != gpu.arch:
        return _describe(override, gpu, "HSA_OVERRIDE_GFX_VERSION")
    return _describe(gpu.arch, gpu, "kfd")


def override_for(gpu: Gpu, machine: Machine) -> str:
    """Return the gfx name that an HSA override gives this GPU, '' where none is set."""
    name = "HSA_OVERRIDE_GFX_VERSION"
    environ = machine.environ
    return name_of_override(environ.get(f"{name}_{gpu.node}") or environ.get(name, ""))


def _describe(arch: str, gpu: Gpu | None, source: str) -> DeviceInfo:
    known = architecture(arch)
    physical = gpu.arch if gpu else ""
    same = gpu is not None and physical == arch
    facts: dict[str, Any] = {"lds_kib": gpu.lds_kib if gpu else 0, "support": "unknown architecture"}
    if known:
        facts = {name: getattr(known, name) for name in _FACTS} | {"support": known.support()}
    return DeviceInfo(
        arch=arch,
        name=(gpu.name if gpu and (same or source != "GFXGRAPH_ARCH") else "") or _names(known),
        cu=gpu.cu if gpu else 0,
        wavefront=gpu.wavefront if gpu and same else known.wavefront if known else 0,
        vram_bytes=gpu.vram_bytes if gpu else 0,
        source=source,
        physical_arch=physical,
        **facts,
    )


def _names(known: Architecture | None) -> str:
    return " / ".join(known.names) if known else ""


def _from_torch(index: int) -> DeviceInfo:
    """Ask a torch that the program has already imported and initialised; never import it here."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized() or index >= torch.cuda.device_count():
        return DeviceInfo()
    found = torch.cuda.get_device_properties(index)
    arch = str(getattr(found, "gcnArchName", "")).split(":")[0]
    if arch.startswith("gfx"):
        seen = {"name": found.name, "cu": found.multi_processor_count, "vram_bytes": found.total_memory}
        return replace(_describe(arch, None, "torch"), physical_arch=arch, **seen)
    return DeviceInfo(
        arch=f"sm_{found.major}{found.minor}",
        name=found.name,
        family="NVIDIA",
        cu=found.multi_processor_count,
        wavefront=getattr(found, "warp_size", 32),
        wavefronts=(32,),
        vram_bytes=found.total_memory,
        support="reference GPU only",
        source="torch",
    )


def torch_rocm_status() -> dict[str, object]:
    """Which PyTorch is installed: ``is_rocm``, ``torch_version``, ``hip_version``, ``message``."""
    torch = find_torch()
    advice = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/rocm7.2"
    message = {
        "rocm": f"PyTorch {torch.version} for ROCm (HIP {torch.hip})",
        "cuda": f"PyTorch {torch.version} is a CUDA {torch.cuda} build; on an AMD GPU: {advice}",
        "cpu": f"PyTorch {torch.version} is a CPU build; on an AMD GPU: {advice}",
        "none": f"PyTorch is not installed; on an AMD GPU: {advice}",
    }[torch.kind]
    return {
        "is_rocm": torch.kind == "rocm",
        "torch_version": torch.version or None,
        "hip_version": torch.hip or None,
        "kind": torch.kind,
        "message": message,
    }
