"""A compiled callable is called for the first time inside a capture."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX704",
    code="capture-before-warmup",
    severity=Severity.MEDIUM,
    phase=7,
    fix=Fix.SUGGEST,
    tier="extended",
    confidence="documented",
    en=Text(
        "A compiled callable is called for the first time inside a capture",
        "{name}",
        "Compilation, autotuning and reads of the RNG state then happen during the capture.",
        "Call it a few times and synchronise before the capture.",
    ),
    zh=Text(
        "编译过的可调用对象在捕获中首次被调用",
        "{name}",
        "编译、自动调优以及读取随机数状态都会发生在捕获期间。",
        "捕获之前先调用几次并同步。",
    ),
    bad="import gfxgraph\nimport torch\n\nf = torch.compile(model)\ng = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(g):\n    y = f(x)\n",
    good="import gfxgraph\nimport torch\n\nf = torch.compile(model)\nf(x)\ng = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(g):\n    y = f(x)\n",
    needs=("cuda.graph", "graph("),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for block in captured_blocks(f):
        scope = f.scope(block)
        compiled = {
            name: value
            for name, values in f.bindings(scope).items()
            for value in values
            if isinstance(value, ast.Call) and f.call_name(value) == "torch.compile"
        }
        for node in inside(f, block):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in compiled:
                earlier = [
                    c
                    for c in f.calls(node.func.id)
                    if compiled[node.func.id].lineno < c.lineno < block.lineno and f.scope(c) is scope
                ]
                if not earlier:
                    yield hit(node, name=node.func.id)
