"""MIGraphX: a compiled program captured whole at its first run, and launched as one graph from then on.

``program.eval`` enqueues one launch per instruction, fifty and more for a decoder step. Its launches go to the stream
passed to ``run_async``, so they can be captured from outside as a whole, whichever library launches them and whatever
they compute.

    off ─── MIGRAPHX_ENABLE_HIPGRAPH not set: ``run`` is the program's own bound method
    first run ──captured──> launched, because a capture computes nothing ──> its results are kept
        └── refused: the program runs as before; one more attempt at the next run, then none
    later run, same arguments ──> one launch, or eagerly if that was measured to be faster
    later run, other addresses ──> a graph for these too; past `MOST_GRAPHS`, inputs that move are copied
    later run, other shapes ──> a graph for these too; the least recently launched is dropped
    after `MOST_CAPTURES` captures ──> it runs eagerly until addresses and shapes come again

Invariants:
  - a graph is launched only if every argument has the address, lengths, strides and type that it had at capture;
  - a launch waits for the one before it, on whichever stream that was: they share memory.

Source: src/py/migraphx_py.cpp and src/program.cpp of ROCm/AMDMIGraphX f729a52f (2.16). Most tests run a stand-in with
that interface whose programs launch real work; tests/emulator/test_migraphx.py runs AMD's module.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gfxgraph import config, torch_names
from gfxgraph.adapters._needs import NeededName
from gfxgraph.adapters.adapter import Adapter, GraphedObject, OwnMethods
from gfxgraph.config import Config
from gfxgraph.core.replaced import Replaced
from gfxgraph.errors import GfxGraphFault
from gfxgraph.hardware.software import migraphx_available
from gfxgraph.process import bridge, process
from gfxgraph.process.calls import Account
from gfxgraph.types import OnUnsafe

__all__ = ["ADAPTER", "GraphedProgram", "migraphx_available"]

MOST_GRAPHS = 4
"""Most sets of addresses and shapes with a graph each; an input with more addresses is copied to one of ours."""
MOST_CAPTURES = 64
"""Captures of one program beyond which only arguments that were there a few runs ago are captured."""
MOST_TRIES = 2
STREAM = "ihipStream_t"
_LAUNCH = re.compile(r"\bglobal=(\d+),\s*local=([1-9]\d*)")
"""What a compiled program's text says of a kernel's launch. Captured by ``hipExtModuleLaunchKernel``, threads that
fill no whole workgroup become one in HIP 7.15; 6.4.3 refuses or loses them (selftest/native/scenarios.py)."""
_DTYPES = {
    "float_type": "float32", "half_type": "float16", "bf16_type": "bfloat16", "double_type": "float64",
    "int8_type": "int8", "int16_type": "int16", "int32_type": "int32", "int64_type": "int64",
    "uint8_type": "uint8", "bool_type": "bool",
}  # fmt: skip

Params = Mapping[str, Any]


@dataclass(slots=True)
class _ProgramGraph:
    """The graph for one set of addresses, and what the program returned while it was captured."""

    graph: Any
    results: list[Any]
    n_unchecked: int = 0
    """Launches still to be compared with eager execution."""


class GraphedProgram(GraphedObject):
    """A compiled ``migraphx.program`` with the same methods; ``run`` and ``run_async`` use a graph.

    Args:
        program: compiled for the GPU with ``offload_copy=False``; with host copies inside, it runs without graphs.
        enabled: None reads ``MIGRAPHX_ENABLE_HIPGRAPH``. If off, it only forwards to the program.
        policy: "adaptive" times both ways and keeps the faster; "graph" always launches the graph.
    """

    inner = "program"

    def __init__(self, program: Any, *, enabled: bool | None = None, policy: str = "adaptive") -> None:
        if policy not in ("adaptive", "graph"):
            raise ValueError(f"policy is {policy!r}; it is 'adaptive' or 'graph'")
        self.program = program
        self.policy = policy
        self.enabled = config.load().migraphx_graphs if enabled is None else enabled
        self.why_eager = ""
        """Why no graph is tried any more; "" while one is."""
        self.account = Account("a MIGraphX program")
        """How its runs ended."""
        weakref.finalize(self, self.account.close)
        self.n_captures = 0
        self._graphs: dict[tuple[object, ...], _ProgramGraph] = {}
        self._fixed: dict[str, Any] = {}
        """Inputs that keep moving: our memory for each, as bytes."""
        self._missed: deque[object] = deque(maxlen=MOST_GRAPHS)
        """The last arguments that ran eagerly, past `MOST_CAPTURES`."""
        self._streams: dict[int, object] = {}
        self._last: tuple[int, Any] | None = None
        """The stream of the last graph launch, and an event recorded after it."""
        self._times: Any = None
        self._n_failed = 0
        self._is_looked_at = False
        self._lock = threading.RLock()
        if not self.enabled:
            vars(self).update(run=program.run, run_async=program.run_async)

    def run(self, params: Params) -> list[object]:
        """Like ``program.run``, on torch's current stream: results are complete after ``migraphx.gpu_sync()``."""
        return self._run(params, None, lambda: self.program.run(params))

    def run_async(self, params: Params, stream: int, stream_name: str) -> list[object]:
        """Like ``program.run_async``: in order on ``stream``, a handle."""
        return self._run(params, stream, lambda: self.program.run_async(params, stream, stream_name))

    def why(self) -> str:
        """How it runs now, and why."""
        if not self.enabled:
            return "off: MIGRAPHX_ENABLE_HIPGRAPH is not set"
        if self.why_eager:
            return f"eager: {self.why_eager}"
        n = len(self._graphs)
        said = f"{n} graph{'s' * (n != 1)}" + (f", copying {', '.join(self._fixed)}" if self._fixed else "")
        said += "; eager, until its arguments keep to a few addresses" if self._missed else ""
        return f"{said}; {self._times.choice.why()}" if self._times is not None else said

    # -- one run --------------------------------------------------------------------------------------

    def _run(self, params: Params, handle: int | None, plain: Callable[[], list[object]]) -> list[object]:
        """``handle`` is the caller's stream; None: torch's current one. Counts how the run ended."""
        n = self.account.by_graph
        try:
            result = self._ran(params, handle, plain)
        except Exception as error:
            self.account.failed(error)
            raise
        if self.account.by_graph == n:
            self.account.eager.count(self.why_eager or "its graph is not captured, is compared with it, or is slower")
        return result

    def _ran(self, params: Params, handle: int | None, plain: Callable[[], list[object]]) -> list[object]:
        torch = _torch()
        if torch is None:
            return self._fall_back("torch sees no GPU", plain)
        if self.why_eager or torch.cuda.is_current_stream_capturing():
            return plain()
        stream = torch.cuda.current_stream() if handle is None else self._stream(handle)
        with self._lock, torch.cuda.stream(stream):
            if reason := "" if self._is_looked_at else _no_graph(self.program):
                return self._fall_back(reason, plain)
            self._is_looked_at = True
            if not all(hasattr(argument, "data_ptr") for argument in params.values()):
                return self._fall_back("its arguments are host buffers; migraphx.to_gpu puts them on the GPU", plain)
            timed = self._timed()
            way = timed.decided() if timed is not None else "graph"
            if way == "eager":
                return self._eagerly(params, stream)
            key = _key(self._in_place(params))
            captured = self._graphs.pop(key, None)
            if captured is None:
                return plain() if self._is_restless(key) else self._first(params, stream, plain)
            self._missed.clear()
            self._graphs[key] = captured  # the most recently launched comes last
            if captured.n_unchecked:
                return self._checked(params, captured, stream)
            if way is None:
                way = timed.next_way()
                return list(timed.timed(way, self._either(way, params, captured, stream)))
            return self._launch(params, captured, plain)

    def _either(self, way: str, params: Params, captured: _ProgramGraph, stream: object) -> Callable[[], list[Any]]:
        if way == "eager":
            return lambda: self._eagerly(params, stream)
        return lambda: self._launch(params, captured, lambda: self._eagerly(params, stream))

    def _eagerly(self, params: Params, stream: Any) -> list[object]:
        """Run launch by launch, in order on ``stream``."""
        return list(self.program.run_async(params, stream.cuda_stream, STREAM))

    def _launch(self, params: Params, captured: _ProgramGraph, plain: Callable[[], list[object]]) -> list[object]:
        # lazily: adapters are listed and asked about where there is no torch
        import torch

        from gfxgraph.callables.arena import replay
        from gfxgraph.callables.signature import RunEagerly

        stream = torch.cuda.current_stream()
        if self._last is not None and self._last[0] != stream.cuda_stream:
            # All its graphs share memory: the program's scratch memory, and our copies of inputs.
            stream.wait_event(self._last[1])
        if self._fixed:
            theirs = [_bytes(params[name]) for name in self._fixed]
            torch_names._foreach_copy_(
                [ours[: len(view)] for ours, view in zip(self._fixed.values(), theirs)], theirs
            )
        try:
            replay(captured.graph)
        except RunEagerly as failed:
            if isinstance(failed.__cause__, GfxGraphFault):
                raise failed.__cause__ from None
            return self._fall_back(f"its graph could not be launched ({failed.why})", plain)
        self.account.n_gone += 1
        self._last = stream.cuda_stream, stream.record_event(self._last[1] if self._last else None)
        return list(captured.results)

    def _fall_back(self, reason: str, plain: Callable[[], list[object]]) -> list[object]:
        """Run without graphs from now on, and report why; the first reason is kept."""
        if not self.why_eager:
            self.why_eager = reason
            self._graphs.clear()
            process.tell("fallback", f"a MIGraphX program runs eagerly: {reason}")
        return plain()

    # -- capture ----------------------------------------------------------------------------------------

    def _first(self, params: Params, stream: object, plain: Callable[[], list[object]]) -> list[object]:
        """Capture for these addresses, then do the run's work, because a capture computes nothing."""
        if len(self._graphs) >= MOST_GRAPHS and not self._fix_what_moves(params):
            del self._graphs[next(iter(self._graphs))]  # it is outputs or shapes that change
        placed = self._in_place(params)
        captured, why_not = self._capture(placed, stream)
        if captured is None:
            result = plain()  # first: wrong arguments raise here, before anything else happens
            self._n_failed += 1  # what a library creates on first use exists by the next attempt
            if self._n_failed >= MOST_TRIES:
                return self._fall_back(f"it cannot be captured ({why_not})", lambda: result)
            why = f"a MIGraphX program could not be captured; it is tried once more ({why_not})"
            process.tell("fallback", why, level=logging.INFO)
            return result
        self._graphs[_key(placed)] = captured
        if captured.n_unchecked:
            return self._checked(params, captured, stream)
        return self._launch(params, captured, plain)

    def _capture(self, params: Params, stream: object) -> tuple[_ProgramGraph | None, str]:
        # lazily: adapters are listed and asked about where there is no torch
        import torch

        from gfxgraph.callables.arena import arena_of
        from gfxgraph.capture.function_capture import CaptureDied, SharedPool

        place = arena_of(bridge.process_for_callables(), torch.cuda.current_device())
        with place.lock:
            place.stream.wait_stream(stream)
            handle = place.stream.cuda_stream
            try:
                run = lambda: self.program.run_async(dict(params), handle, STREAM)  # noqa: E731
                # What the program does is not torch's: no split can be made in it, and no tape can check a replay.
                pool = SharedPool(bridge.process_for_callables(), place.stream)
                graph, made = place.capture(run, pool, on_unsafe=OnUnsafe.RAISE)
                graph._unvalidated = 0
            except (CaptureDied, torch.OutOfMemoryError) as error:
                return None, str(error).splitlines()[0]
        if _n_nodes(graph) == 0:
            self._n_failed = MOST_TRIES
            return None, "it launched nothing on the stream that was passed to it"
        self.n_captures += 1
        return _ProgramGraph(graph, list(made), bridge.process_for_callables().validate_replays), ""

    def _checked(self, params: Params, captured: _ProgramGraph, stream: object) -> list[object]:
        """Launch, then run eagerly on the same inputs, and compare; the eager results stand."""
        captured.n_unchecked -= 1
        views = [_bytes(argument) for argument in _once(params.values())]
        before = [view.clone() for view in views]
        n = self.account.n_gone
        self._launch(params, captured, lambda: self._eagerly(params, stream))
        self.account.n_gone = n  # the eager results are the caller's
        replayed = [_typed(result).clone() for result in captured.results]
        for view, saved in zip(views, before):
            view.copy_(saved)
        results = self._eagerly(params, stream)
        worst = _worst(replayed, [_typed(result) for result in results])
        bridge.process_for_callables().counters.add("validation_failed" if worst else "validated")
        if worst:
            return self._fall_back(f"its graph gives different results ({worst})", lambda: results)
        return results

    # -- arguments that move ---------------------------------------------------------------------------------

    def _is_restless(self, key: object) -> bool:
        """Whether there were so many captures that arguments which were not there a few runs ago run eagerly."""
        if self.n_captures < MOST_CAPTURES or key in self._missed:
            return False
        if not self._missed:
            why = f"it was captured {MOST_CAPTURES} times: keep its arguments at the same few addresses"
            process.tell("fallback", f"a MIGraphX program runs eagerly: {why}")
        self._missed.append(key)
        return True

    def _in_place(self, params: Params) -> Params:
        """The arguments, with our memory for those inputs that keep moving."""
        if not self._fixed:
            return params
        shapes = {name: params[name].get_shape() for name in self._fixed.keys() & _alone(params)}
        if len(shapes) < len(self._fixed) or any(s.bytes() > len(self._fixed[name]) for name, s in shapes.items()):
            # One shares its memory now, so that what the program writes would not be seen in a copy; or it is longer.
            self._fixed.clear()
            self._graphs.clear()
            return params
        make = sys.modules["migraphx"].argument_from_pointer
        return {**params, **{name: make(shape, self._fixed[name].data_ptr()) for name, shape in shapes.items()}}

    def _fix_what_moves(self, params: Params) -> bool:
        """Give memory of ours to every input that has had several addresses; False if no more have."""
        # lazily: adapters are listed and asked about where there is no torch
        import torch

        found: dict[str, set[int]] = {}
        for key in [*self._graphs, _key(params)]:
            for name, address, *_ in key:
                found.setdefault(name, set()).add(address)
        moving = {name for name, addresses in found.items() if len(addresses) > MOST_GRAPHS} & _alone(params)
        if not moving - self._fixed.keys() or not hasattr(sys.modules.get("migraphx"), "argument_from_pointer"):
            return False
        self._graphs.clear()
        self._times = None  # a launch has its copies from now on
        for name in sorted(moving):
            self._fixed[name] = torch.empty(params[name].get_shape().bytes(), dtype=torch.uint8, device="cuda")
        return True

    # -- eager or graph ---------------------------------------------------------------------------------------

    def _timed(self) -> Any:
        if self.policy != "adaptive":
            return None
        if self._times is None:
            # lazily: adapters are listed and asked about where there is no torch
            from gfxgraph.callables.adaptive import Timed

            self._times = Timed("migraphx.program")
        return self._times

    def _stream(self, handle: int) -> Any:
        # lazily: adapters are listed and asked about where there is no torch
        import torch

        found = self._streams.get(handle)
        if found is None:
            found = torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream()
            self._streams[handle] = found
        return found


class MigraphxAdapter(Adapter):
    """Routes every program's ``run`` and ``run_async`` through a ``GraphedProgram``."""

    name = "migraphx"
    module = "migraphx"
    needs = {
        "migraphx": (
            NeededName("program.run"),
            NeededName("program.run_async"),
            NeededName("program.get_parameter_names"),
            NeededName("argument.data_ptr"),
            NeededName("argument.get_shape"),
            *(NeededName(f"shape.{name}") for name in ("bytes", "lens", "strides", "type_string")),
        )
    }
    tested = "2.14 on the host, 2.17 on an emulated gfx1030"

    def wanted(self, settings: Config) -> bool:
        return settings.migraphx_graphs

    def put_in_place(self, undo: Replaced, part: Any) -> None:
        own = _Own(part.program.run, part.program.run_async)
        undo.replace(part.program, "run", lambda program, params: own.graphed(program).run(params))
        undo.replace(
            part.program,
            "run_async",
            lambda program, params, stream, stream_name: own.graphed(program).run_async(params, stream, stream_name),
        )
        undo.add(own.found.clear)


class _Own:
    """The programs of a process, by identity: they compare by content and cannot be hashed."""

    def __init__(self, run: Callable[..., object], run_async: Callable[..., object]) -> None:
        self.run, self.run_async = run, run_async
        self.found: dict[int, GraphedProgram] = {}

    def graphed(self, program: object) -> GraphedProgram:
        found = self.found.get(id(program))
        if found is None:
            found = self.found[id(program)] = GraphedProgram(
                OwnMethods(program, run=self.run, run_async=self.run_async), enabled=True
            )
            weakref.finalize(program, self.found.pop, id(program), None)
        return found


def _torch() -> Any:
    """torch, if there is one that sees a GPU."""
    try:
        # lazily: adapters are listed and asked about where there is no torch
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def _key(params: Params) -> tuple[Any, ...]:
    """The addresses and shapes of the arguments."""
    return tuple((name, params[name].data_ptr(), *_about(params[name].get_shape())) for name in sorted(params))


def _about(shape: Any) -> tuple[object, ...]:
    return shape.type_string(), tuple(shape.lens()), tuple(shape.strides())


def _is_output(name: str) -> bool:
    """True for a parameter that MIGraphX added for a result, to which it writes."""
    return "#output_" in name or name == "output" or name.startswith("output_")


def _alone(params: Params) -> set[str]:
    """The inputs that share their memory with no other argument: a program reads them and writes elsewhere."""
    users = Counter(argument.data_ptr() for argument in params.values())
    return {name for name, argument in params.items() if users[argument.data_ptr()] == 1 and not _is_output(name)}


def _no_graph(program: Any) -> str:
    """Why no run of a program can be a graph; "" if it can."""
    if not any(_is_output(name) for name in program.get_parameter_names()):
        return "it computes on the host or copies to and from it; compile it for the GPU with offload_copy=False"
    if any(int(threads) % int(group) for threads, group in _LAUNCH.findall(repr(program))):
        return "a kernel of it ends in a part of a workgroup; HIP's graphs run the whole one, beyond the arrays' ends"
    return ""


def _n_nodes(graph: object) -> int:
    """How many nodes a graph has."""
    # lazily: adapters are listed and asked about where there is no torch
    from gfxgraph.capture.replay.node_walk import raw_graph

    return len(bridge.process_for_callables().driver.nodes(raw_graph(graph)))


def _once(arguments: Iterable[Any]) -> list[object]:
    """One argument for each address, the longest."""
    found: dict[int, Any] = {}
    for argument in arguments:
        known = found.get(argument.data_ptr())
        if known is None or known.get_shape().bytes() < argument.get_shape().bytes():
            found[argument.data_ptr()] = argument
    return list(found.values())


def _bytes(argument: Any) -> Any:
    """The argument's memory as a byte tensor that does not own it."""
    # lazily: adapters are listed and asked about where there is no torch
    import torch

    from gfxgraph.capture.replay.graph_tensors import Layout

    size = (argument.get_shape().bytes(),)
    device = torch.device("cuda", torch.cuda.current_device())
    return Layout(argument.data_ptr(), size, (1,), torch.uint8, device).tensor()


def _typed(argument: Any) -> Any:
    """The same in the argument's own type, if torch has it."""
    # lazily: adapters are listed and asked about where there is no torch
    import torch

    dtype = getattr(torch, _DTYPES.get(argument.get_shape().type_string(), ""), torch.uint8)
    return _bytes(argument).view(dtype)


def _worst(replayed: list[object], eager: list[object]) -> str:
    """What differs by more than rounding; "" if nothing does."""
    # lazily: adapters are listed and asked about where there is no torch
    from gfxgraph.capture.replay.validation import compare

    if len(replayed) != len(eager):
        return f"{len(replayed)} results, eagerly {len(eager)}"
    for position, (ours, theirs) in enumerate(zip(replayed, eager)):
        difference = compare(ours, theirs, False)
        if not difference.is_match:
            return f"result {position} differs by {difference.largest:.3g}, {difference.allowed:.3g} is allowed"
    return ""


ADAPTER = MigraphxAdapter()
