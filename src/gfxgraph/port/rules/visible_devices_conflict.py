"""The visible-device variables disagree."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX013",
    code="visible-devices-conflict",
    severity=Severity.HIGH,
    phase=0,
    en=Text(
        "The visible-device variables disagree",
        "{names}",
        "HIP reads more than one of them; when they differ, libraries count devices differently, and some engines refuse to start.",
        "Set one, or make them equal. ROCR_VISIBLE_DEVICES filters first and renumbers what the others see.",
    ),
    zh=Text(
        "可见设备变量互相矛盾",
        "{names}",
        "HIP 会读取其中不止一个；不一致时各库的设备编号不同，有的引擎会拒绝启动。",
        "只设一个，或让它们相等。ROCR_VISIBLE_DEVICES 最先过滤，并使其余变量所见重新编号。",
    ),
    path="env.json",
    bad='{"torch": {"version": "2.6.0+rocm6.2.4", "build": "rocm"}, "variables": {"HIP_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "1"}}',
    good='{"torch": {"version": "2.6.0+rocm6.2.4", "build": "rocm"}, "variables": {"HIP_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "0,1"}}',
)


def check_env(env: Env, ctx: Context | None) -> Iterator[Hit]:
    def ids(name: str) -> list[str]:
        return [p.strip() for p in env.variables.get(name, "").split(",") if p.strip()]

    hip, cuda, rocr = ids("HIP_VISIBLE_DEVICES"), ids("CUDA_VISIBLE_DEVICES"), ids("ROCR_VISIBLE_DEVICES")
    if hip and cuda and hip != cuda:
        yield line_hit(1, names=f"HIP_VISIBLE_DEVICES={','.join(hip)} CUDA_VISIBLE_DEVICES={','.join(cuda)}")
    for name, wanted in (("HIP_VISIBLE_DEVICES", hip), ("CUDA_VISIBLE_DEVICES", cuda)):
        if rocr and any(p.isdigit() and int(p) >= len(rocr) for p in wanted):
            yield line_hit(
                1,
                len(name),
                names=f"ROCR_VISIBLE_DEVICES={','.join(rocr)} leaves {len(rocr)}, {name}={','.join(wanted)}",
            )
