"""Replacements, while a capture runs, for functions that read or make tensors from Python: ``item``, ``tolist``,
indices. Each calls a handler in the thread of a capture, and torch's own function in others.
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
from torch.utils.weak import WeakIdRef

from gfxgraph import torch_names
from gfxgraph.capture.patches.torch_functions import STOCK, Targets, keep_from_dynamo, session_here
from gfxgraph.capture.record.host_memory import may_change, shares_memory
from gfxgraph.capture.record.host_values import NUMBERS, HostValues, holds_numbers, is_number, plain
from gfxgraph.capture.record.user_lines import place
from gfxgraph.capture.replay.graph_tensors import flat
from gfxgraph.capture.state import StepSession
from gfxgraph.core.tape import TapeValue, leaves
from gfxgraph.types import OUR_MODULES
from gfxgraph.watching.watch import note_swap

_T = TypeVar("_T")
_Stock = Callable[..., Any]
"""The function that is replaced."""
_PLACES = frozenset({torch.int64, torch.int32, torch.int16, torch.int8})


class Method:
    """Replaces one of Tensor's methods, and is overridden as that one is: by modes and by subclasses.

    Their handlers are called first, with this object, which is equal to torch's own function: handlers ask
    ``func is torch.Tensor.item``, or look it up in a table made before the capture.
    """

    def __init__(self, short: str, name: str, handle: FunctionType) -> None:
        self._short = short
        self._handle = handle
        self.__name__ = self.__qualname__ = name
        self.__code__ = handle.__code__

    def __get__(self, tensor: object, owner: object = None) -> object:
        return self if tensor is None else MethodType(self, tensor)

    def __call__(self, *args: object, **kwargs: object) -> object:
        session, stock = session_here(), STOCK[self._short]
        if session is None:
            return stock(*args, **kwargs)
        if has_torch_function_unary(args[0]):
            return handle_torch_function(self, args[:1], *args, **kwargs)  # type: ignore[arg-type]
        return self._handle(session, stock, *args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return self is other or STOCK[self._short] is other

    def __hash__(self) -> int:
        return hash(STOCK[self._short])


keep_from_dynamo(Method.__call__)


def _function(short: str, name: str, handle: Callable[..., object]) -> _Stock:
    """Replaces a function that no mode and no subclass overrides, or not before the handler."""

    def function(*args: object, **kwargs: object) -> object:
        session, stock = session_here(), STOCK[short]
        return stock(*args, **kwargs) if session is None else handle(session, stock, *args, **kwargs)

    function.__name__ = function.__qualname__ = name
    return function


def _item(session: StepSession, stock: _Stock, tensor: Tensor) -> object:
    is_read = session.values.comes_from_device(tensor)
    return session.values.read_scalar(tensor, "Tensor.item") if is_read else stock(tensor)


def _plain(session: StepSession, stock: _Stock, tensor: Tensor, *args: object, **kwargs: object) -> object:
    if not session.values.comes_from_device(tensor):
        return stock(tensor, *args, **kwargs)
    return session.values.read_plain(f"Tensor.{stock.__name__}", stock, tensor, *args, **kwargs)


def _tolist(session: StepSession, stock: _Stock, tensor: Tensor) -> object:
    is_read = session.values.comes_from_device(tensor)
    return session.values.read_list(tensor) if is_read else stock(tensor)


def _contents(session: StepSession, stock: _Stock, tensor: Tensor, *args: object, **kwargs: object) -> object:
    if tensor.is_cuda and kwargs.get("force"):
        tensor = tensor.detach().cpu()  # as C++ does, but seen
    if tensor.is_cuda or not session.values.is_tainted(tensor):
        return stock(tensor, *args, **kwargs)
    session.moving.fix([tensor])  # the array keeps the tensor, whose memory a replay would exchange
    session.values.read_contents(tensor, f"Tensor.{stock.__name__}()")
    return _unrecorded(session, stock, tensor, *args, **kwargs)


def _unrecorded(session: StepSession, call: Callable[..., _T], *args: object, **kwargs: object) -> _T:
    session.recorder.paused = True
    try:
        return call(*args, **kwargs)
    finally:
        session.recorder.paused = False


def _same_memory(session: StepSession, stock: _Stock, *args: object, **kwargs: object) -> object:
    """Another tensor object of the same memory, as parameters are made, which neither dispatcher nor mode sees."""
    session.moving.fix(flat(args))
    return stock(*args, **kwargs)


def _computed_in_python(session: StepSession, stock: _Stock, *args: object) -> object:
    return session.values.call_torch(stock, args, {}) if session.values.reads_tainted(args, {}) else stock(*args)


def _deep_copy(session: StepSession, stock: _Stock, tensor: Tensor, memo: dict[int, Any]) -> object:
    is_plain = type(tensor) is Tensor and tensor.is_leaf and id(tensor) not in memo
    if not is_plain or not session.values.is_tainted(tensor):
        return stock(tensor, memo)
    memo[id(tensor)] = made = tensor.detach().clone().requires_grad_(tensor.requires_grad)  # seen, so it flows
    return made


def _handing_out(session: StepSession, stock: _Stock, tensor: Tensor, *args: object, **kwargs: object) -> object:
    name = stock.__name__
    if session.values.is_tainted(tensor) and not _is_ours(sys._getframe(2)):
        # Pinned memory that a later copy fills holds nothing yet: only its address is read.
        if name != "data_ptr" or not tensor.is_pinned():
            session.values.read_contents(tensor, f"Tensor.{name}()")
    return stock(tensor, *args, **kwargs)


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(OUR_MODULES)


def _save(session: StepSession, stock: _Stock, *args: object, **kwargs: object) -> object:
    """``torch.save``, through which tensors are also pickled."""
    return session.values.read_copies(lambda: stock(*args, **kwargs), "torch.save()")


def _made_on_host(session: StepSession, make: _Stock, data: Any, *args: Any, **kwargs: Any) -> Tensor:
    """Make a tensor as torch.tensor does, with its copy to the device visible to the dispatcher; of tracked numbers,
    each replay makes it again.
    """
    if isinstance(data, Tensor):
        return make(data, *args, **kwargs)  # type: ignore[no-any-return]
    device = kwargs.get("device")
    grad = kwargs.pop("requires_grad", False)
    if device is None and make.__name__ != "as_tensor":
        device = _unrecorded(session, torch.empty, 0).device  # torch.get_default_device() may call torch.tensor([])
    is_on_host = device is None or torch.device(device).type == "cpu"
    on_host = {**kwargs, "device": "cpu"}
    if session.values.has_given_numbers and holds_numbers(data):
        name = f"torch.{make.__name__}"
        made = session.values.host_tensor(lambda numbers: make(numbers, *args, **on_host), data, name)
    else:
        made = make(data, *args, **(kwargs if is_on_host else on_host))
        if may_change(data) and not shares_memory(made, data):
            session.host.note_contents(data, place())
    if not is_on_host:
        made = made.to(device)
    return made.requires_grad_() if grad else made


def _new_tensor(
    session: StepSession, stock: _Stock, tensor: Tensor, data: object, *args: object, **kwargs: object
) -> Tensor:
    if not tensor.is_cuda or kwargs.get("device") is not None:
        return stock(tensor, data, *args, **kwargs)  # type: ignore[no-any-return]
    return torch.tensor(data, *args, device=tensor.device, **{"dtype": tensor.dtype, **kwargs})


def iterencode(original: Callable[..., object]) -> Callable[..., object]:
    """Wrap ``JSONEncoder.iterencode``: it asks for Python's own types, of keys too, also after the capture."""

    @functools.wraps(original)
    def encoded(self: json.JSONEncoder, item: object, *args: object, **kwargs: object) -> object:
        return original(self, plain(item) if HostValues.have_given else item, *args, **kwargs)

    return encoded


def _indexed(session: StepSession, stock: _Stock, tensor: Tensor, index: Any, *value: Any) -> object:
    index = _with_places(session, index)
    if holds_numbers((index, value)):
        return session.values.call_torch(stock, (tensor, index, *value), {})
    return stock(tensor, _host_indices(index) if tensor.is_cuda else index, *value)


def _with_places(session: StepSession, index: Any) -> object:
    """Replace each one-element integer tensor in an index by its number, because C++ would read it as one."""
    if type(index) is tuple:
        return tuple(_with_places(session, part) if isinstance(part, Tensor) else part for part in index)
    if not isinstance(index, Tensor) or index.dim() or index.dtype not in _PLACES:
        return index
    return session.values.read_scalar(index, "an index") if session.values.comes_from_device(index) else index


def _host_indices(index: object) -> object:
    """Turn lists in an index into host tensors, so that the dispatcher sees their copy."""
    if type(index) is list and index and not any(isinstance(i, (slice, type(None), type(...))) for i in index):
        return torch.tensor(index) if not any(isinstance(i, Tensor) for i in index) else index
    if type(index) is tuple:
        return tuple(_host_indices(part) if type(part) is list else part for part in index)
    return index


def _telling(session: StepSession, stock: _Stock, *args: object, **kwargs: object) -> object:
    """By these another thread is told something: of host tensors that hold values of the device, perhaps."""
    if threading.active_count() > 1:
        session.values.pin_shared()
    return stock(*args, **kwargs)


def _chosen(session: StepSession, choose: _Stock, *args: object, **kwargs: object) -> object:
    """``min`` or ``max`` of numbers: a replay chooses anew, as clipping means it."""
    if not kwargs and len(args) > 1 and holds_numbers(args) and all(map(is_number, args)):
        return next(leaves(args, NUMBERS))._keeper.compute(choose, args)
    return choose(*args, **kwargs)


def _to_kernel(session: StepSession, run: _Stock, *args: object, **kwargs: object) -> object:
    """Triton compiles for the exact types of a kernel's arguments: a size or number that it is given is pinned."""
    return run(*plain(args), **plain(kwargs))


def references_of_others() -> SimpleNamespace:
    """``weakref`` for ``swap_tensors``, which refuses tensors that have references: those of tapes are none, nor
    those of fake tensors, which outlive the trace of a graphed callable.

    In a capture they are: what it recorded is to keep its contents.
    """

    def getweakrefs(tensor: Tensor) -> list[object]:
        note_swap()
        found = weakref.getweakrefs(tensor)
        return (
            found
            if session_here() is not None
            else [each for each in found if type(each) not in (TapeValue, WeakIdRef)]
        )

    return SimpleNamespace(**vars(weakref) | {"getweakrefs": getweakrefs})


def _table(owner: object, make: Callable[..., object], prefix: str, **handlers: object) -> Targets:
    """Made once, since Dynamo and TorchScript know each by its identity."""
    return {f"{prefix}{name}": (owner, name, make(f"{prefix}{name}", name, each)) for name, each in handlers.items()}


METHODS = _table(
    Tensor, Method, "", item=_item, __bool__=_plain, __int__=_plain, tolist=_tolist, numpy=_contents,
    __array__=_contents, __repr__=_plain, __getitem__=_indexed, __setitem__=_indexed,
)  # fmt: skip
READS: Targets = {
    **METHODS,
    **_table(Tensor, _function, "", as_subclass=_same_memory, new_tensor=_new_tensor),
    "_make_subclass": (
        *torch_names.place("_make_subclass"),
        staticmethod(_function("_make_subclass", "_make_subclass", _same_memory)),
    ),
    **_table(torch, _function, "", save=_save, tensor=_made_on_host, as_tensor=_made_on_host, asarray=_made_on_host),
    **_table(threading.Condition, _function, "", notify=_telling),
    **_table(ThreadPoolExecutor, _function, "", submit=_telling),
}
NUMBER_FUNCTIONS = _table(builtins, _function, "", min=_chosen, max=_chosen, pow=_chosen)
"""Code of Dynamo's may have guards on them."""
MEMORY = {
    **_table(
        Tensor, _function, "memory.", untyped_storage=_handing_out, data_ptr=_handing_out, __dlpack__=_handing_out
    ),
    **_table(Tensor, _function, "memory.", __deepcopy__=_deep_copy),
    **_table(
        Tensor, _function, "memory.", apply_=_computed_in_python, map_=_computed_in_python, map2_=_computed_in_python
    ),
}
"""Functions that expose a host tensor's memory: pickling, DLPack and pointers read it untracked."""


def reads() -> Targets:
    """`READS`, and the launch of Triton's kernels if the program has imported it."""
    triton = sys.modules.get("triton.runtime.jit")
    return READS if triton is None else {**READS, **_kernels(triton.JITFunction)}


@functools.cache
def _kernels(kind: object) -> Targets:
    return _table(kind, _function, "JITFunction.", run=_to_kernel)
