"""Run a script, a module or a command with safe graphs, in all of its processes.

The program is started as if ``gfxgraph run`` had not been typed: the same interpreter, arguments, exit status,
signals and tracebacks. Only the environment differs: variables that say what is wanted, and a folder on PYTHONPATH by
which every Python process below takes part (gfxgraph.startup). This process waits for it and says at the end what
came of it (_run_end.py).
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from gfxgraph.cli import _contract, _run_end
from gfxgraph.core.fault_report import HANG_LIMIT_S
from gfxgraph.startup import supervise
from gfxgraph.startup.child_environment import program_environment, refuse_unsuitable
from gfxgraph.startup.sanitizer import compute_sanitizer_cmd
from gfxgraph.types import GuardTier, OnUnsafe

TAKE_VALUES = {"--on-unsafe", "--guard", "--guard-limit", "--report"}
VARIABLES = {
    "allow_cuda": "GFXGRAPH_ALLOW_CUDA",
    "simulate": "GFXGRAPH_SIMULATE",
    "on_unsafe": "GFXGRAPH_ON_UNSAFE",
    "guard": "GFXGRAPH_GUARD",
}
"""What each option sets for the program."""
PAGE = "gfxgraph-report.html"
TIERS = ("0", "1", "2", "3", "safe", "localize", "deep")
USAGE = "[OPTIONS] (SCRIPT.py ARGS... | -m MODULE ARGS... | COMMAND ARGS...)"


@dataclass(frozen=True, slots=True)
class LaunchedProgram:
    """What to start: ``argv`` after the interpreter; a command where ``is_command``, or no file has its name."""

    argv: tuple[str, ...]
    is_command: bool


class RunCommand(click.Command):
    """Splits off the program before click sees the arguments, so that its options are not taken for ours."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ours, program = split(args)
        ctx.meta["gfxgraph.program"] = program
        return super().parse_args(ctx, ours)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [USAGE]


def split(args: Sequence[str]) -> tuple[list[str], LaunchedProgram | None]:
    """Divide ``args`` into our options and the program: all that follows the first word that is no option."""
    ours: list[str] = []
    while args:
        word, *args = _contract.with_profile(args)
        if word == "--":
            return ours, LaunchedProgram(tuple(args), is_command=True) if args else None
        if word == "-m":
            return ours, LaunchedProgram(("-m", *args), is_command=False) if args else None
        if not word.startswith("-"):
            return ours, LaunchedProgram((word, *args), is_command=False)
        ours.append(word)
        if word in TAKE_VALUES and args:
            ours.append(args.pop(0))
    return ours, None


@click.command("run", cls=RunCommand)
@_contract.allow_cuda
@_contract.simulate
@click.option("--json", "as_json", is_flag=True, help="Print what gfxgraph itself says as JSON.")
@click.option(
    "--on-unsafe",
    type=click.Choice([choice.value for choice in OnUnsafe]),
    help="What to do at an operation that no graph can record.",
)
@click.option("--validate", is_flag=True, help="Compare every graph's replays with eager execution.")
@click.option("--debug", is_flag=True, help="Log every capture, replay and fallback.")
@click.option(
    "--preload",
    is_flag=True,
    help="For engines that call the graph API themselves: preload the native library and print its report.",
)
@click.option("--guard", type=click.Choice(TIERS), help="Guard against illegal memory access.")
@click.option(
    "--guard-limit",
    type=_contract.Number(min=0.1),
    default=HANG_LIMIT_S,
    show_default=True,
    metavar="SECONDS",
    help="How long one graph node may take before it counts as hanging (tiers 2 and 3).",
)
@click.option(
    "--sanitizer", is_flag=True, help="Run under compute-sanitizer or AMD's debug agent; implies --guard 3."
)
@click.option("--report", "report_file", metavar="FILE.html", help="Write what ran, and where, as one HTML page.")
@click.option("--profile", is_flag=True, help="Time what runs in graphs, by module, line and kernel.")
@_contract.quiet
@click.pass_context
def command(
    ctx: click.Context,
    /,
    as_json: bool,
    preload: bool,
    guard_limit: float,
    sanitizer: bool,
    report_file: str | None,
    profile: bool,
    quiet: bool,
    **given: object,
) -> None:
    """Run a program with safe graphs, in all of its processes.

    \b
    gfxgraph run train.py --epochs 3
    gfxgraph run -m package.module --flag
    gfxgraph run --simulate torchrun --nproc-per-node 2 train.py
    gfxgraph run --preload llama-cli -m model.gguf -p "Once upon a time"

    Options of gfxgraph come before the program; everything after it belongs to the program. The exit status is the
    program's, or 2 with a message from gfxgraph if it was not started.
    """
    program: LaunchedProgram | None = ctx.meta["gfxgraph.program"]
    if program is None:
        raise click.UsageError("nothing to run: name a script, -m MODULE, or a command", ctx)
    report_file = PAGE if profile and report_file is None else report_file
    _contract.can_be_written(report_file, program=program.argv[0])
    given["guard"] = "3" if sanitizer else given["guard"]
    environment, settings = program_environment(wanted(given))
    argv = command_line(program)
    if runs_here(argv):
        refuse_unsuitable(settings, sys.executable)
    with tempfile.TemporaryDirectory(prefix="gfxgraph-run-", ignore_cleanup_errors=True) as folder:
        end = _run_end.RunEnd(Path(folder), environment, report_file, profile)
        is_guarded = settings.guard >= GuardTier.LOCALIZE and os.name == "posix"
        if preload:
            # lazily: other runs start without it
            from gfxgraph.cli import _preload

            status = _preload.run(argv, end.environment, as_json=as_json)
        elif is_guarded:
            line = compute_sanitizer_cmd(argv) if sanitizer else argv
            status = supervise.run_guarded(line, end.environment, guard_limit)
        else:
            status = supervise.run(argv, end.environment)
        status = end.tell(status, is_quiet=quiet or preload, as_json=as_json, is_guarded=is_guarded)
    supervise.end_as(status)


def wanted(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that say what the options say; an option left out leaves its variable alone."""
    result = {}
    if given["validate"] or given["debug"]:
        result["GFXGRAPH"] = "validate" if given["validate"] else "debug"
    if given["validate"] and given["debug"]:
        result["HGB_LOG_LEVEL"] = "debug"
    for name, variable in VARIABLES.items():
        value = given[name]
        if value is not None and value is not False and value != "":
            result[variable] = "1" if value is True else f"{value:g}" if isinstance(value, float) else value
    return result


def command_line(program: LaunchedProgram) -> list[str]:
    """Return the whole command; what is not there is refused here, in our words."""
    found = shutil.which(program.argv[0])
    is_on_path = bool(found) and os.sep not in program.argv[0] and not Path(program.argv[0]).is_file()
    if program.is_command or is_on_path:
        if found is None:
            _contract.refuse("script_not_found", script=program.argv[0], problem=_why_not_run(program.argv[0]))
        return [found, *program.argv[1:]]
    if program.argv[0] == "-m":
        if not has_module(program.argv[1]):
            _contract.refuse("script_not_found", script=f"module {program.argv[1] or repr('')}", problem="not found")
    elif not program.argv[0]:
        _contract.refuse("script_not_found", script="", problem="not found")
    elif not (path := Path(program.argv[0])).exists() or (path.is_dir() and not (path / "__main__.py").exists()):
        problem = "it is a folder" if path.is_dir() else "not found"
        _contract.refuse("script_not_found", script=path, problem=problem)
    return [sys.executable, *program.argv]


def _why_not_run(command: str) -> str:
    """Why ``command`` is none: a name is looked for on the PATH, a path is what it is."""
    if os.sep not in command or not Path(command).exists():
        return "not found"
    return "it is a folder" if Path(command).is_dir() else "it is not executable"


def has_module(name: str) -> bool:
    """Whether the top package of ``name`` can be found from here; it is not imported."""
    top = name.split(".")[0]
    return top.isidentifier() and (find_spec(top) is not None or any(Path(top + end).exists() for end in ("", ".py")))


def runs_here(argv: list[str]) -> bool:
    """True where the program is sure to use this interpreter's torch; others refuse as they import theirs."""
    return Path(argv[0]).parent == Path(sys.executable).parent
