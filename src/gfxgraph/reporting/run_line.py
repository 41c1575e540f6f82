"""The line with which a run ends, and its page begins: how every call ran, and what to look at first. Torch-free.

It reads the account of calls (process/calls.py) of each process and sums them.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from gfxgraph.process.calls import WARM_UP, WAYS, summed

_ASKED = frozenset(-number for number in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)))
"""Ends that somebody wanted."""
COUNTED = ("capture_count", "replay_count", "split_count", "fallback_count")
LONGEST_REASON = 100
MOST_PARTS = 3
"""Modules whose time is shown in the line."""
MOST_REASONS = 2
"""Reasons shown in the line; the others are counted."""
_TEXT = {
    "calls": (
        "{by_graph:,} of {all:,} calls by graph ({share})",
        "{all:,} 次调用中 {by_graph:,} 次由图执行（{share}）",
    ),
    "in_pieces": (", {n:,} in pieces{parts}: {why}", "，{n:,} 次分段执行{parts}：{why}"),
    "parts": (" ({0:,} of {1:,} operations in graphs)", "（{1:,} 个算子中 {0:,} 个在图中）"),
    "eager": (", {n:,} eager: {why}", "，{n:,} 次即时执行：{why}"),
    "raised": ("; {n:,} {why}{at}", "；{n:,} 次 {why}{at}"),
    "slow": ("; {n:,} took the slow way: {why}", "；{n:,} 次走慢路径：{why}"),
    "followed": (
        "{n:,} reload{s} followed ({tensors:,} tensors copied into the graphs' memory, {mib:,.0f} MiB kept)",
        "跟随了 {n:,} 次重新加载（{tensors:,} 个张量复制到图的内存，另占 {mib:,.0f} MiB）",
    ),
    "at": (" at {0}", "，位于 {0}"),
    "more": ("{0:,} more reasons ({1:,})", "另 {0:,} 种原因（{1:,}）"),
    "of": (" ({0:,} processes)", "（{0:,} 个进程）"),
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
    "held": ("{n:,} inputs may be stale: {why}{at}", "{n:,} 个输入可能已过时：{why}{at}"),
    "unused": ("{n:,} captured, none replayed", "捕获了 {n:,} 个图，均未重放"),
    "nothing": (
        "nothing was captured; gfxgraph.graphed(function) captures a function",
        "没有捕获任何图；gfxgraph.graphed(函数) 可捕获一个函数",
    ),
    "page": (
        "; each of them, and what to write instead: --report FILE.html",
        "；逐一列出并说明如何改写：--report FILE.html",
    ),
    "fine": ("nothing to do", "无需处理"),
    "step": (
        "step {0:.1f} ms, GPU busy in graphs {1:.0f} %: {2}, gaps {3:.1f} ms",
        "每步 {0:.1f} 毫秒，GPU 在图中忙碌 {1:.0f} %：{2}，空隙 {3:.1f} 毫秒",
    ),
    "rough": (" (the nodes' sum is more than a tenth off)", "（各节点之和偏差超过十分之一）"),
}


def summary(
    status: int, rows: Sequence[dict[str, Any]], is_guarded: bool, is_chinese: bool, is_page: bool = False
) -> dict[str, Any]:
    """The line, with its parts.

    Args:
        status: how the program ended, as ``subprocess`` gives it.
        rows: ``stats()`` of each process.
        is_guarded: a fault has been reported already.
        is_page: it is shown where everything else is, or beside the name of that file.
    """
    account = summed(table for row in rows for table in (row.get("calls") or {}).get("of", ()))
    counts = {key: sum(row.get(key) or 0 for row in rows) for key in COUNTED}
    first, is_fine = _next(status, rows, account, is_guarded, is_chinese)
    calls = _calls(account, is_chinese)
    parts = [part for part in (calls, _followed(rows, is_chinese), first) if part]
    line = "; ".join(parts) + (_text("of", is_chinese).format(len(rows)) if len(rows) > 1 else "")
    if not is_page and not is_fine and rows and status >= 0 and calls:
        line += _text("page", is_chinese)
    shown = {way: account[way] for way in WAYS}
    return {
        "status": status,
        "processes": len(rows),
        **counts,
        "calls": shown,
        "next": first,
        "line": f"gfxgraph: {line}",
    }


def _text(key: str, is_chinese: bool) -> str:
    return _TEXT[key][is_chinese]


def _calls(account: dict[str, Any], is_chinese: bool) -> str:
    """How the calls ran; "" if there were none."""
    total = sum(account[way] for way in WAYS)
    if not total:
        return ""
    share = f"{100 * account['by_graph'] // total} %"
    text = _text("calls", is_chinese).format(by_graph=account["by_graph"], all=total, share=share)
    for way in ("in_pieces", "eager"):
        if account[way]:
            n, of = (sum(table["operations"][i] for table in account["of"]) for i in (0, 1))
            parts = _text("parts", is_chinese).format(n, of) if way == "in_pieces" and of else ""
            why = ", ".join(_reasons(account, way, is_chinese))
            text += _text(way, is_chinese).format(n=account[way], parts=parts, why=why)
    for why, n, where in _raised(account):
        at = _text("at", is_chinese).format(where) if where else ""
        text += _text("raised", is_chinese).format(n=n, why=why, at=at)
    slow = [
        (table["name"], why, n) for table in account["of"] for why, n in (table.get("slow") or {}).items() if n > 1
    ]
    if slow:
        name, why, n = max(slow, key=lambda each: each[2])
        text += _text("slow", is_chinese).format(n=sum(n for _, _, n in slow), why=f"{name}, {why}")
    return text


def _followed(rows: Sequence[dict[str, Any]], is_chinese: bool) -> str:
    """What graphs were given of what the program replaced; "" if nothing."""
    n, tensors, kept = (
        sum(row.get(key) or 0 for row in rows)
        for key in ("reloads_followed", "tensors_followed", "reload_bytes_kept")
    )
    text = _text("followed", is_chinese).format(n=n, s="s" * (n != 1), tensors=tensors, mib=kept / 2**20)
    return text if n else ""


def ranked(account: dict[str, Any], way: str) -> list[tuple[dict[str, Any], str, int]]:
    """Reasons of eager calls or of calls in pieces, with their tables and counts, the costliest first.

    That is by the time that such calls took where it is known, else by their number; warm-ups come last.
    """
    found = [(table, why, n) for table in account["of"] for why, n in table[way].items() if n]
    cost = lambda each: (each[1] != WARM_UP, (each[0].get("seconds") or {}).get(each[1], 0.0), each[2])  # noqa: E731
    return sorted(found, key=cost, reverse=True)


def _reasons(account: dict[str, object], way: str, is_chinese: bool) -> Iterator[str]:
    found = ranked(account, way)
    warm = sum(n for _, why, n in found if why == WARM_UP)
    others = [each for each in found if each[1] != WARM_UP]
    for table, why, n in others[:MOST_REASONS]:
        where = table["places"].get(why) or table["where"]
        at = _text("at", is_chinese).format(where) if where else ""
        yield f"{table['name']}, {_shortened(why)}{at} ({n:,})"
    rest = others[MOST_REASONS:]
    if rest:
        yield _text("more", is_chinese).format(len(rest), sum(n for _, _, n in rest))
    if warm:
        yield f"{WARM_UP} ({warm:,})"


def _shortened(why: str) -> str:
    """A reason that fits into a line; the page and ``explain()`` have all of it."""
    words = " ".join(why.split()).partition(" (Called ")[0]
    return words if len(words) <= LONGEST_REASON else f"{words[:LONGEST_REASON].rpartition(' ')[0]} ..."


def _raised(account: dict[str, Any]) -> list[tuple[str, int, str]]:
    """Each kind of error with its count and line."""
    total: Counter[str] = Counter()
    places: dict[str, str] = {}
    for table in account["of"]:
        total.update(table["raised"])
        places = {**table["places"], **places}
    return [(why, n, places.get(why, "")) for why, n in total.most_common()]


def _next(
    status: int, rows: Sequence[dict[str, Any]], account: dict[str, Any], is_guarded: bool, is_chinese: bool
) -> tuple[str, bool]:
    """What to look at first besides the calls; and whether there is nothing to do."""
    captured, failed = (sum(row.get(key) or 0 for row in rows) for key in ("capture_count", "validation_failures"))
    kinds = {"fallback": "fallback", "input_let_go": "held", "number_kept": "held"}
    events = [event for row in rows for event in row.get("events") or () if event["kind"] in kinds]
    events.sort(key=lambda event: event["kind"])
    event = events[0] if events else {"kind": "", "where": "", "op": "", "reason": "", "count": 0}
    n_calls = sum(account[way] for way in WAYS)
    is_whole = not (account["in_pieces"] or account["raised"]) and all(
        set(table["eager"]) <= {WARM_UP} and max([0, *(table.get("slow") or {}).values()]) < 2
        for table in account["of"]
    )
    key = ""
    if status < 0 and status not in _ASKED:
        key = "reported" if is_guarded else "died"
    elif status and (status < 0 or not rows):
        key = "reported"
    elif not rows:
        key = "unseen"
    elif failed:
        key = "validation_failed"
    elif events:
        key = kinds[str(event["kind"])]
    elif not n_calls:
        key = "unused" if captured else "nothing"
    elif is_whole and account["by_graph"]:
        key = "fine"
    at = _text("at", is_chinese).format(event["where"]) if event["where"] else ""
    why = " ".join(f"{event['op']} {event['reason']}".split())
    text = _text(key, is_chinese) if key else ""
    n = {"validation_failed": failed, "held": sum(each.get("count", 1) for each in events)}.get(key, captured)
    if key == "held":
        why = why.partition(", ")[0]
    return text.format(how=how_ended(status), n=n, at=at, why=why), key == "fine"


def profiled(profiles: Sequence[dict[str, Any]], is_chinese: bool) -> str:
    """The line about GPU time: of one step, which is a replay of the graph that was replayed most; "" without any."""
    found = max(profiles, key=lambda each: each["busy_ms"], default=None)
    if found is None or not found["busy_ms"] or not found["seconds"]:
        return ""
    n_steps = max(graph["n_replays"] for graph in found["graphs"])
    step_ms, busy_ms = 1e3 * found["seconds"] / n_steps, found["busy_ms"] / n_steps
    parts = [f"{name} {ms / n_steps:.1f} ms" for name, ms, _ in found["by_part"][:MOST_PARTS]]
    text = _text("step", is_chinese).format(step_ms, 100 * busy_ms / step_ms, ", ".join(parts), step_ms - busy_ms)
    return text + ("" if all(graph["agrees"] for graph in found["graphs"]) else _text("rough", is_chinese))


def how_ended(status: int) -> str:
    """A status as ``subprocess`` gives it, in words."""
    with suppress(ValueError):
        return signal.Signals(-status).name
    return f"exit status {status}" if status >= 0 else f"signal {-status}"
