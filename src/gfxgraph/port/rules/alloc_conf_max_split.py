"""Max_split_size_mb was tuned for another allocator's load."""

from gfxgraph.port.rule_api import *
from gfxgraph.port.rules.alloc_conf_combo import is_both, stores

RULE = Rule(
    id="GFX108",
    code="alloc-conf-max-split",
    severity=Severity.INFO,
    phase=1,
    tier="extended",
    confidence="contradicted",
    en=Text(
        "max_split_size_mb was tuned for another allocator's load",
        "{name} = {value}",
        "The setting is accepted on ROCm, contrary to what some guides say; but fragmentation differs, so the number may not fit.",
        "Keep it; measure fragmentation again.",
    ),
    zh=Text(
        "max_split_size_mb 是在另一种负载下调出来的",
        "{name} = {value}",
        "与某些指南所说相反，ROCm 接受该设置；但碎片情况不同，数值未必合适。",
        "保留；重新测量碎片。",
    ),
    bad='import os\n\nos.environ["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size_mb:512"\n',
    good='import os\n\nconf = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")\n',
    needs=("max_split_size_mb",),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node, name, text in stores(f):
        if "max_split_size_mb" in text and not is_both(text):
            yield hit(node, name=name, value=text)


def _scan(f: TextFile, ctx: Context) -> Iterator[Hit]:
    for entry, match in f.matching(r"\b(PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF)\s*[=: ]\s*[\"']?([^\s\"']+)"):
        if "max_split_size_mb" in match.group(2) and not is_both(match.group(2)):
            yield entry_hit(f, entry, match.group(1), name=match.group(1), value=match.group(2))


check_docker = check_shell = _scan
