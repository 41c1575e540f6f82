"""What is known about an operation before it runs, determined once per overload: torch's binding for it, whether the
unsafe table applies to a call, and the two operations that are recorded whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from gfxgraph import torch_names
from gfxgraph.capture.patches.deferred_calls import allocating_freely
from gfxgraph.capture.patches.torch_functions import STOCK, Targets, session_here
from gfxgraph.capture.record.streams import noting
from gfxgraph.capture.replay.graph_tensors import flat
from gfxgraph.core.tape import Args, Kwargs
from gfxgraph.core.unsafe import BY_NAME, NO_LAYOUT, UnsafeOp, When
from gfxgraph.process import process
from gfxgraph.process.process import OngoingRecording

identity = object.__hash__
"""A number that no two live objects share, like ``id``, but without an audit event.

With an audit hook in the process (filelock sets one, and transformers imports it) each ``id``, each
``sys._getframe`` and each ``frame.f_code`` costs 0.4 us more.
"""
NO_NODE = frozenset(
    "aten::lift_fresh aten::detach aten::alias aten::_reshape_alias aten::as_strided aten::resize_ aten::set_ "
    "aten::_unsafe_view aten::_conj aten::_neg_view aten::lift_fresh_copy".split()
)
"""Operations that launch nothing, though no schema says so."""
_EXACT = frozenset({Tensor, torch.nn.Parameter})
_NO_LAYOUT = re.compile(r"aten::(?!_?fake_|_cslt|.*semi_structured).*(sparse|nested|quantize|mkldnn)").match
"""Operations that make tensors which no address, sizes and strides describe."""
_HOLDS_NO_TENSOR = re.compile(
    r"(Optional\[|List\[)*(int|float|bool|number|complex|str|Device|Layout|MemoryFormat|ScalarType|SymInt|SymFloat"
    r"|SymBool|Scalar|Generator|Stream)\]*"
).fullmatch
"""Argument types, as schemas write them, whose values cannot contain a tensor."""

# -- what an operation writes to -------------------------------------------------------------------------

# Operations that write to inputs without declaring it: running statistics, in training only.
_UNDECLARED = frozenset(
    f"aten::{name}"
    for name in "native_batch_norm cudnn_batch_norm miopen_batch_norm batch_norm_update_stats "
    "batch_norm_gather_stats batch_norm_gather_stats_with_counts".split()
)


def is_collective_in_place(schema: Any) -> bool:
    """Whether it is a c10d operation that writes to its first argument, which its schema does not say."""
    name: str = schema.name
    return name.startswith("c10d::") and name.endswith("_")


def written_arguments(schema: Any) -> tuple[tuple[int, str], ...]:
    """Position and name of each argument that an operation may write to."""
    if is_collective_in_place(schema):
        return ((0, schema.arguments[0].name),)
    undeclared = schema.name in _UNDECLARED
    return tuple(
        (i, a.name)
        for i, a in enumerate(schema.arguments)
        if (a.alias_info is not None and a.alias_info.is_write) or (undeclared and a.name.startswith("running_"))
    )


def written(func: Any, args: Args, kwargs: Kwargs) -> tuple[Tensor, ...]:
    """The arguments whose content the operation changes; those of which it makes another view only are none."""
    if torch.Tag.inplace_view in func.tags:
        return ()
    targets: set[int] = set()
    for position, name in written_arguments(func._schema):
        given = args[position] if position < len(args) else kwargs.get(name)
        targets.update(id(t) for t in flat(given))
    return tuple(t for t in flat(args, kwargs) if id(t) in targets)


def outs(func: Any, kwargs: Kwargs) -> tuple[str, ...]:
    """Names of torch's ``out=`` among the arguments, where they are on the device: nothing reads what they hold."""
    names = [a.name for a in func._schema.arguments if a.is_out and func.namespace == "aten"]
    return tuple(name for name in names if isinstance(given := kwargs.get(name), Tensor) and given.is_cuda)


# -- bindings -------------------------------------------------------------------------------------------
#
# torch's own Python bindings for the operations that models are made of, by overload. Calling an overload by name
# goes through a parser that reads the schema on every call; the binding that a program would call was compiled for
# its signature and takes half as long. A recorder calls each operation of a capture once, and this saves about 5% of
# the capture. Given positional arguments only and a plain tensor first, a binding dispatches to exactly the overload
# listed here: tests/unit/capture/record/test_overloads.py calls each one both ways.
_METHODS = (
    "add.Tensor add_.Tensor sub.Tensor mul.Tensor mul_.Tensor div.Tensor neg rsqrt sqrt cos sin exp tanh sigmoid "
    "pow.Tensor_Scalar mean.dim view t transpose.int unsqueeze expand clone mm bmm index_copy_"
)
_FUNCTIONS = "cat addmm"
_NN = "gelu"


def _found() -> dict[str, Callable[..., object]]:
    rooms = ((Tensor.__base__, _METHODS), (torch, _FUNCTIONS), (torch.nn.functional, _NN))
    found: dict[str, Callable[..., object]] = {}
    for room, names in rooms:
        for name in names.split():
            binding = getattr(room, name.partition(".")[0], None)
            if binding is not None:
                found[f"aten::{name}"] = binding
    return found


BINDINGS = _found()
"""``aten::add.Tensor`` -> ``Tensor.__base__.add``."""


# Which calls of a listed operation are unsafe: the table's ``When``, evaluated on actual arguments.


def always(args: Any, kwargs: object) -> bool:
    # Reading a tensor that is on the host needs no device.
    first = args[0] if args else None
    if isinstance(first, Tensor):
        return first.is_cuda
    return True


def never(args: object, kwargs: object) -> bool:
    return False


def crosses_device(args: Any, kwargs: Kwargs) -> bool:
    """copy_(dst, src, non_blocking) and _to_copy(x, device=, non_blocking=) between host and device."""
    first = args[0]
    if len(args) > 1 and isinstance(args[1], Tensor):
        dst, src = first, args[1]
        if dst.is_cuda == src.is_cuda:
            return False
        non_blocking = kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
        host = src if dst.is_cuda else dst
        return not (non_blocking and host.is_pinned())
    device = kwargs.get("device")
    if device is None:
        return False
    to_device = torch.device(device).type != "cpu"
    if to_device == first.is_cuda:
        return False
    # For a non-blocking copy to the host, torch allocates pinned memory itself.
    return not (kwargs.get("non_blocking") and (first.is_cuda or first.is_pinned()))


def host_or_mask_index(args: Any, kwargs: Any) -> bool:
    target, indices = args[0], args[1]
    if not target.is_cuda:
        return any(isinstance(i, Tensor) and i.is_cuda for i in indices)
    values = args[2] if len(args) > 2 and isinstance(args[2], Tensor) else kwargs.get("values")
    masks = others = hosts = 0
    for index in indices:
        if isinstance(index, Tensor):
            if index.dtype in (torch.bool, torch.uint8):
                masks += 1
            else:
                others += 1
            hosts += not index.is_cuda
    if hosts:
        return True
    if values is not None and not values.is_cuda:
        # torch turns this one into masked_fill, which can be captured.
        accumulate = kwargs.get("accumulate", args[3] if len(args) > 3 else False)
        return not (values.numel() == 1 and masks and not others and not accumulate)
    return masks > 0


def no_output_size(args: object, kwargs: Any) -> bool:
    return kwargs.get("output_size") is None and always(args, kwargs)


def no_range(args: Any, kwargs: Any) -> bool:
    """histc(self, bins, min=0, max=0)"""
    least, most = (kwargs.get(name, args[at] if len(args) > at else 0) for at, name in ((2, "min"), (3, "max")))
    return bool(least == most) and always(args, kwargs)


def tensor_std(args: Args, kwargs: Kwargs) -> bool:
    std = args[1] if len(args) > 1 else kwargs.get("std")
    return isinstance(std, Tensor) and std.is_cuda


def different_tensors(args: Any, kwargs: object) -> bool:
    return args[0].is_cuda and args[0] is not args[1]


CONDITIONS: dict[When, Callable[[Any, Any], bool]] = {
    When.ALWAYS: always,
    When.CROSSES_DEVICE: crosses_device,
    When.HOST_OR_MASK_INDEX: host_or_mask_index,
    When.NO_OUTPUT_SIZE: no_output_size,
    When.NO_RANGE: no_range,
    When.TENSOR_STD: tensor_std,
    When.DIFFERENT_TENSORS: different_tensors,
    When.FOREIGN_GENERATOR: never,  # checked through the operation's schema
    When.RECORDED_NOTHING: never,  # checked after the operation has run
}


class OpInfo:
    """What is known about one overload before it runs; made once per overload."""

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self.func = func
        self.stand_in: object = func
        self.name: str = schema.name
        self.unsafe: UnsafeOp | None = BY_NAME.get(schema.name) or (NO_LAYOUT if _NO_LAYOUT(schema.name) else None)
        self.applies: Callable[..., bool] | None = CONDITIONS[self.unsafe.when] if self.unsafe else None
        arguments = schema.arguments
        self.mutates = written_arguments(schema)
        self.generator: tuple[int, str] | None = next(
            ((i, a.name) for i, a in enumerate(arguments) if "Generator" in str(a.type)), None
        )
        self.is_torchs = schema.name.startswith(("aten::", "prims::", "prim::", "c10d", "_c10d"))
        self.draws = torch.Tag.nondeterministic_seeded in func.tags
        self.has_effects = bool(self.mutates) or self.draws
        may_hold = [i for i, a in enumerate(arguments) if not _HOLDS_NO_TENSOR(str(a.type))]
        self.tensors = tuple(i for i in may_hold if not arguments[i].kwarg_only)
        """Positions of arguments that may be tensors or contain some."""
        self.names_tensors = len(may_hold) > len(self.tensors)
        self.n_tensors = (self.tensors[-1] + 1) if self.tensors else 0
        # Inference mode passes composite operations whole: their parts are recorded instead.
        has = torch_names._dispatch_has_kernel_for_dispatch_key
        full = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
        self.is_composite = has(full, "CompositeImplicitAutograd") and not has(full, "CUDA")
        self.relays = torch.Tag.inplace_view in func.tags and schema.name != "aten::detach_"
        """Whether it gives its first argument another shape or other strides in place, as ``t_`` does."""
        may_write = bool(self.mutates) and not self.is_torchs
        self.is_watched = self.is_composite or self.draws or self.relays or may_write
        """Whether each call is looked at first, not those alone to which the unsafe table applies."""
        # False where the result shares memory with an argument: views, in-place operations, and the views that torch
        # calls unsafe, of which the schema says nothing: kron writes its out= through one.
        self.makes_memory = not (
            is_collective_in_place(schema)
            or any(r.alias_info is not None for r in schema.returns)
            or schema.name.startswith(("aten::_unsafe_view", "aten::unsafe_"))
        )
        # It launches nothing. torch ends a product, or a copy, with the other one, of which no schema tells.
        self.is_view = schema.name == "aten::_unsafe_view" or (
            bool(schema.returns)
            and not self.mutates
            and all(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
        )
        call = noting(schema.name, getattr(func, "_op", func))
        self.call = allocating_freely(schema.name, call)
        self.binding = allocating_freely(schema.name, BINDINGS.get(full, call))
        """What to call with positional arguments only, the first of which is exactly a torch.Tensor."""


OPS: dict[int, OpInfo] = {}
"""By ``identity`` of the overload, which each entry holds: an overload's own hash is a call into Python."""


def known_as(info: OpInfo) -> object:
    """Make an object that the recorder accepts as an overload and calls as ``info`` says."""
    stand_in = info.stand_in = object()
    OPS[identity(stand_in)] = info
    return stand_in


# -- operations recorded whole: linear and attention ---------------------------------------------------------


_Key, _Keys = torch.DispatchKey, torch.DispatchKeySet
_MODES = _Keys(_Key.Python) | _Keys(_Key.PythonTLSSnapshot) | _Keys(_Key.PreDispatch)
_modes_off: list[AbstractContextManager[None]] = []
"""Guards to enter again, none of them entered now: one that is made for a call costs as much as the call.

``torch._C._DisableTorchDispatch`` does the same, but can be entered only once.
"""
_has_grad = torch.is_grad_enabled
_has_autocast = torch.is_autocast_enabled
_PLAIN = frozenset({bool, int, float, type(None)})


def has_compiled_nothing() -> bool:
    """True as long as no compiled code can have a guard on a function that a capture would replace."""
    return not torch_names.FRAME_COUNTER


def has_compiled() -> bool:
    """Whether compiled code may run in a capture."""
    return torch_names.CompiledFxGraph is not None or not has_compiled_nothing()


def compiled_targets() -> Targets:
    """What runs a graph that Inductor has compiled: its kernels read memory that no operation names.

    And what makes guards: those of torch 2.9 compare the thread's dispatch keys, a recorder's among them, but are
    made without it. They would fail, and the code be compiled anew, in every capture.
    """
    run, guards = torch_names.CompiledFxGraph, torch_names.CheckFunctionManager
    found = {"compiled": (run, "__call__", _run_compiled), "guards": (guards, "__init__", _make_guards)}
    if torch_names.set_is_in_mode_without_ignore_compile_internals is not None:
        del found["guards"]
    return {short: each for short, each in found.items() if each[0] is not None}


def _make_guards(manager: object, *args: object, **kwargs: object) -> None:
    session = process.active_session()
    if session is None:
        return STOCK["guards"](manager, *args, **kwargs)  # type: ignore[no-any-return]
    was, session.recorder.paused = session.recorder.paused, True
    torch_names._push_mode(session.recorder)
    try:
        return STOCK["guards"](manager, *args, **kwargs)  # type: ignore[no-any-return]
    finally:
        torch_names._pop_mode()
        session.recorder.paused = was


def _run_compiled(graph: object, inputs: object) -> object:
    session = session_here()
    if session is not None:
        session.recorder.hold(inputs)
    return STOCK["compiled"](graph, inputs)


def whole_targets() -> Targets:
    functional = torch.nn.functional
    found = {"linear": ("linear", linear), "attention": ("scaled_dot_product_attention", attention)}
    return {
        short: (functional, name, instead)
        for short, (name, instead) in found.items()
        if getattr(functional, name) in (getattr(torch_names, name), instead)
    }


def linear(input: object, weight: object, bias: object = None) -> Tensor:
    """Replaces ``torch.nn.functional.linear`` while any thread captures."""
    recorder = None if torch.compiler.is_compiling() else _recorder()
    if (
        recorder is None
        or not _is_plain(input)
        or not _is_plain(weight)
        or not (bias is None or _is_plain(bias))
    ):  # fmt: skip
        return torch_names.linear(input, weight, bias)
    args = (input, weight) if bias is None else (input, weight, bias)
    return recorder.__torch_dispatch__(_LINEAR, (), args)  # type: ignore[no-any-return]


def attention(
    query: object,
    key: object,
    value: object,
    attn_mask: object = None,
    dropout_p: object = 0.0,
    is_causal: object = False,
    **named: object,
) -> Tensor:
    """Replaces ``torch.nn.functional.scaled_dot_product_attention`` while any thread captures."""
    recorder = None if torch.compiler.is_compiling() else _recorder()
    if (
        recorder is None
        or not (_is_plain(query) and _is_plain(key) and _is_plain(value))
        or not (attn_mask is None or _is_plain(attn_mask))
        or type(dropout_p) not in _PLAIN
        or dropout_p != 0
        or type(is_causal) is not bool
        or not all(type(each) in _PLAIN for each in named.values())
    ):
        return torch_names.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, **named)
    args = (query, key, value, attn_mask, 0.0, is_causal)
    return recorder.__torch_dispatch__(_ATTENTION, (), args, named)  # type: ignore[no-any-return]


def _recorder() -> OngoingRecording | None:
    """The recorder of this thread's capture if it can record operations whole now, else None."""
    session = process.active_session()
    if session is None:
        return None
    recorder = session.recorder
    if (
        recorder.paused
        or recorder.is_wary
        or _has_grad()
        or torch_names._len_torch_dispatch_stack() != 1  # the recorder
        or _has_autocast()  # of the GPU; naming it costs more than all else here
        or torch_names._is_torch_function_mode_enabled()
        or torch_names.peek_interpreter_stack() is not None
        or torch_names._current_level >= 0
    ):
        return None
    return recorder


def _is_plain(tensor: Any) -> bool:
    return type(tensor) in _EXACT and tensor.is_cuda and not tensor.is_nested


def _whole(overload: object, original: Any) -> object:
    """Make the object that the recorder receives as the overload, which the tape will call."""

    def call(*args: Any, **kwargs: Any) -> Tensor:
        try:
            off = _modes_off.pop()
        except IndexError:
            off = torch_names._ExcludeDispatchKeyGuard(_MODES)
        with off:
            out: Tensor = original(*args, **kwargs)
        _modes_off.append(off)
        return out

    info = OpInfo(overload)
    info.is_composite = info.is_watched = False
    info.draws = False  # attention is recorded whole only without dropout
    info.has_effects = bool(info.mutates)
    info.call = info.binding = allocating_freely(info.name, call)
    return known_as(info)


if not torch_names.why_off("capture"):
    _LINEAR = _whole(torch.ops.aten.linear.default, torch_names.linear)
    _ATTENTION = _whole(torch.ops.aten.scaled_dot_product_attention.default, torch_names.scaled_dot_product_attention)
