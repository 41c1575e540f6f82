"""WarpSize is used as a compile-time constant."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX308",
    code="warpsize-constexpr",
    severity=Severity.HIGH,
    phase=3,
    fix=Fix.SUGGEST,
    versions="ROCm >= 7.0",
    en=Text(
        "warpSize is used as a compile-time constant",
        "{expr}",
        "From ROCm 7 it is not one any more, and the wavefront-size macro is deprecated.",
        "A macro by architecture in device code, a query in host code: one binary serves both widths.",
    ),
    zh=Text(
        "把 warpSize 当作编译期常量",
        "{expr}",
        "从 ROCm 7 起它不再是常量，wavefront 大小的宏也已弃用。",
        "设备代码用按架构的宏，主机代码查询设备：同一二进制要服务两种宽度。",
    ),
    path="ws.cu",
    bad="__global__ void k() { __shared__ float s[1024 / warpSize]; }\n",
    good="__global__ void k(float* s) { s[threadIdx.x / warpSize] = 0; }\n",
    needs=("warpsize", "hipcub_warp_threads", "rocprim::", "wavefront_size"),
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    yield from once_a_line(_all(f))


def _all(f: CppFile) -> Iterator[Hit]:
    constant = re.compile(
        r"\bwarpSize\b|HIPCUB_WARP_THREADS|rocprim::(device_)?warp_size\(\)|__AMDGCN_WAVEFRONT_SIZE(__)?\b"
    )
    for n in f.nodes("array_declarator"):
        if constant.search(f.source(n.child_by_field_name("size"))):
            yield cpp_hit(f, n, expr=f.source(n)[:80])
    for n in f.nodes("template_type", "template_function"):
        if constant.search(f.source(n.child_by_field_name("arguments"))):
            yield cpp_hit(f, n, expr=f.source(n)[:80])
    for n in f.nodes("declaration", "field_declaration"):
        text = f.source(n)
        if re.match(r"(static\s+)?constexpr|static_assert", text) and constant.search(text):
            yield cpp_hit(f, n, expr=text[:80])
    for arm in f.conditions():
        if re.search(r"\bwarpSize\b|__AMDGCN_WAVEFRONT_SIZE", arm.text):
            yield line_hit(arm.line + f.offset, expr=arm.text[:80], guard_free=True)
    for _, takes, body, line in f.defines():
        if not takes and re.search(r"__AMDGCN_WAVEFRONT_SIZE|HIPCUB_WARP_THREADS", body):
            yield line_hit(line, expr=body[:80])
