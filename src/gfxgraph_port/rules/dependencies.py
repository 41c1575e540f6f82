"""What is installed: packages, indexes and base images."""

from __future__ import annotations

from gfxgraph_port.rule_api import *

NAMES = frozenset({"torch", "torchvision", "torchaudio", "triton", "pytorch-triton", "pytorch"})


def _severity(spec: str) -> Severity:
    return Severity.HIGH if spec.lstrip("= ").strip() and spec.strip().startswith("==") else Severity.INFO


def torch_in_core_deps_requirements(f: RequirementFile, ctx: Context) -> Iterator[Hit]:
    if re.search(r"(^|/)(examples?|docs?|tutorials?|benchmarks?|tests?)/", f.path):
        return  # advice to readers, not metadata
    for need in f.core():
        if need.name in NAMES and "rocm" not in need.spec and need.group == "":
            yield line_hit(need.line, severity=_severity(need.spec), name=need.name, spec=need.spec)


def torch_in_core_deps_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    if not f.path.endswith("setup.py"):
        return
    for call in f.calls("setuptools.setup", "setup", "distutils.core.setup"):
        lists = [m for m in meanings(f, keyword(call, "install_requires")) if isinstance(m, ast.List)]
        for element in (e for item in lists for e in item.elts):
            match = re.match(r"([A-Za-z][\w.-]*)\s*(.*)", text_of(element) or "")
            if match and match[1].lower() in NAMES and "rocm" not in match[0]:
                yield hit(element, severity=_severity(match[2]), name=match[1], spec=match[2])


def jax_cuda_extra(f: RequirementFile, ctx: Context) -> Iterator[Hit]:
    if f.is_lock:
        return
    for need in f.needs:
        if is_cuda_group(need.group):
            continue
        by_extra = need.name in ("jax", "jaxlib", "tensorflow") and any("cuda" in e for e in need.extras)
        if by_extra or re.match(r"jax-cuda\d*-", need.name) or (need.name == "jaxlib" and "+cuda" in need.spec):
            yield line_hit(need.line, text=need.text)


_INDEX = r"/whl/(?:nightly/|test/)?cu\d+\b|/cu1\d+(?:/|$)|-cu1\d\d\b/simple"


def cuda_wheel_index(f: RequirementFile, ctx: Context) -> Iterator[Hit]:
    if f.is_lock:
        return
    for index in f.indexes:
        if re.search(_INDEX, index.url):
            yield line_hit(index.line, text=index.url)
    for need in f.needs:
        if re.search(r"\+cu\d+", need.spec) and not is_cuda_group(need.group):
            yield line_hit(need.line, text=need.text)


_IMAGE = re.compile(
    r"(?:docker\.io/)?nvidia/cuda\S*|nvcr\.io/nvidia/\S+|(?<!\S)\S*pytorch/pytorch:\S*cuda\S*|(?<!\S)\S+[:-]cu1\d\d\S*"
)


def docker_cuda_base(f: TextFile, ctx: Context) -> Iterator[Hit]:
    for entry in f.commands("FROM", "ARG"):
        match = _IMAGE.search(entry.text)
        if match and (entry.keyword == "FROM" or re.match(r"\w*(BASE|IMAGE)\w*\s*=", entry.text)):
            yield entry_hit(entry, text=match.group())


_INSTALL = re.compile(r"\bpip3?\s+install\b(?P<rest>.*)")
_OWN = r"(?:^|\s)(?:-e\s+|--editable[ =])?[\"']?\.{1,2}(?:/\S*)?(?:\[[^\]]*\])?[\"']?(?:\s|$)|git\+https?://"


def pip_install_with_deps(f: TextFile, ctx: Context) -> Iterator[Hit]:
    cuda_image = any(e.keyword == "FROM" and re.search(r"nvidia/cuda|nvcr\.io|-cuda", e.text) for e in f.entries)
    if cuda_image or ctx.project.requires == {"other"}:
        return  # nothing of what it installs comes from a CUDA index, or all of it does
    for entry in f.entries:
        match = _INSTALL.search(entry.text)
        if match and re.search(_OWN, match["rest"]):
            if not re.search(r"--no-deps|(?:^|\s)-c\s|--constraint|--dry-run", match["rest"]):
                yield entry_hit(entry, command=match.group().strip()[:80])
