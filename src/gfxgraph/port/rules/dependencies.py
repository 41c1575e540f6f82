"""MODULE dependencies."""

from __future__ import annotations

from gfxgraph.port.rule_api import *

NAMES = frozenset({"torch", "torchvision", "torchaudio", "triton", "pytorch-triton", "pytorch"})


def _severity(spec: str) -> Severity:
    return Severity.HIGH if spec.lstrip("= ").strip() and spec.strip().startswith("==") else Severity.MEDIUM


def torch_in_core_deps_requirements(f: RequirementFile, ctx: Context) -> Iterator[Hit]:
    if re.search(r"(^|/)(examples?|docs?|tutorials?|benchmarks?|tests?)/", f.path):
        return  # advice to readers, not metadata
    for need in f.core():
        if need.name in NAMES and "rocm" not in need.spec and need.group == "":
            yield line_hit(need.line, severity=_severity(need.spec), name=need.name, spec=need.spec, group="torch")


def torch_in_core_deps_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    if not f.path.endswith("setup.py"):
        return
    for call in f.calls("setuptools.setup", "setup", "distutils.core.setup"):
        value = keyword(call, "install_requires")
        lists = f.lookup(value.id, value) if isinstance(value, ast.Name) else [value]
        for item in lists:
            if isinstance(item, ast.List):
                for element in item.elts:
                    text = text_of(element) or ""
                    match = re.match(r"([A-Za-z][\w.-]*)\s*(.*)", text)
                    if match and match.group(1).lower() in NAMES and "rocm" not in text:
                        yield hit(
                            element,
                            severity=_severity(match.group(2)),
                            name=match.group(1),
                            spec=match.group(2),
                        )


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
_LOCAL = r"(?:==|=|@|-)\s*[\w.]*\d\+cu\d{2,}"


def cuda_wheel_index_requirements(f: RequirementFile, ctx: Context) -> Iterator[Hit]:
    if f.is_lock:
        return
    for index in f.indexes:
        if re.search(_INDEX, index.url):
            yield line_hit(index.line, text=index.url)
    for need in f.needs:
        if re.search(r"\+cu\d+", need.spec) and not is_cuda_group(need.group):
            yield line_hit(need.line, text=need.text)


def cuda_wheel_index_text(f: TextFile, ctx: Context) -> Iterator[Hit]:
    for entry, match in f.matching(f"{_INDEX}|{_LOCAL}"):
        yield entry_hit(f, entry, re.escape(match.group()), text=match.group())


def cuda_wheel_index_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    """Installers written in Python, and what a setup script requires."""
    hits = []
    for node in f.nodes(ast.Constant):
        if isinstance(node.value, str) and len(node.value) < 1000 and not f.is_docstring(node):
            match = re.search(f"{_INDEX}|{_LOCAL}", node.value)
            if match and not isinstance(f.parent(node), ast.Compare) and not re.search(r"rocm|\bhip\b", node.value):
                hits.append(hit(node, text=match.group()))
    yield from once_a_line(hits)


_IMAGE = re.compile(
    r"(?:docker\.io/)?nvidia/cuda\S*|nvcr\.io/nvidia/\S+|(?<!\S)\S*pytorch/pytorch:\S*cuda\S*|(?<!\S)\S+[:-]cu1\d\d\S*"
)


def docker_cuda_base_docker(f: TextFile, ctx: Context) -> Iterator[Hit]:
    cuda = False
    for entry in f.commands("FROM", "ARG"):
        match = _IMAGE.search(entry.text)
        if match and (entry.keyword == "FROM" or re.match(r"\w*(BASE|IMAGE)\w*\s*=", entry.text)):
            yield entry_hit(f, entry, image=match.group())
            cuda = entry.keyword == "FROM" or cuda
    if cuda:
        for entry in f.entries:
            if entry.keyword not in ("FROM", "LABEL") and not (entry.keyword == "ARG" and _IMAGE.search(entry.text)):
                for number in range(entry.line, max(entry.line, entry.last_line) + 1):
                    line = f.lines[number - 1].partition(" #")[0] if number <= len(f.lines) else ""
                    if (found := _REST.search(line)) and not re.search(r"(?i)rocm|\bhip|\bamd\b", line):
                        made = entry_hit(f, entry, image=found.group(), severity=Severity.LOW, group="image")
                        yield replace(made, line=number, end_line=number)


# What else in such a file is NVIDIA's: packages, paths, variables, keys of its repository.
_REST = re.compile(
    r"(?i)/usr/local/cuda\S*|\b(?:cuda|cudnn|nccl|nvidia|libcu|libnv|tensorrt)[\w-]*|\bLD_LIBRARY_PATH\S*cuda|TORCH_CUDA\w*|NVIDIA_\w+|\bcu1\d\d\b|sm_\d\d"
)


def docker_cuda_base_yaml(f: TextFile, ctx: Context) -> Iterator[Hit]:
    for entry, match in f.matching(rf"\b(?:image|container)\s*:\s*[\"']?(?:{_IMAGE.pattern})"):
        yield entry_hit(f, entry, image=match.group().partition(":")[2].strip())


def fix_docker_cuda_base(hit: Hit, f: TextFile, ctx: Context) -> Edit | EditRefusal | None:
    """The base image becomes a build argument whose default is the old one."""
    line = f.lines[hit.line - 1] if 0 < hit.line <= len(f.lines) else ""
    match = re.fullmatch(r"FROM\s+(\S+)(.*)", line.strip())
    if match is None or "$" in line:
        return None if hit.group else EditRefusal(hit.line, "the image is computed")
    number = sum(row.upper().startswith("FROM") for row in f.lines[: hit.line - 1])
    if number:
        return EditRefusal(hit.line, "an argument of a later stage must stand before the first FROM")
    text = f"ARG BASE_IMAGE={match[1]}\nFROM ${{BASE_IMAGE}}{match[2]}"
    needs = "docker build --build-arg BASE_IMAGE=rocm/dev-ubuntu-22.04 (or rocm/pytorch) for AMD"
    return Edit(hit.line, 0, text, last_line=hit.line, needs=needs)
