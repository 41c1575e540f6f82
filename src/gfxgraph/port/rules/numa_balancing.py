"""Kernel NUMA balancing is on."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX014",
    code="numa-balancing",
    severity=Severity.LOW,
    phase=0,
    archs=INSTINCT3,
    tier="extended",
    confidence="documented",
    en=Text(
        "Kernel NUMA balancing is on",
        "numa_balancing is {value}",
        "AMD advises turning it off on MI300-class hosts; how much it costs has to be measured.",
        "As root on the host: echo 0 > /proc/sys/kernel/numa_balancing",
    ),
    zh=Text(
        "内核 NUMA balancing 处于开启状态",
        "numa_balancing 为 {value}",
        "AMD 建议在 MI300 级主机上关闭；代价多大需要实测。",
        "在主机上以 root 执行：echo 0 > /proc/sys/kernel/numa_balancing",
    ),
    path="env.json",
    bad='{"torch": {"version": "2.6.0+rocm6.2.4", "build": "rocm"}, "devices": ["gfx942"], "numa_balancing": "1", "variables": {"HIP_FORCE_DEV_KERNARG": "1", "GPU_MAX_HW_QUEUES": "2", "HSA_NO_SCRATCH_RECLAIM": "1"}}',
    good='{"torch": {"version": "2.6.0+rocm6.2.4", "build": "rocm"}, "devices": ["gfx942"], "numa_balancing": "0", "variables": {"HIP_FORCE_DEV_KERNARG": "1", "GPU_MAX_HW_QUEUES": "2", "HSA_NO_SCRATCH_RECLAIM": "1"}}',
)


def check_env(env: Env, ctx: Context | None) -> Iterator[Hit]:
    if env.numa_balancing not in ("", "0") and any(a in INSTINCT3 for a in env.archs()):
        yield line_hit(1, value=env.numa_balancing)
