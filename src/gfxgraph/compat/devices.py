"""The GPU, the PyTorch and what else is installed."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from dataclasses import dataclass
from types import ModuleType

from gfxgraph import config
from gfxgraph.errors import ActivationError
from gfxgraph.hardware import chosen_device, software
from gfxgraph.process import process
from gfxgraph.startup.child_environment import refuse_unsuitable

__all__ = [
    "DeviceInfo", "RocmTorchError", "arch_descriptor", "detect_accelerators", "detect_device", "detect_engines",
    "device_info", "require_rocm_torch", "torch_rocm_status",
]  # fmt: skip

RocmTorchError = ActivationError
"""What ``enable`` raises where the torch here cannot serve."""
_GIB = 1 << 30


@dataclass(frozen=True)
class DeviceInfo:
    """The GPU that decisions are made for; 0 and 0.0 where a figure is not known.

    Attributes:
        overridden: ``arch`` is GFXGRAPH_ARCH's, not the GPU's.
    """

    arch: str
    name: str
    cu: int
    wavefront: int
    vram_total_gib: float
    vram_free_gib: float
    overridden: bool

    @property
    def is_rdna(self) -> bool:
        """Whether it runs 32 lanes a wavefront."""
        return self.wavefront == 32

    @property
    def is_gfx1030(self) -> bool:
        """Whether programs see a gfx1030."""
        return self.arch.startswith("gfx1030")

    def summary(self) -> str:
        """All of it in one line."""
        asked = " (GFXGRAPH_ARCH)" if self.overridden else ""
        memory = f"{self.vram_free_gib:.1f} of {self.vram_total_gib:.1f} GiB free"
        return f"{self.arch}{asked}, {self.name}, {self.cu} CU, wave{self.wavefront}, {memory}"


def detect_device(refresh: bool = False) -> DeviceInfo | None:
    """The GPU, None where none is found; looked up at each call, so that ``refresh`` changes nothing."""
    found = chosen_device.device_info()
    # Where the kernel tells of none (another vendor's, WSL), torch is asked, as 1.1.0 asked it.
    torch = _torch_with_a_gpu()
    if not found.arch and torch is not None:
        torch.cuda.init()
        found = chosen_device.device_info()
    if not found.arch:
        return None
    free = torch.cuda.mem_get_info()[0] if torch is not None else 0
    return DeviceInfo(
        arch=found.arch,
        name=found.name or "(unknown GPU)",
        cu=found.cu,
        wavefront=found.wavefront or 32,
        vram_total_gib=found.vram_bytes / _GIB,
        vram_free_gib=free / _GIB,
        overridden=found.source == "GFXGRAPH_ARCH",
    )


def device_info() -> DeviceInfo | None:
    """The GPU that decisions are made for; None where there is none."""
    return detect_device()


def _torch_with_a_gpu() -> ModuleType | None:
    try:
        # lazily: without torch there is an answer, too
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def arch_descriptor() -> str:
    """The GPU's target in a few words."""
    found = chosen_device.device_info()
    if not found.arch:
        return "no GPU known"
    return f"{found.arch} ({found.family or 'unknown family'}, wave{found.wavefront})"


def torch_rocm_status() -> dict[str, object]:
    """``installed``, ``is_rocm``, ``torch_version``, ``hip_version``, ``cuda_available`` and ``message``."""
    found = chosen_device.torch_rocm_status()
    names = ("is_rocm", "torch_version", "hip_version", "message")
    return {
        "installed": found["kind"] != "none",
        **{name: found[name] for name in names},
        "cuda_available": _torch_with_a_gpu() is not None,
    }


def require_rocm_torch(strict: bool = True) -> dict[str, object]:
    """``torch_rocm_status()``, where ``enable`` would take this torch.

    Args:
        strict: raise where it would not; else it is logged.

    Raises:
        RocmTorchError: `no_torch`, `not_rocm_cpu_torch`, `not_rocm_cuda_torch`.
    """
    try:
        refuse_unsuitable(config.load(), sys.executable)
    except ActivationError as error:
        if strict:
            raise
        process.log.error("%s", error)
    return torch_rocm_status()


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _is_command(*names: str) -> bool:
    return any(shutil.which(name) for name in names)


def detect_accelerators() -> dict[str, bool]:
    """Which of the libraries that graphs and kernels come from are installed; imports none of them."""
    # lazily: it is ctypes' room
    from gfxgraph import _native

    has_torch = software.find_torch().kind != "none"
    return {
        "torch_cuda_graph": has_torch,
        "torch_compile": has_torch,
        "migraphx": software.migraphx_available() or _is_command("migraphx-driver"),
        "aiter": _is_installed("aiter"),
        "triton": _is_installed("triton"),
        "aotriton": _is_installed("aotriton"),
        "onnxruntime": _is_installed("onnxruntime"),
        "gfxgraph_native": _native.state().loads,
    }


def detect_engines() -> dict[str, bool]:
    """Which engines are installed."""
    return {
        "vllm": _is_installed("vllm"),
        "sglang": _is_installed("sglang"),
        "llama_cpp_python": _is_installed("llama_cpp"),
        "llama_cpp_bin": _is_command("llama-cli", "llama-server", "llama-completion"),
        "candle_bin": _is_command("candle"),
    }
