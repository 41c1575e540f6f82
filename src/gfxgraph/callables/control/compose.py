"""Captured graphs joined into one launch.

    both = Composition({"encode": g1, "decode": g2, "log": g3}, after={"decode": ["encode"]})
    both.replay()                 # one launch; "log" may run beside the others
    both.update("decode", g4)     # another graph in its place; nothing is captured again

Each graph becomes a child node of a graph built through the driver; the edges are the declared dependencies.
Dependencies through memory are added, in the order in which the graphs were given: two graphs of one pool may use
each other's memory, and one may read what another writes. ``explain`` lists them.

One launch is not possible if a graph is more than its nodes: it was split at an unsafe operation,
it draws random numbers (torch prepares those before each replay), the first replays are still being
validated, or the runtime lacks child graphs or is known to crash with them. Then the graphs are replayed
one after another, in an order that fits the dependencies: the same results, more launches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

import torch

from gfxgraph.callables.captured import CapturedCallable
from gfxgraph.callables.graph_facts import draws, launched, overlap, reads_of, span, writes_of
from gfxgraph.capture import capture_lock
from gfxgraph.capture.replay.node_walk import raw_graph
from gfxgraph.capture.undo import unbroken
from gfxgraph.core.locks import new_lock
from gfxgraph.errors import CaptureError, DriverError
from gfxgraph.process import process

Edges = set[tuple[str, str]]

# Replay hooks came with torch 2.14; entering a context for each part costs as much as launching it.
HAS_HOOKS = hasattr(torch.cuda.graphs, "_global_replay_start_hooks")


class Composition(CapturedCallable):
    """Several captured graphs as one launch; nothing is launched when it is made.

    Args:
        graphs: captured ``torch.cuda.CUDAGraph`` objects by name, or in order (named "0", "1", ...).
        after: for each graph, those that must run before it. By default each runs after the one before.

    Raises:
        CaptureError: `compose_part`, for a graph without a capture, an unknown name, or
            circular dependencies.
    """

    says = "graphs are replayed one by one: "

    def __init__(
        self, graphs: Mapping[str, Any] | Sequence[Any], after: Mapping[Any, Iterable[Any]] | None = None
    ) -> None:
        named = graphs if isinstance(graphs, Mapping) else {str(i): graph for i, graph in enumerate(graphs)}
        parts = {str(name): graph for name, graph in named.items()}
        if not parts:
            raise CaptureError("compose_part", part="(none)", problem="no graph was given")
        for name, graph in parts.items():
            _check(name, graph)
        if after is None:
            edges = set(zip(parts, list(parts)[1:]))
        else:
            edges = {(str(before), str(name)) for name, those in after.items() for before in those}
        for each in (name for edge in edges for name in edge):
            if each not in parts:
                raise CaptureError("compose_part", part=each, problem=f"the parts are {', '.join(parts)}")
        _sorted(list(parts), edges)
        super().__init__("composed graphs")
        self._state = process.require()
        self._parts = parts
        self._declared = edges
        self._implied: dict[tuple[str, str], str] = {}
        self._exec: _Exec | None = None
        self._programs: list[Any] = []
        self._advances: bool | None = None
        self._lock = new_lock()
        self._look()

    # -- running --------------------------------------------------------------------------------------

    @unbroken
    def replay(self) -> None:
        """Replay every graph on the current stream, each after those it depends on."""
        with self._lock:
            made = self._exec if self._may_launch() else None
            if made is None:
                self._replay_one_by_one()
                return
            stream = torch.cuda.current_stream().cuda_stream
            try:
                if HAS_HOOKS:
                    with launched(self._parts.values()):
                        made.launch(stream)
                else:
                    made.launch(stream)
            except DriverError as error:
                self.fall_back("the launch of composed graphs failed", error)
                self._replay_one_by_one()
                return
            self._state.counters.add("replay")

    def update(self, name: str, graph: Any) -> None:
        """Replace one graph; the others stay as they are, and nothing is captured.

        Args:
            name: of the part.
            graph: a captured ``torch.cuda.CUDAGraph``.

        Raises:
            CaptureError: `compose_part`, for an unknown name or a graph without a capture.
        """
        with self._lock:
            if name not in self._parts:
                raise CaptureError("compose_part", part=name, problem=f"the parts are {', '.join(self._parts)}")
            parts = {**self._parts, name: graph}
            for each, part in parts.items():
                _check(each, part)
            self._parts = parts
            self.drop()
            self._look()

    def upload(self) -> None:
        """Upload what the launch needs to the device before the first one, if the runtime can."""
        with self._lock:
            driver: Any = self._state.driver
            if self._may_launch() and self._exec is not None and "upload" not in driver.missing:
                driver.upload(self._exec.handle, torch.cuda.current_stream().cuda_stream)

    # -- inspecting ------------------------------------------------------------------------------------

    @property
    def parts(self) -> list[str]:
        """Names of the graphs, in an order in which they may run."""
        return _sorted(list(self._parts), self.edges)

    @property
    def edges(self) -> Edges:
        """(before, after) pairs, declared and implied."""
        return self._declared | set(self._implied)

    @property
    def is_one_launch(self) -> bool:
        """True if the last replay was, or the next can be, a single launch."""
        return not self._why_for_good

    def explain(self) -> str:
        """What a replay does, and why."""
        how = "one launch" if self.is_one_launch else f"one launch each: {self._why_for_good}"
        lines = [f"{len(self._parts)} graphs, {how}"]
        for name in self.parts:
            before = [b for b, a in sorted(self.edges) if a == name]
            notes = [f"{b} ({self._implied[b, name]})" if (b, name) in self._implied else b for b in before]
            lines.append(f"  {name}" + (f" after {', '.join(notes)}" if notes else ""))
        return "\n".join(lines)

    # -- inside ---------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Find the edges that the present graphs imply, and whether one launch is possible."""
        self._implied = _implied(self._parts, self._declared)
        self._why_for_good = self._reason()

    def _reason(self) -> str:
        driver = self._state.driver
        if driver is None:
            return "the driver below torch could not be opened"
        lacks = {"add_child", "instantiate"} & set(driver.missing)
        if lacks:
            return f"the runtime has no {', '.join(sorted(lacks))}"
        decisions = self._state.decisions
        if decisions is not None and not decisions.child_graphs:
            return f"child graphs are known to fail on this system ({', '.join(decisions.because('child_graphs'))})"
        for name, graph in self._parts.items():
            if not graph.is_plain:
                return f"{name} was split at an operation that no graph can record"
            if draws(graph):
                return f"{name} draws random numbers, which torch prepares before each replay"
        return ""

    def _may_launch(self) -> bool:
        """True if one launch is possible; makes the exec."""
        if self._why_for_good or process.in_forked_child() or torch.cuda.is_current_stream_capturing():
            return False
        if self._exec is not None:
            if all(graph._program is made for graph, made in zip(self._parts.values(), self._programs)):
                return True
            # A part was reset or captured again: the exec would use freed memory.
            self.drop()
            if any(graph._program is None for graph in self._parts.values()):
                return False  # its own replay raises the error
            self._look()
            return self._may_launch()
        if any(graph._unvalidated > 0 for graph in self._parts.values()):
            return False
        if any(graph.is_opaque for graph in self._parts.values()) and self._advances is None:
            return False  # launches outside torch may draw; the coming replay shows it
        try:
            self._exec = _Exec(self._state.driver, self._parts, self.edges)
            self._programs = [graph._program for graph in self._parts.values()]
        except DriverError as error:
            self.fall_back("graphs could not be composed", error)
        return self._exec is not None

    def _replay_one_by_one(self) -> None:
        measures = self._advances is None and not torch.cuda.is_current_stream_capturing()
        programs = [graph._program for graph in self._parts.values() if graph._program is not None]
        generators = {id(g): g for program in programs for g in program.random_states()} if measures else {}
        before = [g.get_offset() for g in generators.values()] if measures else []
        for name in self.parts:
            self._parts[name].replay()
        if before:
            self._advances = before != [g.get_offset() for g in generators.values()]
            if self._advances and not self._why_for_good:
                self._why_for_good = (
                    "a launch outside torch draws random numbers, which torch prepares before each replay"
                )

    def drop(self) -> None:
        """Destroy the built graph; the next replay builds it anew."""
        made, self._exec = self._exec, None
        if made is not None:
            made.destroy()

    def __del__(self) -> None:
        made = getattr(self, "_exec", None)
        if made is not None and not capture_lock.keep_until_captures_end((self,)):
            self.drop()


class _Exec:
    """The built graph, instantiated."""

    def __init__(self, driver: Any, parts: Mapping[str, Any], edges: Edges) -> None:
        self.driver = driver
        nodes: dict[str, int] = {}
        # The nodes refer to the built graph, so it lives as long as the exec.
        self.graph = driver.create_graph()
        try:
            for name in _sorted(list(parts), edges):
                before = [nodes[b] for b, a in edges if a == name]
                nodes[name] = driver.add_child(self.graph, raw_graph(parts[name]), before)
            self.handle = driver.instantiate(self.graph)
        except DriverError:
            driver.destroy_graph(self.graph)
            raise

    def launch(self, stream: int) -> None:
        self.driver.launch(self.handle, stream)

    def destroy(self) -> None:
        for destroy, handle in ((self.driver.destroy_exec, self.handle), (self.driver.destroy_graph, self.graph)):
            try:
                destroy(handle)
            except DriverError as error:
                process.log.debug("while letting go of composed graphs: %s", error)


def _check(name: str, graph: Any) -> None:
    if getattr(graph, "_program", None) is None:
        problem = (
            "it has not been captured"
            if hasattr(graph, "_program")
            else f"it is a {type(graph).__name__} that gfxgraph did not make; enable gfxgraph before the capture"
        )
        raise CaptureError("compose_part", part=name, problem=problem)


def _implied(parts: Mapping[str, Any], declared: Edges) -> dict[tuple[str, str], str]:
    """Edges required by the graphs' memory, besides the declared ones, with the reason."""
    names = list(parts)
    writes, reads, pools = {}, {}, {}
    for name, graph in parts.items():
        program = graph._program
        writes[name] = [span(place) for place in (*writes_of(graph), *program.writes())]
        reads[name] = [span(place) for place in reads_of(graph)]
        pools[name] = graph.pool()
    found: dict[tuple[str, str], str] = {}
    edges = set(declared)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            if _reaches(edges, first, second) or _reaches(edges, second, first):
                continue
            if pools[first] == pools[second]:
                why = "they share a pool"
            elif parts[first].is_opaque or parts[second].is_opaque:
                why = "the memory that launches outside torch use is not known"
            elif overlap(writes[first], [*reads[second], *writes[second]]) or overlap(reads[first], writes[second]):
                why = "they use the same memory"
            else:
                continue
            found[first, second] = why
            edges.add((first, second))
    return found


def _reaches(edges: Edges, start: str, goal: str) -> bool:
    todo, seen = [start], {start}
    while todo:
        here = todo.pop()
        if here == goal:
            return True
        for before, after in edges:
            if before == here and after not in seen:
                seen.add(after)
                todo.append(after)
    return False


def _sorted(names: list[str], edges: Edges) -> list[str]:
    """The names in topological order."""
    try:
        return list(TopologicalSorter({name: [b for b, a in edges if a == name] for name in names}).static_order())
    except CycleError as error:
        circle = list(dict.fromkeys(error.args[1]))
        problem = f"{', '.join(circle)} depend on each other in a cycle"
        raise CaptureError("compose_part", part=circle[0], problem=problem) from None
