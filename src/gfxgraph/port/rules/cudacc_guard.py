"""__CUDACC__ or __NVCC__ decides what is compiled."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX208",
    code="cudacc-guard",
    severity=Severity.MEDIUM,
    phase=2,
    fix=Fix.SUGGEST,
    en=Text(
        "__CUDACC__ or __NVCC__ decides what is compiled",
        "{text}",
        "hip-clang defines neither: HOST_DEVICE macros become empty, and calls from device code fail to link.",
        "defined(__CUDACC__) || defined(__HIPCC__)",
    ),
    zh=Text(
        "由 __CUDACC__ 或 __NVCC__ 决定编译内容",
        "{text}",
        "hip-clang 两者都不定义：HOST_DEVICE 宏变为空，设备代码中的调用会链接失败。",
        "改为 defined(__CUDACC__) || defined(__HIPCC__)",
    ),
    path="macros.h",
    bad="#ifdef __CUDACC__\n#define HOST_DEVICE __host__ __device__\n#else\n#define HOST_DEVICE\n#endif\n",
    good="#if defined(__CUDACC__) || defined(__HIPCC__)\n#define HOST_DEVICE __host__ __device__\n#else\n#define HOST_DEVICE\n#endif\n",
    needs=("__cudacc__", "__nvcc__"),
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    for arm, _ in macro_tests(f, r"__CUDACC__|__NVCC__", ctx.project.macros):
        inner = [d.kind for d in f.directives if arm.first_line <= d.line <= arm.last_line]
        body = "".join(
            t for t in f.lines[arm.first_line - 1 : arm.last_line] if not t.lstrip().startswith("#")
        ).strip()
        if inner and set(inner) <= {"pragma"} and not body:
            continue  # warning pragmas for nvcc only
        yield line_hit(arm.line + f.offset, text=arm.text[:100], guard_free=True)


def fix_cpp(hit: Hit, f: CppFile, ctx: Context) -> Edit | EditRefusal:
    line = f.line_text(hit.line)
    match = re.fullmatch(
        r"(\s*#\s*)(?:ifdef\s+(__CUDACC__|__NVCC__)|if\s+defined\s*\(?\s*(__CUDACC__|__NVCC__)\s*\)?)(\s*(?://.*|/\*.*\*/\s*)?)",
        line,
    )
    if match is None:
        return EditRefusal(hit.line, "a condition of several parts: which side AMD belongs to is a decision")
    name = match.group(2) or match.group(3)
    text = f"{match.group(1)}if defined({name}) || defined(__HIPCC__){match.group(4)}"
    return Edit(hit.line, 0, text, length=len(line))
