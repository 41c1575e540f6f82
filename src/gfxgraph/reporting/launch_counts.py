"""Coverage: the share of device launches made by graphs; what ran eagerly, at which line and why.

Problem: graphs that are silently off cost a factor of ten, and nothing shows it. Idea: replays and their nodes are
counted anyway; a dispatch mode counts the operations of one thread that launch something beside them, each as one
launch, by source line. It costs microseconds an operation, so it is there only where it was asked for.

Invariants: switched off, nothing is installed; a capture's operations are recorded, not launched, and not counted;
what gfxgraph itself launches to compare a replay with eager is in no share.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gfxgraph import callables
from gfxgraph.capture.record.modes import as_outside, enter_mode, leave_modes
from gfxgraph.capture.record.overloads import OPS, OpInfo, identity
from gfxgraph.capture.record.user_lines import user_frame
from gfxgraph.capture.undo import Undo
from gfxgraph.core.tape import where_of
from gfxgraph.process import process
from gfxgraph.reporting.coverage import Coverage, EagerLine
from gfxgraph.reporting.generated import Sources
from gfxgraph.reporting.rewrites import (
    FOR_A_CALL,
    INSIDE,
    NO_CAPTURE,
    NOT_REPLAYED,
    SPLIT,
    STAND_IN,
    rewrite,
    why_unsafe,
)

MOST_LINES = 200
_CALLABLES = f"{os.path.dirname(callables.__file__)}{os.sep}"
_NO_LAUNCH = frozenset(
    "aten::detach aten::alias aten::lift_fresh aten::_reshape_alias aten::as_strided aten::_unsafe_view aten::_conj "
    "aten::_neg_view aten::record_stream aten::is_pinned aten::size aten::stride".split()
)
_TRACED = frozenset({"FakeTensor", "FunctionalTensor"})
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


class EagerLaunches(TorchDispatchMode):
    """Counts one thread's eager launches while it is on that thread's stack of dispatch modes."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.is_open = False
        self.thread = threading.get_ident()
        self.cells: Counter[tuple[int, int, str, str, bool]] = Counter()
        """(code, instruction, operation, why, whether the call cannot be captured); the code by its identity."""
        self.codes: dict[int, Any] = {}
        self.before: Counter[tuple[int, int, str, str, bool]] | None = None
        """In a whole process, ``cells`` as the first replay began: what is launched no more is no part of a step."""
        self.is_whole = False
        self.recorded: set[tuple[int, int]] = set()
        """(code, instruction) of what captures recorded meanwhile."""
        self.in_graphs = self.checks = self.n_replays = self.n_elsewhere = 0
        self.validates = False
        """Whether the replay is compared with eager: its launches do not count as eager."""
        self.inside: Any = None
        """The graph being replayed: launches meanwhile replace its own."""
        self.nodes: dict[int, int] = {}
        self._undo = Undo()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def open(self) -> None:
        """Begin counting, in this thread."""
        state, undo = process.require(), self._undo
        leave_modes()
        self.thread, self.is_open = threading.get_ident(), True
        undo.note(_choose_paths)
        undo.note(partial(setattr, state, "watch", state.watch))
        state.watch = self
        _choose_paths()
        # Autograd's own threads have no dispatch modes.
        undo.note(partial(torch._C._set_multithreading_enabled, torch.autograd.is_multithreading_enabled()))
        torch._C._set_multithreading_enabled(False)
        self._watch_triton()
        undo.note(self._leave)
        enter_mode(self)

    def close(self) -> None:
        """Stop counting; call it in the same thread."""
        self._undo.take_back()
        self.is_open = False

    def _leave(self) -> None:
        process.leftover_modes().append(self)
        leave_modes()

    # -- launches -----------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.is_open or threading.get_ident() != self.thread:
            return func(*args, **kwargs) if kwargs else func(*args)
        if types and any(kind.__name__ in _TRACED for kind in types):  # a compiler is tracing: nothing is launched
            return func(*args, **(kwargs or {}))
        info = OPS.get(identity(func))
        if info is None:
            # Higher-order operators call back into this mode; prim::device and similar query a traced tensor.
            if not hasattr(func, "_schema") or func.namespace == "prim":
                return func(*args, **(kwargs or {}))
            info = OPS[identity(func)] = OpInfo(func)
        if info.is_composite:
            with self, as_outside():
                return info.func._op_dk(_COMPOSITE, *args, **(kwargs or {}))
        out = info.func(*args, **kwargs) if kwargs else info.func(*args)
        if not info.is_view and _launches(info, out, args):
            is_unsafe = info.unsafe is not None and bool(info.applies(args, kwargs or {}))  # type: ignore[misc]
            self._count(info.name, is_unsafe)
        return out

    def _count(self, op: str, is_unsafe: bool = False) -> None:
        if self.validates:
            self.checks += 1
            return
        caller = sys._getframe(2)
        frame = user_frame(caller)
        code, lasti = (frame.f_code, frame.f_lasti) if frame is not None else (None, -1)
        self.codes[identity(code)] = code
        if process.active_session() is not None:  # recorded, or the capture's own work
            self.recorded.add((identity(code), lasti))
            return
        why = FOR_A_CALL if caller.f_code.co_filename.startswith(_CALLABLES) else ""
        why = _why_inside(self.inside) if self.inside is not None else why
        self.cells[identity(code), lasti, op, why, is_unsafe] += 1

    def replaying(self, graph: Any, is_compared: bool = False) -> None:
        """Called before a graph is replayed; with ``is_compared``, it is compared with eager."""
        if threading.get_ident() != self.thread:
            self.n_elsewhere += 1
            return
        self.inside, self.validates = graph, is_compared
        if self.is_whole and self.before is None:
            self.before = Counter(self.cells)
        self.n_replays += 1
        if identity(graph) not in self.nodes:
            self.nodes[identity(graph)] = _n_nodes(graph)
        self.in_graphs += self.nodes[identity(graph)]

    def checking_begins(self) -> None:
        """Launches until ``replayed`` check memory around a replay."""
        self.validates = threading.get_ident() == self.thread

    def replayed(self) -> None:
        """That replay, or the check around it, is over."""
        self.inside, self.validates = None, False

    def _watch_triton(self) -> None:
        """Triton's launches bypass the dispatcher: they are counted where they are made."""
        for module, kind in (
            ("triton.runtime.jit", "JITFunction"),
            ("torch._inductor.runtime.triton_heuristics", "CachingAutotuner"),
        ):
            owner = getattr(sys.modules.get(module), kind, None)
            original = vars(owner).get("run") if owner is not None else None
            if owner is None or original is None:
                continue
            owner.run = self._counting(original)
            self._undo.note(partial(setattr, owner, "run", original))

    def _counting(self, original: Any) -> Any:
        def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            if self.is_open and threading.get_ident() == self.thread and not kwargs.get("warmup"):
                self._count(f"triton::{getattr(getattr(kernel, 'fn', None), '__name__', 'kernel')}")
            return original(kernel, *args, **kwargs)

        return run

    # -- results ------------------------------------------------------------------------------------

    def coverage(self) -> Coverage:
        """The counts so far."""
        state = process.current()
        events = state.counters.snapshot()["events"] if state is not None else []
        reasons = _reasons(events)
        known = self.recorded | {
            (identity(row[4]), row[5])
            for graph in (list(state.graphs) if state is not None else ())
            for segment in (graph._program.segments if graph._program is not None else ())
            for row in segment.tape.rows
            if len(row) > 4 and row[4] is not None
        }
        merged: dict[tuple[str, str, str], EagerLine] = {}
        sources, n_once, before = Sources(), 0, self.before or Counter()
        for cell, n in list(self.cells.items()):
            number, lasti, op, why, is_unsafe = cell
            if n == before[cell]:
                n_once += n
                continue
            where = sources.of(str(where_of(self.codes[number], lasti)))
            why = why or reasons.get((op, where)) or reasons.get(("", where)) or (why_unsafe(op) if is_unsafe else "")
            why = why or (NOT_REPLAYED if (number, lasti) in known else NO_CAPTURE)
            instead = rewrite(op) if is_unsafe else ""
            merged.setdefault((op, where, why), EagerLine(op, where, why, rewrite=instead)).n += n
        lines = sorted(merged.values(), key=lambda line: -line.n)
        downgrades = [
            f"{event['count']} x {event['reason']}"
            + (f" ({place})" if (place := event["op"] or event["where"]) else "")
            for event in events
            if event["kind"] in ("fallback", "engine_eager")
        ]
        n_eager = sum(line.n for line in lines)
        return Coverage(
            self.in_graphs,
            n_eager,
            self.n_replays,
            self.checks,
            self.n_elsewhere,
            lines[:MOST_LINES],
            downgrades,
            n_once,
        )


def _launches(info: OpInfo, out: Any, args: Any) -> bool:
    if info.name in _NO_LAUNCH or info.name.startswith(("aten::empty", "aten::new_empty")):
        return False
    if torch.Tag.inplace_view in info.func.tags:  # unsqueeze_, t_, resize_: only the tensor's sizes change
        return False
    if isinstance(out, Tensor):
        return out.is_cuda or any(isinstance(a, Tensor) and a.is_cuda for a in args)
    for item in (*(out if isinstance(out, (tuple, list)) else ()), *args):
        if isinstance(item, Tensor):
            if item.is_cuda:
                return True
        elif isinstance(item, (tuple, list)) and any(isinstance(part, Tensor) and part.is_cuda for part in item):
            return True
    return False


def _n_nodes(graph: Any) -> int:
    """Number of nodes that one replay launches in graphs."""
    program, state = graph._program, process.require()
    total = 0
    for segment in program.segments if program is not None else ():
        if segment.graph is None:
            continue
        if not segment.n_nodes and state.driver is not None:
            segment.n_nodes = state.driver.node_counter(int(state.base.raw_cuda_graph(segment.graph)))()
        total += segment.n_nodes
    return total


def _why_inside(graph: Any) -> str:
    """Why a replay launches eagerly: its tape runs, or it was split."""
    program = graph._program
    if program is None:
        return INSIDE
    for segment in program.segments:
        if segment.graph is None and segment.why_not is not None:
            return str(segment.why_not[0])
    hosts = [step for step in program.steps if step not in program.segments]
    return f"{SPLIT}: {hosts[0]}" if hosts else STAND_IN


def _reasons(events: list[dict[str, Any]]) -> dict[tuple[str, str], str]:
    """Why work at a line ran eagerly, from reported events: by operation and line, and by line."""
    found: dict[tuple[str, str], str] = {}
    for event in events:
        if event["kind"] in ("fallback", "split") and event["where"]:
            found[(event["op"], event["where"])] = event["reason"]
        if event["kind"] == "fallback" and event["where"]:  # applies to all work of the line
            found.setdefault(("", event["where"]), event["reason"])
    return found


_watching: EagerLaunches | None = None


def start() -> EagerLaunches:
    """Start watching this thread; repeated calls do nothing."""
    global _watching
    if _watching is None:
        _watching = EagerLaunches()
        _watching.is_whole = True
        _watching.open()
    return _watching


def stop() -> None:
    """Stop watching; call it in the watched thread."""
    global _watching
    if _watching is not None:
        _watching.close()
        leave_modes()  # where it was closed inside an operation it came back with its end
    _watching = None


def watching() -> EagerLaunches | None:
    """This process's counter; None if coverage is off."""
    return _watching


class CoverageBlock:
    """``with gfxgraph.coverage() as seen``: every launch of this thread inside the block is counted."""

    def __init__(self) -> None:
        self._watch = EagerLaunches()

    def __enter__(self) -> CoverageBlock:
        self._watch.open()
        return self

    def __exit__(self, *error: Any) -> None:
        self._watch.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.seen, name)

    @property
    def seen(self) -> Coverage:
        """The counts so far."""
        return self._watch.coverage()

    def __str__(self) -> str:
        return str(self.seen)


def coverage() -> Any:
    """How much of the device's work graphs do.

    With ``GFXGRAPH_COVERAGE`` (``gfxgraph run --coverage``) the whole process is watched. Elsewhere use it as a
    block, ``with gfxgraph.coverage() as seen: ...; print(seen)``.

    Returns:
        A ``Coverage`` of what was counted so far, in a watched process; else the block.
    """
    return _watching.coverage() if _watching is not None else CoverageBlock()


def _shield_from_dynamo(mode: Any) -> None:
    """As for the recorder: marked to be skipped in place of torch's wrapper, which also imports Dynamo."""
    plain = getattr(mode.__torch_dispatch__, "__wrapped__", None)
    frames = torch._C._dynamo.eval_frame
    if plain is None or not hasattr(frames, "set_code_exec_strategy"):
        return
    skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
    frames.set_code_exec_strategy(plain.__code__, skip)
    mode.__torch_dispatch__ = plain


_shield_from_dynamo(EagerLaunches)


def _choose_paths() -> None:
    state = process.current()
    for graph in list(state.graphs) if state is not None else ():
        graph._choose_path()
