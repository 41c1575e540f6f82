"""What ``gfxgraph doctor --selftest`` shows while the suite runs, and at its end."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from gfxgraph.errors import CommandError
from gfxgraph.startup.environment import program_environment
from gfxgraph.startup.torch_build import refuse_unsuitable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from gfxgraph.selftest.outcome import CaseResult
    from gfxgraph.selftest.suite import Suite

DEFAULT_PATH = "gfxgraph-selftest.json"
WIDE = 100
"""Columns from which on a line has room for the name of its case."""
_COLOUR = {"pass": "green", "skip": "cyan", "fail": "red", "crash": "red", "hang": "red"}
_SIMULATED = {
    "en": "This is the simulator (profile {profile}), not a GPU: it shows that gfxgraph's own logic is whole on this "
    "machine, and nothing about a GPU.",
    "zh": "这是模拟器（配置 {profile}），不是 GPU：它只说明 gfxgraph 自身的逻辑在本机完好，不说明任何 GPU 的情况。",
}
_VERDICT = {
    True: {"en": "All passed, or skipped with a reason", "zh": "全部通过，或有理由地跳过"},
    False: {"en": "NOT ALL PASSED", "zh": "有未通过的项目"},
}
_STOPPED = {
    "en": "STOPPED by {by}: {n} of {total} cases have ended",
    "zh": "已被 {by} 中止：{total} 项中已完成 {n} 项",
}
_SEND = {
    "en": "Please send {path} back, whatever the verdict: attach it to an issue of gfxgraph. It is what tells us how "
    "graphs behave on this GPU. It holds no user name, host name or home path; read it first if you like.",
    "zh": "无论结果如何，请把 {path} 发回来：附在 gfxgraph 的 issue 中即可。它告诉我们图在这块 GPU 上的表现。"
    "文件不含用户名、主机名和主目录路径；发送前可以先查看。",
}


def run(
    path: Path,
    *,
    as_json: bool = False,
    simulate: str,
    allow_cuda: bool,
    only: tuple[str, ...],
    module: str | None = None,
) -> int:
    """Run the suite, show each case as it ends, write the report; return the exit status.

    The report is written anew with each case: it is there whatever ends this process. Where a signal does, no
    other process is left behind, and the status is 128 and the signal's number.

    Raises:
        ActivationError, ConfigError: gfxgraph cannot be used here; no report is written.
    """
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise CommandError("file_unusable", path=path, problem="not a file name in a folder that exists")
    asked = {"GFXGRAPH_ALLOW_CUDA": "1"} if allow_cuda else {}
    asked |= {"GFXGRAPH_SIMULATE": simulate} if simulate else {}
    _, settings = program_environment(asked)
    refuse_unsuitable(settings, sys.executable)
    from rich.console import Console

    # lazily: other commands start without it
    from gfxgraph.selftest.suite import Suite, write
    from gfxgraph.selftest.worker import CASES

    # With --json stdout is the report and nothing else.
    console = Console(highlight=False, stderr=as_json)
    suite = Suite(settings.simulate, settings.allow_cuda, only, module or CASES)
    lang = settings.lang
    if suite.is_simulated:
        console.print(_SIMULATED[lang].format(profile=suite.simulate), style="bold yellow")
    status = 0
    try:
        with _stoppable():
            _run(console, suite, path)
    except Stopped as stopped:
        suite.stopped_by, status = stopped.signal.name, 128 + stopped.signal
    finally:
        with _deaf():
            suite.close()
    if suite.results:
        with _deaf():
            write(suite.report(), path)
    for result in suite.ended()[len(suite.results) :]:
        console.print(line(result, console.width))
    _conclude(console, suite, path, lang)
    if as_json:
        click.echo(json.dumps(suite.report(), ensure_ascii=False, indent=1))
    return status or (0 if suite.is_passed else 1)


class Stopped(BaseException):
    """This process was asked to end."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)


_ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextmanager
def _stoppable() -> Iterator[None]:
    """Turn requests to terminate into an exception, so that the results so far are kept."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    with _handling(stop):
        yield


@contextmanager
def _deaf() -> Iterator[None]:
    """Ignore signals while all processes are ended and the report is written."""
    with _handling(signal.SIG_IGN):
        yield


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
    # What is ignored stays so: nohup ignores SIGHUP.
    held = {each: signal.getsignal(each) for each in _ENDING}
    for each, old in held.items():
        if old is not signal.SIG_IGN:
            signal.signal(each, handler)
    try:
        yield
    finally:
        for each, old in held.items():
            signal.signal(each, old if old is not None else signal.SIG_DFL)


def _run(console: Console, suite: Suite, path: Path) -> None:
    from rich.progress import Progress, ProgressColumn, Task, TimeElapsedColumn
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    # lazily: other commands start without it
    from gfxgraph.selftest.suite import write

    class Now(ProgressColumn):
        """What is running, looked up at each refresh: a case that hangs is seen to."""

        def render(self, task: Task) -> Text:
            return Text(", ".join(suite.running) or str(task.description))

    class EndedColumn(ProgressColumn):
        """How many cases have ended, also those whose line waits for an earlier one."""

        def render(self, task: Task) -> Text:
            return Text(f"{suite.n_ended}/{int(task.total)}" if task.total else "")

    class Bar(ProgressColumn):
        """The same count as a bar."""

        def render(self, task: Task) -> ProgressBar:
            return ProgressBar(task.total, suite.n_ended, width=24, pulse=not task.total)

    columns = (Bar(), EndedColumn(), TimeElapsedColumn(), Now())
    # On a terminal only: into a file or a pipe go the lines alone.
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("device", total=None)
        cases = suite.probe()
        console.print(line(suite.results[0], console.width, _device(suite)))
        progress.update(bar, total=len(cases), description="report")
        for result in suite.run(cases):
            console.print(line(result, console.width))
            write(suite.report(), path)


def _device(suite: Suite) -> str:
    if not suite.device:
        return ""
    found = suite.device
    runtime = (
        f"HIP {found['hip']}" if found["hip"] else f"CUDA {found['cuda']}" if found["cuda"] else "no GPU runtime"
    )
    return f"{found['name']}, {found['arch']}, {found['memory_mib']} MiB, torch {found['torch']}, {runtime}"


def line(result: CaseResult, width: int, fact: str = "") -> Table:
    """One case on one line; a case that did not pass in full."""
    from rich.table import Table
    from rich.text import Text

    is_wide = width >= WIDE
    shown = Text(fact or result.fact)
    if result.is_bad:
        shown = Text(f"{result.name}: ", style="bold").append_text(shown) if not is_wide else shown
        shown.append(f"\n{result.reason}", style="red")
        for code in result.explained[:3]:
            shown.append(f"\ngfxgraph explain {code}", style="bold")
    elif result.reason:
        shown = Text(f"{'' if is_wide else result.name + ': '}{result.reason}")
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(width=5)
    if is_wide:
        table.add_column(width=24, no_wrap=True)
    table.add_column(ratio=1, no_wrap=not result.is_bad, overflow="fold" if result.is_bad else "ellipsis")
    table.add_column(width=7, justify="right", no_wrap=True)
    seconds = f"{result.seconds:.1f} s" if result.exit_status is not None else ""
    mark = Text(str(result.outcome), style=_COLOUR[result.outcome])
    table.add_row(mark, *([result.name] if is_wide else []), shown, Text(seconds, style="dim"))
    return table


def _conclude(console: Console, suite: Suite, path: Path, lang: str) -> None:
    counts: dict[str, int] = {}
    for result in suite.ended():
        counts[str(result.outcome)] = counts.get(str(result.outcome), 0) + 1
    numbers = ", ".join(f"{n} {outcome}" for outcome, n in counts.items())
    is_passed = suite.is_passed
    verdict = _VERDICT[is_passed][lang]
    if suite.stopped_by:
        verdict = _STOPPED[lang].format(by=suite.stopped_by, n=sum(counts.values()), total=1 + suite.n_cases)
    console.print()
    if not suite.results:
        console.print(verdict, style="bold red")
        return
    console.print(f"{verdict}: {numbers}", style="bold green" if is_passed else "bold red")
    if suite.is_simulated:
        console.print(_SIMULATED[lang].format(profile=suite.simulate), style="yellow")
        console.print(str(path), soft_wrap=True)
        return
    console.print(_SEND[lang].format(path=path), soft_wrap=True)
