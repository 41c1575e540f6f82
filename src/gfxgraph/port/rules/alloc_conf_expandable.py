"""Expandable_segments does nothing on older ROCm builds."""

from gfxgraph.port.rule_api import *
from gfxgraph.port.rules.alloc_conf_combo import is_both, stores

RULE = Rule(
    id="GFX109",
    code="alloc-conf-expandable",
    severity=Severity.INFO,
    phase=1,
    tier="extended",
    versions="torch before about 2.12 on ROCm",
    en=Text(
        "expandable_segments does nothing on older ROCm builds",
        "{name} = {value}",
        "ROCm support came in 2026-03; earlier builds warn that it is not supported on this platform and go on without it.",
        "Nothing to do; do not count on less fragmentation there.",
    ),
    zh=Text(
        "expandable_segments 在较早的 ROCm 构建上无效",
        "{name} = {value}",
        "ROCm 支持于 2026-03 加入；更早的构建会警告该平台不支持并忽略它。",
        "无需处理；在旧构建上不要指望它减少碎片。",
    ),
    bad='import os\n\nos.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"\n',
    good='import os\n\nos.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:False"\n',
    needs=("expandable_segments",),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node, name, text in stores(f):
        if re.search(r"expandable_segments\s*:\s*True", text) and not is_both(text):
            yield hit(node, name=name, value=text)
