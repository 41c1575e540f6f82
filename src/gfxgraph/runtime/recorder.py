"""The recorder: a dispatch mode that writes down every operation of a capture.

Problem: a graph is a list of nodes without names, and a capture that meets an operation which no
graph can hold is lost. Idea: stand at torch's dispatcher while the capture runs. Each operation
goes on the tape, with the graph node it made last and the Python line it came from; nodes that
appear between two operations were launched by somebody else (Triton, an extension) and are noted
as opaque. Operations of the unsafe table never reach the driver: the session splits there.

Invariants: no tensor made inside the capture is kept alive (that would change which memory is
reused, so the graph would differ from a stock capture); identity is by a weak reference to the
tensor object, which lives exactly as long as torch's tensor does.

Source: DESIGN of dispatch modes under torch.compile measured on torch 2.11 and 2.13: without
``ignore_compile_internals`` compiled code silently runs eagerly under the mode, and stays eager.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gfxgraph.core.tape import Entry, Opaque, Tape, Value
from gfxgraph.core.unsafe import BY_NAME, Kind, UnsafeOp, When
from gfxgraph.runtime.conditions import CONDITIONS

if TYPE_CHECKING:
    from gfxgraph.runtime.session import Session


class OpInfo:
    """What is known about one overload before it runs; made once per overload."""

    __slots__ = ("applies", "generator", "makes_memory", "mutates", "name", "unsafe")

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self.name: str = schema.name
        self.unsafe: UnsafeOp | None = BY_NAME.get(schema.name)
        self.applies: Callable[..., bool] | None = CONDITIONS[self.unsafe.when] if self.unsafe else None
        arguments = schema.arguments
        self.mutates: tuple[tuple[int, str], ...] = tuple(
            (i, a.name) for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write
        )
        self.generator: tuple[int, str] | None = next(
            ((i, a.name) for i, a in enumerate(arguments) if "Generator" in str(a.type)), None
        )
        # False where the result shares memory with an argument (views and in-place operations).
        self.makes_memory = not any(r.alias_info is not None for r in schema.returns)


_OPS: dict[Any, OpInfo] = {}
_SKIP: dict[CodeType, bool] = {}
_OWN_DIR = __file__.rsplit("/", 2)[0]
_TORCH_DIR = torch.__file__.rsplit("/", 1)[0]


def is_library_code(code: CodeType) -> bool:
    """True for frames of torch and of this package, which are never the user's line."""
    known = _SKIP.get(code)
    if known is None:
        name = code.co_filename
        known = _SKIP[code] = name.startswith((_TORCH_DIR, _OWN_DIR, "<frozen")) or "/triton/" in name
    return known


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is neither torch's nor ours."""
    while frame is not None and is_library_code(frame.f_code):
        frame = frame.f_back
    return frame


def place() -> tuple[CodeType | None, int]:
    """Code object and instruction of the user's line, cheap to take and resolved when shown."""
    frame = user_frame(sys._getframe(1))
    return (frame.f_code, frame.f_lasti) if frame is not None else (None, -1)


class Recorder(TorchDispatchMode):
    """Watches one session; see the module's text."""

    supports_higher_order_operators = True

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self.paused = False
        self.tape = Tape(0)
        self.n_values = 0
        self.known: dict[int, tuple[Value, weakref.ref[Tensor]]] = {}
        self.storages: dict[int, Value] = {}
        self.externals: dict[Value, Tensor] = {}
        self.mutated: dict[tuple[int, Any, Any], Tensor] = {}
        self.reader: Callable[[], int | tuple[int, ...]] | None = None
        self.reader_stream = 0
        self.readers: dict[int, Callable[[], int | tuple[int, ...]]] = {}
        self.frontiers: set[int] = {0}
        self.device_index = session.device_index
        self.raw_stream = torch._C._cuda_getCurrentRawStream
        self.is_hip_like = session.checks_for_escapes

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    # -- segments ---------------------------------------------------------------------------------

    def start_segment(self, index: int) -> None:
        """Begin a new tape; values of earlier segments stay known by their memory."""
        self.tape = Tape(index)
        self.mutated = {}
        self.readers.clear()
        self.reader = None
        self.reader_stream = 0
        self.frontiers = {0}

    def let_go(self) -> None:
        """The session is over: hold nothing that would keep its graphs and tensors alive."""
        self.session = None  # type: ignore[assignment]
        self.readers.clear()
        self.reader = None
        self.paused = True

    def _frontier(self) -> int | tuple[int, ...]:
        stream = self.raw_stream(self.device_index)
        if stream != self.reader_stream or self.reader is None:
            self.reader_stream = stream
            reader = self.readers.get(stream)
            if reader is None:
                reader = self.readers[stream] = self.session.frontier_reader(stream)
            self.reader = reader
        return self.reader()

    def _new_nodes(self, frontier: int | tuple[int, ...]) -> bool:
        if type(frontier) is int:
            if frontier in self.frontiers:
                return False
            self.frontiers.add(frontier)
            return True
        fresh = [handle for handle in frontier if handle not in self.frontiers]  # type: ignore[union-attr]
        self.frontiers.update(fresh)
        return bool(fresh)

    def note_opaque(self) -> None:
        """Note nodes that came since the last operation, if any."""
        frontier = self._frontier()
        if self._new_nodes(frontier):
            code, lasti = place()
            last = frontier if type(frontier) is int else frontier[-1]  # type: ignore[index]
            self.tape.opaque.append(Opaque(len(self.tape.entries), code, lasti, last, last))

    # -- dispatch ---------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        info = _OPS.get(func)
        if info is None:
            if not hasattr(func, "_schema"):  # higher-order operators call back into this mode
                return func(*args, **kwargs)
            info = _OPS[func] = OpInfo(func)
        session = self.session
        if info.unsafe is not None and info.applies(args, kwargs):  # type: ignore[misc]
            return session.unsafe_op(info.unsafe, func, args, kwargs)
        if info.generator is not None:
            foreign = session.foreign_generator(info.generator, args, kwargs)
            if foreign:
                return session.unsafe_op(_FOREIGN_GENERATOR, func, args, kwargs)
        if session.tainted and session.reads_tainted(args, kwargs):
            return session.unsafe_op(_TAINTED, func, args, kwargs)
        try:
            spec_args = tuple([self._spec(a) for a in args])
            spec_kwargs = {k: self._spec(v) for k, v in kwargs.items()} if kwargs else {}
        except NoStorage:
            return session.unsafe_op(_SPARSE, func, args, kwargs)
        frontier = self._frontier()
        if frontier not in self.frontiers:
            self.note_opaque()
        try:
            out = func(*args, **kwargs)
        except RuntimeError as error:
            return session.op_failed(info, func, args, kwargs, error)
        after = self._frontier()
        launched = after not in self.frontiers and self._new_nodes(after)
        entries = self.tape.entries
        position = len(entries)
        kind = type(out)
        if kind is Tensor or isinstance(out, Tensor):
            if not out.is_cuda and not self._on_device(spec_args, spec_kwargs):
                return out  # host work that depends on nothing from the device: done once, as always
            spec_out: Any = self._made(out, position, info)
        elif kind is tuple or kind is list:
            spec_out = kind([self._made(o, position, info) if isinstance(o, Tensor) else o for o in out])
        else:
            spec_out = out
        frame = user_frame(sys._getframe(1))
        code, lasti = (frame.f_code, frame.f_lasti) if frame is not None else (None, -1)
        entries.append(
            Entry(
                func,
                spec_args,
                spec_kwargs,
                spec_out,
                code,
                lasti,
                after if type(after) is int else after[-1],
            )
        )
        if info.mutates:
            self._note_mutation(info, args, kwargs)
        if not launched and self.is_hip_like and info.makes_memory and self.session.escaped_recording(out, info):
            entries.pop()
            return self.session.unsafe_op(_NOT_RECORDED, func, args, kwargs)
        return out

    # -- values -----------------------------------------------------------------------------------

    def _spec(self, item: Any) -> Any:
        if isinstance(item, Tensor):
            entry = self.known.get(id(item))
            if entry is not None and entry[1]() is item:
                return entry[0]
            return self.value_of_unknown(item)
        kind = type(item)
        if kind is list or kind is tuple:
            return kind([self._spec(part) for part in item])
        return item

    def value_of(self, tensor: Tensor) -> Value:
        entry = self.known.get(id(tensor))
        if entry is not None and entry[1]() is tensor:
            return entry[0]
        return self.value_of_unknown(tensor)

    def value_of_unknown(self, tensor: Tensor) -> Value:
        """A tensor that no recorded operation made: an input, or another view of captured memory.

        Raises:
            NoStorage: it is sparse, and has no memory of its own that an address could name.
        """
        if tensor.layout is not torch.strided:
            raise NoStorage
        if not tensor.is_cuda:
            return self._external(tensor)
        base = self.storages.get(storage_address(tensor))
        if base is not None and base.segment == self.tape.segment:
            value = Value(self.n_values, len(self.tape.entries), self.tape.segment, tensor.data_ptr(), base.root)
            self.n_values += 1
            layout = (tensor.dtype, tuple(tensor.size()), tuple(tensor.stride()), tensor.storage_offset())
            self.tape.aliases.append((len(self.tape.entries), value, base, layout))
            self.known[id(tensor)] = (value, weakref.ref(tensor))
            return value
        return self._external(tensor)

    def _external(self, tensor: Tensor) -> Value:
        value = Value(self.n_values, -1, self.tape.segment, tensor.data_ptr() if tensor.is_cuda else 0, None)
        self.n_values += 1
        self.known[id(tensor)] = (value, weakref.ref(tensor))
        self.externals[value] = tensor
        return value

    def adopt(self, tensor: Tensor) -> None:
        """Make a tensor that a host step produced an external of what follows."""
        if isinstance(tensor, Tensor) and tensor.is_cuda:
            self._external(tensor)

    def _made(self, tensor: Tensor, position: int, info: OpInfo) -> Value:
        entry = self.known.get(id(tensor))
        if entry is not None and entry[1]() is tensor:
            return entry[0]  # in-place: the same value, changed
        address = tensor.data_ptr() if tensor.layout is torch.strided else 0
        root = None
        if not info.makes_memory and address:
            base = self.storages.get(storage_address(tensor))
            root = base.root if base is not None else _EXTERNAL_ROOT
        value = Value(self.n_values, position, self.tape.segment, address, root)
        self.n_values += 1
        if root is None:
            self.storages[address] = value
        self.known[id(tensor)] = (value, weakref.ref(tensor))
        return value

    def _on_device(self, args: Any, kwargs: Any) -> bool:
        """True if a host tensor came out of device work (a pinned copy)."""
        for item in (*args, *kwargs.values()):
            if type(item) is Value and item.address:
                return True
        return False

    def _note_mutation(self, info: OpInfo, args: Any, kwargs: Any) -> None:
        for position, name in info.mutates:
            target = args[position] if position < len(args) else kwargs.get(name)
            for tensor in target if isinstance(target, (list, tuple)) else (target,):
                if not isinstance(tensor, Tensor) or not tensor.is_cuda:
                    continue
                value = self.value_of(tensor)
                if value.is_external or value.root is _EXTERNAL_ROOT or value.segment != self.tape.segment:
                    key = (tensor.data_ptr(), tuple(tensor.size()), tuple(tensor.stride()))
                    if key not in self.mutated:
                        self.mutated[key] = tensor

    def live_values(self) -> list[tuple[Value, Tensor]]:
        """Values of the current segment whose tensors are alive, with those tensors."""
        segment = self.tape.segment
        alive = []
        for value, ref in self.known.values():
            if value.segment == segment and not value.is_external:
                tensor = ref()
                if tensor is not None and tensor.layout is torch.strided:
                    alive.append((value, tensor))
        return alive


class NoStorage(Exception):
    """The tensor has no strided memory."""


def storage_address(tensor: Tensor) -> int:
    """Where the tensor's storage begins, 0 where there is none."""
    return tensor.untyped_storage().data_ptr()


_EXTERNAL_ROOT = Value(-1, -1, -1, 0, None)
_FOREIGN_GENERATOR = BY_NAME["torch.Generator"]
_NOT_RECORDED = BY_NAME["any-operation"]
_SPARSE = UnsafeOp("sparse arithmetic", Kind.DYNAMIC_SHAPE, "sparse operations read sizes on the host", When.ALWAYS)
_TAINTED = UnsafeOp(
    "host arithmetic", Kind.HOST_READ, "it computes on the host with values from the device", When.ALWAYS
)
