"""Tests, and changes that reach NVIDIA."""

from __future__ import annotations

from gfxgraph_port.rule_api import *


def ungated_rocm_change(f: PyFile, ctx: Context) -> Iterator[Hit]:
    if ctx.added is None or ctx.vendor == "amd":
        return
    for h in _all(f):
        if h.line in ctx.added and (ctx.guards is None or ctx.guards.exclusion(h.node, NVIDIA) is None):
            yield h


def _all(f: PyFile) -> Iterator[Hit]:
    for node in f.nodes(ast.Attribute):
        if re.fullmatch(r"float8_e[45]m[32]fnuz", node.attr) and not isinstance(
            f.parent(node), ast.Compare | ast.Dict | ast.Tuple | ast.Set
        ):
            yield hit(node, expr=f.source(node))
    for write, key, _ in env_writes(f):
        if (
            re.match(
                r"(HIP|HSA|ROCR|MIOPEN|AMD|ROCM|RCCL|GPU_MAX|TORCHINDUCTOR|PYTORCH_\w*ALLOC|PYTORCH_TUNABLEOP|FLASH_ATTENTION_TRITON_AMD|TRITON_HIP|VLLM_ROCM)_?",
                key,
            )
            and key != "HIP_VISIBLE_DEVICES"
        ):
            yield hit(write, expr=f.source(write)[:80])
    for site, name in imports_of(f, r"aiter"):
        yield hit(site, guarded_by=import_guard(f, site), expr=name)
    for kw in f.nodes(ast.keyword):
        if kw.arg in ("waves_per_eu", "matrix_instr_nonkdim", "kpack"):
            yield hit(kw.value, expr=f"{kw.arg}={f.source(kw.value)}")
