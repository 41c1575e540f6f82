"""gfxgraph port: audit, plan, fix and verify a CUDA codebase for ROCm."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from gfxgraph.port.archs import select


@click.group("port", help="Audit, plan, fix and verify a CUDA codebase for ROCm.")
def command() -> None:
    pass


LANG = click.option(
    "--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True, help="Report language."
)
ARCH = click.option(
    "--arch", metavar="LIST", help="Targets: names, patterns or families, as gfx1030,gfx94*,RDNA3."
)


def _archs(spec: str | None) -> Any:
    try:
        return select(spec)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--arch") from error


def _fail(message: object) -> None:
    click.echo(f"error: {message}", err=True)
    sys.exit(2)


@command.command("audit")
@click.argument("path", default=".")
@ARCH
@LANG
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--sarif", "sarif_path", metavar="FILE", help="Write SARIF 2.1.0; - for stdout.")
@click.option("--diff", metavar="REV", help="Only findings on lines changed since a git revision.")
@click.option("--baseline", metavar="FILE", help="Leave out findings listed in FILE.")
@click.option("--write-baseline", metavar="FILE", help="Write today's findings as the baseline.")
@click.option("--rule", "rules", multiple=True, metavar="CODE", help="Only this rule or prefix; repeatable.")
@click.option(
    "--severity",
    type=click.Choice(["info", "low", "medium", "high", "critical"]),
    default="info",
    show_default=True,
    help="Leave out what is milder.",
)
@click.option("--show-guarded", is_flag=True, help="Also list findings that a guard keeps from AMD.")
@click.option("--vendored", is_flag=True, help="Audit third-party folders and submodules too.")
@click.option("--max-bytes", type=int, default=2_000_000, show_default=True, help="Pass over larger files.")
@click.option("--jobs", type=int, help="Worker processes; the number of cores by default.")
@click.option("--limit", type=int, default=8, show_default=True, help="Places shown a rule; 0 for all.")
@click.option("--exit-zero", is_flag=True, help="Exit 0 even with findings.")
def audit_command(
    path: str,
    arch: str | None,
    lang: str,
    as_json: bool,
    sarif_path: str | None,
    diff: str | None,
    baseline: str | None,
    write_baseline: str | None,
    rules: tuple[str, ...],
    severity: str,
    show_guarded: bool,
    vendored: bool,
    max_bytes: int,
    jobs: int | None,
    limit: int,
    exit_zero: bool,
) -> None:
    """Find what keeps PATH from running on AMD GPUs.

    Exit status: 0 nothing found, 1 findings, 2 the audit could not run.
    """
    from gfxgraph.port import audit as auditing
    from gfxgraph.port import render
    from gfxgraph.port.model import Severity

    targets = _archs(arch)
    try:
        report = auditing.audit(
            path,
            archs=targets,
            rules=frozenset(rules) or None,
            diff=diff,
            baseline=baseline,
            vendored=vendored,
            max_bytes=max_bytes,
            jobs=jobs,
            min_severity=Severity[severity.upper()],
        )
        if write_baseline:
            auditing.write_baseline(report, write_baseline)
    except (auditing.AuditError, OSError) as error:
        _fail(error)
        return
    if sarif_path:
        from gfxgraph.port.sarif import as_sarif

        text = json.dumps(as_sarif(report, lang=lang), indent=1, ensure_ascii=False)
        if sarif_path == "-":
            click.echo(text)
        else:
            Path(sarif_path).write_text(text + "\n", encoding="utf-8")
    if as_json:
        click.echo(
            json.dumps(render.as_json(report, lang=lang, guarded=show_guarded), indent=1, ensure_ascii=False)
        )
    elif sarif_path != "-":
        render.show(report, Console(highlight=False), lang=lang, guarded=show_guarded, limit=limit)
    sys.exit(0 if exit_zero or write_baseline or not report.findings else 1)


@command.command("rules")
@LANG
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def rules_command(lang: str, as_json: bool) -> None:
    """List every rule."""
    from rich.table import Table

    from gfxgraph.port.phases import word
    from gfxgraph.port.registry import load

    loaded = load()
    if as_json:
        rows = [
            {"rule": r.rule.id, "code": r.rule.code, "severity": r.rule.severity.label, "phase": r.rule.phase,
             "fix": r.rule.fix.value, "archs": list(r.rule.archs.names()), "kinds": sorted(r.checks),
             "title": r.rule.text(lang).title}
            for r in loaded
        ]  # fmt: skip
        click.echo(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("", "", word("severity", lang), word("fix", lang), ""):
        table.add_column(heading, no_wrap=heading != "")
    for r in loaded:
        table.add_row(
            r.rule.id,
            r.rule.code,
            word(r.rule.severity.label, lang),
            word(r.rule.fix.value, lang),
            r.rule.text(lang).title,
        )
    Console(highlight=False).print(table)


@command.command("rule")
@click.argument("code")
@LANG
def rule_command(code: str, lang: str) -> None:
    """Explain one rule, with an example that fires and one that does not."""
    from gfxgraph.port.phases import phase_title, word
    from gfxgraph.port.registry import find

    found = find(code)
    if found is None:
        _fail(f"no rule {code!r}; gfxgraph port rules lists them")
        return
    rule, text = found.rule, found.rule.text(lang)
    click.echo(f"{rule.id} {rule.code}: {text.title}")
    click.echo(
        f"  {word('phase', lang)} {rule.phase} {phase_title(rule.phase, lang)} · "
        f"{word(rule.severity.label, lang)} · "
        f"{word('fix', lang)} {word(rule.fix.value, lang)} · {word('affects', lang)} {rule.archs.label}"
    )
    click.echo(f"  {word('why', lang)}: {text.why}")
    click.echo(f"  {word('do', lang)}: {text.do}")
    if rule.versions:
        click.echo(f"  ROCm/torch: {rule.versions}")
    for kind in ("bad", "good"):
        for path, body in rule.files(kind).items():
            click.echo(f"\n--- {kind}: {path}")
            click.echo(body.rstrip())
