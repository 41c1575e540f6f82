"""A package's version is compared exactly, or as text."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX120",
    code="version-text-compare",
    severity=Severity.MEDIUM,
    phase=1,
    fix=Fix.SUGGEST,
    en=Text(
        "A package's version is compared exactly, or as text",
        "{expr}",
        "ROCm builds carry a local label (2.9.1+rocm6.4, 0.6.3+gitabc), so equality fails, and packaging orders a label above its public version. Text order is wrong in any case.",
        "SpecifierSet(...).contains(v) ignores the label; or compare Version(v).public.",
    ),
    zh=Text(
        "对包版本作精确或文本比较",
        "{expr}",
        "ROCm 构建带有本地标签（2.9.1+rocm6.4、0.6.3+gitabc），相等比较会失败，packaging 又把标签排在公开版本之后；按文本排序本来就是错的。",
        "SpecifierSet(...).contains(v) 会忽略标签；或比较 Version(v).public。",
    ),
    bad='import torch\n\nnew = torch.__version__ == "2.9.1"\n',
    good="import torch\nfrom packaging.version import Version\n\nnew = Version(torch.__version__).release >= (2, 9)\n",
    needs=("version",),
)
_PACKAGES = frozenset(
    {
        "torch",
        "vllm",
        "triton",
        "torchvision",
        "torchaudio",
        "flash_attn",
        "flash-attn",
        "bitsandbytes",
        "xformers",
        "apex",
        "deepspeed",
        "sglang",
    }
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node in f.nodes(ast.Compare):
        if len(node.ops) != 1:
            continue
        for a, b in ((node.left, node.comparators[0]), (node.comparators[0], node.left)):
            text = text_of(b)
            if text is not None and re.match(r"\d+\.\d", text) and _is_version(f, a):
                yield hit(node, expr=f.source(node)[:120])
            elif isinstance(b, ast.Call) and isinstance(a, ast.Call) and isinstance(node.ops[0], ast.Eq | ast.LtE):
                both = all(f.call_name(c).rpartition(".")[2] in ("Version", "parse") and c.args for c in (a, b))
                if both and text_of(b.args[0]) and _is_version(f, a.args[0]):
                    yield hit(node, expr=f.source(node)[:120])


def _is_version(f: PyFile, node: ast.AST, depth: int = 3) -> bool:
    if depth == 0:
        return False
    if isinstance(node, ast.Attribute) and node.attr == "__version__":
        return f.dotted(node.value).split(".")[0] in _PACKAGES
    if isinstance(node, ast.Call) and f.call_name(node).endswith("version") and node.args:
        return text_of(node.args[0]) in _PACKAGES
    if isinstance(node, ast.Name):
        return any(_is_version(f, b, depth - 1) for b in f.lookup(node.id, node) if b is not node)
    return False
