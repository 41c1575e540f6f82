"""A thread or block index deduced by auto."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX227",
    code="coordinates-by-auto",
    severity=Severity.MEDIUM,
    phase=2,
    fix=Fix.SUGGEST,
    confidence="reported",
    en=Text(
        "A thread or block index deduced by auto",
        "{expr}",
        "In HIP threadIdx.x and its like are objects that turn into numbers, not numbers: auto deduces the object's type, so that += and templates on it fail to compile.",
        "Name the type: int or unsigned.",
    ),
    zh=Text(
        "用 auto 推导线程或块索引",
        "{expr}",
        "HIP 中 threadIdx.x 等是可转换为数字的对象，而不是数字：auto 推导出该对象的类型，之后的 += 与依赖其类型的模板无法编译。",
        "写明类型：int 或 unsigned。",
    ),
    path="norm.cu",
    bad="__global__ void k(float* o, int n) {\n  for (auto i = blockIdx.y; i < n; i += gridDim.y) o[i] = 0;\n}\n",
    good="__global__ void k(float* o, int n) {\n  for (unsigned i = blockIdx.y; i < n; i += gridDim.y) o[i] = 0;\n}\n",
    needs=("auto",),
)
_AUTO = re.compile(r"\bauto\s*&?\s*\w+\s*=\s*(?:threadIdx|blockIdx|blockDim|gridDim)\s*\.\s*[xyz]\s*[;,)]")


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    found = []
    for match in _AUTO.finditer(f.code):
        start = f.code.rfind("\n", 0, match.start()) + 1
        line = f.code.count("\n", 0, match.start()) + 1 + f.offset
        found.append(line_hit(line, match.start() - start, expr=" ".join(match.group().split())))
    yield from once_a_line(found)
