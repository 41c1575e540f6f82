"""What ``gfxgraph doctor --selftest`` shows while the suite runs, and at its end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gfxgraph.startup.environment import program_environment
from gfxgraph.startup.torch_build import refuse_unsuitable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from gfxgraph.runtime.selftest import Listed, Result, Suite

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
_SEND = {
    "en": "Please send {path} back, whatever the verdict: attach it to an issue of gfxgraph. It is what tells us how "
    "graphs behave on this GPU. It holds no user name, host name or home path; read it first if you like.",
    "zh": "无论结果如何，请把 {path} 发回来：附在 gfxgraph 的 issue 中即可。它告诉我们图在这块 GPU 上的表现。"
    "文件不含用户名、主机名和主目录路径；发送前可以先查看。",
}


def run(path: Path, *, simulate: str, allow_cuda: bool, only: tuple[str, ...], module: str | None = None) -> int:
    """Run the suite, show each case as it ends, write the report; return the exit status.

    Raises:
        ActivationError, ConfigError: gfxgraph cannot be used here; no report is written.
    """
    asked = {"GFXGRAPH_ALLOW_CUDA": "1"} if allow_cuda else {}
    asked |= {"GFXGRAPH_SIMULATE": simulate} if simulate else {}
    _, settings = program_environment(asked)
    refuse_unsuitable(settings, sys.executable)
    from rich.console import Console

    from gfxgraph.runtime import selftest
    from gfxgraph.runtime.selftest_worker import CASES

    console = Console(highlight=False)
    suite = selftest.Suite(settings.simulate, settings.allow_cuda, only, module or CASES)
    lang = settings.lang
    if suite.is_simulated:
        console.print(_SIMULATED[lang].format(profile=suite.simulate), style="bold yellow")
    _run(console, suite)
    report = suite.report()
    selftest.write(report, path)
    _conclude(console, suite, path, lang)
    return 0 if suite.is_passed else 1


def _run(console: Console, suite: Suite) -> None:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # On a terminal only: into a file or a pipe go the lines alone.
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("device", total=None)
        cases = suite.probe()
        console.print(line(suite.results[0], console.width, _device(suite)))
        progress.update(bar, total=len(cases), description=_next(cases, 0))
        for n, result in enumerate(suite.run(cases), 1):
            console.print(line(result, console.width))
            progress.update(bar, completed=n, description=_next(cases, n))


def _next(cases: list[Listed], n: int) -> str:
    return cases[n].name if n < len(cases) else "report"


def _device(suite: Suite) -> str:
    if not suite.device:
        return ""
    found = suite.device
    runtime = (
        f"HIP {found['hip']}" if found["hip"] else f"CUDA {found['cuda']}" if found["cuda"] else "no GPU runtime"
    )
    return f"{found['name']}, {found['arch']}, {found['memory_mib']} MiB, torch {found['torch']}, {runtime}"


def line(result: Result, width: int, fact: str = "") -> Table:
    """One case on one line; a case that did not pass says all."""
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
    for result in suite.results:
        counts[str(result.outcome)] = counts.get(str(result.outcome), 0) + 1
    numbers = ", ".join(f"{n} {outcome}" for outcome, n in counts.items())
    is_passed = suite.is_passed
    console.print()
    console.print(f"{_VERDICT[is_passed][lang]}: {numbers}", style="bold green" if is_passed else "bold red")
    if suite.is_simulated:
        console.print(_SIMULATED[lang].format(profile=suite.simulate), style="yellow")
        console.print(str(path), soft_wrap=True)
        return
    console.print(_SEND[lang].format(path=path), soft_wrap=True)
