"""The part of ``gfxgraph run`` that stays above a guarded program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from gfxgraph.cli import _contract
from gfxgraph.config import language_of
from gfxgraph.core.faults import HANG_LIMIT_S, NodeInfo

TIERS = ("0", "1", "2", "3", "safe", "localize", "deep")


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of guarded runs."""
    for option in (
        click.option(
            "--sanitizer", is_flag=True, help="Run under compute-sanitizer or AMD's debug agent; implies --guard 3."
        ),
        click.option(
            "--guard-limit",
            type=_contract.Number(min=0.1),
            default=HANG_LIMIT_S,
            show_default=True,
            metavar="SECONDS",
            help="How long one graph node may take before it counts as hanging (tiers 2 and 3).",
        ),
        click.option("--guard", type=click.Choice(TIERS), help="Guard against illegal memory access."),
    ):
        command = option(command)
    return command


def run(argv: list[str], environment: dict[str, str], limit_s: float, with_sanitizer: bool) -> None:
    """Run the program below a supervisor and end as it ends. Does not return."""
    # lazily: they need a POSIX system, and help needs neither
    from gfxgraph.startup import sanitizer as tools
    from gfxgraph.startup.supervise import end_as, segments_below, supervise

    if not with_sanitizer:
        end_as(supervise(argv, environment, limit_s))
        return

    def wrap(home: Path) -> list[str]:
        return tools.compute_sanitizer_cmd(argv, log=home / tools.LOG_FILE)

    def report(home: Path) -> str:
        log = home / tools.LOG_FILE
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        graphs = [(str(s["where"]), [NodeInfo.from_dict(row) for row in s["nodes"]]) for s in segments_below(home)]
        return tools.mapped_report(text, graphs, language_of(environment))

    end_as(supervise(wrap, environment, limit_s, extra_report=report))
