"""Package index or version for a CUDA build."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX005",
    code="cuda-wheel-index",
    severity=Severity.HIGH,
    phase=0,
    fix=Fix.SUGGEST,
    confidence="documented",
    en=Text(
        "Package index or version for a CUDA build",
        "{text} serves CUDA wheels",
        "Whatever is installed from there later puts the CUDA build of torch back.",
        "Choose the index by platform: the same address with rocmX.Y in place of cuNNN.",
    ),
    zh=Text(
        "指向 CUDA 构建的包索引或版本",
        "{text} 提供的是 CUDA wheel",
        "之后凡从该处安装，都会把 torch 换回 CUDA 版。",
        "按平台选择索引：同一地址，以 rocmX.Y 取代 cuNNN。",
    ),
    path="requirements.txt",
    bad="--extra-index-url https://download.pytorch.org/whl/cu124\n",
    good="--extra-index-url https://download.pytorch.org/whl/rocm6.4\n",
    needs=("/cu", "+cu"),
)
_INDEX = r"/whl/(?:nightly/|test/)?cu\d+\b|/cu1\d+(?:/|$)|-cu1\d\d\b/simple"
_LOCAL = r"(?:==|=|@|-)\s*[\w.]*\d\+cu\d{2,}"


def check_requirements(f: RequirementFile, ctx: Context) -> Iterator[Hit]:
    if f.is_lock:
        return
    for index in f.indexes:
        if re.search(_INDEX, index.url):
            yield line_hit(index.line, text=index.url)
    for need in f.needs:
        if re.search(r"\+cu\d+", need.spec) and not is_cuda_group(need.group):
            yield line_hit(need.line, text=need.text)


def _lines(f: TextFile, ctx: Context) -> Iterator[Hit]:
    for entry, match in f.matching(f"{_INDEX}|{_LOCAL}"):
        yield entry_hit(f, entry, re.escape(match.group()), text=match.group())


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    """Installers written in Python, and what a setup script requires."""
    hits = []
    for node in f.nodes(ast.Constant):
        if isinstance(node.value, str) and len(node.value) < 1000 and not f.is_docstring(node):
            match = re.search(f"{_INDEX}|{_LOCAL}", node.value)
            if match and not isinstance(f.parent(node), ast.Compare) and not re.search(r"rocm|\bhip\b", node.value):
                hits.append(hit(node, text=match.group()))
    yield from once_a_line(hits)


check_docker = check_shell = check_yaml = check_make = check_ini = _lines
