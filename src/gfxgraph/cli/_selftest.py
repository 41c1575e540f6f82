"""What ``gfxgraph doctor --selftest`` shows while the suite runs, and at its end."""

from __future__ import annotations

import functools
import json
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from gfxgraph.errors import CommandError
from gfxgraph.startup.child_environment import program_environment
from gfxgraph.startup.torch_build import refuse_unsuitable

if TYPE_CHECKING:
    from gfxgraph.selftest.suite import CaseResult, Suite

DEFAULT_PATH = "gfxgraph-selftest.json"
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
    # lazily: other commands start without it
    from gfxgraph.selftest.suite import Suite, write
    from gfxgraph.selftest.worker import CASES

    suite = Suite(settings.simulate, settings.allow_cuda, only, module or CASES)
    say = functools.partial(click.secho, err=as_json)
    if suite.simulate:
        say(_SIMULATED[settings.lang].format(profile=suite.simulate), fg="yellow", bold=True)
    status = 0
    held = {each: signal.signal(each, _stop) for each in _ending()}
    try:
        cases = suite.probe()
        _show(suite.results[0], as_json, _device(suite))
        write(suite.report(), path)
        for result in suite.run(cases):
            _show(result, as_json)
            write(suite.report(), path)
    except Stopped as stopped:
        suite.stopped_by, status = stopped.signal.name, 128 + stopped.signal
    finally:
        for each in held:
            signal.signal(each, signal.SIG_IGN)  # the report is written whole
    if suite.results:
        write(suite.report(), path)
    _conclude(suite, path, settings.lang, say)
    if as_json:
        click.echo(json.dumps(suite.report(), ensure_ascii=False, indent=1))
    for each, handler in held.items():
        signal.signal(each, handler if handler is not None else signal.SIG_DFL)
    return status or (0 if suite.is_passed else 1)


def _conclude(suite: Suite, path: Path, lang: str, say: Callable[..., None]) -> None:
    """Say how the suite ended, and where its report is."""
    counts = Counter(str(result.outcome) for result in suite.results)
    numbers = ", ".join(f"{n} {outcome}" for outcome, n in counts.items())
    verdict = _VERDICT[suite.is_passed][lang]
    if suite.stopped_by:
        verdict = _STOPPED[lang].format(by=suite.stopped_by, n=len(suite.results), total=1 + len(suite.cases))
    say(f"\n{verdict}: {numbers}", fg="green" if suite.is_passed else "red", bold=True)
    if suite.simulate:
        say(_SIMULATED[lang].format(profile=suite.simulate), fg="yellow", bold=True)
        say(str(path))
    elif suite.results:
        say(_SEND[lang].format(path=path))


class Stopped(BaseException):
    """This process was asked to end."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)


def _ending() -> list[signal.Signals]:
    """The requests to end that are not ignored: nohup ignores SIGHUP."""
    known = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    return [each for each in known if signal.getsignal(each) is not signal.SIG_IGN]


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped(number)


def _device(suite: Suite) -> str:
    if not suite.device:
        return ""
    found = suite.device
    runtime = (
        f"HIP {found['hip']}" if found["hip"] else f"CUDA {found['cuda']}" if found["cuda"] else "no GPU runtime"
    )
    return f"{found['name']}, {found['arch']}, {found['memory_mib']} MiB, torch {found['torch']}, {runtime}"


def _show(result: CaseResult, is_error: bool, fact: str = "") -> None:
    """One case on one line; a case that did not pass in full."""
    mark = click.style(f"{result.outcome!s:<5}", fg=_COLOUR[result.outcome])
    shown = f"{result.name}: {fact or result.fact}"
    seconds = f"  {result.seconds:.1f} s" if result.exit_status is not None else ""
    if result.is_bad:
        click.echo(f"{mark}  {shown}{seconds}\n       {result.reason}", err=is_error)
        for code in result.explained[:3]:
            click.echo(f"       gfxgraph explain {code}", err=is_error)
        return
    if result.reason:
        shown = f"{result.name}: {result.reason}"
    room = shutil.get_terminal_size((100, 24)).columns - 7 - len(seconds)
    click.echo(f"{mark}  {shown if len(shown) <= room else shown[: room - 3] + '...'}{seconds}", err=is_error)
