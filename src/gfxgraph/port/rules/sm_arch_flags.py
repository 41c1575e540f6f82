"""NVIDIA architectures in build flags."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX403",
    code="sm-arch-flags",
    severity=Severity.MEDIUM,
    phase=4,
    fix=Fix.SUGGEST,
    en=Text(
        "NVIDIA architectures in build flags",
        "{text}",
        "hipcc has no use for them; its list is PYTORCH_ROCM_ARCH or --offload-arch.",
        "Gate them, and take PYTORCH_ROCM_ARCH from the visible devices.",
    ),
    zh=Text(
        "构建选项中的 NVIDIA 架构",
        "{text}",
        "hipcc 用不上它们；对应的是 PYTORCH_ROCM_ARCH 或 --offload-arch。",
        "加条件，并从可见设备得出 PYTORCH_ROCM_ARCH。",
    ),
    path="setup.py",
    bad='ARGS = ["-gencode", "arch=compute_80,code=sm_80"]\n',
    good='import os\n\nos.environ["TORCH_CUDA_ARCH_LIST"] = ""\n',
    needs=(
        "gencode",
        "sm_",
        "compute_",
        "torch_cuda_arch_list",
        "cuda-gpu-arch",
        "cuda_arch",
        "cuda_select_nvcc",
    ),
)
FLAG = re.compile(
    r"-gencode\b|arch=compute_\d+\S*|-arch[= ]?sm_\d+\S*|--gpu-architecture\S*|--cuda-gpu-arch\S*|code=sm_\d+|-arch=native|-arch=all\S*"
)

_KERNEL = re.compile(
    r"(?:^|[/_])sm_?(?:[5-9]\d|1[0-2]\d)a?(?:[/_][\w./*]*)?\.(?:cu|cpp)$"
)  # a kernel for one architecture


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    yield from once_a_line(_all(f))


def _all(f: PyFile) -> Iterator[Hit]:
    for node in f.nodes(ast.Constant):
        if isinstance(node.value, str) and len(node.value) < 400 and not f.is_docstring(node):
            match = FLAG.search(node.value)
            if match and not isinstance(f.parent(node), ast.Compare):
                yield hit(node, text=node.value[:60])
            elif _KERNEL.search(node.value) and "\n" not in node.value:
                yield hit(node, severity=Severity.LOW, group="sources", text=node.value[:60])
    for write, key, value in env_writes(f):
        if key == "TORCH_CUDA_ARCH_LIST" and text_of(value) != "":
            yield hit(write, text=key)


_LINE = re.compile(
    rf"{FLAG.pattern}|\bTORCH_CUDA_ARCH_LIST\s*[= ]\s*[\"']?\d+\.\d[^\s]*|\bcuda_select_nvcc_arch_flags\b|"
    r"arch=compute_\$\S*|code=sm_\$\S*|\bCUDA_ARCH(?:_FLAGS|ITECTURES)?\s*[:?]?=\s*-?\S*\d\d"
)


def _scan(f: TextFile, ctx: Context) -> Iterator[Hit]:
    for entry in f.entries:
        if entry.keyword == "if":
            continue
        for number in range(entry.line, max(entry.line, entry.last_line) + 1):
            line = re.sub(r"(^|\s)#.*", "", f.lines[number - 1]) if number <= len(f.lines) else ""
            if match := _LINE.search(line):
                yield replace(entry_hit(f, entry, text=match.group()[:60]), line=number, end_line=number)


check_docker = check_shell = check_make = check_cmake = check_yaml = _scan


def fix_python(node: ast.AST, f: PyFile, ctx: Context) -> Edit | EditRefusal | None:
    """A list that names NVIDIA's architectures is not given to AMD's compiler; torch adds AMD's own."""
    # lazily: every file here is a rule, and a rule found in two files would be there twice
    from gfxgraph.port.rules.nvcc_flags import fix_python as of_flags

    if isinstance(node, ast.Constant):
        return of_flags(node, f, ctx)
    return EditRefusal(
        getattr(node, "lineno", 1), "the environment variable is read by torch on NVIDIA only: harmless"
    )


def fix_cmake(hit: Hit, f: TextFile, ctx: Context) -> Edit | EditRefusal | None:
    return fix_entry(f, hit.line)
