"""Locates a fault: replays by node walk; what an error says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from gfxgraph.capture.replay.graph_tensors import has_layout, size_of
from gfxgraph.core.fault_report import Fault, NodeInfo, read_words
from gfxgraph.core.memory_map import Allocation
from gfxgraph.errors import DriverError, GfxGraphFault

if TYPE_CHECKING:
    from gfxgraph.capture.replay.program import SegmentStep

# Parts of the runtimes' names for errors that leave the device unusable.
_FAULTS = (
    "illegaladdress", "illegal_address", "launchfail", "launch_failed", "assert", "illegalinstruction",
    "illegal_instruction", "misaligned", "invalidaddressspace", "invalid_address_space", "invalidpc", "invalid_pc",
    "hardwarestack", "hardware_stack", "launchtimeout", "launch_timeout", "ecc", "illegal memory access",
    "unspecified launch failure",
)  # fmt: skip


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


def named_fault(exc: BaseException, *, op: str | None = None, tensors: Tensors | None = None) -> GfxGraphFault:
    """The error to raise for an illegal access: it names the operation and the layout of its tensors.

    Args:
        exc: what torch or the runtime raised.
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
        quote=str(exc).strip(),
        op=op,
        layout="\n".join(lines),
        tensors=[value for _, value in pairs],
        original=exc,
    )
    fault.__cause__ = exc
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


def localize_fault(call: object, *, op: str | None = None, tensors: Tensors | None = None) -> GfxGraphFault | None:
    """Replay a captured graph node by node, so that an illegal access is attributed to a node.

    Outside graphs the runtime itself runs one operation after the other: ``HIP_LAUNCH_BLOCKING=1`` (on NVIDIA
    ``CUDA_LAUNCH_BLOCKING=1``), set before the program starts.

    Args:
        call: a captured graph or its ``replay``. As in 1.x, an exception: nothing is run.
        op: for an exception, the name of the operation.
        tensors: likewise, its arguments: pairs of name and tensor.

    Returns:
        None; for an exception the GfxGraphFault to raise in its place.

    Raises:
        GfxGraphFault: `memory_fault`, `fault_before_replay`.
        TypeError: ``call`` is something else.
    """
    if isinstance(call, BaseException):
        return named_fault(call, op=op, tensors=tensors)
    graph = getattr(call, "__self__", None) if getattr(call, "__name__", "") == "replay" else call
    by_nodes = getattr(graph, "_replay_by_nodes", None)
    if by_nodes is None:
        raise TypeError(
            f"localize_fault() takes a captured graph or an exception, not {call!r}; outside graphs "
            "HIP_LAUNCH_BLOCKING=1 (CUDA_LAUNCH_BLOCKING=1) makes the operation at fault raise"
        )
    by_nodes()
    return None
