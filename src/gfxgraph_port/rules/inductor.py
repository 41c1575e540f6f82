"""torch.compile's modes and inductor's settings."""

from __future__ import annotations

from gfxgraph_port.rule_api import *


def compile_reduce_overhead(f: PyFile, ctx: Context) -> Iterator[Hit]:
    yield from (hit(node, text=mode) for node, mode in compile_modes(f) if mode == "reduce-overhead")


def compile_max_autotune(f: PyFile, ctx: Context) -> Iterator[Hit]:
    found = ((node, mode) for node, mode in compile_modes(f) if mode.startswith("max-autotune"))
    yield from (hit(node, text=mode) for node, mode in found)


def inductor_cudagraphs(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for _, key, value in inductor_settings(f):
        if key in ("triton.cudagraphs", "triton.cudagraph_trees", "graph_partition") and is_true(value):
            yield hit(value, text=key)


def inductor_memory_planning(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for _, key, value in inductor_settings(f):
        if key == "memory_planning" and is_true(value):
            yield hit(value, text=f"{key} = True")
    for node, name, written in env_writes(f):
        if name == "TORCHINDUCTOR_MEMORY_PLANNING" and text_of(written) == "1":
            yield hit(node, text=f"{name}=1")


def fix_mode(node: ast.Constant, f: PyFile, ctx: Context) -> Edit | EditRefusal:
    return gated(node, f, f'("default" if {ROCM} else {{old}})')


def fix_setting(node: ast.expr, f: PyFile, ctx: Context) -> Edit | EditRefusal:
    if not is_true(node):
        return EditRefusal(node.lineno, "set through the environment: gate it by hand")
    return gated(node, f, f"({ROCM} is None and {{old}})")


def inductor_max_autotune(f: PyFile, ctx: Context) -> Iterator[Hit]:
    tuned = ("max_autotune", "max_autotune_gemm", "max_autotune_pointwise", "coordinate_descent_tuning")
    for _, key, value in inductor_settings(f) if "bench" not in f.path else ():  # measuring is what they are for
        if key in tuned and is_true(value):
            yield hit(value, text=key)


def compile_monkeypatch(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node, name, value in assigned(f):
        for body in meanings(f, value) if name == "torch.compile" else ():
            text = f.source(body)
            if re.search(r"mode[\"']?\]?\s*=|setdefault\(\s*[\"']mode", text) and "options" not in text:
                yield hit(node, expr=f.source(node))
