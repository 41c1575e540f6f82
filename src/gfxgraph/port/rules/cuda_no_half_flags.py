"""__CUDA_NO_HALF_* flags."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX408",
    code="cuda-no-half-flags",
    severity=Severity.LOW,
    phase=4,
    fix=Fix.SUGGEST,
    en=Text(
        "__CUDA_NO_HALF_* flags",
        "{text}",
        "hipcc needs the __HIP_NO_HALF_* names: torch defines __HIP_NO_HALF_OPERATORS__. Newer torch renames them in setup.py's flags, older ones and the JIT loader do not.",
        "Use the HIP names on ROCm.",
    ),
    zh=Text(
        "__CUDA_NO_HALF_* 选项",
        "{text}",
        "hipcc 需要 __HIP_NO_HALF_* 名称：torch 会定义 __HIP_NO_HALF_OPERATORS__。较新的 torch 会在 setup.py 的选项中改名，旧版与 JIT 加载不会。",
        "ROCm 上使用 HIP 的名称。",
    ),
    path="setup.py",
    bad='FLAGS = ["-U__CUDA_NO_HALF_OPERATORS__"]\n',
    good='FLAGS = ["-U__HIP_NO_HALF_OPERATORS__"]\n',
    needs=("__cuda_no_",),
)
_FLAG = re.compile(r"__CUDA_NO_(HALF|HALF2|BFLOAT16|BFLOAT162)_\w+__")


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    hits = [
        hit(n, text=n.value)
        for n in f.nodes(ast.Constant)
        if isinstance(n.value, str) and _FLAG.search(n.value) and not f.is_docstring(n)
    ]
    yield from once_a_line(hits)


def _scan(f: TextFile, ctx: Context) -> Iterator[Hit]:
    for entry, match in f.matching(_FLAG.pattern):
        yield entry_hit(f, entry, match.group(), text=match.group())


check_cmake = check_make = check_shell = _scan


def fix_cmake(hit: Hit, f: TextFile, ctx: Context) -> Edit | EditRefusal | None:
    return fix_entry(f, hit.line)
