"""Runtime variables recommended for Instinct are not set."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX015",
    code="perf-env-missing",
    severity=Severity.INFO,
    phase=0,
    archs=INSTINCT3,
    tier="extended",
    confidence="documented",
    en=Text(
        "Runtime variables recommended for Instinct are not set",
        "not set: {names}",
        "Hints for speed, not for correctness.",
        "export HIP_FORCE_DEV_KERNARG=1 GPU_MAX_HW_QUEUES=2 HSA_NO_SCRATCH_RECLAIM=1, and measure.",
    ),
    zh=Text(
        "未设置 Instinct 推荐的运行时变量",
        "未设置：{names}",
        "只影响速度，不影响正确性。",
        "export HIP_FORCE_DEV_KERNARG=1 GPU_MAX_HW_QUEUES=2 HSA_NO_SCRATCH_RECLAIM=1，然后实测。",
    ),
    path="env.json",
    bad='{"torch": {"version": "2.6.0+rocm6.2.4", "build": "rocm"}, "devices": ["gfx942"]}',
    good='{"torch": {"version": "2.6.0+rocm6.2.4", "build": "rocm"}, "devices": ["gfx1030"]}',
)
_NAMES = ("HIP_FORCE_DEV_KERNARG", "GPU_MAX_HW_QUEUES", "HSA_NO_SCRATCH_RECLAIM")


def check_env(env: Env, ctx: Context | None) -> Iterator[Hit]:
    missing = [n for n in _NAMES if n not in env.variables]
    if missing and any(a in INSTINCT3 for a in env.archs()):
        yield line_hit(1, names=", ".join(missing))
