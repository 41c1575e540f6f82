"""The part of ``gfxgraph run`` that stays above a guarded program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from gfxgraph.cli import _contract
from gfxgraph.core.fault_report import HANG_LIMIT_S

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
    from gfxgraph.startup.sanitizer import compute_sanitizer_cmd
    from gfxgraph.startup.supervise import end_as, supervise

    end_as(supervise(compute_sanitizer_cmd(argv) if with_sanitizer else argv, environment, limit_s))
