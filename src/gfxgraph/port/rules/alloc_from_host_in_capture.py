"""A tensor is made from host data inside a capture."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX703",
    code="alloc-from-host-in-capture",
    severity=Severity.MEDIUM,
    phase=7,
    tier="extended",
    confidence="documented",
    en=Text(
        "A tensor is made from host data inside a capture",
        "{expr}",
        "A copy of pageable memory either fails in the capture or freezes the value in the graph.",
        "Make it before the capture and keep it as a buffer. torch.empty and zeros on the device are fine.",
    ),
    zh=Text(
        "捕获期间由主机数据创建张量",
        "{expr}",
        "复制可分页内存要么在捕获中失败，要么把数值冻结进图里。",
        "在捕获之前创建并作为缓冲保留。在设备上 torch.empty、zeros 没有问题。",
    ),
    bad='import gfxgraph\nimport torch\n\ng = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(g):\n    y = x + torch.tensor([1.0], device="cuda")\n',
    good='import gfxgraph\nimport torch\n\none = torch.ones(1, device="cuda")\ng = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(g):\n    y = x + one\n',
    needs=("cuda.graph", "graph("),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for block in captured_blocks(f):
        for node in inside(f, block):
            if isinstance(node, ast.Call) and f.call_name(node) in (
                "torch.tensor",
                "torch.as_tensor",
                "torch.from_numpy",
            ):
                yield hit(node, expr=f.source(node)[:80])
