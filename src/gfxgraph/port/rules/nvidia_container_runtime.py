"""Container started with NVIDIA's runtime."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX010",
    code="nvidia-container-runtime",
    severity=Severity.LOW,
    phase=0,
    fix=Fix.SUGGEST,
    tier="extended",
    confidence="documented",
    en=Text(
        "Container started with NVIDIA's runtime",
        "{text} is NVIDIA's",
        "An AMD GPU reaches a container through device files and groups, not through a runtime plug-in.",
        "--device=/dev/kfd --device=/dev/dri --group-add video --group-add render; amd.com/gpu in Kubernetes.",
    ),
    zh=Text(
        "以 NVIDIA 运行时启动容器",
        "{text} 属于 NVIDIA",
        "AMD GPU 通过设备文件与用户组进入容器，而不是运行时插件。",
        "--device=/dev/kfd --device=/dev/dri --group-add video --group-add render；Kubernetes 中用 amd.com/gpu。",
    ),
    path="run.sh",
    bad="docker run --gpus all app\n",
    good="docker run --device=/dev/kfd --device=/dev/dri app\n",
    needs=("--gpus", "nvidia"),
)
_FLAG = r"(?:docker|podman|nerdctl)\b.*(--gpus\b|--runtime[= ]nvidia)|(NVIDIA_VISIBLE_DEVICES|NVIDIA_DRIVER_CAPABILITIES)\b|(nvidia\.com/gpu)\b|(driver:\s*nvidia)\b|(runtime:\s*nvidia)\b"


def _scan(f: TextFile, ctx: Context) -> Iterator[Hit]:
    for entry, match in f.matching(_FLAG):
        text = next(g for g in match.groups() if g)
        yield entry_hit(f, entry, re.escape(text), text=text)


check_docker = check_shell = check_yaml = check_make = _scan
