"""The one line about a run: what was captured and replayed, and what to look at first. Torch-free."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

_ASKED = frozenset(-number for number in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)))
"""Ends that somebody wanted."""
_COUNTED = {f"{noun}_count": noun for noun in ("capture", "replay", "split", "fallback")}
_ZH = {"capture": "次捕获", "replay": "次重放", "split": "次切分", "fallback": "次回退", "process": "个进程"}
_NEXT = {
    "died": (
        "it ended with {how}: where a GPU is at fault, gfxgraph run --guard 2 names the graph, operation and line",
        "以 {how} 结束：若是 GPU 出错，gfxgraph run --guard 2 会指出图、操作和行号",
    ),
    "reported": ("it ended with {how}", "以 {how} 结束"),
    "unseen": ("no process used torch with gfxgraph on", "没有进程在 gfxgraph 启用时使用 torch"),
    "validation_failed": (
        "{n} replays differed from eager, whose results were used: gfxgraph doctor --why",
        "{n} 次重放与即时执行不同，已使用后者的结果：gfxgraph doctor --why",
    ),
    "fallback": ("first fallback{at}: {why}", "首次回退{at}：{why}"),
    "nothing": (
        "nothing was captured; gfxgraph.graphed(function) captures a function",
        "没有捕获任何图；gfxgraph.graphed(函数) 可捕获一个函数",
    ),
    "split": ("first split{at}: {why}", "首次切分{at}：{why}"),
    "page": (
        "; each of them, and what to write instead: --report FILE.html",
        "；逐一列出并说明如何改写：--report FILE.html",
    ),
    "fine": ("nothing to do", "无需处理"),
}


def told(
    status: int, rows: Sequence[dict[str, Any]], is_guarded: bool, is_chinese: bool, is_page: bool = False
) -> dict[str, Any]:
    """The line, with its parts.

    Args:
        status: how the program ended, as ``subprocess`` gives it.
        rows: ``stats()`` of each process.
        is_guarded: a fault has been reported already.
        is_page: it is shown where everything else is.
    """
    counts = {key: sum(row.get(key) or 0 for row in rows) for key in _COUNTED}
    first = _next(status, rows, is_guarded, is_chinese)
    if not is_page and (counts["split_count"] or counts["fallback_count"]) and status >= 0:
        first += _NEXT["page"][is_chinese]
    counted = ", ".join(_n(n, _COUNTED[key], is_chinese) for key, n in counts.items())
    of = f" ({_n(len(rows), 'process', is_chinese)})" if len(rows) > 1 else ""
    line = f"gfxgraph: {counted}{of}; {first}" if rows else f"gfxgraph: {first}"
    return {"status": status, "processes": len(rows), **counts, "next": first, "line": line}


def _n(n: int, noun: str, is_chinese: bool) -> str:
    plural = "es" if noun == "process" else "s"
    return f"{n:,} {_ZH[noun]}" if is_chinese else f"{n:,} {noun}{'' if n == 1 else plural}"


def _next(status: int, rows: Sequence[dict[str, Any]], is_guarded: bool, is_chinese: bool) -> str:
    """What to look at first."""
    total: Counter[str] = Counter()
    for row in rows:
        total.update({key: row.get(key) or 0 for key in ("capture_count", "validation_failures")})
    events = [event for row in rows for event in row.get("events") or ()]
    first = {event["kind"]: event for event in reversed(events)}
    kind = next((each for each in ("fallback", "split") if each in first), "")
    event = first.get(kind, {"where": "", "op": "", "reason": ""})
    if status < 0 and status not in _ASKED:
        key = "reported" if is_guarded else "died"
    elif not rows:
        key = "reported" if status else "unseen"
    elif total["validation_failures"]:
        key = "validation_failed"
    else:
        key = kind or ("fine" if total["capture_count"] else "nothing")
    at = f" {'位于' if is_chinese else 'at'} {event['where']}" if event["where"] else ""
    why = " ".join(f"{event['op']} {event['reason']}".split())
    return _NEXT[key][is_chinese].format(how=how_ended(status), n=total["validation_failures"], at=at, why=why)


def how_ended(status: int) -> str:
    """A status as ``subprocess`` gives it, in words."""
    with suppress(ValueError):
        return signal.Signals(-status).name
    return f"exit status {status}" if status >= 0 else f"signal {-status}"
