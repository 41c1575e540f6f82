"""A profile's data as tables, and in Chrome's format for Perfetto. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def text(found: dict[str, Any], most: int = 12) -> str:
    """Tables of a profile's data: graphs, modules, lines, kernels."""
    if not found["graphs"]:
        return "no graph was replayed"
    lines = []
    for graph in found["graphs"]:
        off = "" if graph["agrees"] else ": more than a tenth off, so shares are worth more than times"
        lines += [
            f"{graph['name']}: {graph['ms']:.3f} ms a replay, {graph['n_replays']:,} replays",
            f"  {len(graph['nodes'])} nodes sum to {graph['sum_ms']:.3f} ms, {graph['gap_ms']:.3f} ms between them "
            f"({graph['how']}, {graph['overhead_ms']:.0f} ms to measure){off}",
        ]
    total = sum(ms for _, ms, _ in found["by_module"]) or 1.0
    for title, key in (("module", "by_module"), ("line", "by_where"), ("kernel", "by_kernel")):
        lines += ["", f"{'ms':>10}  {'share':>6}  {'nodes':>6}  {title}"]
        rows = found[key]
        lines += [f"{ms:>10.3f}  {100 * ms / total:>4.0f} %  {n:>6}  {name}" for name, ms, n in rows[:most]]
        if len(rows) > most:
            rest = rows[most:]
            ms, n = sum(row[1] for row in rest), sum(row[2] for row in rest)
            lines.append(f"{ms:>10.3f}  {100 * ms / total:>4.0f} %  {n:>6}  {len(rest)} more")
    return "\n".join(lines)


def chrome_trace(graphs: Sequence[dict[str, Any]]) -> dict[str, object]:
    """One replay of each graph as Chrome's trace events."""
    events: list[dict[str, Any]] = []
    for pid, graph in enumerate(graphs):
        events.append({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": graph["name"]}})
        at, spans = 0.0, list[tuple[list[str], float, float]]()
        for node in graph["nodes"]:
            us = node["ms"] * 1e3
            name = f"{Path(node['where']).name or node['op'] or node['kind']}"
            args = {key: node[key] for key in ("kernel", "op", "module", "where", "kind")}
            events.append(
                {"ph": "X", "pid": pid, "tid": 1, "ts": at, "dur": us, "name": name, "cat": "gpu", "args": args}
            )
            _spans(spans, node["module"].split(".") if node["module"] else [], at, at + us)
            at += us
        for path, begun, end in spans:
            place = {"pid": pid, "tid": 0, "ts": begun, "dur": end - begun}
            events.append({"ph": "X", **place, "name": ".".join(path), "cat": "module"})
        for tid, name in enumerate(("modules", "kernels, by line")):
            events.append({"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _spans(spans: list[tuple[list[str], float, float]], path: list[str], at: float, end: float) -> None:
    """Extend the spans of modules that still run, and begin those of new ones."""
    for depth in range(1, len(path) + 1):
        prefix = path[:depth]
        last = next((i for i in range(len(spans) - 1, -1, -1) if spans[i][0] == prefix), None)
        if last is not None and spans[last][2] == at:
            spans[last] = prefix, spans[last][1], end
        else:
            spans.append((prefix, at, end))
