"""gfxgraph port: audit, fix, build and verify a CUDA codebase for ROCm."""

from __future__ import annotations

import json
import shutil
import sys
from importlib import resources
from typing import TYPE_CHECKING

import click
from rich.console import Console

from gfxgraph.cli import _contract
from gfxgraph_port.commands.fix import build_command, fix_command
from gfxgraph_port.commands.options import ARCH, JSON, LANG, PATH, archs_of, fail
from gfxgraph_port.commands.verify import verify_group

if TYPE_CHECKING:  # the parsers are an extra
    from gfxgraph_port.audit import Audit
    from gfxgraph_port.registry import Loaded


@click.group("port", cls=_contract.Group, help="Audit, fix, build and verify a CUDA codebase for ROCm.")
def command() -> None:
    pass


command.add_command(verify_group)
command.add_command(fix_command)
command.add_command(build_command)


@command.command("audit")
@PATH
@ARCH
@LANG
@JSON
@click.option("--diff", metavar="REV", help="Only findings on lines changed since a git revision.")
@click.option("--rule", "rules", multiple=True, metavar="CODE", help="Only this rule or prefix; repeatable.")
@click.option(
    "--severity",
    type=click.Choice(["info", "low", "medium", "high", "critical"]),
    default="low",
    show_default=True,
    help="Leave out milder findings; the report says how many.",
)
@click.option("--show-guarded", is_flag=True, help="Also list findings that a guard keeps from AMD.")
@click.option("--vendored", is_flag=True, help="Audit third-party folders and submodules too.")
@click.option(
    "--max-bytes", type=click.IntRange(min=1), default=2_000_000, show_default=True, help="Pass over larger files."
)
@click.option("--jobs", type=click.IntRange(min=1), help="Worker processes; the number of cores by default.")
@click.option(
    "--limit", type=click.IntRange(min=0), default=8, show_default=True, help="Files shown per rule; 0 for all."
)
@click.option("--exit-zero", is_flag=True, help="Exit 0 even with findings.")
@_contract.quietly
def audit_command(
    path: str,
    arch: str | None,
    lang: str,
    as_json: bool,
    diff: str | None,
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
    # lazily: the parsers are an extra, and help must be there without them
    from gfxgraph_port import audit as auditing
    from gfxgraph_port import render
    from gfxgraph_port.model import Severity

    targets = archs_of(arch)
    try:
        _check_rules(rules)
        with _contract.working("port audit: reading the tree") as shown:
            report = auditing.audit(
                path,
                archs=targets,
                rules=frozenset(rules) or None,
                diff=diff,
                vendored=vendored,
                max_bytes=max_bytes,
                jobs=jobs,
                min_severity=Severity[severity.upper()],
                progress=shown.update,
            )
    except (auditing.AuditError, OSError) as error:
        fail(error)
    if diff is None:
        _refuse_nothing(path, report)
    if as_json:
        click.echo(json.dumps(render.as_json(report, lang=lang, guarded=show_guarded), indent=1, ensure_ascii=False))
    else:
        render.show(report, Console(highlight=False), lang=lang, guarded=show_guarded, limit=limit)
        if any(f.path.endswith((".cu", ".cuh")) for f in report.findings):
            here = shutil.which("hipcc") is not None
            say = (
                "the compiler knows more: gfxgraph port build"
                if here
                else "hipcc is not on the PATH: nothing was compiled"
            )
            click.echo(say, err=True)
    sys.exit(0 if exit_zero or not report.findings else 1)


def _refuse_nothing(path: str, report: Audit) -> None:
    """Refuse a path of which nothing could be read: it would look like a clean tree."""
    if report.n_lines or (report.n_files and not report.skipped):
        return
    reasons = ", ".join(
        f"{_short(each.path)} ({each.reason}{each.detail and ': '}{each.detail})" for each in report.skipped[:3]
    )
    more = ", ..." if len(report.skipped) > 3 else ""
    fail(f"{path}: nothing to audit: " + (f"passed over {reasons}{more}" if reasons else "no source files"))


def _short(path: str) -> str:
    return path if len(path) <= 80 else f"{path[:38]}...{path[-38:]}"


def _check_rules(wanted: tuple[str, ...]) -> None:
    """Refuse a rule that does not exist: an audit by no rule finds nothing and looks like a clean tree."""
    if not wanted:
        return
    # lazily: the parsers are an extra, and help must be there without them
    from gfxgraph_port.registry import load

    ids, codes = [each.rule.id for each in load()], [each.rule.code for each in load()]
    for name in wanted:
        is_known = name.lower() in codes or any(rule.lower().startswith(name.lower()) for rule in ids)
        if not name or not is_known:
            _contract.refuse_name("rule", name, [*ids, *codes], "gfxgraph port rules")


@command.command("rules")
@LANG
@JSON
def rules_command(lang: str, as_json: bool) -> None:
    """List every rule."""
    from rich.table import Table

    # lazily: the parsers are an extra, and help must be there without them
    from gfxgraph_port.phases import word
    from gfxgraph_port.registry import load

    loaded = load()
    if as_json:
        click.echo(json.dumps([_rule_row(r, lang) for r in loaded], indent=1, ensure_ascii=False))
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


def _rule_row(loaded: Loaded, lang: str) -> dict[str, object]:
    rule = loaded.rule
    return {
        "rule": rule.id, "code": rule.code, "severity": rule.severity.label, "phase": rule.phase,
        "fix": rule.fix.value, "archs": list(rule.archs.names()), "kinds": sorted(loaded.checks),
        "title": rule.text(lang).title,
    }  # fmt: skip


def _rule_json(loaded: Loaded, lang: str) -> dict[str, object]:
    text = loaded.rule.text(lang)
    examples = {kind: loaded.rule.files(kind) for kind in ("bad", "good")}
    return {**_rule_row(loaded, lang), "why": text.why, "do": text.do, "versions": loaded.rule.versions, **examples}


@command.command("rule")
@click.argument("code")
@LANG
@JSON
def rule_command(code: str, lang: str, as_json: bool) -> None:
    """Explain one rule, with an example that fires and one that does not."""
    # lazily: the parsers are an extra, and help must be there without them
    from gfxgraph_port.phases import phase_title, word
    from gfxgraph_port.registry import find

    found = find(code)
    if found is None:
        _check_rules((code,))
        fail(f"{code} is the beginning of several rules; gfxgraph port rules lists them")
    if as_json:
        click.echo(json.dumps(_rule_json(found, lang), indent=1, ensure_ascii=False))
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


@command.command("skill")
def skill_command() -> None:
    """Print the skill file: how a coding agent ports with this tool."""
    click.echo((resources.files("gfxgraph_port") / "SKILL.md").read_text("utf-8"), nl=False)
