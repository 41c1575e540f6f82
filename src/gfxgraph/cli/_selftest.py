"""What ``gfxgraph doctor --selftest`` shows while the suite runs, and at its end."""

from __future__ import annotations

import functools
import json
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from gfxgraph import config
from gfxgraph.cli import _contract
from gfxgraph.startup.child_environment import program_environment, refuse_unsuitable

if TYPE_CHECKING:
    from gfxgraph.selftest.suite import Case, Suite

DEFAULT_PATH = "gfxgraph-selftest.json"
_COLOUR = {"pass": "green", "skip": "cyan", "fail": "red", "crash": "red", "hang": "red", "unfinished": "yellow"}
_SIMULATED = {
    "en": "This is the simulator (profile {profile}), not a GPU: it shows that gfxgraph's own logic is whole on this "
    "machine, and nothing about a GPU.",
    "zh": "这是模拟器（配置 {profile}），不是 GPU：它只说明 gfxgraph 自身的逻辑在本机完好，不说明任何 GPU 的情况。",
}
_VERDICT = {
    "pass": {"en": "All passed, or skipped with a reason", "zh": "全部通过，或有理由地跳过"},
    "fail": {"en": "NOT ALL PASSED", "zh": "有未通过的项目"},
    "unfinished": {"en": "STOPPED before its end", "zh": "未完成即中止"},
}
_SEND = {
    "en": "Please send {path} back, whatever the verdict: it tells us how graphs behave on this GPU. It holds no "
    "user name, host name or home path; read it first if you like. Open a self-test report in {tracker}.",
    "zh": "无论结果如何，请把 {path} 发回来：它告诉我们图在这块 GPU 上的表现。文件不含用户名、主机名和主目录路径，"
    "发送前可以先查看。请在 {tracker} 提交 self-test 报告。",
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
    other process is left behind.

    Raises:
        ActivationError, ConfigError: gfxgraph cannot be used here; no report is written.
    """
    _contract.can_be_written(path)
    asked = {"GFXGRAPH_ALLOW_CUDA": "1"} if allow_cuda else {}
    asked |= {"GFXGRAPH_SIMULATE": simulate} if simulate else {}
    _, settings = program_environment(asked)
    refuse_unsuitable(settings, sys.executable)
    # lazily: other commands start without it
    from gfxgraph.selftest.suite import Suite, write
    from gfxgraph.selftest.worker import CASES

    suite = Suite(settings.simulate, settings.allow_cuda, only, module or CASES)
    say = functools.partial(click.secho, err=as_json)
    simulated = _SIMULATED[settings.lang].format(profile=suite.simulate) if suite.simulate else ""
    if simulated:
        say(simulated, fg="yellow", bold=True)
    signal.signal(signal.SIGTERM, _stop)
    try:
        with _contract.working("selftest: the device"):
            cases = suite.probe()
        _show(suite.results[0], as_json, _device(suite))
        write(suite.report(), path)
        results = suite.run(cases)
        for n, case in enumerate(cases, 1):
            with _contract.working(f"selftest: {case['name']}, {n} of {len(cases)}"):
                result = next(results)
            _show(result, as_json)
            write(suite.report(), path)
    finally:
        if suite.results:
            counts = Counter(result["outcome"] for result in suite.results)
            numbers = ", ".join(f"{n} {outcome}" for outcome, n in counts.items())
            verdict = _VERDICT[suite.outcome][settings.lang]
            say(f"\n{verdict}: {numbers}", fg=_COLOUR[suite.outcome], bold=True)
            say(
                f"{simulated}\n{path}"
                if simulated
                else _SEND[settings.lang].format(path=path, tracker=_contract.tracker(settings.lang))
            )
    if as_json:
        click.echo(json.dumps(suite.report(), ensure_ascii=False, indent=1))
    return 0 if suite.outcome == "pass" else 1


def run_native(path: Path, *, as_json: bool = False) -> int:
    """Run the self-test that needs no torch, show what is not right, write the report; return the exit status.

    Raises:
        DriverError: there is no HIP runtime, or it finds no GPU; no report is written.
    """
    _contract.can_be_written(path)
    lang = config.language_of()
    # lazily: other commands start without it
    from gfxgraph.selftest.native.native_suite import NativeSuite
    from gfxgraph.selftest.suite import write

    suite = NativeSuite()
    say = functools.partial(click.secho, err=as_json)
    signal.signal(signal.SIGTERM, _stop)
    results = suite.run()
    with _contract.working("selftest, native: the device"):
        say(str(next(results)["told"]))
    try:
        with _contract.working("selftest, native") as progress:
            for result in results:
                if result["outcome"] in ("died", "failed", "wrong"):
                    progress.close()
                    name = " ".join(str(result[key]) for key in ("kind", "name", "mode", "how") if key in result)
                    why = result.get("ended") or result.get("failed") or result["told"]
                    say(f"{result['outcome']:<6} {name}: {why}", fg="red")
    finally:
        report = suite.report()
        write(report, path)
        for kind, counts in report["counts"].items():
            say(f"{kind}: {', '.join(f'{number} {outcome}' for outcome, number in counts.items())}")
        for kind, left in (+Counter(report["not_run"])).items():
            say(f"{kind}: {left} not run, the time was over", fg="yellow")
        say(f"preload library {report['preload_library']}")
        say(f"compared with the table of {report['compared_with']}: {len(report['differs'])} cells differ")
        for each in report["differs"]:
            say(f"  {each['call']}, {each['mode']}: {each['here']}; there {each['table']}\n    {each['means']}")
        say(f"\n{_VERDICT[report['verdict']][lang]}", fg=_COLOUR[report["verdict"]], bold=True)
        say(_SEND[lang].format(path=path, tracker=_contract.tracker(lang)))
    if as_json:
        click.echo(json.dumps(report, ensure_ascii=False, indent=1))
    return 0 if report["verdict"] == "pass" else 1


def _stop(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)


def _device(suite: Suite) -> str:
    found: dict[str, object] = suite.device
    if not found:
        return ""
    runtime = f"HIP {found['hip']}" if found["hip"] else f"CUDA {found['cuda']}"
    return f"{found['name']}, {found['arch']}, {found['memory_mib']} MiB, torch {found['torch']}, {runtime}"


def _show(result: Case, is_error: bool, fact: str = "") -> None:
    """One case on one line; a case that did not pass in full."""
    mark = click.style(f"{result['outcome']:<5}", fg=_COLOUR[result["outcome"]])
    shown = f"{result['name']}: {fact or result['fact']}"
    seconds = f"  {result['seconds']:.1f} s" if "seconds" in result else ""
    if result["outcome"] in ("fail", "crash", "hang"):
        click.echo(f"{mark}  {shown}{seconds}\n       {result['reason']}", err=is_error)
        for code in result.get("explained", [])[:3]:
            click.echo(f"       gfxgraph explain {code}", err=is_error)
        return
    if "reason" in result:
        shown = f"{result['name']}: {result['reason']}"
    room = shutil.get_terminal_size((100, 24)).columns - 7 - len(seconds)
    click.echo(f"{mark}  {shown if len(shown) <= room else shown[: room - 3] + '...'}{seconds}", err=is_error)
