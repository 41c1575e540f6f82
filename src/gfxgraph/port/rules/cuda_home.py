"""The build is decided by CUDA_HOME."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX401",
    code="cuda-home",
    severity=Severity.HIGH,
    phase=4,
    fix=Fix.SUGGEST,
    en=Text(
        "The build is decided by CUDA_HOME",
        "{expr}",
        "On ROCm it is None: a TypeError, or silently a build for the CPU. With both toolkits installed the CUDA branch is taken under a ROCm torch.",
        "Test torch.version.hip first, accept ROCM_HOME, and require torch.version.cuda for the CUDA branch.",
    ),
    zh=Text(
        "构建由 CUDA_HOME 决定",
        "{expr}",
        "ROCm 上它是 None：要么 TypeError，要么悄悄只构建 CPU 版。若两套工具链都在，ROCm 版 torch 下也会走 CUDA 分支。",
        "先判断 torch.version.hip，接受 ROCM_HOME，CUDA 分支要求 torch.version.cuda。",
    ),
    path="setup.py",
    bad="from torch.utils.cpp_extension import CUDA_HOME\n\nHAS_GPU = CUDA_HOME is not None\n",
    good="import torch\nfrom torch.utils.cpp_extension import CUDA_HOME, ROCM_HOME\n\nHAS_GPU = ROCM_HOME is not None if torch.version.hip else CUDA_HOME is not None\n",
    needs=("cuda_home", "cuda_path", "/usr/local/cuda"),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    yield from once_a_line(_all(f))


def _all(f: PyFile) -> Iterator[Hit]:
    if not re.search(r"/opt/rocm|ROCM_HOME|ROCM_PATH", f.text):
        for place in f.nodes(ast.Constant):
            if isinstance(place.value, str) and re.match(r"/usr/local/cuda(?:[-/][\w./-]*)?$", place.value):
                yield hit(place, severity=Severity.LOW, group="paths", expr=f.source(place)[:100])
    for source in f.nodes(ast.ImportFrom):
        names = {a.name for a in source.names}
        if "CUDA_HOME" in names and not re.search(r"ROCM_HOME|HIP_HOME", f.text):
            yield hit(source, severity=Severity.LOW, expr=f.source(source)[:100])
    for node in f.nodes(ast.Name, ast.Attribute, ast.Call, ast.Subscript):
        if not is_home(f, node):
            continue
        up = f.parent(node)
        if isinstance(up, ast.Import | ast.ImportFrom) or isinstance(getattr(node, "ctx", None), ast.Store):
            continue
        if isinstance(
            up,
            ast.Compare
            | ast.BoolOp
            | ast.UnaryOp
            | ast.If
            | ast.IfExp
            | ast.BinOp
            | ast.Call
            | ast.FormattedValue
            | ast.Assert,
        ):
            statement = f.statement(node)
            text = f.source(up)
            if isinstance(up, ast.Call) and f.call_name(up) in (
                "print",
                "logger.info",
                "logging.info",
                "warnings.warn",
            ):
                continue
            around = (
                f.source(statement.test)
                if isinstance(statement, ast.If)
                else f.source(statement)
                if statement is not None
                else ""
            )
            if re.search(r"ROCM_HOME|HIP_HOME|rocm|\bhip\b", around, re.I):
                continue
            yield hit(node, expr=text[:100])


def is_home(f: PyFile, node: ast.AST) -> bool:
    """CUDA_HOME of torch, or the environment variable."""
    if isinstance(node, ast.Name | ast.Attribute):
        name = f.dotted(node)
        return name.endswith("cpp_extension.CUDA_HOME") or name in ("CUDA_HOME", "cuda_home", "CUDA_PATH")
    if isinstance(node, ast.Call) and f.call_name(node) in ("os.environ.get", "os.getenv") and node.args:
        return text_of(node.args[0]) in ("CUDA_HOME", "CUDA_PATH")
    if isinstance(node, ast.Subscript) and f.dotted(node.value) == "os.environ":
        return text_of(node.slice) in ("CUDA_HOME", "CUDA_PATH") and isinstance(node.ctx, ast.Load)
    return False
