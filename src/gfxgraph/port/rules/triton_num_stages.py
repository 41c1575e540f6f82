"""Num_stages tuned for NVIDIA."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX319",
    code="triton-num-stages",
    severity=Severity.LOW,
    phase=3,
    fix=Fix.SUGGEST,
    tier="extended",
    confidence="documented",
    en=Text(
        "num_stages tuned for NVIDIA",
        "{expr}",
        "AMD's guide takes 2 for one GEMM and 1 for two fused or none; more costs LDS, and inductor itself uses 2 on ROCm.",
        "Configurations of their own for ROCm, with waves_per_eu, matrix_instr_nonkdim and kpack.",
    ),
    zh=Text(
        "num_stages 按 NVIDIA 调优",
        "{expr}",
        "AMD 指南：单个 GEMM 用 2，两个融合或没有 GEMM 用 1；更多会占用 LDS，inductor 在 ROCm 上也用 2。",
        "为 ROCm 单独准备配置，并使用 waves_per_eu、matrix_instr_nonkdim 与 kpack。",
    ),
    bad="import triton\n\nC = [triton.Config({}, num_stages=4, num_warps=4)]\n",
    good="import triton\n\nC = [triton.Config({}, num_stages=2, num_warps=4)]\n",
    needs=("num_stages",),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    if not re.search(r"\btriton\b|\btl\.", f.text):
        return
    found = []
    tuned: set[int] = set()
    for kw in f.nodes(ast.keyword):
        value = int_of(kw.value)
        if kw.arg == "num_stages" and value is not None and (value >= 3 or value == 0):
            group = _candidates(f, kw)
            if group is None:
                found.append(hit(kw.value, expr=f"num_stages={value}"))
            elif id(group) not in tuned:
                tuned.add(id(group))
                found.append(hit(kw.value, expr=f"num_stages={value}"))
    yield from once_a_line(found)


def _candidates(f: PyFile, kw: ast.keyword) -> ast.AST | None:
    """The function or list that a ``triton.Config`` is one candidate of: one finding speaks for them all.

    The autotuner passes over candidates that do not fit; what AMD lacks is candidates of its own.
    """
    call = f.parent(kw)
    if not isinstance(call, ast.Call) or f.call_name(call).rpartition(".")[2] != "Config":
        return None
    listed = next((u for u in f.ancestors(call) if isinstance(u, ast.List | ast.Tuple)), None)
    return f.function(call) or listed
