"""The simulated runtime: streams, events and captures, under the rules of one profile.

Enters: nodes to run or record, events, status codes.
Stays out: tensors, torch's Python classes; those call in here.

    none --begin--> active --end--> none, and a graph
                      | refused call that invalidates, unsafe event
                      v
                 invalidated --end--> none, or on some HIP versions: stays so ("stuck")
                                      until the next begin and end on that stream

Everything on a stream that is not capturing has finished when the call returns.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from gfxgraph import torch_names
from gfxgraph.types import CaptureStatus, NodeKind
from gfxgraph_simulator import codes
from gfxgraph_simulator.graph_nodes import Graph, GraphExec, Handles, RecordedNode
from gfxgraph_simulator.planted_faults import Faults
from gfxgraph_simulator.profiles import CallRule, Profile

_STREAMS_PER_POOL = 32  # c10/cuda/CUDAStream: a program's 33rd stream is its first one again
_LEGACY = 0


class CallRefused(Exception):
    """A runtime call returned a code; the caller makes the error text."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class NodeFault(Exception):
    """A node of a graph makes an illegal access."""


class NodeHangs(Exception):
    """A node of a graph never ends."""


# The text that ROCr prints before it aborts (6.4.3); the address is a page's.
ABORT_TEXT = (
    "Memory access fault by GPU node-1 (Agent handle: 0x5e0000) on address {address:#x}. "
    "Reason: Page not present or supervisor privilege.\n"
)


class SimulatedCrash(BaseException):
    """Raised where the real runtime crashes the process; not an Exception, so that nothing catches it."""


@dataclass(eq=False)
class StreamCapture:
    id: int
    mode: str
    origin: Stream
    thread: int
    graph: Graph
    streams: set[Stream] = field(default_factory=set)
    invalidated: bool = False

    @property
    def status(self) -> CaptureStatus:
        return CaptureStatus.INVALIDATED if self.invalidated else CaptureStatus.ACTIVE


@dataclass(eq=False)
class Stream:
    id: int
    handle: int
    priority: int = 0
    capture: StreamCapture | None = None
    # Nodes that the stream's next node depends on.
    frontier: tuple[RecordedNode, ...] = ()
    # Streams that waited for an event of this one, and whose event this one waited for last: HIP's forks.
    forks: set[Stream] = field(default_factory=set)
    parent: Stream | None = None
    # The status left by a failed EndCapture, which the runtime does not clear.
    stuck: CaptureStatus | None = None
    # A node that never ends was launched: what comes after it is accepted and never runs.
    hangs: bool = False

    @property
    def status(self) -> CaptureStatus:
        if self.capture is not None:
            return self.capture.status
        return self.stuck if self.stuck is not None else CaptureStatus.NONE


@dataclass(eq=False)
class SimulatedEvent:
    """A runtime event: its meaning was fixed when it was recorded."""

    recorded_at: float | None = None
    stream: Stream | None = None
    capture: StreamCapture | None = None
    frontier: tuple[RecordedNode, ...] = ()
    hangs: bool = False


class _OfThread(threading.local):
    """The runtime's state for each thread."""

    has_context = False
    """Whether the thread has made a runtime call."""
    has_blas = False
    """Whether the thread has a BLAS handle, which takes device memory to make."""
    mode = "global"
    """The thread's capture mode (cudaThreadExchangeStreamCaptureMode): in "relaxed", captures forbid it little."""


class Device:
    """Streams and captures of the one simulated card."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.faults = Faults(changed=self._note_busy)
        self.handles = Handles()
        self.streams: dict[int, Stream] = {_LEGACY: Stream(_LEGACY, 0)}
        self.by_handle: dict[int, Stream] = {0: self.streams[_LEGACY]}
        self.captures: list[StreamCapture] = []
        self.sticky = 0
        self.sync_debug_mode = 0
        # True while a call may have to do more than compute at once; kernels check nothing else.
        self.busy = False
        self._capture_ids = itertools.count(1)
        self._exec_numbers = itertools.count()
        self._next_in_pool = {0: itertools.count(), -1: itertools.count()}
        self.threads = _OfThread()

    # ---- streams ------------------------------------------------------------------------------------

    def current(self) -> Stream:
        """This thread's current stream; torch's C++ stores it, so autograd threads have their own."""
        return self.stream(torch_names._accelerator_getStream(0).stream_id)

    def stream(self, stream_id: int) -> Stream:
        return self.streams.get(stream_id) or self._add_stream(stream_id, 0x5E00_0000 + 0x100 * stream_id, 0)

    def pooled_stream(self, priority: int) -> Stream:
        """The next stream of torch's round robin."""
        high = priority < 0
        number = next(self._next_in_pool[-1 if high else 0]) % _STREAMS_PER_POOL
        # c10 packs the stream's type into the id's low bits; only uniqueness matters here.
        stream_id = (number << 5) | (3 if high else 1) | (1 << 11 if high else 0)
        handle = 0x5E00_0000 + 0x100 * stream_id
        return self.streams.get(stream_id) or self._add_stream(stream_id, handle, -1 if high else 0)

    def external_stream(self, handle: int) -> Stream:
        return self.by_handle.get(handle) or self._add_stream(handle | 2 << 40, handle, 0)

    def _add_stream(self, stream_id: int, handle: int, priority: int) -> Stream:
        stream = Stream(stream_id, handle, priority)
        self.streams[stream_id] = stream
        self.by_handle[handle] = stream
        return stream

    # ---- rules --------------------------------------------------------------------------------------

    def check(self, call: str) -> None:
        """Raise what is due before ``call`` reaches any stream: sticky errors and planted failures."""
        if self.sticky:
            raise CallRefused(self.sticky)
        self.threads.has_context = True
        code = self.faults.strike(call)
        if code:
            if code in codes.STICKY:
                self.sticky = code
                self._note_busy()
            raise CallRefused(code)

    def check_below(self, call: str) -> None:
        """Like ``check``, for a driver call: a thread that has made no runtime call has no context."""
        if not self.threads.has_context:
            raise CallRefused(codes.INVALID_CONTEXT)
        self.check(call)

    def check_op(self, stream: Stream, about: StreamCapture | None = None) -> None:
        """Like ``check``; a planted code about captures ends the capture of ``stream``, or the one given."""
        try:
            self.check("op")
        except CallRefused as refused:
            capture = stream.capture or about
            if capture is not None and refused.code in codes.CAPTURE_CODES:
                capture.invalidated = True
            raise

    def apply(self, call: str, capture: StreamCapture) -> CallRule:
        """Apply the profile's rule for ``call`` to ``capture``; raise if it refuses."""
        rule = self.profile.rule(call, capture.mode)
        if rule.code:
            if rule.invalidates:
                capture.invalidated = True
            raise CallRefused(rule.code)
        return rule

    def unsafe_call(self, call: str, stream: Stream | None = None) -> bool:
        """A call that captures may forbid. Returns whether it may touch the device now (else it is lost).

        ``stream`` is the stream concerned, None for the whole device.
        """
        if stream is not None and stream.status is not CaptureStatus.NONE:
            if stream.capture is None:
                raise CallRefused(codes.CAPTURE_UNSUPPORTED)  # stuck: test_profiles.py, fork_nojoin
            self.apply(call, stream.capture)
            return True
        me = threading.get_ident()
        for capture in list(self.captures):
            if stream is None and call in ("device_synchronize", "memcpy_sync", "memset_sync"):
                self.apply(call if capture.thread == me else f"thread_{call}", capture)
            else:
                self.apply_unsafe(_about_others(call) if capture.thread == me else f"thread_{call}", capture)
        return True

    def apply_unsafe(self, row: str, capture: StreamCapture) -> None:
        """Like ``apply``, for a call that a thread in relaxed mode may make whatever others capture."""
        if self.threads.mode == "relaxed" and not self.profile.rule(row, "relaxed").code:
            return
        self.apply(row, capture)

    def runtime_call(self, call: str) -> None:
        """Make one call of the profile's table from this thread, as a library outside torch might.

        ``call`` is a row's name without ``thread_``; the owner of a running capture decides which row applies.
        """
        me = threading.get_ident()
        for capture in list(self.captures):
            row = call if capture.thread == me else f"thread_{call}"
            if row in self.profile.calls:
                self.apply_unsafe(row, capture)

    def _note_busy(self) -> None:
        self.busy = bool(
            self.captures
            or self.sticky
            or self.faults.fail
            or any(stream.stuck is not None or stream.hangs for stream in self.streams.values())
        )

    def plan(self, faults: Faults) -> None:
        """Replace the fault plan."""
        self.faults = faults
        faults.changed = self._note_busy
        self._note_busy()

    # ---- captures -----------------------------------------------------------------------------------

    def begin_capture(self, stream: Stream, mode: str) -> StreamCapture:
        self.check("begin")
        if stream.id == _LEGACY:
            raise CallRefused(codes.CAPTURE_UNSUPPORTED)
        if stream.status is CaptureStatus.ACTIVE or stream.capture is not None:
            raise CallRefused(self.profile.nested_begin)
        graph = Graph()
        self.handles.graphs[graph.handle] = graph
        capture = StreamCapture(next(self._capture_ids), mode, stream, threading.get_ident(), graph, {stream})
        stream.capture, stream.frontier = capture, ()
        self.captures.append(capture)
        self.busy = True
        return capture

    def end_capture(self, stream: Stream) -> Graph:
        capture = stream.capture
        if capture is None:
            raise CallRefused(self._end_without_capture(stream))
        if capture.origin is not stream:
            raise CallRefused(codes.CAPTURE_UNMATCHED)
        if capture.mode != "relaxed" and capture.thread != threading.get_ident():
            raise CallRefused(codes.CAPTURE_WRONG_THREAD)
        code = self.faults.strike("end")
        if not code and capture.invalidated:
            code = codes.CAPTURE_INVALIDATED
        if not code and any(leaf not in stream.frontier for leaf in capture.graph.leaves()):
            code = codes.CAPTURE_UNJOINED
        if self.profile.mutual_waits_crash and not code and _turns_round(stream, ()):
            raise SimulatedCrash(
                "two side streams of the capture waited for each other: segmentation fault at its end"
            )
        self.captures.remove(capture)
        for member in capture.streams:
            member.capture, member.frontier, member.stuck = None, (), None
            member.forks, member.parent = set(), None
        if code:
            if self.profile.after_failed_end.get(code) == "stays":
                left = CaptureStatus.INVALIDATED if code == codes.CAPTURE_INVALIDATED else CaptureStatus.ACTIVE
                for member in capture.streams:
                    member.stuck = left
            self._note_busy()
            raise CallRefused(code)
        self._note_busy()
        return capture.graph

    def abandon_capture(self, stream: Stream) -> None:
        """End whatever capture ``stream`` is in and revive the stream, as far as this runtime allows."""
        if stream.capture is not None:
            # Ending fails if the capture is dead; what it leaves is handled below.
            with suppress(CallRefused):
                self.end_capture(stream)
        if stream.stuck is CaptureStatus.INVALIDATED:
            # Measured under the emulator: begin and end a new capture, and the stream works again.
            self.begin_capture(stream, "relaxed")
            self.end_capture(stream)
        if stream.status is not CaptureStatus.NONE:
            raise CallRefused(codes.ILLEGAL_STATE)

    def _end_without_capture(self, stream: Stream) -> int:
        if stream.stuck is CaptureStatus.ACTIVE:
            # HIP 7.2: a second EndCapture after 904 segfaults.
            raise SimulatedCrash("hipStreamEndCapture called twice after an unjoined fork: segmentation fault")
        # Measured under the emulator: EndCapture again gives 908 where the status stays, else 401.
        return codes.CAPTURE_WRONG_THREAD if stream.stuck is not None else codes.ILLEGAL_STATE

    # ---- work ---------------------------------------------------------------------------------------

    def submit(self, stream: Stream, make_node: Callable[[], RecordedNode], call: str = "launch") -> bool:
        """Run ``make_node()``'s work on ``stream`` or record it; return whether it was recorded."""
        self.check_op(stream)
        capture = stream.capture
        if capture is None:
            if stream.stuck is not None:
                if self.profile.stuck_launch.code:
                    raise CallRefused(self.profile.stuck_launch.code)
                return True  # accepted but never executed
            if stream.hangs:
                return True
            make_node().execute()
            return False
        if capture.invalidated:
            raise CallRefused(codes.CAPTURE_INVALIDATED)
        rule = self.apply(call, capture)
        node = make_node()
        if not rule.records:
            node.execute()
            return False
        self.record(stream, node)
        return True

    def record(self, stream: Stream, node: RecordedNode) -> None:
        """Append ``node`` to the capture of ``stream``, after everything already on the stream."""
        assert stream.capture is not None
        node.parents = stream.frontier
        stream.capture.graph.nodes.append(node)
        self.handles.nodes[node.handle] = node
        stream.frontier = (node,)

    def synchronize(self) -> None:
        self.check("synchronize")
        self.unsafe_call("device_synchronize")
        _wait_while(lambda: any(stream.hangs for stream in list(self.streams.values())))

    def synchronize_stream(self, stream: Stream) -> None:
        self.check("synchronize")
        self.unsafe_call("stream_synchronize", stream)
        _wait_while(lambda: stream.hangs)

    def query_stream(self, stream: Stream) -> bool:
        self.check("synchronize")
        return self.unsafe_call("stream_query", stream) and not stream.hangs

    # ---- events -------------------------------------------------------------------------------------

    def record_event(self, event: SimulatedEvent, stream: Stream) -> None:
        self.check_op(stream)
        if stream.capture is not None and stream.capture.invalidated:
            raise CallRefused(codes.CAPTURE_INVALIDATED)
        event.recorded_at = time.perf_counter()
        event.stream = stream
        event.capture = stream.capture
        event.frontier = stream.frontier
        event.hangs = stream.hangs

    def record_external(self, event: SimulatedEvent, stream: Stream) -> None:
        """Make the record a node of the graph: each replay records the event (cudaEventRecordExternal)."""
        event.recorded_at = event.capture = event.stream = None

        def run(node: RecordedNode, generator: object) -> None:
            event.recorded_at = time.perf_counter()

        self.submit(stream, lambda: RecordedNode(NodeKind.EVENT_RECORD, "sim::event_record", run))

    def elapsed_s(self, first: SimulatedEvent, second: SimulatedEvent) -> float:
        begun, ended = (None if event.capture is not None else event.recorded_at for event in (first, second))
        if begun is None or ended is None:  # it marks a place in a graph, or no replay has recorded it yet
            raise CallRefused(codes.INVALID_VALUE)
        return ended - begun

    def wait_event(self, event: SimulatedEvent, stream: Stream) -> None:
        self.check_op(stream, event.capture)
        if event.recorded_at is None:
            return
        theirs, ours = event.capture, stream.capture
        if theirs is None:
            stream.hangs = stream.hangs or (event.hangs and ours is None)
            if ours is not None:
                self.apply("wait_event_from_outside", ours)
            return
        if theirs not in self.captures:
            # Its capture has ended: nothing it could depend on exists any more.
            self._of_ended("wait_event", ours)
            return
        if ours in (None, theirs) and stream is not theirs.origin and event.stream is not None:
            if not (self.profile.joins_make_no_fork and event.stream.parent is stream):
                event.stream.forks.add(stream)
                stream.parent = event.stream
        if ours is None:
            if stream.id == _LEGACY:
                theirs.invalidated = True
                raise CallRefused(codes.CAPTURE_IMPLICIT)
            stream.capture, stream.frontier = theirs, event.frontier
            theirs.streams.add(stream)
        elif ours is not theirs:
            ours.invalidated = theirs.invalidated = True
            raise CallRefused(codes.CAPTURE_MERGE)
        else:
            known = {id(node) for node in stream.frontier}
            stream.frontier += tuple(node for node in event.frontier if id(node) not in known)

    def query_event(self, event: SimulatedEvent) -> bool:
        self.check("synchronize")
        self._event_call("event_query", event)
        return not event.hangs

    def synchronize_event(self, event: SimulatedEvent) -> None:
        self.check("synchronize")
        self._event_call("event_synchronize", event)
        _wait_while(lambda: event.hangs)

    def _event_call(self, call: str, event: SimulatedEvent) -> None:
        if event.capture is not None and event.capture in self.captures:
            self.apply(f"{call}_captured", event.capture)
        elif event.capture is not None:
            ours = self.current().capture
            self._of_ended(call, ours)
            if ours is not None:
                return
        own = event.stream.capture if event.stream is not None else None
        if own is not None and call == "event_query":
            prefix = "" if own.thread == threading.get_ident() else "thread_"
            self.apply(f"{prefix}event_query_own_stream", own)
        elif event.recorded_at is not None:  # of an event that was never recorded nothing is asked, in a capture too
            self.unsafe_call(call)

    def _of_ended(self, call: str, ours: StreamCapture | None) -> None:
        """A call about an event that a capture recorded which has ended, made inside another capture or in none."""
        rule = self.profile.rule(f"{call}_of_ended", ours.mode if ours is not None else "relaxed")
        if rule.code:
            if ours is not None and rule.invalidates:
                ours.invalidated = True
            raise CallRefused(rule.code)

    # ---- graphs -------------------------------------------------------------------------------------

    def instantiate(self, graph: Graph) -> GraphExec:
        self.check("instantiate")
        self.unsafe_call("instantiate")
        made = GraphExec(graph, next(self._exec_numbers))
        made.goes_stale = self.profile.switched_nodes_go_stale
        self.handles.execs[made.handle] = made
        return made

    def launch(self, graph_exec: GraphExec, stream: Stream) -> None:
        self.check("launch")
        if stream.capture is not None:
            if stream.capture.invalidated:
                raise CallRefused(codes.CAPTURE_INVALIDATED)
            # No profile records it: neither runtime does.
            self.apply("graph_launch", stream.capture)
        elif stream.stuck is not None or stream.hangs:
            return
        if self.faults.slow_launch_s:
            time.sleep(self.faults.slow_launch_s)
        graph_exec.launches += 1
        # Below every mode and autograd, like work that no dispatcher sees.
        with torch_names._DisableTorchDispatch(), torch_names._AutoDispatchBelowAutograd():
            try:
                graph_exec.run(self._liar(graph_exec), self._before_node if self.faults.at_nodes else None)
            except NodeHangs:
                stream.hangs = True
                self._note_busy()
            except (IndexError, RuntimeError, NodeFault) as error:
                if not isinstance(error, (IndexError, NodeFault)) and "index" not in str(error):
                    raise
                # A kernel that accesses memory outside its tensors makes the device unusable.
                self.sticky = codes.ILLEGAL_ADDRESS
                self._note_busy()
                raise CallRefused(codes.ILLEGAL_ADDRESS) from None

    def _before_node(self, node: RecordedNode) -> None:
        ending = self.faults.ending_of(node.name)
        if ending == "fault":
            raise NodeFault(node.name)
        if ending == "hang":
            raise NodeHangs
        if ending == "abort":
            address = node.written[0].data_ptr() + 512 * 1024 if node.written else 0
            os.write(2, ABORT_TEXT.format(address=address & ~0xFFF).encode())
            os.abort()

    def _liar(self, graph_exec: GraphExec) -> Callable[[int, RecordedNode], None] | None:
        wrong = [op for op, ending in self.faults.at_nodes.items() if ending == "wrong"]
        lies = [
            lie
            for lie in self.faults.wrong_replays
            if lie.graph in (None, graph_exec.index) and lie.replay in (0, graph_exec.launches)
        ]
        if not lies and not wrong:
            return None
        count = len(graph_exec.nodes)

        def corrupt(at: int, node: RecordedNode) -> None:
            added = sum(lie.add for lie in lies if at == lie.node % count)
            added += bool(wrong) and self.faults.ending_of(node.name) == "wrong"
            written = next((tensor for tensor in node.written if tensor.numel()), None)
            if added and written is not None:
                victim = written.as_strided((1,), (1,), written.storage_offset())
                victim.copy_(victim + added)

        return corrupt


def _turns_round(stream: Stream, above: tuple[Stream, ...]) -> bool:
    """Whether HIP, which ends each stream's capture after those of its forks, would come back to where it was."""
    return stream in above or any(_turns_round(fork, (*above, stream)) for fork in stream.forks)


def _about_others(call: str) -> str:
    """The name of the rule for ``call`` on a stream that is not capturing."""
    return f"{call}_other" if call in ("stream_synchronize", "stream_query") else call


def _wait_while(hangs: Callable[[], bool]) -> None:
    while hangs():
        time.sleep(0.05)
