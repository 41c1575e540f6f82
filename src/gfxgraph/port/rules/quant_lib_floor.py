"""Quantisation library older than its ROCm support."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX506",
    code="quant-lib-floor",
    severity=Severity.LOW,
    phase=5,
    fix=Fix.SUGGEST,
    tier="extended",
    confidence="reported",
    en=Text(
        "Quantisation library older than its ROCm support",
        "{text}",
        "Some block sizes are missing or inaccurate on ROCm before the release that added them.",
        "Raise the floor on ROCm: bitsandbytes 0.49.2; gptqmodel in place of auto-gptq and autoawq.",
    ),
    zh=Text(
        "量化库早于其 ROCm 支持",
        "{text}",
        "在加入支持的版本之前，ROCm 上有的块大小缺失或不准。",
        "ROCm 上提高下限：bitsandbytes 0.49.2；以 gptqmodel 取代 auto-gptq 与 autoawq。",
    ),
    path="requirements.txt",
    bad="bitsandbytes==0.43.0\n",
    good="bitsandbytes>=0.49.2\n",
    needs=("bitsandbytes", "gptq", "awq"),
)


def check_requirements(f: RequirementFile, ctx: Context) -> Iterator[Hit]:
    for need in f.needs:
        if f.is_lock:
            return
        if need.name in ("auto-gptq", "autoawq", "autoawq-kernels"):
            yield line_hit(need.line, text=need.text)
        match = re.search(r"(?:==|<=|~=|<)\s*0\.(\d+)(?:\.(\d+))?", need.spec)
        if need.name == "bitsandbytes" and match and (int(match.group(1)), int(match.group(2) or 0)) < (49, 2):
            yield line_hit(need.line, text=need.text)
