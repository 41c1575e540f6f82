"""Torch.compile(mode='max-autotune')."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX602",
    code="compile-max-autotune",
    severity=Severity.MEDIUM,
    phase=6,
    fix=Fix.SUGGEST,
    confidence="reported",
    en=Text(
        'torch.compile(mode="max-autotune")',
        "mode is {mode}",
        "Long autotuning of Triton kernels, and graphs besides; invalidated captures with several shapes have been reported on gfx950.",
        '"default" while bringing a port up; "max-autotune-no-cudagraphs" with TunableOp when tuning.',
    ),
    zh=Text(
        'torch.compile(mode="max-autotune")',
        "mode 为 {mode}",
        "Triton 核函数自动调优耗时很长，还会启用图；gfx950 上有多形状使用时捕获失效的报告。",
        '移植初期用 "default"；调优时用 "max-autotune-no-cudagraphs" 配合 TunableOp。',
    ),
    bad='import torch\n\nf = torch.compile(g, mode="max-autotune")\n',
    good="import torch\n\nf = torch.compile(g)\n",
    needs=("max-autotune",),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node, mode in compile_modes(f):
        if mode.startswith("max-autotune"):
            graphs = not mode.endswith("no-cudagraphs")
            yield hit(node, severity=None if graphs else Severity.LOW, group="" if graphs else "modes", mode=mode)


def _scan(f: TextFile, ctx: Context) -> Iterator[Hit]:
    for entry, match in f.matching(
        r"(?i)\b\w*(?:compile|dynamo|inductor)\w*mode\w*[\"']?\s*[:=]\s*[\"']?(max-autotune[\w-]*)"
    ):
        yield entry_hit(f, entry, "max-autotune", mode=match.group(1))


check_yaml = check_shell = check_docker = _scan
