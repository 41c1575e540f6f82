"""Coverage: the share of device launches, and of wall time, made by graphs; what ran eagerly, and why.

Problem: graphs that are silently off cost a factor of ten, and nothing shows it. Counting each eager launch needs
code at each launch: a dispatch mode costs microseconds per operation, a profiler more, and on ROCm profilers miss
the kernels of replays. Idea: replays and their nodes are counted anyway; eager operations are counted in windows of
some 50 ms, opened rarely enough to cost less than 1 % of the time (``Sampler``), or all of the time if the
count must be exact. Within a window replays leave their fast path, so both kinds are timed by the same clock.

Wall time belongs to the latest work given to the device: from a replay until the next eager launch to the graphs,
from
an eager launch until the next replay to that launch's line. A wait in between belongs to the work waited for.

Invariants: switched off, nothing is installed; a window opens and closes in the watched thread, between two bytecodes
(``Py_AddPendingCall``), never inside an operation; a capture's operations are recorded, not launched,
and not counted.

Source: docs/decisions/0153.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gfxgraph import callables
from gfxgraph.capture import above
from gfxgraph.capture.autocasting import as_outside
from gfxgraph.capture.holdings import settle
from gfxgraph.capture.modes import enter_mode, leave_modes
from gfxgraph.capture.overloads import OPS, OpInfo, identity
from gfxgraph.capture.places import user_frame
from gfxgraph.core.tape import where_of
from gfxgraph.process import bridge, process
from gfxgraph.reporting import captured
from gfxgraph.reporting.captured import Captured
from gfxgraph.reporting.coverage import Coverage, EagerLine, as_families
from gfxgraph.reporting.generated import Sources
from gfxgraph.reporting.launches import LaunchCounts, learnt
from gfxgraph.reporting.memory import memory_families
from gfxgraph.reporting.rewrites import (
    FOR_A_CALL,
    NO_CAPTURE,
    NOT_REPLAYED,
    rewrite,
    why_unsafe,
)
from gfxgraph.reporting.sampler import Sampler

MOST_LINES = 200

_clock = time.perf_counter
_CALLABLES = f"{os.path.dirname(callables.__file__)}{os.sep}"
_NO_LAUNCH = frozenset(
    "aten::detach aten::alias aten::lift_fresh aten::_reshape_alias aten::as_strided aten::_unsafe_view aten::_conj "
    "aten::_neg_view aten::record_stream aten::is_pinned aten::size aten::stride".split()
)
_WAITS = frozenset({"aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::nonzero"})
_TRACED = frozenset({"FakeTensor", "FunctionalTensor"})
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


class EagerLaunches(TorchDispatchMode):
    """Counts one thread's eager launches while it is on that thread's stack of dispatch modes."""

    supports_higher_order_operators = True

    def __init__(self, is_exact: bool) -> None:
        super().__init__()
        self.is_exact = is_exact
        self.paused = True
        self.is_held = False
        """The sampler may not open or close a window now."""
        self.thread = threading.get_ident()
        self.began = _clock()
        self.cells: dict[tuple[int, int, str, str, bool], list[float]] = {}
        """(code, instruction, operation, why, whether the call cannot be captured) -> [calls with unknown launches,
        seconds, launches of the others]; by identity of the code, because a hash reads all of it.
        """
        self.codes: dict[int, Any] = {}
        self.launches = LaunchCounts() if is_exact else None
        self.in_graphs = [0.0, 0.0]
        self.capturing = [0.0, 0.0]
        self.checks = [0.0, 0.0]
        self.before_replays_s = 0.0
        """Seconds of eager launches before the first replay, which belong to no step."""
        self.replays: Counter[int] = Counter()
        self.n_elsewhere = 0
        self.cell = [0.0, 0.0]  # time before the first launch is not attributed
        self.last = 0.0
        self.own_s = self.watched_s = 0.0
        self.n_seen = 0
        """Operations seen here, each at the cost of the dispatch mode (``way_s``)."""
        self.n_windows = 0
        self.opened = 0.0
        self.validates = False
        """Whether the replay is compared with eager: its launches do not count as eager."""
        self.inside: Any = None
        """The graph being replayed: launches meanwhile replace its own."""
        self.nodes: dict[int, int] = {}
        self._undo: list[Callable[[], None]] = []
        self._multithreading: bool | None = None
        self._is_entered = False
        """An entry of this mode is on the thread's stack, or will be once the operation underway ends."""
        self.gone = Captured()
        """What is known from graphs destroyed since counting began."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    # -- windows ----------------------------------------------------------------------------------

    def open(self) -> None:
        """Begin counting; call it in the watched thread."""
        state = process.current()
        if not self.paused or state is None:
            return
        leave_modes()
        self.paused = False
        if self.gone.add not in above.leaving:
            above.leaving.append(self.gone.add)
        self.thread = threading.get_ident()
        way_s()  # measured before the first window, not in one
        self.n_windows += 1
        self.opened = self.last = _clock()
        self.cell = [0.0, 0.0]
        self.inside, self.validates = None, False
        state.watch = self
        for graph in list(state.graphs):
            graph._choose_path()
        self._multithreading = torch.autograd.is_multithreading_enabled()
        torch._C._set_multithreading_enabled(False)  # autograd's own threads have no dispatch modes
        self._watch_triton()
        self._is_entered = True
        enter_mode(self)

    def close(self) -> None:
        """Stop counting; call it in the same thread."""
        if self.paused:
            return
        now = _clock()
        self.cell[1] += now - self.last
        self.watched_s += now - self.opened
        self.last = self.opened = now
        settle([self._leave])
        self.paused = True  # last: a close that was struck is done again

    def _leave(self) -> None:
        while self._undo:
            self._undo[-1]()
            self._undo.pop()
        if self._multithreading is not None:
            torch._C._set_multithreading_enabled(self._multithreading)
            self._multithreading = None
        if (
            self._is_entered
        ):  # each entry is taken off once: inside an operation, a window may close and the next open
            process.leftover_modes().append(self)
            self._is_entered = False
        leave_modes()
        state = process.current()
        if state is not None:
            state.watch = None
            for graph in list(state.graphs):
                graph._choose_path()

    def beside(self, call: Callable[..., None], *args: object) -> None:
        """Make a call that saves or restores the thread's dispatch keys while no window is open.

        Else the keys of a window's mode would come back after it was closed, or go while it is open.
        """
        if threading.get_ident() != self.thread:
            call(*args)
            return
        is_open = False
        try:
            self.is_held = True
            is_open = not self.paused
            self.close()
            call(*args)
        finally:
            if is_open:
                self.open()
                self.n_windows -= 1
            self.is_held = False

    def forget(self) -> None:
        """Unregister from graphs."""
        if self.gone.add in above.leaving:
            above.leaving.remove(self.gone.add)

    @property
    def cost_s(self) -> float:
        """Seconds that watching took: the work here, and the path here from the dispatcher."""
        return self.own_s + self.n_seen * way_s()

    @property
    def has_seen(self) -> bool:
        """True once an operation or a replay came in a window."""
        return bool(self.n_seen or self.replays)

    # -- launches -----------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.paused or threading.get_ident() != self.thread:
            return func(*args, **kwargs) if kwargs else func(*args)
        if types and any(kind.__name__ in _TRACED for kind in types):  # a compiler is tracing: nothing is launched
            return func(*args, **(kwargs or {}))
        self.n_seen += 1
        info = OPS.get(identity(func))
        if info is None:
            # Higher-order operators call back into this mode; prim::device and similar query a traced tensor.
            if not hasattr(func, "_schema") or func.namespace == "prim":
                return func(*args, **(kwargs or {}))
            info = OPS[identity(func)] = OpInfo(func)
        if info.is_composite:
            with self, as_outside():
                return info.func._op_dk(_COMPOSITE, *args, **(kwargs or {}))
        began = _clock()
        out = info.func(*args, **kwargs) if kwargs else info.func(*args)
        ended = _clock()
        if info.launches_nothing or not _launches(info, out, args):
            return out
        if process.active_session() is not None:  # recorded, or the capture's own work
            self._give(began, self.capturing)
        elif self.validates:
            self._give(began, self.checks)
            self.checks[0] += 1
        elif info.name in _WAITS:
            self._count(info.name, is_unsafe=True)[0] += 1  # its time is that of what it waits for
        else:
            is_unsafe = info.unsafe is not None and bool(info.applies(args, kwargs or {}))  # type: ignore[misc]
            cell = self._count(info.name, is_unsafe)
            self._give(began, cell)
            n = self.launches.of(info, args, kwargs) if self.launches is not None else None
            cell[0 if n is None else 2] += n or 1
            self.last += _clock() - ended  # the time taken by measuring is not attributed
        self.own_s += _clock() - ended
        return out

    def _give(self, now: float, cell: list[float]) -> None:
        """Attribute the time since the last launch to that launch; from now on time goes to ``cell``."""
        self.cell[1] += now - self.last
        self.cell, self.last = cell, now

    def _count(self, op: str, is_unsafe: bool = False) -> list[float]:
        caller = sys._getframe(2)
        frame = user_frame(caller)
        code, lasti = (frame.f_code, frame.f_lasti) if frame is not None else (None, -1)
        if self.inside is not None:
            why = captured.why_inside(self.inside)
        else:
            why = FOR_A_CALL if caller.f_code.co_filename.startswith(_CALLABLES) else ""
        key = (identity(code), lasti, op, why, is_unsafe)
        cell = self.cells.get(key)
        if cell is None:
            self.codes[key[0]] = code
            cell = self.cells[key] = [0, 0.0, 0]
        return cell

    def replaying(self, graph: Any, is_compared: bool = False) -> None:
        """Called before a graph is replayed; with ``is_compared``, it is compared with eager."""
        if threading.get_ident() != self.thread:
            self.n_elsewhere += 1
            return
        self.inside, self.validates = graph, is_compared
        now = _clock()
        self._give(now, self.in_graphs)
        number = identity(graph)
        if not self.replays:
            self.before_replays_s = sum(cell[1] for cell in self.cells.values())
        self.replays[number] += 1
        n = self.nodes.get(number)
        if n is None:
            n = self.nodes[number] = captured.n_nodes(graph)
        self.in_graphs[0] += n
        self.own_s += _clock() - now

    def checking_begins(self) -> None:
        """Launches until ``replayed`` check memory around a replay."""
        self.validates = threading.get_ident() == self.thread

    def replayed(self) -> None:
        """That replay, or the check around it, is over."""
        self.inside, self.validates = None, False

    def _watch_triton(self) -> None:
        """Triton's launches bypass the dispatcher: while a window is open they are counted where they are made."""
        for module, kind in (
            ("triton.runtime.jit", "JITFunction"),
            ("torch._inductor.runtime.triton_heuristics", "CachingAutotuner"),
        ):
            owner = getattr(sys.modules.get(module), kind, None)
            original = vars(owner).get("run") if owner is not None else None
            if owner is None or original is None:
                continue
            owner.run = self._counting(original)
            self._undo.append(partial(setattr, owner, "run", original))

    def _counting(self, original: Any) -> Any:
        def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.paused and threading.get_ident() == self.thread and not kwargs.get("warmup"):
                began = _clock()
                if process.active_session() is not None:
                    self._give(began, self.capturing)
                else:
                    fn = getattr(kernel, "fn", None)
                    cell = self._count(f"triton::{getattr(fn, '__name__', 'kernel')}")
                    self._give(began, cell)
                    cell[0] += 1
                self.own_s += _clock() - began
            return original(kernel, *args, **kwargs)

        return run

    # -- results ------------------------------------------------------------------------------------

    def coverage(self) -> Coverage:
        """The counts so far."""
        now = _clock()
        open_s = 0.0 if self.paused else now - self.opened
        pending = 0.0 if self.paused else now - self.last
        reasons = captured.reasons()
        merged: dict[tuple[str, str, str], EagerLine] = {}
        sources = Sources()
        known = self.gone.with_those_of(process.current())
        for (number, lasti, op, why, is_unsafe), cell in list(self.cells.items()):
            where = sources.of(str(where_of(self.codes[number], lasti)))
            why = why or reasons.get((op, where)) or reasons.get(("", where)) or (why_unsafe(op) if is_unsafe else "")
            why = why or (NOT_REPLAYED if (number, lasti) in known.places else NO_CAPTURE)
            line = merged.setdefault(
                (op, where, why), EagerLine(op, where, why, rewrite=rewrite(op) if is_unsafe else "")
            )
            n_each = known.launches_of(op)
            if not self.is_exact and op in learnt and not known.n_nodes[op]:
                n_each = float(learnt[op])
            line.n += round(cell[0] * n_each + cell[2])
            line.seconds += cell[1] + (pending if cell is self.cell else 0.0)
        lines = sorted(merged.values(), key=lambda line: (-line.seconds, -line.n))
        return Coverage(
            graph_launches=int(self.in_graphs[0]),
            eager_launches=sum(line.n for line in lines),
            n_replays=sum(self.replays.values()),
            n_steps=max(self.replays.values(), default=0),
            seconds_in_graphs=self.in_graphs[1] + (pending if self.cell is self.in_graphs else 0.0),
            seconds_eager=sum(line.seconds for line in lines),
            seconds_before_replays=self.before_replays_s,
            seconds_capturing=self.capturing[1],
            validation_launches=int(self.checks[0]),
            seconds=self.watched_s + open_s,
            elapsed=now - self.began,
            own_seconds=self.cost_s,
            n_windows=self.n_windows,
            is_exact=self.is_exact,
            n_elsewhere=self.n_elsewhere,
            lines=lines[:MOST_LINES],
            downgrades=captured.downgrades(),
        )

    def families(self) -> process.Samples:
        """The same for Prometheus: (name, kind, help, samples)."""
        return as_families(self.coverage()) + memory_families(process.current())

    def __str__(self) -> str:
        return str(self.coverage())


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


class _PassOn(TorchDispatchMode):
    """A mode that only passes calls on, to measure what a mode costs."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@lru_cache(maxsize=1)
def way_s() -> float:
    """The additional time of an operation under a dispatch mode that does nothing, in seconds; the minimum of several
    tries.
    """
    x, n, tries = torch.empty(0), 32, []
    for _ in range(4):
        began = _clock()
        for _ in range(n):
            x.detach()
        between = _clock()
        with _PassOn():
            for _ in range(n):
                x.detach()
        tries.append((_clock() - between) - (between - began))
    return max(0.0, min(tries) / n)


_watching: EagerLaunches | None = None
_sampler: Sampler | None = None


def start(is_exact: bool) -> EagerLaunches:
    """Start watching this process's main thread (sampled) or this thread (exact); repeated calls do nothing."""
    global _watching, _sampler
    if _watching is None:
        _watching = EagerLaunches(is_exact)
        state = process.require()
        state.coverage = _watching.families
        if is_exact:
            _watching.open()
        else:
            _keep_windows_out_of_guards()
            _sampler = Sampler(_watching)
            _sampler.start()
    return _watching


def _keep_windows_out_of_guards() -> None:
    """Take windows out of the way of ``torch.inference_mode``, whose guard keeps the keys that it found."""
    enter, leave = torch.inference_mode.__enter__, torch.inference_mode.__exit__
    if enter.__module__ == __name__:
        return

    def __enter__(self: torch.inference_mode) -> None:
        _watching.beside(enter, self) if _watching is not None else enter(self)

    def __exit__(self: torch.inference_mode, *args: object) -> None:
        _watching.beside(leave, self, *args) if _watching is not None else leave(self, *args)

    bridge.replace(torch.inference_mode, "__enter__", __enter__)
    bridge.replace(torch.inference_mode, "__exit__", __exit__)


def stop() -> None:
    """Stop watching; call it in the watched thread."""
    global _watching, _sampler
    if _sampler is not None:
        _sampler.stop()
    if _watching is not None:
        _watching.close()
        _watching.forget()
        leave_modes()  # a window that was closed inside an operation came back with its end
    state = process.current()
    if state is not None:
        state.coverage = None
    _watching = _sampler = None


def watching() -> EagerLaunches | None:
    """This process's counter; None if coverage is off."""
    return _watching


class CoverageBlock:
    """``with gfxgraph.coverage() as seen``: every launch of this thread inside the block is counted."""

    def __init__(self) -> None:
        self._watch = EagerLaunches(is_exact=True)
        self._outer: Any = None

    def __enter__(self) -> CoverageBlock:
        state = process.require()
        self._outer = state.watch
        if self._outer is not None:
            self._outer.close()
        self._watch.began = _clock()
        self._watch.open()
        return self

    def __exit__(self, *error: Any) -> None:
        self._watch.close()
        self._watch.forget()
        if self._outer is not None and self._outer.is_exact:
            self._outer.open()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.seen, name)

    @property
    def seen(self) -> Coverage:
        """The counts so far: of this block, or of the whole process if that is watched."""
        return self._watch.coverage()

    def __str__(self) -> str:
        return str(self.seen)


def coverage() -> Any:
    """How much of the device's work graphs do.

    With ``GFXGRAPH_COVERAGE`` (``gfxgraph run --coverage``) the whole process is watched. Elsewhere use it as a
    block, ``with gfxgraph.coverage() as seen: ...; print(seen)``, in which every launch is counted, at some
    microseconds each.

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
_shield_from_dynamo(_PassOn)
