"""The GPU's device files cannot be opened."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX017",
    code="kfd-access",
    severity=Severity.HIGH,
    phase=0,
    tier="extended",
    confidence="documented",
    en=Text(
        "The GPU's device files cannot be opened",
        "{paths}",
        "HIP then finds no device, and torch.cuda.is_available() is False without a reason.",
        "Add the user to the video and render groups, or pass --device=/dev/kfd --device=/dev/dri to the container.",
    ),
    zh=Text(
        "无法打开 GPU 设备文件",
        "{paths}",
        "此时 HIP 找不到设备，torch.cuda.is_available() 返回 False 且不给理由。",
        "把用户加入 video 与 render 组；容器则传入 --device=/dev/kfd --device=/dev/dri。",
    ),
    path="env.json",
    bad='{"torch": {"version": "2.6.0+rocm6.2.4", "build": "rocm"}, "denied": ["/dev/kfd"]}',
    good='{"torch": {"version": "2.6.0+rocm6.2.4", "build": "rocm"}, "denied": []}',
)


def check_env(env: Env, ctx: Context | None) -> Iterator[Hit]:
    if env.denied:
        yield line_hit(1, paths=", ".join(env.denied))
