"""What captures and counters show about eager launches: covered lines, nodes of an operation, why it ran eagerly."""

from __future__ import annotations

from collections import Counter
from typing import Any

from gfxgraph.capture.overloads import identity
from gfxgraph.capture.walk import raw_graph, working_nodes
from gfxgraph.core.tape import Entry
from gfxgraph.guard.nodes import owners_of
from gfxgraph.process import process
from gfxgraph.reporting.rewrites import (
    INSIDE,
    SPLIT,
    STAND_IN,
)

MOST_GRAPHS = 64


class Captured:
    """What captures show about eager launches: which lines they cover, and how many launches an operation makes."""

    def __init__(self) -> None:
        self.codes: dict[int, Any] = {}
        """By identity, and kept alive, so that no other code object gets the same id."""
        self.places: set[tuple[int, int]] = set()
        """(code, instruction) of every operation that was recorded."""
        self.n_nodes: Counter[str] = Counter()
        self.n_entries: Counter[str] = Counter()
        self.n_graphs = 0

    def add(self, graph: Any) -> None:
        program = graph._program
        if program is None or self.n_graphs >= MOST_GRAPHS:
            return
        self.n_graphs += 1
        for segment in program.segments:
            for row in segment.tape.rows:
                if len(row) > 4 and row[4] is not None:
                    self.codes[identity(row[4])] = row[4]
                    self.places.add((identity(row[4]), row[5]))
            self._count_nodes(segment)

    def _count_nodes(self, segment: Any) -> None:
        state = process.current()
        driver = state.driver if state is not None else None
        if driver is None or segment.graph is None or not segment.tape.rows:
            return
        handle = raw_graph(segment.graph)
        kinds = {node: driver.node_kind(node) for node in driver.nodes(handle)}
        owners = owners_of(segment.tape, list(kinds), handle)
        working = set(working_nodes(kinds))
        self.n_nodes.update(
            owner.name for node, owner in owners.items() if node in working and isinstance(owner, Entry)
        )
        made = {id(owner) for owner in owners.values()}
        self.n_entries.update(entry.name for entry in segment.tape.entries if id(entry) in made)

    def with_those_of(self, state: process.Process | None) -> Captured:
        """These, plus the graphs that exist now."""
        made = Captured()
        made.codes, made.places = dict(self.codes), set(self.places)
        made.n_nodes, made.n_entries = Counter(self.n_nodes), Counter(self.n_entries)
        for graph in list(state.graphs) if state is not None else ():
            made.add(graph)
        return made

    def launches_of(self, op: str) -> float:
        """How many nodes the operation made, on average; 1 if no capture contains it."""
        return self.n_nodes[op] / self.n_entries[op] if self.n_nodes[op] else 1.0


def n_nodes(graph: Any) -> int:
    """Number of nodes that one replay launches in graphs."""
    program = graph._program
    state = process.current()
    total = 0
    for segment in program.segments if program is not None else ():
        if segment.graph is None:
            continue
        if not segment.n_nodes and state is not None and state.driver is not None:
            segment.n_nodes = state.driver.node_counter(int(state.base.raw_cuda_graph(segment.graph)))()
        total += segment.n_nodes
    return total


def why_inside(graph: Any) -> str:
    """Why a replay launches eagerly: its tape runs, or it was split."""
    program = graph._program
    if program is None:
        return INSIDE
    for segment in program.segments:
        if segment.graph is None and segment.why_not is not None:
            return str(segment.why_not[0])
    hosts = [step for step in program.steps if step not in program.segments]
    return f"{SPLIT}: {hosts[0]}" if hosts else STAND_IN


def reasons() -> dict[tuple[str, str], str]:
    """Why work at a line ran eagerly, from reported events: by operation and line, and by line."""
    state = process.current()
    found: dict[tuple[str, str], str] = {}
    for event in state.counters.snapshot()["events"] if state is not None else ():
        if event["kind"] in ("fallback", "split") and event["where"]:
            found[(event["op"], event["where"])] = event["reason"]
        if event["kind"] == "fallback" and event["where"]:  # applies to all work of the line
            found.setdefault(("", event["where"]), event["reason"])
    return found


def downgrades() -> list[str]:
    state = process.current()
    events = state.counters.snapshot()["events"] if state is not None else []
    return [
        f"{event['count']} x {event['reason']}" + (f" ({place})" if (place := event["op"] or event["where"]) else "")
        for event in events
        if event["kind"] in ("fallback", "engine_eager")
    ]
