"""Torch.version.cuda is taken apart as text."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX102",
    code="torch-version-cuda-parse",
    severity=Severity.HIGH,
    phase=1,
    fix=Fix.SUGGEST,
    en=Text(
        "torch.version.cuda is taken apart as text",
        "{expr}",
        "It is None on ROCm: AttributeError or TypeError, often in setup.py or at import.",
        "Test torch.version.cuda is not None first, and read torch.version.hip in the other branch.",
    ),
    zh=Text(
        "把 torch.version.cuda 当作文本解析",
        "{expr}",
        "ROCm 上它是 None：会触发 AttributeError 或 TypeError，而且常发生在 setup.py 或导入时。",
        "先判断 torch.version.cuda is not None，另一分支读取 torch.version.hip。",
    ),
    bad='import torch\n\nmajor = int(torch.version.cuda.split(".")[0])\n',
    good='import torch\n\nmajor = int(torch.version.cuda.split(".")[0]) if torch.version.cuda else 0\n',
    needs=("version.cuda", "version import cuda", "get_cuda_version", "cuda_version"),
)
_PARSERS = frozenset({"int", "float", "parse", "Version", "LooseVersion", "StrictVersion", "TorchVersion"})


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    yield from once_a_line(_all(f))


def _all(f: PyFile) -> Iterator[Hit]:
    for version in f.nodes(ast.Attribute, ast.Name):
        node: ast.AST = version
        if not _is_version(f, node):
            continue
        up = f.parent(node)
        if isinstance(up, ast.BoolOp | ast.Call) and _defaulted(f, up, node):
            node, up = up, f.parent(up)
        used = None
        if isinstance(up, ast.Attribute):
            used = f.parent(up)
        elif isinstance(up, ast.Subscript) and up.value is node:
            used = up
        elif isinstance(up, ast.Call) and node in up.args:
            name = f.call_name(up).rpartition(".")[2]
            if name in _PARSERS:
                used = up
        elif isinstance(up, ast.BinOp) and isinstance(up.op, ast.Add):
            used = up
        elif isinstance(up, ast.Compare) and any(isinstance(o, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for o in up.ops):
            used = up
        if used is not None:
            yield hit(node, expr=f.source(used)[:120])
        elif isinstance(version, ast.Attribute) and isinstance(
            up, ast.FormattedValue | ast.Dict | ast.Call | ast.keyword
        ):
            if not (isinstance(up, ast.Call) and node is up.func) and not _names_hip(f, version):
                yield hit(node, severity=Severity.INFO, expr=f.source(f.statement(version) or up)[:120])


def _names_hip(f: PyFile, node: ast.AST) -> bool:
    scope = f.function(node) or f.statement(node)
    return scope is not None and "version.hip" in f.source(scope)


def _is_version(f: PyFile, node: ast.AST, depth: int = 3) -> bool:
    if isinstance(node, ast.Attribute):
        return f.dotted(node) in ("torch.version.cuda", "version.cuda") and "torch" in f.text
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and depth:
        return any(
            isinstance(b, ast.Attribute | ast.Name | ast.BoolOp) and _holds(f, b, depth - 1)
            for b in f.lookup(node.id, node)
            if b is not node
        )
    return False


def _holds(f: PyFile, node: ast.AST, depth: int) -> bool:
    if isinstance(node, ast.BoolOp):
        return any(_is_version(f, v, depth) for v in node.values)
    return _is_version(f, node, depth)


def _defaulted(f: PyFile, up: ast.AST, node: ast.AST) -> bool:
    """``os.environ.get(K, torch.version.cuda)`` and ``X or torch.version.cuda``."""
    if isinstance(up, ast.BoolOp):
        return isinstance(up.op, ast.Or)
    return isinstance(up, ast.Call) and f.call_name(up) in ("os.environ.get", "os.getenv") and node in up.args[1:]
