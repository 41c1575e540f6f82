"""Check GPU, ROCm, PyTorch and settings, and say how to fix what is wrong."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import click

from gfxgraph import __version__, config, files, torch_names
from gfxgraph.cli import _contract, _selftest
from gfxgraph.diagnostics.render import visible
from gfxgraph.errors import first_line
from gfxgraph.hardware import findings, versions
from gfxgraph.hardware.defect_environment import Environment, detect
from gfxgraph.hardware.defects import Decisions, applicable, applies, decide, is_cured, rows
from gfxgraph.hardware.facts import Site
from gfxgraph.hardware.findings import CheckResult, CheckState
from gfxgraph.hardware.time_limit import Aside

IMPORT_LIMIT_S = 60.0
"""For torch with Dynamo and Inductor, whose import takes seconds."""
_MARK = {CheckState.GREEN: ("ok  ", "green"), CheckState.AMBER: ("warn", "yellow"), CheckState.RED: ("FAIL", "red")}


@click.command(cls=_contract.Command, short_help="Check GPU, ROCm, PyTorch and settings.")
@click.option("--why", is_flag=True, help="Show which known defects apply here and what each changed.")
@_contract.as_json
@click.option(
    "--bundle", type=_contract.OutFile(), metavar="FILE", help="Write all of it, redacted, for a bug report."
)
@click.option("--selftest", is_flag=True, help="Run the safety suite on the GPU here and write one JSON report.")
@click.option(
    "--native", "is_native", is_flag=True, help="--selftest: below torch, which it does not need; 3 minutes."
)
@click.option(
    "-o",
    "--output",
    "--out",
    "out",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    default=Path(_selftest.DEFAULT_PATH),
    show_default=True,
    help="Where --selftest writes its report.",
)
@_contract.allow_cuda
@_contract.simulate
@click.option("--only", multiple=True, hidden=True, metavar="NAME", help="--selftest: these cases alone.")
@click.option("--cases", hidden=True, metavar="MODULE", help="--selftest: the cases of this module.")
@click.pass_context
@_contract.quietly
def command(
    ctx: click.Context,
    why: bool,
    as_json: bool,
    bundle: str | None,
    selftest: bool,
    is_native: bool,
    out: Path,
    allow_cuda: bool,
    simulate: str,
    only: tuple[str, ...],
    cases: str | None,
) -> None:
    """Check this machine, and show how to fix what is wrong.

    Exit status: 0 no errors (with --selftest: every case passed, or was skipped with a reason), 1 errors, 2 gfxgraph
    cannot be used here. --allow-cuda, --simulate and --output go with --selftest.
    """
    _refuse_unfit(ctx, selftest, is_native)
    if selftest and is_native:
        raise SystemExit(_selftest.run_native(out, as_json=as_json))
    if selftest:
        status = _selftest.run(
            out, as_json=as_json, simulate=simulate, allow_cuda=allow_cuda, only=only, module=cases
        )
        raise SystemExit(status)
    lang = config.language_of()
    found = []
    with _contract.working("doctor"):
        try:
            environment = Aside().within(findings.LIMIT_S, detect)
        except TimeoutError:
            environment = Environment(platform="none", source="did not answer")
            found = [findings.hung("GPUs")]
        site = Site()
        facts, lacking = findings.probe(site)
        found += lacking + findings.of(facts, site.machine.environ) + findings.settings()
    if bundle:
        with _contract.working("doctor"):
            write_bundle(Path(bundle), {"facts": facts, **report(environment, found)})
        click.echo(bundle)
    elif as_json:
        click.echo(json.dumps({"facts": facts, **report(environment, found)}, indent=2, ensure_ascii=False))
    else:
        _screen(environment, found, lang)
        if why:
            _why(environment, lang)
    status = int(any(finding.state is CheckState.RED for finding in found))
    if any(finding.en.startswith("did not answer within") for finding in found):
        # A probe thread is stuck in the kernel; waiting for it at exit would hang us as well.
        sys.stdout.flush()
        os._exit(status)
    raise SystemExit(status)


def _refuse_unfit(ctx: click.Context, selftest: bool, is_native: bool) -> None:
    """Raise a usage error where the command line gives an option that means nothing beside the others."""
    names = ["allow_cuda", "simulate", "only", "cases"] if is_native or not selftest else []
    names += [] if selftest else ["out", "is_native"]
    why = "does not go with --native, which runs below torch" if selftest else "goes with --selftest"
    for name in names:
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.removeprefix('is_').replace('_', '-')} {why}", ctx)


def report(environment: Environment, found: list[CheckResult]) -> dict[str, object]:
    """Everything doctor knows, as plain data; also what a recorded environment is read from."""
    decisions = decide(environment)
    return {
        "environment": environment.as_dict(),
        "findings": [{"name": f.name, "state": f.state.value, "en": f.en, "zh": f.zh, "fix": f.fix} for f in found],
        "defects": [
            {"id": row.id, "status": row.status, "sources": list(row.sources), "action": dict(row.action)}
            for row in applicable(environment)
        ],
        "decisions": {
            reason.decision: {"value": reason.value, "because": list(reason.rows)} for reason in decisions.reasons
        },
    }


def _screen(environment: Environment, found: list[CheckResult], lang: str) -> None:
    for finding in found:
        mark, colour = _MARK[finding.state]
        line = f"{click.style(mark, fg=colour)}  {finding.name:<14} {visible(finding.text(lang))}"
        click.echo(line)
        if finding.fix and finding.state is not CheckState.GREEN:
            click.echo(" " * 21 + click.style(visible(finding.fix), bold=True))
    if environment.platform == "none":
        return
    n_rows, decisions = len(applicable(environment)), decide(environment)
    place, n_replays = _place(environment), decisions.validate_replays
    shown = (
        f"{n_rows} known graph defects or rules apply ({place}); {n_replays} first replays are validated"
        if lang == "en"
        else f"{n_rows} 条已知的图缺陷或规则适用（{place}）；前 {n_replays} 次重放会被校验"
    )
    more = "gfxgraph doctor --why"
    click.echo(f"{click.style('info', fg='cyan')}  {'graphs':<14} {shown}\n{' ' * 21}{more}")


def _place(environment: Environment) -> str:
    parts = [environment.platform]
    if environment.platform == "hip":
        parts.append(f"ROCm {versions.show(environment.rocm)}")
    return ", ".join([*parts, f"torch {versions.show(environment.torch)}", *environment.archs])


def _why(environment: Environment, lang: str) -> None:
    click.echo()
    click.echo(click.style(_place(environment), bold=True) + f"  [{environment.source}]")
    for row in rows():
        if not applies(row, environment):
            continue
        cured = is_cured(row, environment)
        click.echo(f"\n{click.style(row.id, fg='cyan')}  ({row.status}; {row.where()})")
        click.echo(f"  {row.symptom[lang]}")
        if cured:
            names = ", ".join(f"{name}={value}" for name, value in row.cured_by.items())
            click.echo(f"  -> {'cured by' if lang == 'en' else '已由此变量规避：'} {names}")
        else:
            for name, value in row.action.items():
                click.echo(f"  -> {_action(name, value, lang)}")
        click.echo(f"  {', '.join(row.sources)}")
    _totals(decide(environment), lang)
    _torch_names(lang)


def _torch_names(lang: str) -> None:
    """What of torch's internal names is missing here, and which features that switches off."""
    if find_spec("torch") is None:
        return
    try:
        gone = Aside().within(IMPORT_LIMIT_S, torch_names.all_missing)
    except (TimeoutError, ImportError) as error:
        gone = {"torch": [first_line(error)]}
    click.echo("\n" + click.style("torch's internal names" if lang == "en" else "torch 的内部名称", bold=True))
    for feature, names in gone.items():
        click.echo(f"  {feature}: {'off, without' if lang == 'en' else '已关闭，缺少'} {', '.join(names)}")
    if not gone:
        n = len(torch_names.NAMES)
        click.echo(f"  all {n} are there" if lang == "en" else f"  {n} 个全部存在")


def _action(name: str, value: object, lang: str) -> str:
    if name == "env" and isinstance(value, dict):
        shown = " ".join(f"{key}={item}" for key, item in value.items())
        return f"{'worth setting' if lang == 'en' else '建议设置'}: export {shown}"
    if name == "inductor" and isinstance(value, dict):
        settings = ", ".join(f"torch._inductor.config.{key} = {item}" for key, item in value.items())
        keep = f"torch.compile(options={{{', '.join(f'{key!r}: ...' for key in value)}}})"
        return f"{settings}  ({'left alone with' if lang == 'en' else '用以下方式保持原样：'} {keep})"
    if name == "inductor_graphs":
        keep = "GFXGRAPH_COMPILE=0"
        return f"{name} = {value}  ({'left alone with' if lang == 'en' else '用以下变量保持原样：'} {keep})"
    return f"{name} = {value}"


def _totals(decisions: Decisions, lang: str) -> None:
    click.echo("\n" + click.style("decisions" if lang == "en" else "最终决定", bold=True))
    if not (decisions.reasons or decisions.env or decisions.advice):
        click.echo("  none: no known defect asks for one here" if lang == "en" else "  无：此处没有已知缺陷需要处理")
    for reason in decisions.reasons:
        click.echo(f"  {reason.decision} = {reason.value}  <- {', '.join(reason.rows)}")
    for name, value in decisions.env.items():
        click.echo(f"  export {name}={value}")
    for sentence in decisions.advice:
        click.echo(f"  {sentence}")


_PRIVATE = (
    (re.compile(r"/(home|Users)/[^/\s\"']+"), r"/\1/***"),
    (re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+"), "***@***"),
    (re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b(?!\.)"), "*.*.*.*"),
    (re.compile(r"\b(?:hf|sk|ghp|gho|glpat|xox[bp])[-_][A-Za-z0-9_-]{8,}"), "***"),
)


def redacted(text: str) -> str:
    """``text`` without names of users, addresses and keys."""
    for pattern, shown in _PRIVATE:
        text = pattern.sub(shown, text)
    return text


def write_bundle(path: Path, report: dict[str, object]) -> None:
    """Write one file for a bug report: facts, findings, defects that apply; redacted, readable, and JSON."""
    whole = {"gfxgraph": __version__, "python": platform.python_version(), **report}
    files.write(path, (redacted(json.dumps(whole, indent=2, ensure_ascii=False)) + "\n").encode())
