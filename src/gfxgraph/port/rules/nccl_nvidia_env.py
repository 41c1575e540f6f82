"""NCCL settings for NVIDIA's interconnects."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX508",
    code="nccl-nvidia-env",
    severity=Severity.INFO,
    phase=5,
    tier="extended",
    confidence="documented",
    en=Text(
        "NCCL settings for NVIDIA's interconnects",
        "{name}",
        "RCCL reads the NCCL_ names, but those about NVLink and SHARP do nothing.",
        "Keep or drop; on AMD the knobs are RCCL_MSCCL* and NCCL_MIN_NCHANNELS.",
    ),
    zh=Text(
        "针对 NVIDIA 互连的 NCCL 设置",
        "{name}",
        "RCCL 会读取 NCCL_ 名称，但与 NVLink、SHARP 有关的不起作用。",
        "保留或去掉均可；AMD 上的旋钮是 RCCL_MSCCL* 与 NCCL_MIN_NCHANNELS。",
    ),
    path="run.sh",
    bad="export NCCL_NVLS_ENABLE=0\n",
    good="export NCCL_DEBUG=INFO\n",
    needs=("nccl_", "nvshmem_"),
)
_NAME = re.compile(r"\b(NCCL_NVLS_\w+|NCCL_P2P_LEVEL(?==NVL)|NCCL_COLLNET_\w+|NCCL_NET_GDR_LEVEL|NVSHMEM_\w+)\b")


def _scan(f: TextFile, ctx: Context) -> Iterator[Hit]:
    for entry, match in f.matching(rf"{_NAME.pattern}\s*[=:]"):
        yield entry_hit(f, entry, match.group(1), name=match.group(1))


check_docker = check_shell = check_yaml = _scan


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node, key, _ in env_writes(f):
        if _NAME.fullmatch(key):
            yield hit(node, name=key)
