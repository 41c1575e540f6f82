"""An audit as terminal text, grouped by phase and then by rule, and as plain data.

Enters: an Audit.
Stays out: stdout; the caller owns the console.
"""

from __future__ import annotations

from collections import defaultdict

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text as Line

from gfxgraph_port.audit import Audit
from gfxgraph_port.model import Finding, Fix, Severity, fill
from gfxgraph_port.phases import phase_title, word
from gfxgraph_port.registry import find, impact_of, rank

SCHEMA = "gfxgraph-port-audit/1"
_STYLE = dict(zip(Severity, ("dim", "cyan", "yellow", "red", "bold red"), strict=True))  # the mildest first


def show(audit: Audit, console: Console, *, lang: str, guarded: bool, limit: int) -> None:
    """Print the report: phases, then rules by severity, then places, then the totals.

    Args:
        guarded: also list findings under a guard.
        limit: files shown a rule; 0 for all.
    """
    by_phase: dict[int, list[Finding]] = defaultdict(list)
    for f in audit.findings:
        by_phase[f.phase].append(f)
    for phase in sorted(by_phase):
        _phase(phase, by_phase[phase], audit, console, lang, limit)
    if guarded and audit.guarded:
        console.print()
        console.print(f"[bold]{word('guarded', lang)}[/]")
        for f in audit.guarded:
            console.print(f"  [dim]{f.rule}[/] {escape(f.path)}:{f.line}  [green]{escape(f.guarded_by)}[/]")
    _skipped(audit, console, lang)
    _totals(audit, console, lang)


def _phase(phase: int, findings: list[Finding], audit: Audit, console: Console, lang: str, limit: int) -> None:
    console.print()
    count = len(findings)
    noun = word("finding" if count == 1 else "findings", lang)
    console.print(f"[bold]{word('phase', lang)} {phase} · {phase_title(phase, lang)}[/]  [dim]{count} {noun}[/]")
    by_rule: dict[str, list[Finding]] = defaultdict(list)
    for f in findings:
        by_rule[f.rule].append(f)
    ordered = sorted(
        by_rule.items(), key=lambda item: (impact_of(item[1][0].code), -max(f.severity for f in item[1]), item[0])
    )
    for rule_id, places in ordered:
        _rule(rule_id, places, audit, console, lang, limit)


def _rule(rule_id: str, places: list[Finding], audit: Audit, console: Console, lang: str, limit: int) -> None:
    loaded = find(rule_id)
    assert loaded is not None
    rule = loaded.rule
    text = rule.text(lang)
    worst = max(f.severity for f in places)
    console.print()
    head = (
        f"[{_STYLE[worst]}]{word(worst.label, lang)}[/] [bold]{rule.id}[/] {rule.code} · {escape(text.title)} "
        f"[dim]({len(places)}; {word(impact_of(rule.code).label, lang)}; "
        f"{word('fix', lang)} {word(rule.fix.value, lang)})[/]"
    )
    console.print(Padding(head, (0, 0, 0, 2)))
    named = sorted({a for f in places for a in f.archs}, key=[a.name for a in audit.archs].index)
    if len(named) < len(audit.archs):
        _indented(console, word("affects", lang), ", ".join(named))
    _indented(console, word("why", lang), text.why)
    _indented(console, word("do", lang), text.do)
    by_file: dict[str, list[Finding]] = defaultdict(list)
    for f in places:
        by_file[f.path].append(f)
    groups = list(by_file.values())
    shown = groups if not limit else groups[:limit]
    for group in shown:
        _place(group, fill(text.what, group[0].values), console, lang)
    left = sum(len(group) for group in groups[len(shown) :])
    if left:
        console.print(f"    [dim]… {left} {word('more', lang)}[/]")


def _indented(console: Console, label: str, text: str) -> None:
    row = Table.grid(padding=(0, 1))
    row.add_column(no_wrap=True)
    row.add_column()
    row.add_row(Line(label, style="dim"), Line(text))
    console.print(Padding(row, (0, 0, 0, 4)))


def _place(group: list[Finding], what: str, console: Console, lang: str) -> None:
    """The places of one file: where, what, the first line unless the words already quote it, the other lines."""
    f = group[0]
    quoted = "".join(what.split()) in "".join(f.evidence.split()) and len(what) > 8
    shown = f.evidence if quoted else what
    place = Line(f"{f.path}:{f.line}", style="blue")
    parted = len(place) + min(len(shown), 40) + 6 > console.width  # a long path would leave nothing of the words
    if not parted:
        place.append(f"  {shown}", style="")
    console.print(Padding(place, (0, 0, 0, 4)), no_wrap=not parted, overflow="fold" if parted else "ellipsis")
    if parted:
        console.print(Padding(Line(shown), (0, 0, 0, 6)), no_wrap=True, overflow="ellipsis")
    if not quoted and f.evidence:
        console.print(Padding(Line(f.evidence, style="dim"), (0, 0, 0, 6)), no_wrap=True, overflow="ellipsis")
    others = sorted({n for g in group for n in (g.lines or (g.line,))} - {f.line})
    if others:
        lines = ", ".join(map(str, others[:12])) + (" …" if len(others) > 12 else "")
        console.print(f"      [dim]{word('also' if len(others) > 1 else 'also_one', lang)} {lines}[/]")


def _skipped(audit: Audit, console: Console, lang: str) -> None:
    if not audit.skipped:
        return
    console.print()
    console.print(f"[bold]{word('skipped', lang)}[/]")
    by_reason: dict[str, list[str]] = defaultdict(list)
    for s in audit.skipped:
        by_reason[s.reason].append(f"{s.path} ({s.detail})" if s.detail else s.path)
    for reason, rows in sorted(by_reason.items()):
        shown = "; ".join(rows[:3]) + (f"; … {len(rows) - 3} {word('more', lang)}" if len(rows) > 3 else "")
        console.print(f"  {escape(reason)}: {escape(shown)}")


def _totals(audit: Audit, console: Console, lang: str) -> None:
    console.print()
    names = ", ".join(a.name for a in audit.archs) if len(audit.archs) <= 6 else word("all", lang)
    console.print(
        f"{audit.n_files} {word('files', lang)}, {audit.n_lines:,} {word('lines', lang)} · "
        f"{word('targets', lang)}: {names}"
    )
    if not audit.findings:
        console.print(f"[green]{word('clean', lang)}[/]")
    else:
        console.print(f"[bold]{len(audit.findings)} {word('findings', lang)}[/]")
    n_safe = sum(f.fix is Fix.SAFE for f in audit.findings)
    for count, key in (
        (n_safe, "safe_hint"),
        (audit.n_milder, "milder"),
        (len(audit.guarded), "hidden_guarded"),
        (len(audit.suppressed), "suppressed"),
    ):
        if count:
            console.print(f"[dim]{count} {word(key, lang)}[/]")


def as_json(audit: Audit, *, lang: str, guarded: bool) -> dict[str, object]:
    """The audit as plain data; texts in the language asked for."""
    return {
        "schema": SCHEMA,
        "targets": [a.name for a in audit.archs],
        "files": audit.n_files,
        "lines": audit.n_lines,
        "findings": [_row(f, lang) for f in sorted(audit.findings, key=rank)],
        "guarded": [_row(f, lang) for f in audit.guarded] if guarded else len(audit.guarded),
        "milder": audit.n_milder,
        "suppressed": len(audit.suppressed),
        "skipped": [{"path": s.path, "reason": s.reason, "detail": s.detail} for s in audit.skipped],
    }


def _row(f: Finding, lang: str) -> dict[str, object]:
    loaded = find(f.rule)
    assert loaded is not None
    text = loaded.rule.text(lang)
    return {
        **f.as_json(),
        "impact": impact_of(f.code).label,
        "title": text.title,
        "what": fill(text.what, f.values),
        "why": text.why,
        "do": text.do,
    }
