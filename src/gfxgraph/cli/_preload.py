"""gfxgraph run --preload: a program that calls the graph API itself, under the preload library.

What the library saw is printed after it has ended, on stderr, so that a program's own output can still be piped.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import click

from gfxgraph import native
from gfxgraph.diagnostics.render import visible
from gfxgraph.hardware import defect_environment, defects
from gfxgraph.reporting.run_line import how_ended
from gfxgraph.startup import supervise


def run(argv: list[str], environ: Mapping[str, str], *, as_json: bool = False) -> int:
    """Run ``argv`` under the library, print what was reported, and return the status as ``subprocess`` gives it.

    Raises:
        GfxGraphError: `native_library_unusable`.
    """
    machine = defect_environment.detect()
    decisions = defects.decide(machine)
    modes = {"global": decisions.capture_error_mode, "relaxed": decisions.relaxed_capture_mode}
    settings = native.preload_settings(modes, decisions.update_budget, decisions.max_nodes, environ)
    with tempfile.TemporaryDirectory(prefix="gfxgraph-preload-", ignore_cleanup_errors=True) as folder:
        kept = environ.get(native.REPORT)
        report = Path(kept) if kept else Path(folder) / "%p.json"
        settings |= {name: value for name, value in decisions.set_env.items() if name not in environ}
        prepared = native.preload_environment({**environ, **settings}, report)
        status = supervise.run(argv, prepared)
        if as_json:
            told = [asdict(seen) for seen in reports(report)]
            click.echo(json.dumps({"status": status, "processes": told, "settings": settings}, default=str), err=True)
            return status
        for line in lines(status, report, settings):
            click.echo(f"gfxgraph: {visible(line)}", err=True)
    return status


def lines(status: int, report: Path, settings: Mapping[str, str]) -> Iterator[str]:
    """What is printed: one block a process that used graphs, or why there is none."""
    found = reports(report)
    for number, seen in enumerate(found):
        if len(found) > 1:
            yield f"process {number + 1} of {len(found)} (pid {seen.pid})"
        yield from seen.lines()
    for name, value in settings.items():
        yield f"for known defects of this ROCm and GPU: {name}={value} (gfxgraph doctor --why)"
    if found:
        return
    if status < 0:
        yield f"no report: the program died of {how_ended(status)}, before it could be written"
        yield "send it SIGUSR1 while it runs to have one written at once; GFXGRAPH_PRELOAD_REPORT names the file"
    else:
        yield "no report: the program made no graph call that a preloaded library can see"
        yield (
            "what it cannot see: a program with no dynamic loader, or one that starts others without LD_PRELOAD; "
            "LD_DEBUG=bindings names who is bound to libamdhip64"
        )


def reports(report: Path) -> list[native.Report]:
    """What the processes wrote to files of this name."""
    found = []
    for path in sorted(report.parent.glob(report.name.replace("%p", "*"))):
        with suppress(OSError, ValueError):  # a process that died while writing
            found.append(native.read_report(path))
    return [seen for seen in found if seen is not None]
