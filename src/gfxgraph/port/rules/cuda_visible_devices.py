"""The visible devices are chosen by CUDA's variable alone."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX125",
    code="cuda-visible-devices",
    severity=Severity.LOW,
    phase=1,
    fix=Fix.SUGGEST,
    tier="extended",
    confidence="documented",
    en=Text(
        "The visible devices are chosen by CUDA's variable alone",
        "{name}",
        "HIP reads CUDA_VISIBLE_DEVICES too, but HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES, where they are set, renumber the devices underneath, and tools such as Ray refuse two that disagree.",
        "On ROCm set HIP_VISIBLE_DEVICES to the same value, before anything starts the runtime.",
    ),
    zh=Text(
        "仅通过 CUDA 的变量选择可见设备",
        "{name}",
        "HIP 也读取 CUDA_VISIBLE_DEVICES，但若设置了 HIP_VISIBLE_DEVICES 或 ROCR_VISIBLE_DEVICES，设备会重新编号；Ray 等工具遇到不一致会拒绝。",
        "在 ROCm 上把 HIP_VISIBLE_DEVICES 设为同样的值，且在运行时启动之前。",
    ),
    path="main.py",
    bad='import os\n\nos.environ["CUDA_VISIBLE_DEVICES"] = "0"\n',
    good='import os\n\nfor name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):\n    os.environ[name] = "0"\n',
    needs=("cuda_visible_devices",),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    if not re.search(r"(HIP|ROCR)_VISIBLE_DEVICES", f.text):
        for write, key, _ in env_writes(f):
            if key == "CUDA_VISIBLE_DEVICES":
                yield hit(write, name=f.source(write)[:80])


def _lines(f: TextFile, ctx: Context) -> Iterator[Hit]:
    if not re.search(r"(HIP|ROCR)_VISIBLE_DEVICES", f.text):
        for entry, match in f.matching(r"\bCUDA_VISIBLE_DEVICES(?:=|\"?\s*:)\s*\S*"):
            yield entry_hit(f, entry, "CUDA_VISIBLE_DEVICES", name=match.group(), group="script")


check_shell = check_docker = check_yaml = _lines
