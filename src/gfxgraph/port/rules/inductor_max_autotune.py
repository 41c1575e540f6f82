"""Inductor autotuning is switched on in code."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX605",
    code="inductor-max-autotune",
    severity=Severity.MEDIUM,
    phase=6,
    fix=Fix.SUGGEST,
    confidence="documented",
    en=Text(
        "Inductor autotuning is switched on in code",
        "{key} = True",
        "A long first compile on AMD; see env-max-autotune.",
        "Gate it while bringing a port up.",
    ),
    zh=Text(
        "代码中打开了 inductor 自动调优",
        "{key} = True",
        "AMD 上首次编译耗时很长；参见 env-max-autotune。",
        "移植初期加条件。",
    ),
    bad="import torch._inductor.config\n\ntorch._inductor.config.max_autotune = True\n",
    good="import torch._inductor.config\n\ntorch._inductor.config.max_autotune = False\n",
    needs=("max_autotune", "coordinate_descent"),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    if re.search(r"bench", f.path):
        return  # measuring is what a benchmark is for
    for _node, key, value in inductor_settings(f):
        if key in (
            "max_autotune",
            "max_autotune_gemm",
            "max_autotune_pointwise",
            "coordinate_descent_tuning",
        ) and is_true(value):
            yield hit(value, key=key)
