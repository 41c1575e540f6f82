"""What all commands have in common: options spelt alike, one form of error, one meaning of exit statuses.

0: all is well. 1: something was found. 2: the command could not do what was asked. 130: stopped by Ctrl-C.
``gfxgraph run`` ends as its program ends. With ``--json`` an error is JSON, too, on stdout: an object with ``error``.
"""

from __future__ import annotations

import codecs
import errno
import functools
import io
import json
import math
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from gfxgraph.process.progress import Progress

if TYPE_CHECKING:  # --help needs none, and importing them takes half its time
    from gfxgraph.errors import GfxGraphError

OK, FOUND, COULD_NOT, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141
DEFAULT_PROFILE = "hip"
_PLANT = re.compile(r"(fault|abort|hang|wrong)=.+")  # its planted_faults.py, which needs torch
SIMULATOR = "gfxgraph_simulator"
PORT_NEEDS = ("packaging",)
_NOT_WRITTEN = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})
_QUIET = "gfxgraph.quiet"
_FILLED = frozenset({"kind", "problem"})


_CHINESE = {
    "architecture": "架构", "command": "命令", "rule": "规则", "simulator profile": "模拟器配置",
    "status or code": "状态码或错误码", "target": "目标架构", "workload": "测试负载",
    "it is a folder": "这是一个文件夹", "it has no name": "没有文件名",
    "its folder does not exist": "所在文件夹不存在",
    "it is the program to run": "这是要运行的程序本身", "no such file": "没有这个文件",
    "no such file or folder": "没有这个文件或文件夹",
    "neither a folder nor a regular file": "既不是文件夹，也不是普通文件",
    "not found": "找不到", "it is not executable": "不可执行",
}  # fmt: skip
"""Words that fill in a message, where they are not the user's own."""


class CommandRefused(click.ClickException):
    """A command that could not do what was asked; the error says why."""

    exit_code = COULD_NOT

    def __init__(self, error: GfxGraphError) -> None:
        super().__init__(error.code)
        self.error = error

    def show(self, file: object = None) -> None:
        click.echo(str(self.error), err=True)


def refuse(code: str, **fields: Any) -> NoReturn:
    """End the command with the catalogue's error ``code``."""
    # lazily: --help needs it not
    from gfxgraph import config
    from gfxgraph.errors import CommandError

    if config.language_of() == "zh":
        fields = {name: _CHINESE.get(value, value) if name in _FILLED else value for name, value in fields.items()}
    raise CommandRefused(CommandError(code, **fields))


def tracker(lang: str) -> str:
    """The address of the issues, from pyproject by way of the package's metadata; in words while there is none."""
    # lazily: few commands ask, and it takes as long as most of them
    from importlib.metadata import PackageNotFoundError, metadata

    try:
        rows = metadata("gfxgraph-rocm").get_all("Project-URL") or []
    except PackageNotFoundError:
        rows = []
    found = dict(str(row).split(", ", 1) for row in rows)
    return found.get("Issues") or ("the tracker of this repository" if lang == "en" else "本仓库的 issue 跟踪器")


def can_be_written(path: str | Path | None, *, program: str | Path | None = None) -> None:
    """Refuse a file that cannot be written before the work whose result goes there, or that is the program itself."""
    if path is None:
        return
    where = Path(path)
    if not str(path) or where.is_dir() or str(path).endswith(os.sep):
        refuse("file_unusable", path=path, problem="it is a folder" if str(path) else "it has no name")
    if not Path(os.path.dirname(path) or ".").is_dir():
        refuse("file_unusable", path=path, problem="its folder does not exist")
    if not os.access(os.path.dirname(path) or ".", os.W_OK | os.X_OK) and not os.access(path, os.W_OK):
        refuse("file_unusable", path=path, problem="its folder cannot be written to")
    if program and where.exists() and Path(program).exists() and where.samefile(program):
        refuse("file_unusable", path=path, problem="it is the program to run")


class OutFile(click.Path):
    """A file to be written; what cannot be is refused before anything else is done."""

    def __init__(self, *, or_stdout: bool = False) -> None:
        super().__init__()
        self.or_stdout = or_stdout

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not (self.or_stdout and value == "-"):
            can_be_written(str(value))
        return str(value)


def refuse_name(kind: str, name: str, known: Iterable[str], listed: str) -> NoReturn:
    """End the command because there is no ``kind`` called ``name``; near names are suggested."""
    refuse("no_such_name", kind=kind, name=name, near=near_names(name, known), listed=listed)


def near_names(name: str, known: Iterable[str]) -> str:
    """The names of ``known`` that ``name`` may have meant, or "none"."""
    # lazily: a name is rarely wrong
    from difflib import get_close_matches

    by_lower = {each.lower(): each for each in known}
    found = [by_lower[each] for each in get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)]
    return ", ".join(found) or "none"


class Command(click.Command):
    """A command whose ``--simulate`` may stand without its profile: click would take the next word for it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_profiles(args))


class Group(click.Group):
    """A group whose list shows the whole first sentence of each command: click cuts it to a line."""

    def summary(self, name: str) -> str:
        return self.commands[name].get_short_help_str(limit=200)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, self.summary(name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def with_profiles(args: Sequence[str]) -> list[str]:
    """``args`` with each ``--simulate`` before ``--`` completed."""
    result: list[str] = []
    while args and args[0] != "--":
        word, *args = with_profile(args)
        result.append(word)
    return [*result, *args]


def with_profile(args: Sequence[str]) -> Sequence[str]:
    """``args``, of which the first word, if it is ``--simulate``, takes the profile that follows, or the default."""
    if args[0] != "--simulate":
        return args
    following = args[1] if len(args) > 1 else ""
    is_profile = following.split("+")[0] in profiles() and not Path(following).exists()
    return [f"--simulate={following if is_profile else DEFAULT_PROFILE}", *args[1 + is_profile :]]


def profiles() -> list[str]:
    """The names that ``--simulate`` takes."""
    # lazily: few commands ask; the package itself needs torch
    from importlib.util import find_spec

    found = find_spec(SIMULATOR)
    folders = (found.submodule_search_locations if found is not None else None) or ()
    files = (path for folder in folders for path in Path(folder, "profiles").glob("*.toml"))
    return sorted([DEFAULT_PROFILE, *(path.stem for path in files)])


class Number(click.FloatRange):
    """A number in a range; ``nan`` and ``inf``, which compare with any limit as they like, are none."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return found


def _check_profile(ctx: click.Context, _param: click.Parameter, value: str | None) -> str:
    if value is None:
        return ""
    if len(profiles()) == 1:
        refuse("package_missing", package=SIMULATOR)
    name, *plants = value.split("+")  # "+": faults to be simulated
    if name not in profiles() or not all(_PLANT.fullmatch(plant) for plant in plants):
        refuse_name("simulator profile", value, profiles(), f"--simulate={DEFAULT_PROFILE}; {', '.join(profiles())}")
    _one_device(ctx, "allow_cuda")
    return value


def _check_cuda(ctx: click.Context, _param: click.Parameter, value: bool) -> bool:
    if value:
        _one_device(ctx, "simulate")
    return value


def _one_device(ctx: click.Context, other: str) -> None:
    if ctx.params.get(other):
        raise click.UsageError("--allow-cuda uses a GPU, --simulate does without: give one of them", ctx)


def _language(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str:
    # lazily: --help needs it not
    from gfxgraph import config

    return value or config.language_of()


simulate = click.option(
    "--simulate",
    metavar="[=PROFILE]",
    callback=_check_profile,
    help=f"Use the simulator, without a GPU. PROFILE is a runtime version; default {DEFAULT_PROFILE}.",
)
allow_cuda = click.option(
    "--allow-cuda",
    is_flag=True,
    callback=_check_cuda,
    help="Also allow a CUDA build of torch, with an NVIDIA GPU.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, also for errors.")
quiet = click.option("-q", "--quiet", is_flag=True, help="Say nothing of gfxgraph's own where all is well.")


def quietly(body: Callable[..., Any]) -> Callable[..., object]:
    """Add ``--quiet`` to a command: no progress, and output only where it does not end with 0."""

    @quiet
    @functools.wraps(body)
    def told(*args: Any, quiet: bool, **kwargs: Any) -> Any:
        if not quiet:
            return body(*args, **kwargs)
        click.get_current_context().meta[_QUIET] = True
        said, status = io.StringIO(), COULD_NOT
        try:
            with redirect_stdout(said):
                status = body(*args, **kwargs) or OK
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else OK if end.code is None else COULD_NOT
            raise
        finally:
            if status != OK:
                click.echo(said.getvalue(), nl=False)
        return status

    return told


lang = click.option(
    "--lang",
    type=click.Choice(["en", "zh"]),
    callback=_language,
    help="Language [default: GFXGRAPH_LANG or the locale]",
)


def run(group: click.Group, arguments: list[str]) -> int:
    """Run the command line and return its exit status; nothing that a user can type ends in a traceback."""
    _open_closed_streams()
    _let_streams_take_anything()
    try:
        # lazily: --help needs it not
        from gfxgraph import config

        color = False if config.variables(["NO_COLOR"]) else None  # None: on a terminal
        result = group.main(list(arguments), prog_name="gfxgraph", standalone_mode=False, color=color)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):
            return BROKEN_PIPE  # click's own answer would be 1, "found"
        raise
    except (click.Abort, KeyboardInterrupt):
        click.echo(err=True)
        return INTERRUPTED
    except Exception as error:
        said = _said(error)
        if said is None:
            raise
        _show(said, as_json=wants_json(arguments))
        return COULD_NOT
    return result if isinstance(result, int) else OK


def _open_closed_streams() -> None:
    """A stream that the caller closed (``>&-``) is None in Python: it becomes one that holds and takes nothing."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  (open as long as the process)


def _let_streams_take_anything() -> None:
    r"""What the terminal's encoding lacks is written as \u4e2d: LANG=C, latin-1, names of files that are no text."""
    codecs.register_error("gfxgraph", _escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="gfxgraph")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """As in JSON, so that JSON stays what it is."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(json.dumps(each)[1:-1] for each in error.object[error.start : error.end]), error.end


def _show(said: GfxGraphError, *, as_json: bool) -> None:
    text = str(said)
    if as_json:
        try:
            click.echo(json.dumps({"error": as_dict(said)}, ensure_ascii=False, indent=1))
            return
        except OSError:
            pass  # stdout is what failed: it is said on stderr, in words
    click.echo(text, err=True)


def _said(error: Exception) -> GfxGraphError | None:
    """The error to show; None where it is to be raised."""
    # lazily: --help needs neither, and importing them takes half its time
    from gfxgraph import config
    from gfxgraph.errors import CommandError, GfxGraphError

    if isinstance(error, CommandRefused):
        return error.error
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "gfxgraph"
        return CommandError("bad_usage", problem=error.format_message(), command=path)
    if config.load().log_level is config.LogLevel.DEBUG:
        return None
    if isinstance(error, GfxGraphError):
        return error
    if isinstance(error, OSError) and (path := _path_of(error)):
        problem = "the current folder no longer exists" if path == "." else error.strerror or error
        return CommandError("file_unusable", path=path, problem=problem)
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in PORT_NEEDS:
        return CommandError("extra_missing", module=error.name, extra="port")
    place, where = "?", error.__traceback__
    while where is not None:
        path = where.tb_frame.f_code.co_filename
        if "gfxgraph" in path:
            place = f"{Path(path).name}:{where.tb_lineno}"
        where = where.tb_next
    return CommandError("internal_error", error=f"{type(error).__name__}: {error}", place=place)


def _path_of(error: OSError) -> str:
    """The file that ``error`` is about; empty where it is about none."""
    if error.filename is not None:
        return str(error.filename)
    if isinstance(error, FileNotFoundError):
        return "."  # os.getcwd()
    return "stdout" if error.errno in _NOT_WRITTEN else ""


def as_dict(error: GfxGraphError) -> dict[str, object]:
    """An error as plain data."""
    lines = str(error).splitlines()
    return {
        "code": error.code,
        "title": lines[0].split(": ", 1)[-1],
        "text": "\n".join(lines),
        "exit_status": COULD_NOT,
    }


def wants_json(arguments: list[str]) -> bool:
    """True where our own arguments ask for JSON; a program's arguments after ``run`` are its own."""
    own = arguments[1:]
    if arguments[:1] == ["run"]:
        # lazily: that command asks this module
        from gfxgraph.cli.run import split

        own, _ = split(own)
    return any(word == "--json" or word.startswith("--json=") for word in takewhile(lambda word: word != "--", own))


@contextmanager
def working(what: str, **times: float) -> Iterator[Progress]:
    """Say after two seconds, and now and then, that ``what`` still goes on; its parts may tell how far it is."""
    context = click.get_current_context(silent=True)
    if context is not None and context.meta.get(_QUIET):
        times = {"quiet_s": math.inf}
    progress = Progress(what, **times)
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.25):
            progress.say()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield progress
    finally:
        ended.set()
        thread.join()
        progress.close()
