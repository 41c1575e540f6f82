"""Calls that the recorder does not write down as they come.

    a higher-order operator    what its implementation calls is recorded; `cond` and `while_loop` are steps, whole
    a composite operation      likewise; inference mode passes it whole
    an unsafe operation        the session splits there, as it does at sparse, nested and symbolic arguments
    a wrapper's operation      its own handler comes first, and what that calls is recorded
    no memory of the device's  fake tensors launch nothing; work on the host is looked at by `host_memory.py`

These are functions over a recorder, called once for each such operation of a capture.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode

from gfxgraph.capture import upward_hooks
from gfxgraph.capture.record.modes import as_outside
from gfxgraph.capture.record.overloads import NO_NODE, OPS, OpInfo, identity
from gfxgraph.capture.record.tracked_numbers import plain
from gfxgraph.capture.replay.graph_tensors import flat, has_layout, is_wrapper
from gfxgraph.core.unsafe import BY_NAME, NO_LAYOUT, Kind, UnsafeOp, When
from gfxgraph.types import OnUnsafe

if TYPE_CHECKING:
    from gfxgraph.capture.record.recorder import Recorder

TO_RECORD = object()
_TRACED = frozenset({"FakeTensor", "FunctionalTensor"})
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_EXPLICIT = torch._C.DispatchKey.CompositeExplicitAutograd
_BRANCHES = UnsafeOp(
    "control flow", Kind.HOST_READ, "a value on the device decides what it runs, and how often", When.ALWAYS
)
_BRANCHING = frozenset({"cond", "while_loop"})
"""Each replay runs them eagerly as a whole: the branch that its own predicate takes."""
_TAINTED = UnsafeOp(
    "host arithmetic", Kind.HOST_READ, "it computes on the host with values from the device", When.ALWAYS
)


class NoStorage(Exception):
    """The tensor has no strided memory."""


class HostOperand(NoStorage):
    """Nor has it any on the device: the capture's first tensor in host memory."""


def not_recorded(
    recorder: Recorder, func: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """A question of C++'s, or a higher-order operator: what its implementation calls is recorded."""
    if not isinstance(func, HigherOrderOperator):
        return func(*args, **kwargs)
    is_traced_now = any(map(is_traced, flat(args, kwargs)))
    if func.name() in _BRANCHING and recorder.session.policy is OnUnsafe.SPLIT and not is_traced_now:
        return recorder.session.unsafe_op(_BRANCHES, func, args, kwargs)
    if not recorder.session.generators.know_all(args, kwargs):
        return recorder.session.unsafe_op(BY_NAME["torch.Generator"], func, args, kwargs)  # a compiled checkpoint
    return seen_inside(recorder, func, args, kwargs)


def seen_inside(
    mode: TorchDispatchMode, func: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """Call an operator such that the mode sees what a higher-order one's implementation calls.

    Torch calls that with no mode but those below this one, and some implementations insist on none: what they are
    given to call is then seen alone.
    """
    kernel = func.py_kernels.get(_EXPLICIT) if isinstance(func, HigherOrderOperator) else None
    if kernel is None or torch._C._len_torch_dispatch_stack() or any(map(is_traced, flat(args, kwargs))):
        return func(*args, **kwargs)
    code = getattr(getattr(kernel, "func", kernel), "__code__", None)
    if code is None or "_get_current_dispatch_mode" in code.co_names:
        return func(*map(partial(_seen, mode), args), **kwargs)
    with mode:
        return kernel(*args, **kwargs)


def _seen(mode: TorchDispatchMode, item: object) -> object:
    if isinstance(item, Tensor) or not callable(item):
        return item

    def seen(*args: object, **kwargs: object) -> object:
        with mode:
            return item(*args, **kwargs)

    seen._boxed_call = getattr(item, "_boxed_call", False)  # type: ignore[attr-defined]
    return seen


def otherwise(
    recorder: Recorder,
    found: NoStorage,
    func: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> object:
    """An operation whose tensors are not all of device memory with strides."""
    if isinstance(found, HostOperand):  # looked at once more, as all that come from now on
        return recorder.__torch_dispatch__(func, (), args, kwargs)
    if any(map(is_traced, flat(args, kwargs))):  # nothing is launched
        return func(*args, **kwargs)
    if any(map(is_wrapper, flat(args, kwargs))):  # its own handler comes first, and what that calls is recorded
        return NotImplemented
    return recorder.session.unsafe_op(NO_LAYOUT, func, args, kwargs)


def looked_at(recorder: Recorder, info: OpInfo, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
    """Handle a call that may not be one to record.

    Returns:
        Its result or `TO_RECORD`, and the arguments to record it with.
    """
    func = info.func
    given = flat(args, kwargs)
    if any(map(is_wrapper, given)) and not any(map(is_traced, given)):
        return NotImplemented, args, kwargs
    if info.is_composite and all(map(has_layout, given)):
        with recorder, as_outside():  # torch's C++ parts, as in eager; Python's decompositions may differ
            return func._op_dk(_COMPOSITE, *args, **kwargs), args, kwargs
    if recorder.session.values.has_given:  # called where no mode saw it
        args, kwargs = plain(args, info.name), plain(kwargs, info.name)
    row = _unsafe(recorder, info, args, kwargs)
    if row is not None:
        return recorder.session.unsafe_op(row, func, args, kwargs), args, kwargs
    if recorder.is_guarded and not info.is_torchs:
        args, kwargs = _repaired(recorder, info, args, kwargs)
    if info.mutates and not info.is_torchs:  # beforehand, in case its kernel is Python and splits the capture
        recorder.note_effects(info, args, kwargs)
    if info.relays and args and args[0].is_cuda and has_layout(args[0]):
        recorder.keep_layout(args[0])
    return TO_RECORD, args, kwargs


def _repaired(recorder: Recorder, info: OpInfo, args: Any, kwargs: Any) -> Any:
    """Arguments adjusted to what another library's kernel assumes about them."""
    with recorder:  # the copies belong to the capture
        return upward_hooks.rooms.repaired(args, kwargs, info.mutates)


def _unsafe(recorder: Recorder, info: OpInfo, args: Any, kwargs: Any) -> UnsafeOp | None:
    """The row of the unsafe table that applies to this call, if any."""
    if info.unsafe is not None and info.applies(args, kwargs):  # type: ignore[misc]
        recorder.session.moving.operation(info.name, args, kwargs)
        return info.unsafe
    session = recorder.session
    moving = session.moving.operation(info.name, args, kwargs)
    if moving is not None:
        return moving
    if info.name == "aten::is_pinned":  # it reads memory, not values
        return None
    if session.values.tainted and session.values.reads_tainted(args, kwargs):
        return _TAINTED if not _is_pinned_copy(recorder, info, args) else None
    if session.policy is OnUnsafe.RAISE or not (recorder.has_host_operands or info.draws):
        return None
    return session.host.row_of(info, args, kwargs)


def _is_pinned_copy(recorder: Recorder, info: OpInfo, args: Any) -> bool:
    """True for a copy back to the device of data that the graph itself copies to the host."""
    if info.unsafe is None:
        return False
    target, source = (args[0], args[1]) if info.mutates else (None, args[0])
    if isinstance(target, Tensor) and not target.is_cuda:
        return False  # from host memory to host memory: no graph does that
    value = recorder.known(source) if isinstance(source, Tensor) else None  # a collective takes lists
    return value is not None and value in recorder.externals


def first_seen(func: Any) -> OpInfo | None:
    """Note what there is to know of an overload; None for higher-order operators and for what C++ asks a subclass.

    The latter (prim::device, aten::dim) are unknown to the dispatcher; an exception there would end the process.
    """
    if not hasattr(func, "_schema") or not torch._C._dispatch_has_kernel(func.name()):
        return None
    info = OPS[identity(func)] = OpInfo(func)
    return info


def is_traced(tensor: Tensor) -> bool:
    return type(tensor).__name__ in _TRACED


def is_host_work(args: Any, kwargs: Any, out: Any) -> bool:
    """True if an operation has tensors, and all are in host memory."""
    tensors = flat(args, kwargs, out)
    return bool(tensors) and not any(tensor.is_cuda for tensor in tensors)


def escaped(out: Any, info: OpInfo) -> bool:
    """HIP only: device work returned success but added no node to the graph."""
    tensors = flat(out)
    if not tensors or not all(t.is_cuda and t.numel() for t in tensors):
        return False
    return info.name not in NO_NODE and not info.name.startswith(("aten::empty", "aten::new_empty"))
