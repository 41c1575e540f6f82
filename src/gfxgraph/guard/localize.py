"""Locates a fault: replays by node walk, and eager work operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gfxgraph.capture.record.recorder import seen_inside
from gfxgraph.capture.record.user_lines import place
from gfxgraph.capture.replay.graph_tensors import has_layout, parts_of, size_of
from gfxgraph.core.fault_report import Fault, NodeInfo, read_words
from gfxgraph.core.memory_map import Allocation
from gfxgraph.core.tape import where_of
from gfxgraph.errors import DriverError, GfxGraphFault
from gfxgraph.guard.tensor_names import TensorNames, describe

if TYPE_CHECKING:
    from gfxgraph.capture.replay.program import SegmentStep

# Parts of the runtimes' names for errors that leave the device unusable.
_FAULTS = (
    "illegaladdress", "illegal_address", "launchfail", "launch_failed", "assert", "illegalinstruction",
    "illegal_instruction", "misaligned", "invalidaddressspace", "invalid_address_space", "invalidpc", "invalid_pc",
    "hardwarestack", "hardware_stack", "launchtimeout", "launch_timeout", "ecc", "illegal memory access",
    "unspecified launch failure",
)  # fmt: skip


# torch's own texts for an invalid index, if it checks before a kernel does.
_OUTSIDE = ("out of bounds", "out of range")


_ILLEGAL = (
    "illegal memory access", "illegaladdress", "illegal_address", "misaligned address", "misaligned_address",
    "illegal instruction",
)  # fmt: skip


def is_illegal_access(exc: object) -> bool:
    """Whether an error reports an access to unmapped or misaligned memory.

    Args:
        exc: an exception, or its text.
    """
    text = str(exc).lower()
    return any(word in text for word in _ILLEGAL)


Tensors = Sequence[tuple[str, object]] | Mapping[str, object] | Sequence[object]


def named_fault(error: BaseException, *, op: str | None = None, tensors: Tensors | None = None) -> GfxGraphFault:
    """The error to raise instead of ``error``: it names the operation and the layout of its tensors.

    Args:
        error: what torch or the runtime raised.
        op: the operation that failed.
        tensors: its tensor arguments, as pairs or a mapping with names, or without names; other values are omitted.
    """
    pairs = _with_names(tensors if tensors is not None else ())
    given = [(name, tensor) for name, tensor in pairs if isinstance(tensor, Tensor)]
    lines = [
        f"{name}: shape={tuple(t.shape)} stride={tuple(t.stride())} dtype={t.dtype} device={t.device}"
        if has_layout(t)
        else f"{name}: shape={size_of(t)} layout={t.layout} dtype={t.dtype} device={t.device}"
        for name, t in given
    ]
    fault = GfxGraphFault(
        "named_fault",
        quote=str(error).strip(),
        op=op,
        layout="\n".join(lines),
        tensors=[value for _, value in pairs],
        original=error,
    )
    fault.__cause__ = error
    return fault


def _with_names(tensors: Tensors) -> list[tuple[str, object]]:
    if isinstance(tensors, Mapping):
        return list(tensors.items())
    return [
        each if isinstance(each, tuple) and len(each) == 2 and isinstance(each[0], str) else (f"tensor {i}", each)
        for i, each in enumerate(tensors)
    ]


def is_fault(error: BaseException) -> bool:
    """True for an error after which the device is unusable, such as an illegal access."""
    if isinstance(error, GfxGraphFault):
        return True
    text = str(error.fields.get("status", "")) if isinstance(error, DriverError) else str(error)
    return any(word in text.lower() for word in _FAULTS)


def status_of(error: BaseException) -> str:
    """The runtime's name for the error, else its first line."""
    if isinstance(error, DriverError):
        number = error.fields.get("number")
        return f"{error.fields.get('status')}{f' ({number})' if number is not None else ''}"
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def fault_at(
    node: NodeInfo | None,
    n_nodes: int,
    replay: int,
    error: BaseException,
    memory: list[Allocation],
    segment: SegmentStep,
) -> GfxGraphFault:
    """The error for a node that faulted, or for a device that had already faulted before the first node."""
    words = read_words(str(error))
    if node is None:
        return GfxGraphFault("fault_before_replay", status=status_of(error), where=segment.where, replay=replay)
    fault = Fault(node, n_nodes, replay, status_of(error), words, memory)
    return GfxGraphFault("memory_fault", quote="", **fault.fields())


class _OneByOne(TorchDispatchMode):
    """Waits for the device after each operation, so that a fault can be attributed to it."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # otherwise compiled code would run, and stay, eager

    def __init__(self) -> None:
        super().__init__()
        self.n_ops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not hasattr(func, "_schema"):
            return seen_inside(self, func, args, kwargs)
        self.n_ops += 1
        # Before it runs: an in-place operation may change them, and after a fault nothing can be queried.
        tensors = _tensors((*args, *kwargs.values()))
        layouts = [f"{describe(tensor)} at {tensor.data_ptr():#x}" for tensor in tensors]
        try:
            out = func(*args, **kwargs)
            if any(t.is_cuda for t in (*tensors, *_tensors((out,)))):
                torch.cuda.synchronize()
        except (RuntimeError, IndexError) as error:
            if not (is_fault(error) or any(word in str(error) for word in _OUTSIDE)):
                raise
            names = TensorNames()
            called = [names.of(tensor) for tensor in tensors]
            lines = [f"`{name}` {text}" if name else text for name, text in zip(called, layouts)]
            raise GfxGraphFault(
                "eager_fault",
                quote=str(error).strip(),
                op=func._schema.name,
                where=where_of(*place()),
                layout="\n".join(lines),
                status=status_of(error),
                index=self.n_ops,
            ) from error
        return out


def _tensors(items: Any) -> list[Tensor]:
    found: list[Tensor] = []
    for item in items:
        if isinstance(item, Tensor):
            found += filter(has_layout, parts_of(item))
        elif isinstance(item, (list, tuple)):
            found += _tensors(item)
    return found


def localize_fault(call: Callable[..., Any] | BaseException, *args: Any, **kwargs: Any) -> Any:
    """Run a function so that an illegal access is attributed to an operation.

    A captured graph is replayed node by node; anything else runs eagerly, with a wait after each operation. Kernels
    that torch's dispatcher does not see (Triton, extensions) are attributed to the operation after them.

    Args:
        call: what to run: a function, or a captured graph or its ``replay``. As in 1.x, an exception: nothing is run.
        args: of the function.
        kwargs: likewise; for an exception ``op=``, its name, and ``tensors=``, pairs of name and tensor.

    Returns:
        What the function returns; for an exception the GfxGraphFault to raise in its place.

    Raises:
        GfxGraphFault: `memory_fault` for a node of a graph, `eager_fault` for an operation.
    """
    if isinstance(call, BaseException):
        return named_fault(call, *args, **kwargs)
    if not callable(call) and not hasattr(call, "replay"):
        raise TypeError(f"localize_fault() takes a captured graph, a function or an exception, not {call!r}")
    graph = getattr(call, "__self__", None) if getattr(call, "__name__", "") == "replay" else call
    by_nodes = getattr(graph, "_replay_by_nodes", None)
    if by_nodes is not None:
        return by_nodes()
    torch.cuda.synchronize()
    with _OneByOne() as mode:
        out = call(*args, **kwargs)
        _wait_for_rest(mode)
        return out


def _wait_for_rest(mode: _OneByOne) -> None:
    """Wait for launches after the last operation, which may still fault."""
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        raise GfxGraphFault(
            "eager_fault",
            quote=str(error).strip(),
            op="a launch that torch did not make",
            where=where_of(*place()),
            status=status_of(error),
            index=mode.n_ops,
        ) from error
