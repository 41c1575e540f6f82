"""Show the GPU that gfxgraph decides for."""

from __future__ import annotations

import json

import click

from gfxgraph.hardware.device import DeviceInfo, device_info, torch_rocm_status
from gfxgraph.hardware.machine import Machine
from gfxgraph.hardware.topology import gpus


@click.command(short_help="Show the detected (or overridden) GPU.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--index", default=0, show_default=True, help="Which GPU, discrete ones first.")
def command(as_json: bool, index: int) -> None:
    """Show the GPU that gfxgraph decides for. Exit status 1 where there is none."""
    found = device_info(index)
    if as_json:
        click.echo(json.dumps({"device": found.as_dict(), "torch": torch_rocm_status()}, indent=2))
    elif not found.arch:
        click.echo("no AMD GPU found; set GFXGRAPH_ARCH=gfx1030 to plan for one that is not here")
    else:
        _show(found)
    raise SystemExit(0 if found.arch else 1)


def _show(found: DeviceInfo) -> None:
    rows = [
        ("arch", f"{found.arch} ({found.family or 'unknown family'}), from {found.source}"),
        ("name", found.name),
        ("compute units", str(found.cu or "?")),
        ("wavefront", f"{found.wavefront} (can run {', '.join(map(str, found.wavefronts))})"),
        ("VRAM", f"{found.vram_mb} MiB" if found.vram_bytes else "?"),
        ("LDS", f"{found.lds_kib} KiB a workgroup"),
        ("matrix units", found.matrix or "?"),
        ("bf16, fp8", f"{found.bf16 or '?'}, {found.fp8 or '?'}"),
        ("support", found.support),
        ("torch", str(torch_rocm_status()["message"])),
    ]
    if found.physical_arch and found.physical_arch != found.arch:
        rows.insert(1, ("hardware", found.physical_arch))
    for label, value in rows:
        click.echo(f"{label:<14} {value}")
    others = len(gpus(Machine())) - 1
    if others > 0:
        click.echo(f"{others} more: gfxgraph device --index 1")
