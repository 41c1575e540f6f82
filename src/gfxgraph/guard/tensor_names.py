"""The program's names for its tensors, and the tensors at an address; used only at captures and faults."""

from __future__ import annotations

import gc
import sys
from collections.abc import Collection, Iterable
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from gfxgraph import torch_names
from gfxgraph.capture.record.user_lines import is_library_code
from gfxgraph.capture.replay.graph_tensors import has_layout
from gfxgraph.watching.holders import locals_of

_TORCH_MODULE = torch.nn.Module


class TensorNames:
    """Names of tensors in the program's frames, globals and modules, at one moment."""

    def __init__(self, frame: FrameType | None = None) -> None:
        self._by_id: dict[int, str] = {}
        frame = frame if frame is not None else sys._getframe(1)
        while frame is not None:
            if not is_library_code(frame.f_code):
                self._note(locals_of(frame), "")
            frame = frame.f_back
        main = sys.modules.get("__main__")
        if main is not None:
            self._note(vars(main), "")

    def _note(self, scope: Any, prefix: str) -> None:
        for name, item in list(scope.items()):
            if not isinstance(name, str):
                continue
            if isinstance(item, Tensor):
                self._by_id.setdefault(id(item), prefix + name)
            elif isinstance(item, _TORCH_MODULE):
                for inner, tensor in (*item.named_parameters(), *item.named_buffers()):
                    self._by_id.setdefault(id(tensor), f"{prefix}{name}.{inner}")
            elif type(item) is dict and len(item) < 1000:
                for key, tensor in item.items():
                    if isinstance(tensor, Tensor):
                        self._by_id.setdefault(id(tensor), f"{prefix}{name}[{key!r}]")
            elif type(item) in (list, tuple) and len(item) < 1000:
                for at, tensor in enumerate(item):
                    if isinstance(tensor, Tensor):
                        self._by_id.setdefault(id(tensor), f"{prefix}{name}[{at}]")
            elif type(getattr(item, "__dict__", None)) is dict and len(vars(item)) < 1000:
                for attribute, tensor in vars(item).items():
                    if isinstance(tensor, Tensor):
                        self._by_id.setdefault(id(tensor), f"{prefix}{name}.{attribute}")

    def of(self, tensor: Tensor, *, search: bool = False) -> str:
        """The tensor's name; empty if no visible variable holds it.

        Args:
            search: also search every object of the process for an attribute that holds it, which takes up to 100 ms.
        """
        known = self._by_id.get(id(tensor), "")
        if not known and search:
            known = self._by_id[id(tensor)] = _attribute(tensor)
        return known


def _attribute(tensor: Tensor) -> str:
    for holder in gc.get_referrers(tensor):
        if type(holder) is dict:
            for name, item in holder.items():
                if item is tensor and isinstance(name, str) and name.isidentifier():
                    return name
    return ""


def device_tensors() -> list[Tensor]:
    """Every device tensor that has a Python object; takes some milliseconds in a large process."""
    return [item for item in objects_of(_with_memory()) if item.is_cuda and _is_strided(item)]


def objects_of(kinds: Collection[type]) -> list[Any]:
    """Every object of exactly these types, which must be Python classes: objects of C types do not refer to their
    type.

    Avoids ``gc.get_objects()``: its list holds tuples that other threads are still building, and building one raises
    SystemError while another reference exists. Referrers of a type are found as fast.
    """
    return [item for item in gc.get_referrers(*kinds) if type(item) in kinds]


def _with_memory() -> set[type]:
    """torch's tensor class and its subclasses that have real memory."""
    found: set[type] = set()
    pending: list[type] = [Tensor]
    while pending:
        kind = pending.pop()
        if kind not in found:
            found.add(kind)
            pending += type.__subclasses__(kind)
    return {kind for kind in found if _has_memory(kind)}


_HAS_MEMORY: dict[type, bool] = {}


def _has_memory(kind: type) -> bool:
    known = _HAS_MEMORY.get(kind)
    if known is not None:
        return known
    # By type first: isinstance reads ``__class__`` of odd objects (lazy modules, proxies). Subclasses with their own
    # dispatcher (fake tensors) may have no memory.
    own = getattr(kind, "__torch_dispatch__", None)
    found = _HAS_MEMORY[kind] = issubclass(kind, Tensor) and own is torch_names._disabled_torch_dispatch_impl
    return found


def _is_strided(tensor: Tensor) -> bool:
    try:
        return has_layout(tensor) and tensor.untyped_storage().data_ptr() >= 0
    except (RuntimeError, NotImplementedError):  # a torch.func wrapper
        return False


def layout_text(size: Iterable[int], stride: Iterable[int] | None, dtype: object) -> str:
    """``[4, 8] float32``, with the strides if they are not row-major."""
    size = tuple(size)
    text = f"[{', '.join(map(str, size))}] {str(dtype).removeprefix('torch.')}"
    if stride is None:
        return text
    expected: list[int] = []
    step = 1
    for extent in reversed(size):
        expected.insert(0, step)
        step *= max(extent, 1)
    stride = tuple(stride)
    return text if list(stride) == expected or 0 in size else f"{text} strides {stride}"


def describe(tensor: Tensor) -> str:
    return layout_text(tensor.size(), tensor.stride(), tensor.dtype)
