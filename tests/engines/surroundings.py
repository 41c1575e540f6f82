"""Engines' own graph files, unmodified, in surroundings that are a few lines long.

The files come from the published packages (`make test-engines` fetches them; never committed). They import
the rest of their engine: configuration, platforms, logging, distributed groups. Those modules are made up
here: named ones with what the graph files use, all others empty. listed.py says which files are real.
"""

from __future__ import annotations

import enum
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import logging
import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from tests.conformance.conftest import HAS_GPU
from tests.engines.listed import REAL, VERSIONS

FOLDER = Path(os.environ.get("GFXGRAPH_ENGINE_FILES", Path(__file__).parents[2] / "build" / "engines"))


def file_of(module: str) -> Path | None:
    """Where a module's own file lies, if it is there."""
    base = FOLDER.joinpath(*module.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.exists()), None)


def missing(engine: str) -> str:
    """Why the engine's tests cannot run here; "" where they can."""
    absent = [module for module in REAL[engine] if file_of(module) is None]
    return f"no file for {absent[0]} below {FOLDER}: make test-engines fetches them" if absent else ""


def changed(engine: str) -> list[str]:
    """Files that are not, to the byte, those of the published package, by the hashes that it brings itself."""
    published = json.loads((FOLDER / f"{engine}.json").read_text(encoding="utf-8"))
    files = [file for module in REAL[engine] if (file := file_of(module)) is not None]
    return [
        str(file) for file in files
        if hashlib.sha256(file.read_bytes()).hexdigest() != published["sha256"][str(file.relative_to(FOLDER))]
    ]  # fmt: skip


# -- surroundings ----------------------------------------------------------------------------------------------


def weak(tensor: Any) -> Any:
    """A tensor over the same memory that does not own it, as the engines' compiled ``weak_ref_tensor`` gives."""
    if not isinstance(tensor, torch.Tensor) or tensor.numel() == 0:
        return tensor
    storage = torch._C._construct_storage_from_data_pointer(
        tensor.data_ptr(), tensor.device, tensor.untyped_storage().nbytes()
    )
    about = {"nbytes": storage.nbytes(), "data_ptr": tensor.data_ptr(), "size": tuple(tensor.size())}
    about |= {"stride": tuple(tensor.stride()), "dtype": tensor.dtype, "device": tensor.device, "storage_offset": 0}
    return torch._C._construct_CUDA_Tensor_From_Storage_And_Metadata(about, storage)


def weak_all(tree: Any) -> Any:
    if isinstance(tree, (list, tuple)):
        return type(tree)(weak(one) for one in tree)
    return weak(tree)


class Mode(enum.Enum):
    """vLLM's CUDAGraphMode."""

    NONE = 0
    PIECEWISE = 1
    FULL = 2


@dataclass(frozen=True)
class BatchDescriptor:
    """vLLM's key of a graph, in so far as these tests vary it."""

    num_tokens: int


class Group:
    """A tensor-parallel group of one rank."""

    world_size = 1
    cpu_group = None

    def barrier(self) -> None:
        return None


class _Off:
    """An environment setting of SGLang's that is off."""

    def get(self) -> bool:
        return False


def vllm_modules() -> dict[str, dict[str, Any]]:
    context = SimpleNamespace(current=None)
    pool: list[Any] = []

    def global_pool() -> Any:
        if not pool:
            pool.append(torch.cuda.graph_pool_handle())
        return pool[0]

    def init_logger(name: str) -> logging.Logger:
        logger = logging.getLogger(name)
        logger.info_once = logger.info  # type: ignore[attr-defined]
        return logger

    quantized = type("QuantizedActivation", (), {})
    nothing = SimpleNamespace(sync_prev_onload=lambda: None, join_after_forward=lambda: None)
    platform = SimpleNamespace(get_global_graph_pool=global_pool, graph_pool_handle=torch.cuda.graph_pool_handle)
    return {
        "vllm": {"__version__": VERSIONS["vllm"]},
        "vllm.envs": {"VLLM_USE_BREAKABLE_CUDAGRAPH": True},
        "vllm.config": {"CUDAGraphMode": Mode, "CompilationMode": enum.Enum("CompilationMode", "NONE VLLM_COMPILE")},
        "vllm.forward_context": {
            "BatchDescriptor": BatchDescriptor,
            "holder": context,
            "is_forward_context_available": lambda: context.current is not None,
            "get_forward_context": lambda: context.current,
        },
        "vllm.logger": {"init_logger": init_logger},
        "vllm.model_executor.offloader.base": {"get_offloader": lambda: nothing},
        "vllm.model_executor.layers.fusion.quant_activation": {"QuantizedActivation": quantized},
        "vllm.platforms": {"current_platform": platform},
        "vllm.distributed.device_communicators.pynccl_allocator": {"set_graph_pool_id": lambda pool: None},
        "vllm.device_allocator": {"get_mem_allocator_instance": lambda: None},
        "vllm.utils.torch_utils": {
            "current_stream": lambda: torch.cuda.current_stream(),
            "weak_ref_tensor": weak,
            "weak_ref_tensors": weak_all,
        },
    }


def sglang_modules() -> dict[str, dict[str, Any]]:
    resources = SimpleNamespace(graph_memory_pool=None, graph_pool_borrow=None)
    streams: dict[str, Any] = {}
    # Where there is no cuda-python, and in the simulator, the files' own way for HIP is the one that can run.
    is_hip = not HAS_GPU or bool(torch.version.hip) or importlib.util.find_spec("cuda") is None
    devices = {
        "is_hip": lambda: is_hip,
        "is_cuda": lambda: not is_hip,
        "is_xpu": lambda: False,
        "is_musa": lambda: False,
        "is_npu": lambda: False,
        "get_device_module": lambda: torch.cuda,
        "get_bool_env_var": lambda name, default="false": False,
        "print_warning_once": lambda text: None,
    }
    off = type("Envs", (), {"__getattr__": lambda self, name: _Off()})()
    return {
        "sglang": {"__version__": VERSIONS["sglang"]},
        "sgl_kernel": {"weak_ref_tensor": weak},
        "sglang.srt.constants": {"GPU_MEMORY_TYPE_CUDA_GRAPH": "cuda_graph"},
        "sglang.srt.environ": {"envs": off},
        "sglang.srt.utils": devices,
        "sglang.srt.utils.common": devices,
        "sglang.srt.utils.torch_memory_saver_adapter": {
            "TorchMemorySaverAdapter": SimpleNamespace(create=lambda enable: SimpleNamespace(enabled=False))
        },
        "sglang.srt.distributed.device_communicators.pynccl_allocator": {"set_graph_pool_id": lambda pool: None},
        "sglang.srt.model_executor.forward_batch_info": {"PPProxyTensors": type("PPProxyTensors", (), {})},
        "sglang.srt.runtime_context": {
            "get_parallel": lambda: SimpleNamespace(tp_group=Group()),
            "get_resources": lambda: resources,
            "get_stream": lambda name: streams.setdefault(name, torch.cuda.Stream()),
            "get_exec": lambda: SimpleNamespace(features=SimpleNamespace(enable_memory_saver=False)),
        },
    }


class _Empty(ModuleType):
    """A module that has whatever is asked of it: for names that only annotations and unused branches want."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {})
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds an engine's modules: its own files where they are listed, else what is made up."""

    def __init__(self, engine: str, made_up: dict[str, dict[str, Any]]) -> None:
        self.engine, self.made_up = engine, made_up

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name in REAL[self.engine]:
            file = file_of(name)
            assert file is not None
            folders = [str(file.parent)] if file.name == "__init__.py" else None
            return importlib.util.spec_from_file_location(name, file, submodule_search_locations=folders)
        if name in self.made_up or name.split(".")[0] == self.engine:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        module = _Empty(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(self.made_up.get(module.__name__, {}))


@contextmanager
def surroundings(engine: str) -> Any:
    """The engine's graph files importable under their own names; forgotten afterwards."""
    made_up = vllm_modules() if engine == "vllm" else sglang_modules()
    finder = Finder(engine, made_up)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in list(sys.modules):
            if name.split(".")[0] == engine or name in made_up:
                del sys.modules[name]
