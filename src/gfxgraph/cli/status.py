"""Print settings, PyTorch, GPU and engines, to paste into a bug report."""

from __future__ import annotations

import json
import platform

import click

from gfxgraph import config
from gfxgraph.cli import _contract
from gfxgraph.compat import devices
from gfxgraph.compat.diagnosis import environment_report
from gfxgraph.diagnostics.render import visible


@click.command(cls=_contract.Command, short_help="Print what is installed.")
@_contract.as_json
def command(as_json: bool) -> None:
    """Print what is installed, without judging it (gfxgraph doctor does that).

    Exit status: 0, or 1 where a setting has a value that it cannot have.
    """
    problems = [f"{each.variable}={each.value}, allowed: {each.allowed}" for each in config.load().problems]
    simulated = config.load().simulate.split("+")[0]
    if simulated and simulated not in _contract.profiles():
        problems.append(f"GFXGRAPH_SIMULATE={simulated}, allowed: {', '.join(_contract.profiles())}")
    if as_json:
        click.echo(json.dumps(_told(), indent=1, ensure_ascii=False))
    else:
        click.echo(visible(environment_report().replace("gfxGRAPH", "gfxgraph", 1), keep="\n"))
    for problem in problems:
        click.echo(f"bad setting: {visible(problem)}", err=True)
    raise SystemExit(bool(problems))


def _told() -> dict[str, object]:
    found = devices.device_info()
    return {
        "device": {name: getattr(found, name) for name in found.__dataclass_fields__} if found else None,
        "torch": devices.torch_rocm_status(),
        "accelerators": devices.detect_accelerators(),
        "engines": devices.detect_engines(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "variables": config.reported(config.gpu_variables()),
    }
