"""Show the GPU that gfxgraph bases its decisions on."""

from __future__ import annotations

import json

import click

from gfxgraph import config
from gfxgraph.cli import _contract
from gfxgraph.diagnostics.render import visible
from gfxgraph.errors import check_settings
from gfxgraph.hardware.chosen_device import DeviceInfo, device_info, torch_rocm_status
from gfxgraph.hardware.machine import Machine
from gfxgraph.hardware.topology import gpus

_NONE = {
    "en": "no AMD GPU found; set GFXGRAPH_ARCH=gfx1030 to plan for one that is not here",
    "zh": "没有找到 AMD GPU；设置 GFXGRAPH_ARCH=gfx1030 可为不在本机的 GPU 做规划",
}


@click.command(short_help="Show the detected (or overridden) GPU.")
@_contract.as_json
@click.option(
    "--index", type=click.IntRange(min=0), default=0, show_default=True, help="Which GPU, discrete ones first."
)
def command(as_json: bool, index: int) -> None:
    """Show the GPU that gfxgraph bases its decisions on. Exit status 1 if there is none."""
    check_settings(config.load())
    found = device_info(index)
    if as_json:
        click.echo(json.dumps({"device": found.as_dict(), "torch": torch_rocm_status()}, indent=2))
    elif not found.arch:
        click.echo(_NONE[config.language_of()])
    else:
        _show(found)
    raise SystemExit(0 if found.arch else 1)


def _show(found: DeviceInfo) -> None:
    rows = [
        ("arch", "架构", f"{found.arch} ({found.family or 'unknown family'}), from {found.source}"),
        ("name", "名称", found.name),
        ("compute units", "计算单元", str(found.cu or "?")),
        ("wavefront", "wavefront", f"{found.wavefront} (can run {', '.join(map(str, found.wavefronts))})"),
        ("VRAM", "显存", f"{found.vram_mb} MiB" if found.vram_bytes else "?"),
        ("LDS", "LDS", f"{found.lds_kib} KiB a workgroup"),
        ("matrix units", "矩阵单元", found.matrix or "?"),
        ("bf16, fp8", "bf16、fp8", f"{found.bf16 or '?'}, {found.fp8 or '?'}"),
        ("support", "支持情况", found.support),
        ("torch", "PyTorch", str(torch_rocm_status()["message"])),
    ]
    if found.physical_arch and found.physical_arch != found.arch:
        rows.insert(1, ("hardware", "实际硬件", found.physical_arch))
    chinese = config.language_of() == "zh"
    for english, translated, value in rows:
        shown = translated if chinese else english
        # A Chinese character is two columns wide.
        width = 14 - sum(not character.isascii() for character in shown)
        click.echo(f"{shown:<{width}} {visible(value)}")
    others = len(gpus(Machine())) - 1
    if others > 0:
        click.echo(f"{'另有 ' if chinese else ''}{others}{' 块' if chinese else ' more'}: gfxgraph device --index 1")
