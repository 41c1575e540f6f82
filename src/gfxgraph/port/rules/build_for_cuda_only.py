"""A build script that knows CUDA and nothing else."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX414",
    code="build-for-cuda-only",
    severity=Severity.MEDIUM,
    phase=4,
    fix=Fix.SUGGEST,
    confidence="reported",
    en=Text(
        "The build script knows CUDA and nothing else",
        "{expr}",
        "A ROCm build needs its own answer at each such place: which toolkit is asked for, which flags and sources are used, what the wheel is called, when to give up.",
        "Decide the platform once (torch.version.hip, or an option) and let each place follow it; keep CUDA's value as it is.",
    ),
    zh=Text(
        "构建脚本只认识 CUDA",
        "{expr}",
        "ROCm 构建在每个这样的位置都需要自己的答案：询问哪个工具链、用哪些选项与源文件、wheel 如何命名、何时放弃。",
        "统一判断一次平台（torch.version.hip 或构建选项），各处随之而定；CUDA 的取值保持不变。",
    ),
    path="setup.py",
    bad='import os\n\nCUDA_VERSION = os.environ.get("CUDA_VERSION", "")\nversion = "1.0"\nif CUDA_VERSION:\n    version += f"+cu{CUDA_VERSION}"\n',
    good='import os\n\nimport torch\n\nversion = "1.0"\nif torch.version.hip is not None:\n    version += "+rocm"\n',
    needs=("cuda", "nvcc", '"cu1', "'cu1"),
)
_AMD = re.compile(r"(?i)rocm|hip(?!py)|amd\b|gfx")
_FLAG = re.compile(
    r"(?i)^_?(has|have|with|use|build|force|enable|is|no|skip|without|disable|compile|install|should|want)_*(\w+_)?cuda(_\w+)?$|"
    r"^cuda(_?(available|enabled|found|version\w*|home|path|dir\w*|pkg|support|ext\w*|ver|major|minor|toolkit\w*|include\w*|lib\w*))?$|"
    r"^\w+_cuda_?(version|major|minor|home|dir|dirs|path)?$|^nvcc\w*$"
)
_ENVIRON = re.compile(
    r"(?i)^(\w+_)?(CUDA|NVCC)(_?(VERSION|HOME|PATH|ROOT\w*|EXT|OPS|PKG\w*|BUILD|DIR|ARCH\w*|\w*FLAGS))?$"
)
_BUILD = re.compile(r"cu(?:da)?[-_]?\d{2,3}(?:\.\d)?")
_PASSED = re.compile(r"cuda(_?(version|home|path|tag|label|suffix))?")
_LABEL = re.compile(r"[+._-]cu(\d{2,3}|)$")
_COMPLAINT = re.compile(r"\bCUDA\b|\bnvcc\b|(?i:nvidia)")


def is_build_script(f: PyFile) -> bool:
    """A setup.py, or a file that builds an extension of torch's."""
    name = f.path.rpartition("/")[2]
    return (
        name in ("setup.py", "build.py")
        or bool(re.search(r"\b(CUDAExtension|BuildExtension|cpp_extension|build_ext)\b", f.text))
        or is_installer(f)
    )


def is_installer(f: PyFile) -> bool:
    """A script that installs packages, by its name and by what it runs."""
    name = f.path.rpartition("/")[2]
    return bool(
        re.match(r"(?i)(\w*install\w*|\w*bootstrap\w*|one_click|\w*dependencies|launch\w*)\.py$", name)
        and re.search(r"(pip|conda|mamba|uv)[\s\"',]+(-\w+\s+)*install", f.text)
    )


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    if is_build_script(f) and not re.search(r"(^|/)tests?/", f.path):
        yield from once_a_line(_all(f))


def _all(f: PyFile) -> Iterator[Hit]:
    yield from _asked(f)
    for constant in f.nodes(ast.Constant):
        if isinstance(constant.value, str) and _BUILD.fullmatch(constant.value) and not f.is_docstring(constant):
            yield hit(constant, expr=f.source(constant)[:100], severity=Severity.LOW)
    if is_installer(f):
        yield from _handed_on(f)
    yield from _said(f)
    yield from _called(f)


def _asked(f: PyFile) -> Iterator[Hit]:
    """Conditions and values that ask for CUDA alone."""
    for test in f.nodes(ast.If, ast.IfExp):
        text = f.source(test.test)
        if not _AMD.search(text) and _asks(f, test.test):
            yield hit(test.test, expr=text[:100])
    for node in f.nodes(ast.Assign):
        text = f.source(node)
        if not _AMD.search(text) and (_reads_environment(f, node.value) or _asks_torch(f, node.value)):
            yield hit(node, expr=text[:100])


def _handed_on(f: PyFile) -> Iterator[Hit]:
    """A CUDA version that an installer's functions are given."""
    for function in f.nodes(ast.FunctionDef):
        if any(_PASSED.fullmatch(a.arg) for a in (*function.args.args, *function.args.kwonlyargs)):
            yield hit(function, expr=f"def {function.name}", severity=Severity.LOW)
    for passing in f.nodes(ast.Call):
        given = [*passing.args, *(k.value for k in passing.keywords)]
        if any(isinstance(g, ast.Name) and _PASSED.fullmatch(g.id) for g in given):
            yield hit(passing, expr=f.source(passing)[:100], severity=Severity.LOW)


def _said(f: PyFile) -> Iterator[Hit]:
    """Labels of builds, and complaints that CUDA is not there."""
    for label in f.nodes(ast.JoinedStr):
        pairs = zip(label.values, label.values[1:])
        if any(_LABEL.search(text_of(a) or "") and isinstance(b, ast.FormattedValue) for a, b in pairs):
            yield hit(label, expr=f.source(label)[:100])
    for said_by in f.nodes(ast.Raise, ast.Assert):
        said = [n.value for n in ast.walk(said_by) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        text = " ".join(said)
        if _COMPLAINT.search(text) and not _AMD.search(text):
            yield hit(said_by, expr=f.source(said_by)[:100], severity=Severity.LOW)


def _called(f: PyFile) -> Iterator[Hit]:
    """Functions that look for CUDA, by name."""
    for call in f.nodes(ast.Call):
        owner, _, name = f.call_name(call).rpartition(".")
        if owner.startswith("torch.") or name == "CUDAExtension" or name.startswith("cpp_") or _AMD.search(name):
            continue
        if _FLAG.match(name) or _LOOKS.search(name):
            yield hit(call, expr=f.source(call)[:100])


_LOOKS = re.compile(r"(?i)(cuda|nvcc).*(version|home|dirs?|flags|arch)|(check|find|get|locate)\w*(cuda|nvcc)")


def _asks(f: PyFile, test: ast.expr) -> bool:
    """Whether a condition turns on a flag, a variable or a version that is CUDA's by name."""
    for node in ast.walk(test):
        if isinstance(node, ast.Name) and _FLAG.match(node.id):
            return True
        if isinstance(node, ast.Attribute) and (_FLAG.match(node.attr) or f.dotted(node) == "torch.version.cuda"):
            return node.attr != "is_cuda"
        if isinstance(node, ast.Call) and _reads_environment(f, node):
            return True
    return False


def _reads_environment(f: PyFile, value: ast.AST) -> bool:
    for node in ast.walk(value):
        key = None
        if isinstance(node, ast.Call) and f.call_name(node) in ("os.environ.get", "os.getenv") and node.args:
            key = text_of(node.args[0])
        elif isinstance(node, ast.Subscript) and f.dotted(node.value) == "os.environ":
            key = text_of(node.slice)
        if key and _ENVIRON.match(key):
            return True
    return False


def _asks_torch(f: PyFile, value: ast.AST) -> bool:
    return any(isinstance(n, ast.Attribute) and f.dotted(n) == "torch.version.cuda" for n in ast.walk(value))
