"""MODULE inductor."""

from __future__ import annotations

from gfxgraph.port.rule_api import *


def compile_reduce_overhead_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node, mode in compile_modes(f):
        if mode == "reduce-overhead":
            yield hit(node, mode=mode)


def compile_reduce_overhead_text(f: TextFile, ctx: Context) -> Iterator[Hit]:
    for entry, _match in f.matching(
        r"(?i)\b\w*(?:compile|dynamo|inductor)\w*mode\w*[\"']?\s*[:=]\s*[\"']?reduce-overhead\b"
    ):
        yield entry_hit(f, entry, "reduce-overhead", mode="reduce-overhead")


def fix_compile_reduce_overhead(node: ast.Constant, f: PyFile, ctx: Context) -> Edit | EditRefusal:
    if not torch_is_bound(f.tree, node, at_import=f.at_import(node)):
        return EditRefusal(node.lineno, "torch is not imported before this line")
    return Edit(node.lineno, node.col_offset, f'("default" if {ROCM} else {{old}})')


def compile_max_autotune_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node, mode in compile_modes(f):
        if mode.startswith("max-autotune"):
            graphs = not mode.endswith("no-cudagraphs")
            yield hit(node, severity=None if graphs else Severity.LOW, group="modes", mode=mode)


def compile_max_autotune_text(f: TextFile, ctx: Context) -> Iterator[Hit]:
    for entry, match in f.matching(
        r"(?i)\b\w*(?:compile|dynamo|inductor)\w*mode\w*[\"']?\s*[:=]\s*[\"']?(max-autotune[\w-]*)"
    ):
        yield entry_hit(f, entry, "max-autotune", mode=match.group(1))


def inductor_cudagraphs(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for _node, key, value in inductor_settings(f):
        if key in ("triton.cudagraphs", "triton.cudagraph_trees", "graph_partition") and is_true(value):
            yield hit(value, key=key)


def fix_inductor_cudagraphs(node: ast.expr, f: PyFile, ctx: Context) -> Edit | EditRefusal:
    if not is_true(node):
        return EditRefusal(node.lineno, "set through the environment: gate it by hand")
    if not torch_is_bound(f.tree, node, at_import=f.at_import(node)):
        return EditRefusal(node.lineno, "torch is not imported before this line")
    return Edit(node.lineno, node.col_offset, f"({ROCM} is None)")


def inductor_memory_planning_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for _, key, value in inductor_settings(f):
        if key == "memory_planning" and is_true(value):
            yield hit(value, key=f"{key} = True")
    for node, name, written in env_writes(f):
        if name == "TORCHINDUCTOR_MEMORY_PLANNING" and text_of(written) == "1":
            yield hit(node, key=f"{name}=1")


def inductor_memory_planning_text(f: TextFile, ctx: Context) -> Iterator[Hit]:
    for entry, _match in f.matching(r"\bTORCHINDUCTOR_MEMORY_PLANNING\s*[=: ]\s*[\"']?1\b"):
        yield entry_hit(f, entry, key="TORCHINDUCTOR_MEMORY_PLANNING=1")


def fix_inductor_memory_planning(node: ast.expr, f: PyFile, ctx: Context) -> Edit | EditRefusal:
    if not is_true(node):
        return EditRefusal(node.lineno, "set through the environment: gate it by hand")
    if not torch_is_bound(f.tree, node, at_import=f.at_import(node)):
        return EditRefusal(node.lineno, "torch is not imported before this line")
    return Edit(node.lineno, node.col_offset, f"({ROCM} is None)")
