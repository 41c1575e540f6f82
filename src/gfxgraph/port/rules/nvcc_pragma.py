"""A pragma of nvcc's."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX230",
    code="nvcc-pragma",
    severity=Severity.INFO,
    phase=2,
    fix=Fix.SUGGEST,
    tier="extended",
    confidence="documented",
    en=Text(
        "A pragma of nvcc's",
        "{text}",
        "hipcc is clang: it does not know the pragma, warns, and under -Werror stops.",
        "Put it under __NVCC__, or use clang's own pragma beside it.",
    ),
    zh=Text(
        "nvcc 专用的 pragma",
        "{text}",
        "hipcc 即 clang：不认识该 pragma，会告警；加了 -Werror 则中止。",
        "置于 __NVCC__ 条件之下，或另写 clang 自己的 pragma。",
    ),
    path="quiet.cuh",
    bad="#pragma nv_diag_suppress 177\nint unused;\n",
    good="#pragma once\n#pragma unroll\n",
    needs=("pragma",),
)
_PRAGMA = re.compile(
    r"\s*(nv_diag\w*|diag_(suppress|default|warning|error|remark)|nv_exec_check_disable|hd_warning_disable|nv_abi|nv_verbatim)\b"
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    for d in f.directives:
        if d.kind == "pragma" and (match := _PRAGMA.match(d.body)):
            yield line_hit(d.line + f.offset, text=f"#pragma {match.group(1)}")
