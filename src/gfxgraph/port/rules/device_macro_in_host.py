"""A macro of the device pass is read in host code."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX310",
    code="device-macro-in-host",
    severity=Severity.HIGH,
    phase=3,
    fix=Fix.SUGGEST,
    en=Text(
        "A macro of the device pass is read in host code",
        "{name}",
        "It is undefined in the host pass, so the launch computes with the #else value while the kernel uses the other.",
        "hipDeviceAttributeWarpSize or at::cuda::warp_size() at run time.",
    ),
    zh=Text(
        "主机代码读取了设备编译阶段的宏",
        "{name}",
        "主机编译阶段未定义它，于是启动参数按 #else 的值计算，而核函数用的是另一个值。",
        "运行时使用 hipDeviceAttributeWarpSize 或 at::cuda::warp_size()。",
    ),
    path="launch.cu",
    bad="void launch(int n) {\n#ifdef __GFX9__\n  int w = 64;\n#else\n  int w = n;\n#endif\n  run(w);\n}\n",
    good="__device__ int f(int n) {\n#ifdef __GFX9__\n  return n;\n#else\n  return 2 * n;\n#endif\n}\n",
    needs=("__gfx", "__amdgcn_wavefront_size", "c10_warp_size"),
)
_MACRO = re.compile(r"__GFX\d+__|__gfx[0-9a-f]+__|__AMDGCN_WAVEFRONT_SIZE(__)?|C10_WARP_SIZE")


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    ranges = []
    for n in f.nodes("function_definition"):
        body = n.child_by_field_name("body")
        if body is not None:
            start, end = body.start_point[0] + 1, body.end_point[0] + 1
            head = (n.text or b"")[: body.start_byte - n.start_byte].decode("utf-8", "replace")
            device = re.search(r"__(global|device)__|DEVICE|inline_?device|template|_kernel\b", head, re.I)
            ranges.append((start, end, not device))
    for arm in f.conditions():
        match = _MACRO.search(arm.text)
        host = [r for r in ranges if r[0] <= arm.line <= r[1]]
        if match and host and host[-1][2] and not f.path.endswith((".h", ".hpp")):
            yield line_hit(arm.line + f.offset, name=match.group(), guard_free=True)
    for call in f.nodes("kernel_call_syntax"):
        if re.search(r"C10_WARP_SIZE|__AMDGCN_WAVEFRONT_SIZE", f.source(call)):
            yield cpp_hit(f, call, name="C10_WARP_SIZE")
