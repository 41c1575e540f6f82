"""64 lanes fixed for AMD."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX309",
    code="wave-64-hardcoded",
    severity=Severity.HIGH,
    phase=3,
    fix=Fix.SUGGEST,
    archs=WAVE32,
    scope=Scope.ONLY_AMD,
    en=Text(
        "64 lanes fixed for AMD",
        "{expr}",
        "RDNA and gfx1250 run wavefronts of 32: several large projects have shipped this mistake.",
        "A value by architecture; where in doubt ask the device, and never take 64 for granted.",
    ),
    zh=Text(
        "把 AMD 一律当作 64 个 lane",
        "{expr}",
        "RDNA 与 gfx1250 的 wavefront 为 32：多个大型项目都犯过这个错误。",
        "按架构取值；拿不准就询问设备，切勿默认 64。",
    ),
    path="amd.cuh",
    bad="#ifdef USE_ROCM\n#define LANES 64\n#define WARP_SIZE 64\n#else\n#define LANES 1\n#endif\n",
    good="#if defined(__GFX9__)\n#define WARP_SIZE 64\n#endif\n",
    needs=("64", "0xffffffffffffffff"),
)
_NAME = re.compile(
    r"(?i)\w*(warp|wave)\w*(size|threads|width|len|dim|sz)\w*|\w*threads_?per_?(warp|wave)\w*|warp|wave(front)?"
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    for name, takes, body, line in f.defines():
        if not takes and _NAME.fullmatch(name) and re.fullmatch(r"\(?64[uU]?\)?", body):
            yield line_hit(line, expr=f"#define {name} {body}")
    named = re.search(r"(?i)(?:warp|wave)\w*\s*(?:=|\{)\s*\{?64", f.code)
    for n in f.nodes("init_declarator") if named else ():
        name = f.source(n.child_by_field_name("declarator"))
        if _NAME.fullmatch(name) and re.fullmatch(r"\{?64[uU]?\}?", f.source(n.child_by_field_name("value"))):
            yield cpp_hit(f, n, expr=f.source(n))
    divides = re.search(r"[&/%][\s(]*(?:63|0x3[fF]|64)\b|>>[\s(]*6\b", f.code)
    for n in f.nodes("binary_expression") if divides else ():
        operator, right = (
            f.source(n.child_by_field_name("operator")),
            f.source(n.child_by_field_name("right")).strip("()"),
        )
        if right in {"&": ("63", "0x3f", "0x3F"), "/": ("64",), "%": ("64",), ">>": ("6",)}.get(operator, ()):
            if is_thread_index(f, n.child_by_field_name("left")):
                yield cpp_hit(f, n, expr=f.source(n)[:80])


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node in f.nodes(ast.Constant):
        if int_of(node) != 64:
            continue
        statement = f.statement(node)
        if isinstance(statement, ast.Assign | ast.AnnAssign | ast.Return):
            targets = (
                statement.targets
                if isinstance(statement, ast.Assign)
                else [statement.target]
                if isinstance(statement, ast.AnnAssign)
                else []
            )
            named = any(_NAME.fullmatch(f.source(t).rpartition(".")[2]) for t in targets)
            if isinstance(statement, ast.Return):
                named = in_function_named(f, node, r"(?i)warp|wave")
            if named and (statement.value is node or isinstance(statement.value, ast.IfExp)):
                yield hit(node, expr=f.source(statement)[:80])
