"""Bases for torch's own Python classes: streams, events, memory pools and the pybind CUDAGraph.

Enters: calls from the Python layer of the installed torch.
Stays out: their meaning (runtime.py, allocator.py); installing the bases (installation.py).

torch.cuda.Stream, Event, MemPool and CUDAGraph keep their Python code; only what they call with ``super()``
is ours. Texts and order of checks of CUDAGraph follow aten/src/ATen/cuda/CUDAGraph.cpp of 2.9.1 to 2.11,
with the split of ``capture_end`` that 2.14 made.
"""

from __future__ import annotations

import warnings
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from gfxgraph import files, torch_names
from gfxgraph.types import CaptureStatus
from gfxgraph_simulator.device_memory import watch
from gfxgraph_simulator.graph_nodes import Graph, GraphExec
from gfxgraph_simulator.random_state import GeneratorState, ReplayDraw, SimGenerator
from gfxgraph_simulator.runtime import CallRefused, SimulatedEvent, Stream, StreamCapture

if TYPE_CHECKING:
    from gfxgraph_simulator.card import Simulator

PoolId = tuple[int, int]
CUDA_DEVICE_TYPE = 1

_OWNED = "This CUDAGraph instance already owns a captured graph. To capture a new graph, create a new instance."
_DEFAULT_STREAM = (
    "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them "
    "on the default stream.)"
)
_EMPTY = (
    "The CUDA Graph is empty. This usually means that the graph was attempted to be captured on wrong device "
    "or stream."
)
# 2.14 split capture_end in two, and the graph can be inspected in between.
_TEMPLATE_LIVES_BETWEEN = torch_names.version() >= (2, 14)
_NO_TEMPLATE = (
    "No {label}Graph_t is available: either capture_end() has not been called, or the underlying {label}Graph_t was "
    "destroyed (keep_graph=false, and capture has been finalized)."
)


def make_classes(sim: Simulator) -> dict[str, type]:
    """The bases, bound to ``sim``, by the name they have in torch._C."""
    bases = {
        "_CudaStreamBase": SimStreamBase, "_CudaEventBase": SimEventBase, "_CUDAGraph": SimCUDAGraphBase,
        "_MemPool": SimMemPoolBase,
    }  # fmt: skip
    return {
        name: type(base.__name__, (base,), {"sim": sim, "__module__": base.__module__})
        for name, base in bases.items()
    }


class SimStreamBase(torch.Stream):
    sim: ClassVar[Simulator]

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> SimStreamBase:
        if kwargs.get("stream_ptr"):
            stream = cls.sim.device.external_stream(kwargs["stream_ptr"])
        elif "stream_id" in kwargs:
            stream = cls.sim.device.stream(kwargs["stream_id"])
        else:
            stream = cls.sim.device.pooled_stream(priority)
        return torch.Stream.__new__(cls, stream_id=stream.id, device_index=0, device_type=CUDA_DEVICE_TYPE)

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    @property
    def _stream(self) -> Stream:
        return self.sim.device.stream(self.stream_id)

    @property
    def cuda_stream(self) -> int:
        return self._stream.handle

    native_handle = cuda_stream

    @property
    def priority(self) -> int:
        return self._stream.priority

    def is_capturing(self) -> bool:
        return self._stream.status is not CaptureStatus.NONE

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return (0, -1)

    def query(self) -> bool:
        return bool(self.sim.call(self.sim.device.query_stream, self._stream))

    def synchronize(self) -> None:
        self.sim.note_sync()
        self.sim.call(self.sim.device.synchronize_stream, self._stream)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, torch.Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash((self.stream_id, 0, CUDA_DEVICE_TYPE))


class SimEventBase(torch.Event):
    sim: ClassVar[Simulator]

    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
        **_: object,
    ) -> SimEventBase:
        made = torch.Event.__new__(cls, torch.device("cuda", 0))
        made._timing = enable_timing
        made._external = external
        made._is_created = False
        made._event = SimulatedEvent()
        return made

    def __init__(self, *args: object, **kwargs: object) -> None:
        self._event: SimulatedEvent
        self._timing: bool
        self._external: bool
        self._is_created: bool

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", 0)

    @property
    def cuda_event(self) -> int:
        return id(self._event) if self._event.recorded_at is not None else 0

    def record(self, stream: Any = None) -> None:
        target = self.sim.device.current() if stream is None else self.sim.device.stream(stream.stream_id)
        is_node = self._external and target.capture is not None
        record = self.sim.device.record_external if is_node else self.sim.device.record_event
        self._is_created = True
        self.sim.call(record, self._event, target)

    def wait(self, stream: Any = None) -> None:
        target = self.sim.device.current() if stream is None else self.sim.device.stream(stream.stream_id)
        self.sim.call(self.sim.device.wait_event, self._event, target)

    def query(self) -> bool:
        return bool(self.sim.call(self.sim.device.query_event, self._event))

    def synchronize(self) -> None:
        self.sim.note_sync()
        self.sim.call(self.sim.device.synchronize_event, self._event)

    def elapsed_time(self, end_event: Any) -> float:
        if not (self._timing and end_event._timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if not (self._is_created and end_event._is_created):
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return 1e3 * float(self.sim.call(self.sim.device.elapsed_s, self._event, end_event._event))

    def ipc_handle(self) -> bytes:
        raise RuntimeError("CUDA error: operation not supported")


class SimMemPoolBase:
    sim: ClassVar[Simulator]

    def __new__(cls, *args: object, **kwargs: object) -> SimMemPoolBase:
        return object.__new__(cls)

    def __init__(
        self,
        allocator: object = None,
        is_user_created: bool = True,
        use_on_oom: bool = False,
        no_split: bool = False,
    ) -> None:
        memory = self.sim.allocator
        self._id = memory.new_user_pool_id() if is_user_created else memory.new_graph_pool_id()
        self._allocator = allocator
        memory.retain_pool(self._id)
        pool = memory.pools[self._id]
        pool.no_split = no_split
        # Models what our pluggable allocator does on a real card.
        pool.fence_nbytes = getattr(allocator, "fence_nbytes", 0)

    @property
    def id(self) -> PoolId:
        return self._id

    @property
    def allocator(self) -> Any:
        return self._allocator

    @property
    def device(self) -> int:
        return 0

    def use_count(self) -> int:
        return self.sim.allocator.use_count(self._id)

    def __del__(self) -> None:
        if hasattr(self, "_id"):
            if self.use_count() != 1:
                # ~MemPool asserts this, and an assertion that throws in a destructor ends the process.
                self.sim.crashes.append(f"~MemPool{self._id}: use_count() == {self.use_count()}")
            self.sim.allocator.release_pool(self._id)
            self.sim.allocator.empty_cache(self._id)


class _Holdings:
    """What a captured graph holds on the card; released when the graph is reset or destroyed."""

    def __init__(self, sim: Simulator) -> None:
        self.sim = sim
        self.exec: GraphExec | None = None
        self.pools: list[PoolId] = []
        self.states: list[GeneratorState] = []

    def unregister(self) -> None:
        for state in self.states:
            if self not in state.graphs:
                raise RuntimeError("The graph should be registered to the state")
            state.graphs.discard(self)

    def give_back(self) -> None:
        made, self.exec = self.exec, None
        pools, self.pools = self.pools, []
        for pool in pools:
            self.sim.allocator.release_pool(pool)
        if made is not None and self.sim.device.captures:
            self.sim.call(self.sim.device.runtime_call, "graph_destroy")


def _destructor(holdings: _Holdings) -> object:
    """An object that releases ``holdings`` when the graph that holds it is really gone, like ``~CUDAGraph``.

    A ``__del__`` would not work: torch's class has one from 2.13 on, which does not call super, and the collector
    calls finalizers of a whole cycle, including those of a graph that is then kept alive.
    """

    def destroy() -> None:
        try:
            holdings.give_back()  # first: in C++ nothing of Python runs between a finalizer and this
            holdings.unregister()
        except RuntimeError as error:
            # In a C++ destructor this ends the process.
            holdings.sim.crashes.append(f"~CUDAGraph: {error}")

    with torch_names._DisableTorchDispatch():
        tensor = torch.empty(1, device="cpu")
    watch(tensor, destroy)
    return tensor


class SimCUDAGraphBase:
    """Replaces ``torch._C._CUDAGraph``."""

    sim: ClassVar[Simulator]
    _debug_mode: ClassVar[bool] = False
    # Weak references, as C++ only has addresses: a graph may be dropped in the middle of its capture.
    _capturing: ClassVar[list[weakref.ref[SimCUDAGraphBase]]] = []

    def __new__(cls, keep_graph: bool = False, *args: object, **kwargs: object) -> Any:
        made = object.__new__(cls)
        made._reset_state(bool(keep_graph))
        return made

    def __init__(self, keep_graph: bool = False) -> None:
        self._keep_graph = bool(keep_graph)

    def _reset_state(self, keep_graph: bool) -> None:
        self._keep_graph = keep_graph
        self._graph: Graph | None = None
        self._holdings = _Holdings(self.sim)
        self._destructor = _destructor(self._holdings)
        self._pool: PoolId | None = None
        self._capture: StreamCapture | None = None
        self._stream: Stream | None = None
        self._capture_ended = False
        # state -> how far one replay advances it
        self._states: dict[GeneratorState, int] = {}
        self._draws: list[ReplayDraw] = []

    # ---- capture ------------------------------------------------------------------------------------

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        sim = self.sim
        if self._exec is not None or self._graph is not None:
            raise RuntimeError(_OWNED)
        if capture_error_mode not in ("global", "thread_local", "relaxed"):
            raise RuntimeError(
                "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got "
                f"{capture_error_mode}"
            )
        self._register(sim.default_generator.state)
        for state in self._states:
            state.capturing, state.intragraph_offset = True, 0
        stream = sim.device.current()
        if stream.id == 0:
            for state in self._states:
                state.capturing = False
            raise RuntimeError(_DEFAULT_STREAM)
        pool = getattr(pool, "id", pool)
        if pool is None or pool == (0, 0):
            self._pool = sim.allocator.new_graph_pool_id()
        else:
            if pool[0] and pool[1]:
                raise RuntimeError("mempool_id_.first and second must not both be set")
            self._pool = (int(pool[0]), int(pool[1]))
        self._stream = stream
        takes = weakref.WeakMethod(self._takes)
        sim.allocator.begin_route(self._pool, lambda stream_id: (own := takes()) is not None and own(stream_id))
        self._capture = sim.call(sim.device.begin_capture, stream, capture_error_mode)
        self._capturing.append(weakref.ref(self))

    def _takes(self, stream_id: int) -> bool:
        """Whether an allocation on this stream belongs to this capture."""
        capture = self._capture
        if capture is None:
            return False
        stream = self.sim.device.streams.get(stream_id)
        return stream is not None and stream.capture is capture

    def capture_end(self) -> None:
        self.capture_end_pre()
        if not self._keep_graph:
            self._instantiate()
        self.capture_end_post()

    def capture_end_pre(self) -> None:
        sim = self.sim
        stream = sim.device.current()
        if stream is not self._stream:
            raise RuntimeError("Capture must end on the same stream it began on.")
        is_known = any(other() is self for other in self._capturing)
        self._capturing[:] = [other for other in self._capturing if other() not in (self, None)]
        try:
            graph = sim.device.end_capture(stream)
        except CallRefused as refused:
            # As torch does: the default generator stays in capture mode, and the pool routed.
            code = refused.code
        else:
            if sim.profile.ends_a_capture_once and not is_known:
                raise RuntimeError("capture_end() called before capture_begin().")
            self._captured(graph)
            return
        # No local may refer to it: its traceback holds this frame, and a C++ exception makes no such cycle.
        raise sim.error(CallRefused(code))

    def _captured(self, graph: Graph) -> None:
        assert self._pool is not None
        self.sim.allocator.end_route(self._pool)
        self._graph = graph
        self._end_states()
        self._draws = [node.draw for node in graph.nodes if node.draw is not None]
        if not graph.nodes:
            warnings.warn(_EMPTY, UserWarning, stacklevel=5)

    def capture_end_post(self) -> None:
        self._capture_ended = True
        assert self._pool is not None
        self._holdings.pools.insert(0, self._pool)
        if not self._keep_graph:
            self._graph = None

    def _end_states(self) -> None:
        for state in self._states:
            self._states[state] = state.intragraph_offset
            state.capturing, state.intragraph_offset = False, 0

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        raise TypeError(f"cannot pickle {type(self).__name__!r} object")  # the text that Python uses for C++ classes

    def instantiate(self) -> None:
        if not self._capture_ended and not self._graph:
            raise RuntimeError("capture_end() must have been called before calling instantiate")
        # 2.14 and later call this from Python for every graph, before capture_end_post.
        if self._exec is not None and not self._keep_graph:
            raise RuntimeError("instantiate() is intended to be called by the user only when keep_graph=true")
        self._instantiate()

    def _instantiate(self) -> None:
        assert self._graph is not None
        self._holdings.exec = self.sim.call(self.sim.device.instantiate, self._graph)

    @property
    def _exec(self) -> GraphExec | None:
        return self._holdings.exec

    @property
    def _has_graph_exec(self) -> bool:
        return self._exec is not None

    # ---- replay -------------------------------------------------------------------------------------

    def replay(self) -> None:
        if not self._capture_ended:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        if self._exec is None:
            self._instantiate()
        assert self._exec is not None
        device = self.sim.device
        bases = {}
        for state, increment in self._states.items():
            if state.capturing:
                raise RuntimeError("Cannot prepare for replay during capturing stage.")
            bases[state] = state.offset
            state.offset += increment
        for draw in self._draws:
            draw.base = bases.get(draw.state, draw.state.offset)
        pool = None if self._pool is None else self.sim.allocator.pools.get(self._pool)
        if pool is not None:
            pool.has_run = True
        self.sim.call(device.launch, self._exec, device.current())

    def reset(self) -> None:
        self._holdings.give_back()
        self._reset_state(self._keep_graph)

    # -- queries --------------------------------------------------------------------------------------

    def pool(self) -> PoolId:
        if not self._capture_ended or self._pool is None:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self._pool

    def pools(self) -> list[PoolId]:
        return list(self._holdings.pools)

    def _retain_pool(self, pool: PoolId) -> None:  # from 2.14 on called by use_mem_pool inside a capture
        self.sim.allocator.retain_pool(pool)
        self._holdings.pools.append(pool)

    def raw_cuda_graph(self) -> int:
        label = "hip" if self.sim.profile.platform == "hip" else "cuda"
        if _TEMPLATE_LIVES_BETWEEN and self._graph is None:
            raise RuntimeError(_NO_TEMPLATE.format(label=label))
        if not self._keep_graph and not _TEMPLATE_LIVES_BETWEEN:
            raise RuntimeError(
                f"You cannot access the raw {label}Graph_t instance unless CUDAGraph was initialized with "
                "keep_graph=true"
            )
        if self._graph is None:
            raise RuntimeError(
                f"You cannot access the raw {label}Graph_t instance until capture_end() has been called"
            )
        return self._graph.handle

    def raw_cuda_graph_exec(self) -> int:
        label = "hip" if self.sim.profile.platform == "hip" else "cuda"
        if self._exec is None:
            raise RuntimeError(
                f"You cannot access the raw {label}GraphExec_t instance until instantiate() has been called"
            )
        return self._exec.handle

    def register_generator_state(self, generator: torch.Generator) -> None:
        self._register(generator.state if isinstance(generator, SimGenerator) else generator)

    def _register(self, state: GeneratorState) -> None:
        self._states.setdefault(state, 0)
        if state not in self._holdings.states:
            self._holdings.states.append(state)
        self.sim.assert_not_capturing("Cannot register the state during capturing stage.")
        if not state.graphs:
            torch.empty(0, device="cuda")  # torch's are for the seed and the offset; dispatch modes see them
        state.graphs.add(self._holdings)

    def enable_debug_mode(self) -> None:
        SimCUDAGraphBase._debug_mode = True
        if _TEMPLATE_LIVES_BETWEEN:
            self._keep_graph = True

    def debug_dump(self, debug_path: str, **_: object) -> None:
        if not self._debug_mode:
            warnings.warn(
                "CUDA Graphs debug not enabled, set with [graph].enable_debug_mode()",
                UserWarning,
                stacklevel=3,
            )
        elif self._graph is not None:
            # As in 2.11: without keep_graph the template is gone by now and nothing is written.
            lines = ["digraph dot {"]
            for node in self._graph.nodes:
                lines.append(f'"{node.handle:#x}" [label="{node.name}"];')
                lines += [f'"{parent.handle:#x}" -> "{node.handle:#x}";' for parent in node.parents]
            files.write(Path(debug_path), "\n".join([*lines, "}", ""]))

    @staticmethod
    def generator_of(generator: object) -> Any:
        """The device generator behind a copy that the dispatcher made; torch's own generators need no such lookup."""
        return SimGenerator.of(generator) or generator

    @classmethod
    def get_currently_capturing_graph(cls) -> Any:
        if not SimCUDAGraphBase._capturing:
            raise RuntimeError(
                "get_currently_capturing_graph() can be used only between capture_begin() and capture_end()"
            )
        return SimCUDAGraphBase._capturing[-1]()
