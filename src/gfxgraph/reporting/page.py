"""The report as one HTML page: no server, no network, no library; the data is embedded as JSON.

Names and lines are stored once and referenced by number, and runs of equal nodes are folded here, so that a graph of
thousands of nodes is a page of some hundred rows.
"""

from __future__ import annotations

import json
import linecache
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from gfxgraph import config
from gfxgraph import files as writer
from gfxgraph.process import calls
from gfxgraph.reporting import run_line
from gfxgraph.reporting.rewrites import in_chinese

N_SOURCES = 100
"""Most places of which the source text is shown."""
N_AXES = 8
"""Most graphs whose replay is drawn on a time axis."""
LONGEST_PERIOD = 512
"""Most nodes of one repeated layer."""


def html(processes: Sequence[dict[str, Any]], before: Sequence[dict[str, object]] = ()) -> str:
    """The page for the data from ``process_files.read``, the most replayed process first.

    Args:
        before: of another run, with which this one is compared.
    """
    strings = _Strings()
    ranked = sorted(processes, key=lambda table: -(table["stats"].get("replay_count") or 0))
    rows = [_process(table, strings) for table in ranked]
    if len(rows) > 1:
        rows.insert(0, _process(_summed(ranked), strings))
    data = {"lang": config.language_of(), "processes": rows, "strings": list(strings)}
    data["phrases"] = in_chinese()
    data["compared"] = _compared(before, processes) if before else []
    # Only the closing tag ends a script element, and "<" can be escaped in JSON.
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, default=str).replace("<", "\\u003c")
    return files("gfxgraph.reporting").joinpath("page.html").read_text(encoding="utf-8").replace("/*DATA*/", text)


def is_readable(process: dict[str, object]) -> bool:
    """Whether a page can be made from a file's data, which anybody may have written."""
    try:
        html([process]).encode()
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return False
    return True


def write_report(path: str | Path) -> None:
    """Write what this process has captured so far as one HTML page.

    Args:
        path: the file; an existing one is replaced.

    Raises:
        OSError: it cannot be written.
    """
    # lazily: a page from files needs no torch
    from gfxgraph.reporting import write_process_file

    made = json.loads(json.dumps(write_process_file.process_report(), default=str))
    writer.write(Path(path), html([made]))


class _Strings(dict[str, int]):
    """Numbers of texts, by text, in the order of the numbers."""

    def __call__(self, text: str) -> int:
        return self.setdefault(text, len(self))


def _process(table: dict[str, Any], strings: _Strings) -> dict[str, object]:
    inspection = table.get("inspection") or {"captures": [], "runtime": "", "left_out": 0}
    return {
        "pid": table["pid"],
        "argv": table["argv"],
        "cwd": table.get("cwd", ""),
        "platform": table.get("platform"),
        "date": time.strftime("%Y-%m-%d %H:%M", time.localtime(table["at"])),
        "line": {lang: _line(table, lang == "zh") for lang in ("en", "zh")},
        "stats": table["stats"],
        "reasons": _reasons(table["stats"]),
        "profile": _profile(table.get("profile")),
        "sources": {where: found for where in _places(table) if (found := _source(where))},
        "memory": table.get("memory"),
        "runtime": inspection.get("runtime", ""),
        "left_out": inspection.get("left_out", 0),
        "captures": [_capture(capture, strings) for capture in inspection["captures"]],
    }


def _summed(tables: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All processes as one, without the graphs of each."""
    stats: dict[str, object] = {}
    for key in run_line.COUNTED:
        stats[key] = sum(table["stats"].get(key) or 0 for table in tables)
    accounts = [each for table in tables for each in (table["stats"].get("calls") or {}).get("of", ())]
    stats["calls"] = calls.summed(accounts)
    stats["events"] = [event for table in tables for event in table["stats"].get("events") or ()]
    profiles = [table["profile"] for table in tables if table.get("profile")]
    return {
        **{key: tables[0].get(key) for key in ("cwd", "platform", "at")},
        "pid": 0,
        "argv": tables[0]["argv"],
        "stats": stats,
        "all": [table["stats"] for table in tables],
        "profile": max(profiles, key=lambda each: each["busy_ms"], default=None),
    }


def _compared(before: Sequence[dict[str, object]], now: Sequence[dict[str, object]]) -> list[list[Any]]:
    """Calls by way, and GPU milliseconds of a replay by module, of two runs: what, before, now."""
    runs = [_summed(run) for run in (before, now)]
    rows = [[way, *(run["stats"]["calls"][way] for run in runs)] for way in calls.WAYS]
    times = [_by_module(run["profile"]) for run in runs]
    names = sorted({*times[0], *times[1]}, key=lambda name: -max(each.get(name, 0.0) for each in times))
    return rows + [[name, *(round(each.get(name, 0.0), 4) for each in times)] for name in names[:N_SOURCES]]


def _by_module(profile: dict[str, Any] | None) -> dict[str, float]:
    found: dict[str, float] = {}
    for graph in (profile or {}).get("graphs", ()):
        for node in graph["nodes"]:
            found[node["module"] or "-"] = found.get(node["module"] or "-", 0.0) + node["ms"]
    return found


def _line(table: dict[str, Any], is_chinese: bool) -> str:
    told: str = run_line.summary(0, table.get("all") or [table["stats"]], False, is_chinese, True)["line"]
    timed = run_line.profiled([table["profile"]], is_chinese) if table.get("profile") else ""
    return f"{told}. {timed}" if timed else told


def _reasons(stats: dict[str, Any]) -> list[list[object]]:
    """Why calls did not run by one graph, the costliest first: way, calls, seconds, callable, reason, line."""
    account = stats.get("calls") or {"of": []}
    found = []
    n_warm = sum(table["eager"].get(calls.WARM_UP, 0) for table in account["of"])
    warm = [["eager", n_warm, None, "", calls.WARM_UP, ""]] if n_warm else []
    for way in ("raised", "eager", "in_pieces"):
        for table, why, n in run_line.ranked(account, way):
            if why == calls.WARM_UP:
                continue
            seconds = (table.get("seconds") or {}).get(why)
            found.append([way, n, seconds, table["name"], why, table["places"].get(why) or table["where"]])
    for table in account["of"]:
        found += [
            ["slow", n, None, table["name"], why, table["where"]] for why, n in (table.get("slow") or {}).items()
        ]
    return sorted(found, key=lambda row: (row[0] != "raised", -float(row[2] or 0.0), -int(row[1]))) + warm


def _profile(found: dict[str, Any] | None) -> dict[str, object] | None:
    """What the page draws of a profile: one step, modules as a tree, and each graph's nodes in order."""
    if not found or not found["graphs"]:
        return None
    tree: dict[str, Any] = {"name": "", "ms": 0.0, "parts": {}}
    for graph in found["graphs"]:
        for node in graph["nodes"]:
            ms, at = node["ms"] * max(1, graph["n_replays"]), tree
            at["ms"] += ms
            for part in [*(node["module"].split(".") if node["module"] else ["-"]), node["kernel"] or node["kind"]]:
                at = at["parts"].setdefault(part, {"name": part, "ms": 0.0, "parts": {}})
                at["ms"] += ms
    n_steps = max(graph["n_replays"] for graph in found["graphs"]) or 1
    axis = [
        {
            **{key: graph[key] for key in ("name", "ms", "gap_ms", "sum_ms", "agrees", "how", "n_replays")},
            "runs": _runs(graph["nodes"]),
        }
        for graph in found["graphs"][:N_AXES]
    ]
    tables = {key: found[key][:40] for key in ("by_module", "by_where", "by_kernel")}
    step_ms = 1e3 * found["seconds"] / n_steps
    return {"step_ms": step_ms, "busy_ms": found["busy_ms"] / n_steps, "tree": _listed(tree), "axis": axis, **tables}


def _runs(nodes: Sequence[dict[str, object]]) -> list[list[object]]:
    """Nodes in a row of one module as one: module, milliseconds, nodes."""
    found: list[list[Any]] = []
    for node in nodes:
        if found and found[-1][0] == node["module"]:
            found[-1][1] += node["ms"]
            found[-1][2] += 1
        else:
            found.append([node["module"], node["ms"], 1])
    return found


def _listed(tree: dict[str, Any]) -> list[object]:
    """A tree as nested lists: name, milliseconds, parts."""
    parts = sorted(tree["parts"].values(), key=lambda part: -part["ms"])
    return [tree["name"], tree["ms"], [_listed(part) for part in parts]]


def _places(table: dict[str, Any]) -> list[str]:
    """Where something ran outside a graph: each has its source text beside it."""
    steps = [step for capture in (table.get("inspection") or {}).get("captures", ()) for step in capture["steps"]]
    rows = [*(table["stats"].get("events") or ())[:N_SOURCES], *(step for step in steps if step["op"])]
    places = [str(row[5]) for row in _reasons(table["stats"])] + [str(row["where"]) for row in rows]
    return list(dict.fromkeys(places))[:N_SOURCES]


def _source(where: str) -> str:
    """A line of the program and those around it; "" where its file is not here."""
    file, _, line = where.rpartition(":")
    if not line.isdigit() or not file.endswith(".py"):
        return ""
    lines = {n: linecache.getline(file, n).rstrip()[:160] for n in range(max(1, int(line) - 1), int(line) + 2)}
    return "\n".join(f"{n:>5}{'>' if n == int(line) else ' '} {text}" for n, text in lines.items() if text)


def _capture(capture: dict[str, Any], strings: _Strings) -> dict[str, object]:
    steps = [_step(step, strings) for step in capture["steps"]]
    known = [step["driver_nbytes"] for step in capture["steps"] if step["driver_nbytes"] is not None]
    return {
        **{name: capture[name] for name in ("name", "where", "n_replays", "pool_nbytes")},
        "pool": str(capture["pool"]),
        "is_gone": capture.get("is_gone", False),
        "n_nodes": sum(step["n_nodes"] for step in capture["steps"]),
        "driver_nbytes": sum(known) if known else None,
        "externals": [_tensor(tensor) for tensor in capture["externals"]],
        "outputs": [_tensor(tensor) for tensor in capture["outputs"]],
        "steps": steps,
    }


def _tensor(tensor: dict[str, object]) -> list[object]:
    return [tensor["name"] or tensor["place"], tensor["layout"], tensor["nbytes"]]


def _step(step: dict[str, Any], strings: _Strings) -> dict[str, object]:
    nodes = step["nodes"]
    folds = folded([(n["kind"], n["kernel"], n["op"], n["where"]) for n in nodes])
    return {
        **{name: step[name] for name in ("kind", "op", "where", "why", "rewrite", "n_nodes")},
        "folds": [[fold.start, fold.period, fold.n_times] for fold in folds],
        "nodes": [_node(node, strings) for node in nodes],
    }


def _node(node: dict[str, Any], strings: _Strings) -> list[object]:
    after = list(node["after"])
    return [
        *(strings(node[name]) for name in ("kind", "name", "kernel", "op", "where")),
        *(node[name] for name in ("grid", "block", "shared_nbytes", "nbytes")),
        0 if after == [node["index"] - 1] else after,  # most nodes wait for the one before
        strings(node["defined_at"]),
        [[strings(t["role"]), strings(t["name"]), strings(t["layout"]), t["nbytes"]] for t in node["tensors"]],
    ]


# -- repeated layers: sixteen equal ones are one, sixteen times --------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fold:
    """Items ``start`` to ``start + period``, ``n_times`` in a row."""

    start: int
    period: int
    n_times: int

    @property
    def end(self) -> int:
        return self.start + self.period * self.n_times


def folded(items: Sequence[Hashable]) -> list[Fold]:
    """Cut ``items`` into repeating runs and single items, from the left, longest repetition first."""
    number: dict[Hashable, int] = {}
    tokens = [number.setdefault(item, len(number)) for item in items]
    found: list[Fold] = []
    at = 0
    while at < len(tokens):
        best = _best(tokens, at)
        found.append(best)
        at = best.end
    return found


def _best(tokens: list[int], at: int) -> Fold:
    best, covered = Fold(at, 1, 1), 0
    for period in range(1, min(LONGEST_PERIOD, (len(tokens) - at) // 2) + 1):
        if tokens[at] != tokens[at + period]:
            continue
        end = at
        while end + period < len(tokens) and tokens[end] == tokens[end + period]:
            end += 1
        n_times = (end - at) // period + 1
        # A few equal nodes in a row do not hide a layer: longer repetitions win, with their shortest period.
        if n_times > 1 and n_times * period > covered:
            best, covered = Fold(at, period, n_times), n_times * period
    return best
