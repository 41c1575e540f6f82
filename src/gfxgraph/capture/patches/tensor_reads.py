"""Replacements, while a capture runs, for functions that read or make tensors from Python: ``item``, ``tolist``,
indices.
"""

from __future__ import annotations

import builtins
import functools
import json
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType, FunctionType, MethodType, SimpleNamespace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from gfxgraph.capture.patches.torch_functions import STOCK, Targets, keep_from_dynamo, session_here
from gfxgraph.capture.record.host_memory import may_change, shares_memory
from gfxgraph.capture.record.host_values import NUMBERS, holds_numbers, is_number, plain
from gfxgraph.capture.record.user_lines import place
from gfxgraph.core.tape import TapeValue
from gfxgraph.process import process
from gfxgraph.process.process import OngoingCapture

_T = TypeVar("_T")
_WHOLE = frozenset({int, bool, type(None), type(...)})
_PLACES = frozenset({torch.int64, torch.int32, torch.int16, torch.int8})


class Method:
    """Replaces one of Tensor's methods, and is overridden as that one is: by modes and by subclasses.

    Their handlers are called first, with this object, which is equal to torch's own function: handlers ask
    ``func is torch.Tensor.item``, or look it up in a table made before the capture.
    """

    def __init__(self, short: str, name: str, replacement: FunctionType) -> None:
        self._short = short
        self._replacement = replacement
        self.__name__ = self.__qualname__ = name
        self.__code__ = replacement.__code__

    def __get__(self, tensor: Tensor | None, owner: object = None) -> object:
        if tensor is None:
            return self
        return MethodType(self if has_torch_function_unary(tensor) else self._replacement, tensor)

    def __call__(self, tensor: Tensor, *args: object, **kwargs: object) -> object:
        if has_torch_function_unary(tensor) and session_here() is not None:
            return handle_torch_function(self, (tensor,), tensor, *args, **kwargs)  # type: ignore[no-any-return]
        return self._replacement(tensor, *args, **kwargs)  # type: ignore[no-any-return]

    def __eq__(self, other: object) -> bool:
        return self is other or STOCK[self._short] is other

    def __hash__(self) -> int:
        return hash(STOCK[self._short])


keep_from_dynamo(Method.__call__)


@functools.cache  # one for all captures: it is known by identity
def _methods() -> Targets:
    found: dict[str, tuple[str, Any]] = {
        "item": ("item", _item),
        "bool": ("__bool__", _plain("bool")),
        "int": ("__int__", _plain("int")),
        "tolist": ("tolist", _tolist),
        "numpy": ("numpy", _contents("numpy", "Tensor.numpy()")),
        "array": ("__array__", _contents("array", "a NumPy array")),
        "repr": ("__repr__", _plain("repr")),
        "getitem": ("__getitem__", _getitem),
        "setitem": ("__setitem__", _setitem),
    }
    return {short: (Tensor, name, Method(short, name, function)) for short, (name, function) in found.items()}


def _session_for(tensor: object) -> Any:
    session = session_here()
    if session is None or not isinstance(tensor, Tensor):
        return None
    return session if session.values.comes_from_device(tensor) else None


def _item(self: Tensor) -> Any:
    session = _session_for(self)
    if session is None:
        return STOCK["item"](self)
    return session.values.read_scalar(self, "Tensor.item")


def _plain(short: str) -> Callable[..., Any]:
    def read(self: Tensor, *args: object, **kwargs: object) -> Any:
        session = _session_for(self)
        if session is None:
            return STOCK[short](self, *args, **kwargs)
        return session.values.read_plain(f"Tensor.__{short}__", STOCK[short], self, *args, **kwargs)

    return read


def _tolist(self: Tensor) -> Any:
    session = _session_for(self)
    return STOCK["tolist"](self) if session is None else session.values.read_list(self)


def _contents(short: str, called: str) -> Callable[..., Any]:
    def contents(self: Tensor, *args: object, **kwargs: object) -> Any:
        session = _session_for(self)
        if session is not None and self.is_cuda and kwargs.get("force"):
            self = self.detach().cpu()  # as C++ does, but seen
        elif session is None or self.is_cuda:
            return STOCK[short](self, *args, **kwargs)
        session.moving.fix([self])  # the array keeps the tensor, whose memory a replay would exchange
        session.values.read_contents(self, called)
        return _unrecorded(session, STOCK[short], self, *args, **kwargs)

    return contents


def _unrecorded(session: OngoingCapture, call: Callable[..., _T], *args: object, **kwargs: object) -> _T:
    session.recorder.paused = True
    try:
        return call(*args, **kwargs)
    finally:
        session.recorder.paused = False


def _same_memory(short: str, name: str, which: int) -> Callable[..., object]:
    """Make another tensor object of the same memory, which neither the dispatcher nor a mode sees."""

    def same_memory(*args: Tensor, **kwargs: object) -> object:
        session = session_here()
        if session is not None and len(args) > which:
            session.moving.fix([args[which]])
        return STOCK[short](*args, **kwargs)

    same_memory.__name__ = same_memory.__qualname__ = name
    return same_memory


_as_subclass = _same_memory("as_subclass", "as_subclass", 0)
_make_subclass = staticmethod(_same_memory("make_subclass", "_make_subclass", 1))  # by which parameters are made
_MEMORY = ("untyped_storage", "data_ptr", "__dlpack__")
_BY_PYTHON = ("apply_", "map_", "map2_")


@functools.cache  # one for all captures: it is known by identity
def memory_targets() -> Targets:
    """Functions that expose a host tensor's memory: pickling, DLPack and pointers read it untracked."""
    found: Targets = {f"memory.{name}": (Tensor, name, _handing_out(f"memory.{name}")) for name in _MEMORY}
    for name in _BY_PYTHON:
        found[f"memory.{name}"] = Tensor, name, _computed_in_python(f"memory.{name}")
    return {**found, "memory.__deepcopy__": (Tensor, "__deepcopy__", _deep_copy)}


def _computed_in_python(short: str) -> Callable[..., object]:
    name = short.rpartition(".")[2]

    def function(self: Tensor, *args: object) -> object:
        session = session_here()
        is_tainted = session is not None and session.values.reads_tainted((self, *args), {})
        return session.values.passed(STOCK[short], (self, *args), {}) if is_tainted else STOCK[short](self, *args)

    function.__name__ = function.__qualname__ = name
    return function


def _deep_copy(self: Tensor, memo: dict[int, Any]) -> Any:
    session = session_here()
    is_plain = type(self) is Tensor and self.is_leaf and id(self) not in memo
    if session is None or not is_plain or not session.values.is_tainted(self):
        return STOCK["memory.__deepcopy__"](self, memo)
    memo[id(self)] = made = self.detach().clone().requires_grad_(self.requires_grad)  # seen, so it flows
    return made


_deep_copy.__name__ = _deep_copy.__qualname__ = "__deepcopy__"


def _handing_out(short: str) -> Any:
    name = short.rpartition(".")[2]

    def function(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        session = session_here()
        if session is not None and session.values.is_tainted(self) and not _is_ours(sys._getframe(1)):
            # Pinned memory that a later copy fills holds nothing yet: only its address is read.
            if name != "data_ptr" or not self.is_pinned():
                session.values.read_contents(self, f"Tensor.{name}()")
        return STOCK[short](self, *args, **kwargs)

    function.__name__ = function.__qualname__ = name
    return function


def _save(*args: object, **kwargs: object) -> object:
    """Replaces ``torch.save``, through which tensors are also pickled."""
    session = session_here()
    if session is None:
        return STOCK["save"](*args, **kwargs)
    save = STOCK["save"]
    return session.values.read_copies(lambda: save(*args, **kwargs), "torch.save()")


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(f"{__name__.partition('.')[0]}.")


@functools.cache  # one for all captures: it is known by identity
def _made_on_host(short: str) -> Callable[..., Tensor]:
    """Make a tensor as torch.tensor does, with its copy to the device visible to the dispatcher."""

    def made_on_host(data: Any, *args: Any, **kwargs: Any) -> Tensor:
        make = STOCK[short]
        session = session_here()
        device = kwargs.get("device")
        if session is not None and session.values.has_given and holds_numbers(data):
            return _of_numbers(session, short, data, args, kwargs)
        if device is None and short != "as_tensor" and session is not None:
            device = _default_device(session)
        if session is None or isinstance(data, Tensor):
            return make(data, *args, **kwargs)  # type: ignore[no-any-return]
        is_on_host = device is None or torch.device(device).type == "cpu"
        grad = kwargs.pop("requires_grad", False)
        made = make(data, *args, **(kwargs if is_on_host else {**kwargs, "device": "cpu"}))
        if may_change(data) and not shares_memory(made, data):
            session.host.note_contents(data, place())
        if not is_on_host:
            made = made.to(device)
        return made.requires_grad_() if grad else made  # type: ignore[no-any-return]

    return made_on_host


def _default_device(session: OngoingCapture) -> torch.device:
    return _unrecorded(session, torch.empty, 0).device  # torch.get_default_device() may call torch.tensor([])


def _of_numbers(session: Any, short: str, data: Any, args: Any, kwargs: Any) -> Tensor:
    """Make a tensor from tracked numbers: each replay makes it again, with a copy that the dispatcher sees."""
    make = STOCK[short]
    device = kwargs.pop("device", None) or _default_device(session)
    grad = kwargs.pop("requires_grad", False)
    made = session.values.host_tensor(
        lambda numbers: make(numbers, *args, **{**kwargs, "device": "cpu"}), data, f"torch.{short}"
    )
    if torch.device(device).type != "cpu":
        made = made.to(device)
    return made.requires_grad_() if grad else made  # type: ignore[no-any-return]


def _new_tensor(self: Tensor, data: Any, *args: Any, **kwargs: Any) -> Tensor:
    session = session_here()
    if session is None or not self.is_cuda or kwargs.get("device") is not None:
        return STOCK["new_tensor"](self, data, *args, **kwargs)  # type: ignore[no-any-return]
    kwargs.setdefault("dtype", self.dtype)
    return torch.tensor(data, *args, device=self.device, **kwargs)


def _iterencode(self: json.JSONEncoder, item: object, *args: Any, **kwargs: Any) -> Any:
    """C's encoder asks for Python's own types, of keys too."""
    session = session_here()
    if session is not None and session.values.has_given:
        item = plain(item)
    return STOCK["json"](self, item, *args, **kwargs)


def json_default(original: Callable[..., object]) -> Callable[..., object]:
    """Wrap ``JSONEncoder.default``, which is asked for what C does not know: a number after its capture."""

    @functools.wraps(original)
    def default(self: json.JSONEncoder, item: object) -> object:
        return plain(item) if type(item) in NUMBERS else original(self, item)

    return default


def _getitem(self: Tensor, index: Any) -> Any:
    if _is_plain(index):
        return STOCK["getitem"](self, index)
    session = session_here()
    if session is not None:
        index = _with_places(session, index)
        if holds_numbers(index):
            return session.values.passed(STOCK["getitem"], (self, index), {})
    if type(index) is list or (type(index) is tuple and list in map(type, index)):
        if session is not None and self.is_cuda:
            index = _host_indices(index)
    return STOCK["getitem"](self, index)


def _setitem(self: Tensor, index: Any, value: Any) -> None:
    session = session_here()
    if session is not None:
        index = _with_places(session, index)
        if holds_numbers((index, value)):
            session.values.passed(STOCK["setitem"], (self, index, value), {})
            return
        if self.is_cuda:
            index = _host_indices(index)
    STOCK["setitem"](self, index, value)


def _is_plain(index: object) -> bool:
    """True for an index of ints, slices of ints, ``None`` and ``...``: there is nothing in it to replace."""
    for part in index if type(index) is tuple else (index,):
        if type(part) is slice:
            if not (type(part.start) in _WHOLE and type(part.stop) in _WHOLE and type(part.step) in _WHOLE):
                return False
        elif type(part) not in _WHOLE:
            return False
    return True


def _with_places(session: Any, index: Any) -> Any:
    """Replace each one-element integer tensor in an index by its number, because C++ would read it as one."""
    if type(index) is tuple:
        return tuple(_with_places(session, part) if isinstance(part, Tensor) else part for part in index)
    if not isinstance(index, Tensor) or index.dim() or index.dtype not in _PLACES:
        return index
    return session.values.read_scalar(index, "an index") if session.values.comes_from_device(index) else index


def _host_indices(index: Any) -> Any:
    """Turn lists in an index into host tensors, so that the dispatcher sees their copy."""
    if type(index) is list and index and not any(isinstance(i, (slice, type(None), type(...))) for i in index):
        return torch.tensor(index) if not any(isinstance(i, Tensor) for i in index) else index
    if type(index) is tuple:
        return tuple(_host_indices(part) if type(part) is list else part for part in index)
    return index


@functools.cache  # one for all captures: it is known by identity
def _telling(short: str) -> Callable[..., object]:
    """By these another thread is told something: of host tensors that hold values of the device, perhaps."""

    def tell(*args: object, **kwargs: object) -> object:
        session = process.active_session()
        if session is not None and threading.active_count() > 1:
            session.values.share()
        return STOCK[short](*args, **kwargs)

    tell.__name__ = tell.__qualname__ = short
    return tell


def _chosen(short: str) -> Callable[..., object]:
    """``min`` or ``max`` of numbers: a replay chooses anew, as clipping means it."""

    def choose(*args: Any, **kwargs: Any) -> object:
        func = STOCK[short]
        if not kwargs and len(args) > 1 and holds_numbers(args) and all(map(is_number, args)):
            return next(arg for arg in args if type(arg) in NUMBERS)._keeper.computed(func, args)
        return func(*args, **kwargs)

    choose.__name__ = choose.__qualname__ = short
    return choose


@functools.cache
def number_targets() -> Targets:
    """Replacements that code of Dynamo's may have guards on."""
    return {name: (builtins, name, _chosen(name)) for name in ("min", "max", "pow")}


def references_of_others() -> SimpleNamespace:
    """``weakref`` for ``swap_tensors``, which refuses tensors that have references: those of programs are none.

    In a capture they are: what it recorded is to keep its contents.
    """

    def getweakrefs(tensor: Tensor) -> list[object]:
        found = weakref.getweakrefs(tensor)
        return found if session_here() is not None else [each for each in found if type(each) is not TapeValue]

    return SimpleNamespace(**vars(weakref) | {"getweakrefs": getweakrefs})


def targets() -> Targets:
    return {
        **_methods(),
        "as_subclass": (Tensor, "as_subclass", _as_subclass),
        "make_subclass": (Tensor, "_make_subclass", _make_subclass),
        "new_tensor": (Tensor, "new_tensor", _new_tensor),
        "save": (torch, "save", _save),
        "tensor": (torch, "tensor", _made_on_host("tensor")),
        "as_tensor": (torch, "as_tensor", _made_on_host("as_tensor")),
        "asarray": (torch, "asarray", _made_on_host("asarray")),
        "json": (json.JSONEncoder, "iterencode", _iterencode),
        "notify": (threading.Condition, "notify", _telling("notify")),
        "submit": (ThreadPoolExecutor, "submit", _telling("submit")),
    }
