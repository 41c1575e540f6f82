"""Tensor descriptors or warp specialisation in Triton."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX324",
    code="triton-hopper-features",
    severity=Severity.HIGH,
    phase=3,
    confidence="documented",
    en=Text(
        "Tensor descriptors or warp specialisation in Triton",
        "{expr}",
        "They stand for hardware of Hopper and later; on AMD they are emulated at best.",
        "Keep a path with plain pointers for ROCm.",
    ),
    zh=Text(
        "Triton 中的张量描述符或 warp 专门化",
        "{expr}",
        "它们对应 Hopper 及之后的硬件；AMD 上至多是模拟。",
        "为 ROCm 保留使用普通指针的路径。",
    ),
    bad="import triton.language as tl\n\n\ndef f(p, n):\n    return tl.make_tensor_descriptor(p, [n], [1], [16])\n",
    good="import triton.language as tl\n\n\ndef f(p, n):\n    return tl.load(p + tl.arange(0, 16))\n",
    needs=(
        "tensor_descriptor",
        "tensordescriptor",
        "warp_specialize",
        "num_consumer_groups",
        "_experimental_descriptor",
        "gluon",
    ),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for call in f.nodes(ast.Call):
        last = call.func.attr if isinstance(call.func, ast.Attribute) else f.call_name(call).rpartition(".")[2]
        if re.fullmatch(
            r"make_tensor_descriptor|_experimental_\w*descriptor\w*|TensorDescriptor|create_[12]d_tma_descriptor",
            last,
        ) and ("triton" in f.text or not last == "TensorDescriptor"):
            yield hit(call, expr=f.source(call)[:80])
        for kw in call.keywords:
            if (kw.arg == "warp_specialize" and is_true(kw.value)) or kw.arg in (
                "num_consumer_groups",
                "num_buffers_warp_spec",
            ):
                if int_of(kw.value) != 0:
                    yield hit(kw.value, expr=f"{kw.arg}={f.source(kw.value)}")
    for node, name in imports_of(
        f,
        r"triton\.experimental\.gluon\.language\.nvidia|triton\.tools\.tensor_descriptor|triton\.tools\.experimental_descriptor",
    ):
        yield hit(node, guarded_by=import_guard(f, node), expr=name)
