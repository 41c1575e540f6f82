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
    settings = config.load()
    is_wrong = bool(settings.problems)
    simulated = settings.simulate.split("+")[0]
    if simulated and simulated not in _contract.profiles():
        is_wrong = True
        allowed = ", ".join(_contract.profiles())
        click.echo(f"bad setting: GFXGRAPH_SIMULATE={visible(simulated)}, allowed: {allowed}", err=True)
    if not as_json:
        click.echo(visible(environment_report(), keep="\n"))
        raise SystemExit(int(is_wrong))
    found = devices.device_info()
    told = {
        "device": {name: getattr(found, name) for name in found.__dataclass_fields__} if found else None,
        "torch": devices.torch_rocm_status(),
        "accelerators": devices.detect_accelerators(),
        "engines": devices.detect_engines(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "variables": config.reported(config.gpu_variables()),
    }
    click.echo(json.dumps(told, indent=1, ensure_ascii=False))
    raise SystemExit(int(is_wrong))
