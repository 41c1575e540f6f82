"""Torch.distributed is asked for 'rccl'."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX507",
    code="wrong-dist-backend",
    severity=Severity.HIGH,
    phase=5,
    fix=Fix.SUGGEST,
    en=Text(
        'torch.distributed is asked for "rccl"',
        "{expr}",
        'PyTorch offers RCCL under the name "nccl".',
        'Write "nccl".',
    ),
    zh=Text('向 torch.distributed 请求 "rccl"', "{expr}", 'PyTorch 以 "nccl" 之名提供 RCCL。', '写作 "nccl"。'),
    bad='import torch.distributed as dist\n\ndist.init_process_group("rccl")\n',
    good='import torch.distributed as dist\n\ndist.init_process_group("nccl")\n',
    needs=("rccl",),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node in f.nodes(ast.Constant):
        if isinstance(node.value, str) and node.value in ("rccl", "cpu:gloo,cuda:rccl", "cuda:rccl"):
            up = f.parent(node)
            named = isinstance(up, ast.keyword) and up.arg in (
                "backend",
                "dist_backend",
                "process_group_backend",
            )
            called = isinstance(up, ast.Call) and re.search(
                r"init_process_group|new_group|init_distributed|init_device_mesh",
                f.call_name(up) or f.source(up.func),
            )
            if named or called:
                yield hit(node, expr=f.source(up)[:80] if up is not None else "rccl")


def fix_python(node: ast.Constant, f: PyFile, ctx: Context) -> Edit:
    return Edit(node.lineno, node.col_offset, repr(str(node.value).replace("rccl", "nccl")))
