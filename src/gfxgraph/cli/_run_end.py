"""What ``gfxgraph run`` says when its program has ended: one line, and coverage, statistics, a page where asked for.

Every process leaves its statistics in a folder of the run as it ends; with ``--coverage`` or ``--report`` also what
it launched and captured. The program's own status is the status, unless it ended well and less than what was asked
for is in graphs.
"""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from gfxgraph import config, files
from gfxgraph.diagnostics.render import visible
from gfxgraph.startup import stats_file
from gfxgraph.startup.supervise import how_ended

_LIBRARIES = re.compile(r"\S*/(?:site|dist)-packages/")
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
    "fallback": (
        "first fallback{at}: {why}; all of them: --report FILE.html",
        "首次回退{at}：{why}；全部：--report FILE.html",
    ),
    "nothing": (
        "nothing was captured; gfxgraph.graphed(function) captures a function",
        "没有捕获任何图；gfxgraph.graphed(函数) 可捕获一个函数",
    ),
    "split": (
        "first split{at}: {why}; what to write instead: --report FILE.html",
        "首次切分{at}：{why}；如何改写：--report FILE.html",
    ),
    "fine": ("nothing to do", "无需处理"),
}


class RunEnd:
    """What the processes of one run leave, and what is made of it.

    Args:
        folder: empty, of this run alone.
        environment: the program's.
        coverage: count what runs in graphs.
        with_table: print the lines that ran eagerly, too.
        least: the share of launches below which the status is 1.
        page: where the HTML report goes.
    """

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        coverage: bool,
        with_table: bool,
        least: float | None,
        page: str | None,
    ) -> None:
        self.folder, self.coverage, self.with_table, self.least, self.page = folder, coverage, with_table, least, page
        self.lang = config.language_of(environment)
        self.stats_to = environment.get(stats_file.VARIABLE, "")
        self.environment = {**environment, stats_file.VARIABLE: str(folder / "stats")}
        if coverage:
            self.environment |= {"GFXGRAPH_REPORT": str(folder), "GFXGRAPH_COVERAGE": "1"}

    def tell(self, status: int, *, is_quiet: bool, as_json: bool, is_guarded: bool) -> int:
        """Say how the run ended, write what was asked for; return the status to end with."""
        lines = _lines(self.folder / "stats")
        self._hand_on(lines)
        rows = [json.loads(line)["stats"] for line in lines]
        result = self._tell_coverage(status) if self.coverage else status
        if not is_quiet:
            counts = {key: sum(row.get(key) or 0 for row in rows) for key in _COUNTED}
            told = _next(status, rows, is_guarded, self.lang == "zh")
            if as_json:
                made = {"status": status, "processes": len(rows), **counts, "next": told}
                click.echo(json.dumps(made, ensure_ascii=False), err=True)
            else:
                counted = ", ".join(self._n(n, _COUNTED[key]) for key, n in counts.items())
                of = f" ({self._n(len(rows), 'process')})" if len(rows) > 1 else ""
                click.echo(_short(f"gfxgraph: {counted}{of}; {told}" if rows else f"gfxgraph: {told}"), err=True)
        return result

    def _n(self, n: int, noun: str) -> str:
        plural = "es" if noun == "process" else "s"
        return f"{n:,} {_ZH[noun]}" if self.lang == "zh" else f"{n:,} {noun}{'' if n == 1 else plural}"

    def _hand_on(self, lines: list[str]) -> None:
        """Give the statistics to where the user wanted them."""
        for line in lines if self.stats_to else ():
            if self.stats_to == stats_file.TO_STDERR:
                click.echo(f"gfxgraph stats: {line}", err=True)
                continue
            try:
                files.append(Path(self.stats_to), f"{line}\n")
            except OSError as error:
                click.echo(f"gfxgraph: statistics not written to {self.stats_to}: {error.strerror}", err=True)
                return

    def _tell_coverage(self, status: int) -> int:
        # lazily: a run that is not watched does without
        from gfxgraph.reporting import page, process_files
        from gfxgraph.reporting.coverage import Coverage

        found = process_files.read(self.folder)
        if not found:
            click.echo("gfxgraph coverage: no process used torch with gfxgraph on; nothing was seen", err=True)
            if self.page is not None:
                click.echo(f"gfxgraph report: {self.page} was not written", err=True)
            return status or (1 if self.least is not None else 2 if self.page else 0)
        seen = [Coverage.from_dict(table["coverage"]) for table in found if table.get("coverage")]
        total = sum(seen[1:], seen[0]) if seen else Coverage()
        of = f" (of {len(seen)} processes)" if len(seen) > 1 else ""
        click.echo(_short(f"gfxgraph {total}{of}" + (f"\n{total.table()}" if self.with_table else "")), err=True)
        if self.page is not None:
            files.write(Path(self.page), page.html(found))
            click.echo(f"gfxgraph report: {self.page}", err=True)
        if self.least is not None and (total.share is None or total.share < self.least):
            share = "nothing" if total.share is None else f"{total.share:.1%}"
            click.echo(f"gfxgraph coverage: {share} in graphs is less than the {self.least:.1%} asked for", err=True)
            return status or 1
        return status


def _lines(path: Path) -> list[str]:
    """What processes appended; of a process that died in the middle of its line, nothing."""
    try:
        found = files.read(path).decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    return [line for line in found if line.startswith("{") and line.endswith("}")]


def _next(status: int, rows: list[dict[str, Any]], is_guarded: bool, is_chinese: bool) -> str:
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
        key = "unseen"
    elif total["validation_failures"]:
        key = "validation_failed"
    else:
        key = kind or ("fine" if total["capture_count"] else "nothing")
    at = f" {'位于' if is_chinese else 'at'} {event['where']}" if event["where"] else ""
    why = " ".join(f"{event['op']} {event['reason']}".split())
    told = _NEXT[key][is_chinese].format(how=how_ended(status), n=total["validation_failures"], at=at, why=why)
    return visible(told)


def _short(text: str) -> str:
    return _LIBRARIES.sub("", text).replace(f"{Path.cwd()}/", "")
