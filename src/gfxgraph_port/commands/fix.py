"""gfxgraph port fix and build: edits that leave NVIDIA's build alone, and the compiler that judges them."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from gfxgraph import files
from gfxgraph.cli import _contract
from gfxgraph_port.commands.options import ARCH, JSON, LANG, PATH, archs_of, fail
from gfxgraph_port.files import write_out

if TYPE_CHECKING:  # the parsers are an extra
    from gfxgraph_port.build.judge import Verdict
    from gfxgraph_port.fix.loop import LoopOutcome
    from gfxgraph_port.fix.run import FileFix

COMMANDS = click.option(
    "--compile-commands", "commands", metavar="FILE", help="The build's list of units; else the one found in PATH."
)


def _archs(spec: str | None) -> tuple[str, ...]:
    """Targets for the compiler: those asked for, or one of each width."""
    # lazily: the parsers are an extra, and help must be there without them
    from gfxgraph_port.build.judge import ARCHS

    return tuple(a.name for a in archs_of(spec)) if spec is not None else ARCHS


@click.command("build")
@PATH
@ARCH
@LANG
@JSON
@COMMANDS
@click.option("--real", is_flag=True, help="Then run the project's own build, in a copy: configure, compile, link.")
@click.option("--limit", type=click.IntRange(min=0), default=40, show_default=True, help="Findings shown; 0 for all.")
@_contract.quietly
def build_command(
    path: str, arch: str | None, lang: str, as_json: bool, commands: str | None, real: bool, limit: int
) -> None:
    """Compile every translation unit for AMD GPUs, and list what the compiler refuses.

    Host and device, for one architecture of wave 32 and one of wave 64 unless --arch says otherwise. Nothing is
    written in PATH. With --real the project's build runs as well, with all that it executes, and decides.

    Exit status: 0 every unit compiles (with --real: the build links), 1 not so, or a unit could not be judged, 2 it
    could not run.
    """
    # lazily: the parsers are an extra, and help must be there without them
    from gfxgraph_port import hipify
    from gfxgraph_port.build import findings
    from gfxgraph_port.build import real as building
    from gfxgraph_port.build.compiler import find_compiler
    from gfxgraph_port.build.judge import judge
    from gfxgraph_port.facts import gather
    from gfxgraph_port.project import discover

    targets = _archs(arch)
    compiler = find_compiler()
    if compiler is None:
        fail(_NO_COMPILER)
    try:
        with _contract.working("port build: compiling") as shown:
            project = discover(path)
            gather(project)
            verdict = judge(
                path, compiler, hipify.load(), archs=targets, commands=commands,
                is_torch=project.has_torch_extension, progress=shown.update,
            )  # fmt: skip
            outcome = building.build(path, project, hipify.load(), archs=targets) if real else None
            data = findings.as_json(path, verdict, lang, outcome)
    except (hipify.NoHipifyError, OSError, ValueError) as error:
        fail(error)
    if not verdict.states:
        fail(f"{path}: no translation unit of CUDA's here")
    if as_json:
        click.echo(json.dumps(data, indent=1, ensure_ascii=False))
    else:
        _show(verdict, data, limit)
    is_good = verdict.count("compiles") == len(verdict.states) if outcome is None else outcome.is_linked
    sys.exit(_contract.OK if is_good else _contract.FOUND)


_NO_COMPILER = (
    "no HIP compiler: hipcc (or a clang++ that finds HIP's headers) is not on the PATH; port audit works without one"
)


def _show(verdict: Verdict, data: dict[str, Any], limit: int) -> None:
    rows = data["findings"]
    for row in rows[: limit or None]:
        sides = f" [{', '.join(row['sides'])}]" if row["sides"] else ""
        many = f" ({len(row['units'])} units)" if len(row["units"]) > 1 else ""
        click.echo(f"{row['kind']}: {row['path']}:{row['line']}:{row['column']}: {row['message']}{sides}{many}")
        click.echo(f"  {row['rule'] or 'do'}: {row['do']}")
    if limit and len(rows) > limit:
        click.echo(f"... {len(rows) - limit} more; --limit 0 shows all")
    click.echo(_summary(verdict))
    for name, units in verdict.headers.items():
        click.echo(f"missing on this machine: {name} ({len(units)} units)")
    if (real := data["real"]) is not None:
        for line in real["commands"]:
            click.echo(f"ran {line}")
        for unit in real["units_not_built"]:
            click.echo(f"not part of the build: {unit}")
        made = ", ".join(real["made"][:8]) + (" ..." if len(real["made"]) > 8 else "")
        click.echo(
            f"the build links: {made}" if real["links"] else f"the build fails at: {real['failed'] or 'its end'}"
        )


def _summary(verdict: Verdict) -> str:
    said = f"{verdict.count('compiles')} of {len(verdict.states)} units compile"
    missing = verdict.count("missing")
    return said + (f"; {missing} not judged for want of headers" if missing else "")


@click.command("fix")
@PATH
@ARCH
@click.option("--unsafe", is_flag=True, help="Also make edits that ask for a look, each with what to check.")
@click.option("--loop", "loops", is_flag=True, help="Compile, fix what the compiler names, and repeat.")
@click.option("--real", is_flag=True, help="With --loop: also run the project's build, and answer what it says.")
@click.option("--dry-run", is_flag=True, help="Print the patch and write nothing.")
@click.option("--apply", "apply_", is_flag=True, help="Edit the files instead of writing a patch.")
@click.option(
    "--output",
    type=_contract.OutFile(),
    metavar="FILE",
    default="gfxgraph-port.patch",
    show_default=True,
    help="Where to write the patch.",
)
@click.option("--hipify", "hipify_to", metavar="FOLDER", help="Write a tree with HIP's names to FOLDER instead.")
@COMMANDS
@JSON
@click.pass_context
@_contract.quietly
def fix_command(
    ctx: click.Context,
    path: str,
    arch: str | None,
    unsafe: bool,
    loops: bool,
    real: bool,
    dry_run: bool,
    apply_: bool,
    output: str,
    hipify_to: str | None,
    commands: str | None,
    as_json: bool,
) -> None:
    """Fix what can be fixed without touching NVIDIA's path.

    Writes a patch for review: the build behind USE_HIP, a folder of headers that stands in for the CUDA toolkit, and
    edits that pass the identity gate. The copy that --hipify makes has HIP's names in its sources, and no build for
    NVIDIA. port build lists what is left.

    Exit status: 0 done, 1 some edits were refused, 2 it could not run.
    """
    if real and not loops:
        fail("--real is for --loop")
    _refuse_conflicts(ctx, apply_, dry_run, hipify_to, loops, commands)
    # lazily: the parsers are an extra, and help must be there without them
    from gfxgraph_port.project import HOME

    fixes, outcome = _fixes(path, arch, unsafe, loops, commands, hipify_to, real=real)
    if hipify_to is not None:
        path, apply_ = hipify_to, True
    patch = "".join(f.patch() for f in fixes if f.new != f.old)
    edited = [] if dry_run else _write(path, fixes, None if apply_ else output, patch)
    status = _contract.FOUND if any(f.refused for f in fixes) else _contract.OK
    if as_json:
        data: dict[str, object] = {
            "patch": patch if dry_run or not apply_ else "",
            "patch_file": output if patch and not dry_run and not apply_ else None,
            "edited": edited,
            **_counts(fixes, outcome),
        }
        click.echo(json.dumps(data, indent=1, ensure_ascii=False))
        sys.exit(status)
    if dry_run:
        click.echo(patch, nl=False)
    elif apply_:
        for name in dict.fromkeys(f"{HOME}/" if n.startswith(f"{HOME}/") else n for n in edited):
            click.echo(f"edited {name}")
    elif patch:
        click.echo(f"wrote {output}: review it, then patch -p1 -d {path} < {output}")
    _tell(path, fixes, outcome)
    sys.exit(status)


def _fixes(
    path: str, arch: str | None, unsafe: bool, loops: bool, commands: str | None, hipify_to: str | None, *, real: bool
) -> tuple[list[FileFix], LoopOutcome]:
    """The edits, by the rules alone or with the compiler; in a new copy of the tree, where one is asked for."""
    # lazily: the parsers are an extra, and help must be there without them
    from gfxgraph_port.audit import AuditError
    from gfxgraph_port.build.compiler import find_compiler
    from gfxgraph_port.fix import run
    from gfxgraph_port.fix.loop import LoopOutcome, loop
    from gfxgraph_port.hipify import NoHipifyError

    compiler = find_compiler() if loops else None
    if loops and compiler is None:
        fail(_NO_COMPILER)
    targets = archs_of(arch)
    if hipify_to is not None:
        _copy(path, hipify_to)
        path = hipify_to
    try:
        with _contract.working(f"port fix: {'compiling' if loops else 'reading the tree'}") as shown:
            if not loops and hipify_to is None:
                return (fixes := run.fix(path, unsafe=unsafe, archs=targets)), LoopOutcome(fixes)
            outcome = loop(
                path, compiler, unsafe=unsafe, translates=hipify_to is not None, targets=targets, archs=_archs(arch),
                commands=commands, real=real, progress=lambda _stage, n, of: shown.update(n, of),
            )  # fmt: skip
            return outcome.fixes, outcome
    except (AuditError, NoHipifyError, OSError, ValueError) as error:
        fail(error)


def _copy(path: str, folder: str) -> None:
    """The tree below a new folder outside it; links stay links."""
    inside = os.path.realpath(folder).startswith(os.path.realpath(path) + os.sep)
    if inside or not os.path.isdir(path) or os.path.lexists(folder):
        _contract.refuse("file_unusable", path=folder, problem="--hipify: not a new folder outside the tree")
    try:
        files.copy_tree(path, folder)
    except (OSError, shutil.Error) as error:
        fail(error if isinstance(error, OSError) and error.strerror else f"{folder}: {str(error)[:200]}")


def _write(path: str, fixes: list[FileFix], output: str | None, patch: str) -> list[str]:
    """Write the patch, or, without a place for it, the files; the names of these."""
    # lazily: the parsers are an extra, and help must be there without them
    from gfxgraph_port.fix import run

    try:
        if output is None:
            return run.write_all(path, fixes)
        if patch:
            write_out(output, patch, tree=path)
    except OSError as error:
        fail(error)
    return []


def _counts(fixes: list[FileFix], outcome: LoopOutcome) -> dict[str, object]:
    """What was done and what was not, as plain data."""
    return {
        "n_edits": sum(len(f.applied) for f in fixes),
        "refused": [
            {"path": f.path, "line": r.line, "rule": r.rule, "reason": r.reason} for f in fixes for r in f.refused
        ],
        "check": [{"rule": r, "count": n, "needs": needs} for (r, needs), n in _preconditions(fixes).items()],
        "units": _stages(outcome) or None,
        "real": outcome.real.as_json() if outcome.real is not None else None,
    }


def _tell(path: str, fixes: list[FileFix], outcome: LoopOutcome) -> None:
    """What was refused, what to check, how to build, and what compiles."""
    # lazily: the parsers are an extra, and help must be there without them
    from gfxgraph_port.fix import builds
    from gfxgraph_port.project import HOME, discover

    refused = [(f.path, r) for f in fixes for r in f.refused]
    n_edits = sum(len(f.applied) for f in fixes)
    for name, r in refused:
        click.echo(f"refused {name}:{r.line} {r.rule}: {r.reason}", err=True)
    click.echo(f"{n_edits} {'edit' if n_edits == 1 else 'edits'}, {len(refused)} refused", err=True)
    for (rule, needs), count in _preconditions(fixes).items():
        click.echo(f"check {rule} ({count}): {needs}", err=True)
    if any(f.path.startswith(f"{HOME}/") for f in fixes):
        for line in builds.how_to_build(discover(path)):
            click.echo(f"build {line}", err=True)
    for name, stage in _stages(outcome).items():
        click.echo(f"units {name}: {stage['compile']} of {stage['units']} compile", err=True)
    if outcome.real is not None:
        click.echo(f"real build: {'links' if outcome.real.is_linked else 'does not link'}", err=True)


def _stages(outcome: LoopOutcome) -> dict[str, dict[str, object]]:
    """Which share of the units compiles: before, after hipify alone, after each round; nothing without a compiler."""
    stages = {"before": outcome.before, "hipify": outcome.hipify, "after": outcome.after if outcome.rounds else None}
    return {name: verdict.as_json() for name, verdict in stages.items() if verdict is not None}


def _refuse_conflicts(
    ctx: click.Context, apply_: bool, dry_run: bool, hipify_to: str | None, loops: bool, commands: str | None
) -> None:
    """Options that would be accepted and then do nothing."""
    if commands is not None and not loops:
        fail("--compile-commands is for --loop")
    if apply_ and dry_run:
        fail("--apply edits the files, --dry-run edits nothing: give one of them")
    if apply_ and ctx.get_parameter_source("output") is click.core.ParameterSource.COMMANDLINE:
        fail("--apply writes no patch file; leave out --output")
    if hipify_to is not None and (
        dry_run or apply_ or ctx.get_parameter_source("output") is click.core.ParameterSource.COMMANDLINE
    ):
        fail("--hipify writes a folder: leave out --apply, --dry-run and --output")


def _preconditions(fixes: list[FileFix]) -> Counter[tuple[str, str]]:
    """What a reviewer is to check, by rule."""
    return Counter((e.rule, e.needs) for f in fixes for e in f.applied if e.needs)
