"""Torch.compile(mode='reduce-overhead')."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX601",
    code="compile-reduce-overhead",
    severity=Severity.HIGH,
    phase=6,
    fix=Fix.SAFE,
    confidence="reported",
    en=Text(
        'torch.compile(mode="reduce-overhead")',
        "mode is {mode}",
        "It turns on inductor's graph trees. Reports on ROCm range from large slowdowns and silent drift on some releases to faults at the second replay; others run it without trouble. Risky, not always broken.",
        '"default" on ROCm, the old mode elsewhere; then measure, and capture by hand (gfxgraph.graphed) where launches dominate.',
    ),
    zh=Text(
        'torch.compile(mode="reduce-overhead")',
        "mode 为 {mode}",
        "它会打开 inductor 的图树。ROCm 上的报告不一：有的版本大幅变慢、无声偏差，或在第二次重放时出错；也有人使用无碍。有风险，但并非必坏。",
        'ROCm 用 "default"，其他平台保持原样；然后实测，若启动开销占主导则手工捕获（gfxgraph.graphed）。',
    ),
    bad='import torch\n\nf = torch.compile(g, mode="reduce-overhead")\n',
    good='import torch\n\nf = torch.compile(g, mode="default" if torch.version.hip else "reduce-overhead")\n',
    needs=("reduce-overhead",),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node, mode in compile_modes(f):
        if mode == "reduce-overhead":
            yield hit(node, mode=mode)


def _scan(f: TextFile, ctx: Context) -> Iterator[Hit]:
    for entry, _match in f.matching(
        r"(?i)\b\w*(?:compile|dynamo|inductor)\w*mode\w*[\"']?\s*[:=]\s*[\"']?reduce-overhead\b"
    ):
        yield entry_hit(f, entry, "reduce-overhead", mode="reduce-overhead")


check_yaml = check_shell = check_docker = _scan


def fix_python(node: ast.Constant, f: PyFile, ctx: Context) -> Edit | EditRefusal:
    if not torch_is_bound(f.tree, node, at_import=f.at_import(node)):
        return EditRefusal(node.lineno, "torch is not imported before this line")
    return Edit(node.lineno, node.col_offset, f'("default" if {ROCM} else {{old}})')
