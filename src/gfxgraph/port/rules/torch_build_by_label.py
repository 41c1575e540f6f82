"""The kind of torch is read from '+cu' in its version."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX122",
    code="torch-build-by-label",
    severity=Severity.MEDIUM,
    phase=1,
    fix=Fix.SUGGEST,
    en=Text(
        'The kind of torch is read from "+cu" in its version',
        "{expr}",
        "A ROCm build says +rocm or nothing at all, so it is taken for a CPU build or refused.",
        "torch.version.cuda and torch.version.hip say what torch was built for.",
    ),
    zh=Text(
        '根据版本号中的 "+cu" 判断 torch 的类型',
        "{expr}",
        "ROCm 构建写作 +rocm 或根本没有标签，会被当作 CPU 版或被拒绝。",
        "torch.version.cuda 与 torch.version.hip 说明 torch 为谁构建。",
    ),
    bad='import torch\n\nis_gpu = "+cu" in torch.__version__\n',
    good="import torch\n\nis_gpu = torch.version.cuda or torch.version.hip\n",
    needs=("+cu",),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node in f.nodes(ast.Compare):
        label = text_of(node.left) or ""
        if isinstance(node.ops[0], ast.In | ast.NotIn) and re.match(r"\+?cu(\d+|$)|\+cu", label):
            statement = f.statement(node)
            around = f.source(statement.test if isinstance(statement, ast.If) else statement) if statement else ""
            if re.search(r"(?i)ver|torch", f.source(node.comparators[0])) and "rocm" not in around:
                yield hit(node, expr=f.source(node)[:100])
