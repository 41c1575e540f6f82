"""CUDA sources are translated in place."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX223",
    code="hipify-in-place",
    severity=Severity.HIGH,
    phase=2,
    fix=Fix.SUGGEST,
    confidence="contradicted",
    en=Text(
        "CUDA sources are translated in place",
        "{command}",
        "The NVIDIA sources themselves change, which a port must never do.",
        "Out of place: torch's hipify writes copies beside the sources and only where something differs; hipify-perl has -o.",
    ),
    zh=Text(
        "就地转换 CUDA 源码",
        "{command}",
        "NVIDIA 的源码本身会被改动，而移植绝不应如此。",
        "在别处输出：torch 的 hipify 只在有差异时于源文件旁写出副本；hipify-perl 可用 -o。",
    ),
    path="port.sh",
    bad="hipify-perl --inplace kernels.cu\n",
    good="hipify-perl -o build/kernels.hip kernels.cu\n",
    needs=("hip",),
)


def _scan(f: TextFile, ctx: Context) -> Iterator[Hit]:
    for entry, match in f.matching(r"hipify-(perl|clang)\b.*\s--?inplace\b|hipconvertinplace[\w-]*"):
        yield entry_hit(f, entry, command=match.group()[:80])


check_shell = check_docker = check_make = check_yaml = check_cmake = _scan


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for call in f.calls("*.hipify"):
        project, output = keyword(call, "project_directory"), keyword(call, "output_directory")
        if project is not None and output is not None and f.source(project) == f.source(output):
            if not is_true(keyword(call, "is_pytorch_extension")):
                yield hit(call, command="hipify(output_directory == project_directory)")
    for node in f.nodes(ast.Constant):
        if isinstance(node.value, str) and re.search(r"^--?inplace$|hipify-perl.*--?inplace", node.value):
            if "hipify" in f.source(f.statement(node) or node):
                yield hit(node, command=node.value[:80])
