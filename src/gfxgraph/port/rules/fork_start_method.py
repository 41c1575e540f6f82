"""Processes are forked in code that uses the GPU."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX115",
    code="fork-start-method",
    severity=Severity.MEDIUM,
    phase=1,
    fix=Fix.SUGGEST,
    en=Text(
        "Processes are forked in code that uses the GPU",
        "{expr}",
        "The HIP runtime does not survive a fork once it has started: the child hangs or fails.",
        "spawn on ROCm, the old choice elsewhere; or fork before anything touches the device.",
    ),
    zh=Text(
        "使用 GPU 的代码以 fork 方式启动进程",
        "{expr}",
        "HIP 运行时启动后无法跨 fork 存活：子进程会挂起或失败。",
        "ROCm 上用 spawn，其他平台保持原样；或在接触设备之前 fork。",
    ),
    bad='import multiprocessing as mp\nimport torch\n\ntorch.cuda.init()\nctx = mp.get_context("fork")\n',
    good='import multiprocessing as mp\nimport torch\n\ntorch.cuda.init()\nctx = mp.get_context("spawn")\n',
    needs=("fork",),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    if "cuda" not in f.text or is_test_file(f.path):
        return
    for call in f.calls("*.get_context", "*.set_start_method", "*.start_processes", "*.notebook_launcher"):
        value = argument(call, 0, "method") if not f.call_name(call).endswith("start_processes") else None
        value = keyword(call, "start_method") or value
        bound = f.lookup(value.id, value) if isinstance(value, ast.Name) else [value]
        for item in bound:
            options = [item.body, item.orelse] if isinstance(item, ast.IfExp) else [item]
            if any(text_of(o) == "fork" for o in options):
                yield hit(call, expr=f.source(call)[:100])
    for node in f.nodes(ast.keyword):
        if node.arg in ("start_method", "multiprocessing_context", "mp_context") and text_of(node.value) == "fork":
            yield hit(node.value, expr=f"{node.arg}='fork'")
        elif node.arg in ("start_method", "method") and isinstance(node.value, ast.IfExp):
            if any(text_of(o) == "fork" for o in (node.value.body, node.value.orelse)):
                yield hit(node.value, expr=f.source(node.value)[:100])
    for assigned in f.nodes(ast.Assign):
        named = [t.id for t in assigned.targets if isinstance(t, ast.Name)]
        options = (
            [assigned.value.body, assigned.value.orelse]
            if isinstance(assigned.value, ast.IfExp)
            else [assigned.value]
        )
        if any(re.fullmatch(r"(?i)\w*(start_?method|mp_?(context|method|start)\w*)", n) for n in named):
            if any(text_of(o) == "fork" for o in options):
                yield hit(assigned, expr=f.source(assigned)[:100])
