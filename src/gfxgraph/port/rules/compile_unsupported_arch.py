"""Torch.compile on an architecture where inductor is known bad."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX609",
    code="compile-unsupported-arch",
    severity=Severity.LOW,
    phase=6,
    archs=GCN5,
    tier="extended",
    confidence="reported",
    en=Text(
        "torch.compile on an architecture where inductor is known bad",
        "{name}",
        "gfx906 and older crash or give NaN with it.",
        "TORCHDYNAMO_DISABLE=1 on that machine.",
    ),
    zh=Text(
        "在 inductor 已知有问题的架构上使用 torch.compile",
        "{name}",
        "gfx906 及更早的架构会崩溃或给出 NaN。",
        "在该机器上设置 TORCHDYNAMO_DISABLE=1。",
    ),
    path="env.json",
    bad='{"torch": {"version": "2.6.0+rocm6.2.4", "build": "rocm"}, "devices": ["gfx906"]}',
    good='{"torch": {"version": "2.6.0+rocm6.2.4", "build": "rocm"}, "devices": ["gfx906"], "variables": {"TORCHDYNAMO_DISABLE": "1"}}',
)


def check_env(env: Env, ctx: Context | None) -> Iterator[Hit]:
    bad = [a.name for a in env.archs() if a in GCN5]
    if bad and env.variables.get("TORCHDYNAMO_DISABLE") != "1":
        yield line_hit(1, name=", ".join(bad))
