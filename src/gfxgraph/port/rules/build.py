"""Setup scripts and recipes: what they ask of CUDA, the flags and architectures they give to nvcc."""

from __future__ import annotations

from gfxgraph.port.rule_api import *


def cuda_home(f: PyFile, ctx: Context) -> Iterator[Hit]:
    if not re.search(r"/opt/rocm|ROCM_HOME|ROCM_PATH", f.text):
        for place, text in strings(f):
            if re.match(r"/usr/local/cuda(?:[-/][\w./-]*)?$", text):
                yield hit(place, severity=Severity.LOW, group="paths", expr=f.source(place)[:100])
    for source in f.nodes(ast.ImportFrom):
        if any(a.name == "CUDA_HOME" for a in source.names) and not re.search(r"ROCM_HOME|HIP_HOME", f.text):
            yield hit(source, severity=Severity.LOW, expr=f.source(source)[:100])
    for node in f.nodes(ast.Name, ast.Attribute, ast.Call, ast.Subscript):
        up = f.parent(node)
        if not isinstance(up, _DECIDES) or isinstance(getattr(node, "ctx", None), ast.Store) or not is_home(f, node):
            continue
        if not re.search(r"ROCM_HOME|HIP_HOME|rocm|\bhip\b", around(f, node), re.I):
            yield hit(node, expr=f.source(up)[:100])


_DECIDES = (
    ast.Compare, ast.BoolOp, ast.UnaryOp, ast.If, ast.IfExp, ast.BinOp, ast.Call, ast.FormattedValue, ast.Assert,
)  # fmt: skip


def is_home(f: PyFile, node: ast.AST) -> bool:
    """CUDA_HOME of torch, or the environment variable."""
    if isinstance(node, ast.Name | ast.Attribute):
        name = f.dotted(node)
        return name.endswith("cpp_extension.CUDA_HOME") or name in ("CUDA_HOME", "cuda_home", "CUDA_PATH")
    return _variable(f, node) in ("CUDA_HOME", "CUDA_PATH")


def _variable(f: PyFile, node: ast.AST) -> str:
    """The variable of the environment that an expression reads."""
    if isinstance(node, ast.Call) and f.call_name(node) in ("os.environ.get", "os.getenv") and node.args:
        return text_of(node.args[0]) or ""
    if isinstance(node, ast.Subscript) and f.dotted(node.value) == "os.environ":
        return text_of(node.slice) or ""
    return ""


FLAG = re.compile(
    r"(?:^|[\s\"'=;])(--?expt-(?:relaxed-constexpr|extended-lambda)|--?extended-lambda|--?use_fast_math|-Xptxas\S*|--ptxas-options\S*|-Xcudafe\S*|-Xfatbin\S*|-?-diag[-_]suppress\S*|--threads(?:[= ]\d+)?|-ccbin|--compiler-bindir|--generate-line-info|-lineinfo|--?rdc=true|--relocatable-device-code\S*|--?maxrregcount\S*|-Xcompiler\S*|--compiler-options|--default-stream\S*|--?fmad=\S+|--ftz=\S+|--prec-\S+|-extra-device-vectorization|--resource-usage|-split-compile\S*|--disable-warnings|--?forward-unknown(?:-opts|-to-host-compiler|-to-host-linker)|--forward-unknown-to-host-compiler|--?dlink-time-opt|-dlto|--device-debug|--?nvlink-options\S*|-Xnvlink\S*|--fatbin-options\S*|--cudafe-options\S*|--source-in-ptx|--keep-dir\S*|--dryrun|--(?:device-w|device-c|device-link)|--restrict|-(?:dc|dlink)(?=[\s\"']|$)|--Werror\s+(?:cross-execution-space-call|reorder|all-warnings)|--allow-unsupported-compiler|-allow-unsupported-compiler|--static-global-template-stub\S*|--expt-\S+|--cudart(?:=|\s)\S+|-cudart\s+\S+|--extra-device-vectorization|--generate-code\S*|--compress-mode\S*)"
)


def nvcc_flags_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    builds = f.path.endswith("setup.py") or "nvcc" in f.text or "cpp_extension" in f.text
    for node, text in strings(f):
        match = FLAG.search(text) if len(text) <= 400 else None
        if match is None or isinstance(f.parent(node), ast.Compare):
            continue
        if match[1].startswith(("--threads", "-lineinfo", "--disable-warnings", "-ccbin")) and not builds:
            continue
        if not any(isinstance(u, ast.Call) and last_name(f, u) == "add_argument" for u in f.ancestors(node)):
            yield hit(node, flag=match[1])


# What no other compiler has, so that the line need not name nvcc.
_SURE = re.compile(
    r"-Xcompiler|--?expt-|--?extended-lambda|use_fast_math|-Xptxas|--ptxas-options|-Xcudafe|-Xfatbin|-lineinfo|--generate-line-info"
)
_CUDA = re.compile(r"(?i)nvcc|cuda")
_DEBUG = re.compile(r"(?:^|[\s\"'])(-G)(?=[\"'\s]|$)")


def nvcc_flags_text(f: TextFile, ctx: Context) -> Iterator[Hit]:
    for entry in f.entries:
        if entry.keyword == "if" or AMD.search(entry.text):
            continue
        named = f.kind == "make" or bool(_CUDA.search(entry.keyword + entry.text))
        for number, line in rows(f, entry):
            match = FLAG.search(line) or (_DEBUG.search(line) if named and f.kind in ("cmake", "make") else None)
            if match and (named or _SURE.search(line)) and not re.match(r"\s*cmake\b.* -G", line):
                yield replace(entry_hit(f, entry, flag=match.group(1)), line=number, end_line=number)


_FOR_CLANG = {
    "--use_fast_math": "-ffast-math", "-use_fast_math": "-ffast-math", "-rdc=true": "-fgpu-rdc", "--rdc=true": "-fgpu-rdc",
    "--relocatable-device-code=true": "-fgpu-rdc", "-lineinfo": "-gline-tables-only",
    "--generate-line-info": "-gline-tables-only", "--fmad=false": "-ffp-contract=off", "-fmad=false": "-ffp-contract=off",
}  # fmt: skip


def fix_nvcc_flags_python(node: ast.expr, f: PyFile, ctx: Context) -> Edit | EditRefusal:
    """A flag that clang has under another name is chosen; a list of those it lacks is left out as a whole."""
    define = torch_import(f.tree, node)
    if not isinstance(node, ast.Constant) or define is None:
        return EditRefusal(node.lineno, "torch is not imported before this line")
    needs = "the build runs with the torch that the extension is for"
    up = f.parent(node)
    if node.value in _FOR_CLANG and not isinstance(up, ast.JoinedStr):
        return edit_of(
            node,
            f'("{_FOR_CLANG[node.value]}" if {ROCM} else {{old}})',
            needs=needs,
            define=define,
        )
    if isinstance(up, ast.List) and not isinstance(f.parent(up), ast.Starred):
        elements = [e.value for e in up.elts if isinstance(e, ast.Constant) and isinstance(e.value, str)]
        if len(elements) != len(up.elts):
            return EditRefusal(node.lineno, "the list is computed in part")
        kept = [_FOR_CLANG.get(e, e) for e in elements if e in _FOR_CLANG or not (FLAG.search(e) or _ARCH.search(e))]
        shown = ", ".join(f'"{e}"' for e in dict.fromkeys(kept))
        return edit_of(up, f"([{shown}] if {ROCM} else {{old}})", needs=needs, define=define)
    return EditRefusal(node.lineno, "not an element of a list of flags")


_ARCH = re.compile(r"-gencode|arch=compute|code=sm_|-arch=sm_")
FLAG_SM_ARCH_FLAGS = re.compile(
    r"-gencode\b|arch=compute_\d+\S*|-arch[= ]?sm_\d+\S*|--gpu-architecture\S*|--cuda-gpu-arch\S*|code=sm_\d+|-arch=native|-arch=all\S*"
)
_KERNEL = re.compile(
    r"(?:^|[/_])sm_?(?:[5-9]\d|1[0-2]\d)a?(?:[/_][\w./*]*)?\.(?:cu|cpp)$"
)  # a kernel for one architecture


def sm_arch_flags_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node, text in strings(f):
        if len(text) < 400 and FLAG_SM_ARCH_FLAGS.search(text) and not isinstance(f.parent(node), ast.Compare):
            yield hit(node, text=text[:60])
        elif _KERNEL.search(text) and "\n" not in text:
            yield hit(node, severity=Severity.LOW, group="sources", text=text[:60])
    for write, key, value in env_writes(f):
        if key == "TORCH_CUDA_ARCH_LIST" and text_of(value) != "":
            yield hit(write, text=key)


_LINE = re.compile(
    rf"{FLAG_SM_ARCH_FLAGS.pattern}|\bTORCH_CUDA_ARCH_LIST\s*[= ]\s*[\"']?\d+\.\d[^\s]*|\bcuda_select_nvcc_arch_flags\b|"
    r"arch=compute_\$\S*|code=sm_\$\S*|\bCUDA_ARCH(?:_FLAGS|ITECTURES)?\s*[:?]?=\s*-?\S*\d\d"
)


def sm_arch_flags_text(f: TextFile, ctx: Context) -> Iterator[Hit]:
    for entry in f.entries:
        for number, line in rows(f, entry) if entry.keyword != "if" else ():
            if match := _LINE.search(line):
                yield replace(
                    entry_hit(f, entry, text=match.group()[:60], group="archs"), line=number, end_line=number
                )


def fix_sm_arch_flags_python(node: ast.AST, f: PyFile, ctx: Context) -> Edit | EditRefusal | None:
    """A list that names NVIDIA's architectures is not given to AMD's compiler; torch adds AMD's own."""
    if isinstance(node, ast.Constant):
        return fix_nvcc_flags_python(node, f, ctx)
    return EditRefusal(getattr(node, "lineno", 1), "torch reads the variable on NVIDIA only: harmless")


_PROBES = re.compile(
    r"get_cuda_bare_metal_version|get_nvcc_(cuda_)?version|check_cuda_torch_binary_vs_bare_metal|_?get_cuda_version_from_nvcc"
)


def nvcc_version_probe(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for call in f.nodes(ast.Call):
        name, text = f.call_name(call), f.source(call)
        if name.startswith(("subprocess.", "os.popen", "os.system")) and re.search(r"-V\b|--version", text):
            if re.search(r"bin/nvcc|[\"']nvcc[\"' ]", text):
                tried = f.caught(call, "FileNotFoundError", "OSError", "CalledProcessError")
                yield hit(call, guarded_by=f"line {tried.lineno}: try" if tried else "", expr=text[:100])
        elif _PROBES.fullmatch(name.rpartition(".")[2]):
            yield hit(call, expr=text[:100])
    for node in f.nodes(ast.Compare):
        if re.search(r"bare_metal_(version|major|minor)|nvcc_(cuda_)?version", f.source(node)):
            yield hit(node, severity=Severity.MEDIUM, expr=f.source(node)[:100])


def build_on_cuda_available(f: PyFile, ctx: Context) -> Iterator[Hit]:
    if f.path.endswith("setup.py") or "CUDAExtension" in f.text:
        for call in f.calls("torch.cuda.is_available"):
            if not re.search(r"version\.hip|rocm", around(f, call), re.I):
                yield hit(call, expr=around(f, call)[:100])


_FLAG_BUILD_FOR_CUDA_ONLY = re.compile(
    r"(?i)^_?(has|have|with|use|build|force|enable|is|no|skip|without|disable|compile|install|should|want)_*(\w+_)?cuda(_\w+)?$|"
    r"^cuda(_?(available|enabled|found|version\w*|home|path|dir\w*|pkg|support|ext\w*|ver|major|minor|toolkit\w*|include\w*|lib\w*))?$|"
    r"^\w+_cuda_?(version|major|minor|home|dir|dirs|path)?$|^nvcc\w*$"
)
_ENVIRON = re.compile(
    r"(?i)^(\w+_)?(CUDA|NVCC)(_?(VERSION|HOME|PATH|ROOT\w*|EXT|OPS|PKG\w*|BUILD|DIR|ARCH\w*|\w*FLAGS))?$"
)
_BUILD = re.compile(r"cu(?:da)?[-_]?\d{2,3}(?:\.\d)?")


def build_for_cuda_only(f: PyFile, ctx: Context) -> Iterator[Hit]:
    """Conditions, values and calls of a build script that ask for CUDA alone."""
    name = f.path.rpartition("/")[2]
    builder = name in ("setup.py", "build.py") or re.search(
        r"\b(CUDAExtension|BuildExtension|cpp_extension|build_ext)\b", f.text
    )
    if not builder or re.search(r"(^|/)tests?/", f.path):
        return
    for test in f.nodes(ast.If, ast.IfExp):
        if not AMD.search(f.source(test.test)) and any(_is_cuda_flag(f, n) for n in ast.walk(test.test)):
            yield hit(test.test, expr=f.source(test.test)[:100])
    for node in f.nodes(ast.Assign):
        if not AMD.search(f.source(node)) and any(_reads_cuda(f, n) for n in ast.walk(node.value)):
            yield hit(node, expr=f.source(node)[:100])
    for constant, text in strings(f):
        if _BUILD.fullmatch(text):
            yield hit(constant, expr=f.source(constant)[:100], severity=Severity.LOW)
    for call in f.nodes(ast.Call):
        owner, _, called = f.call_name(call).rpartition(".")
        if owner.startswith("torch.") or called == "CUDAExtension" or called.startswith("cpp_") or AMD.search(called):
            continue
        if _FLAG_BUILD_FOR_CUDA_ONLY.match(called) or _LOOKS.search(called):
            yield hit(call, expr=f.source(call)[:100])


_LOOKS = re.compile(r"(?i)(cuda|nvcc).*(version|home|dirs?|flags|arch)|(check|find|get|locate)\w*(cuda|nvcc)")


def _is_cuda_flag(f: PyFile, node: ast.AST) -> bool:
    """A flag, a variable or a version that is CUDA's by name."""
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return (name != "is_cuda" and bool(_FLAG_BUILD_FOR_CUDA_ONLY.match(name))) or _reads_cuda(f, node)


def _reads_cuda(f: PyFile, node: ast.AST) -> bool:
    return bool(_ENVIRON.match(_variable(f, node))) or f.dotted(node) == "torch.version.cuda"


_SAID = re.compile(r"(?i)^\s*@?(echo|printf|print|message|rem|write-host|dnl|//|::|description|title)\b")
# A toolchain, its packages and variables; not "device: cuda", which holds on AMD too.
_TOOLCHAIN = re.compile(
    r"\bcudatoolkit\b|\bpytorch-cuda\b|\bcuda-(?:nvcc|toolkit|runtime|version|libraries|cudart|compiler|keyring)\w*|(?:^|\s)-c[ =]nvidia\b|"
    r"\bCUDA_(?:HOME|PATH|VERSION|ROOT|ARCH\w*|TOOLKIT\w*|DEVICE_ORDER|LAUNCH_BLOCKING|TAG|IMAGE)\b|\bTORCH_CUDA_ARCH_LIST\b|"
    r"\bnvcc\b|/usr/local/cuda\b|\bpytorch-cu\d{2,3}\b|(?<![\w.])cu1[1-3]\d(?!\w)|\bWITH_CUDA\b|\bUSE_CUDA\b|\bFORCE_CUDA\b"
)
_ANY = re.compile(
    r"(?i)cuda|nvcc\b|nvidia|\bcu(?:blas|dnn|fft|rand|sparse|solver|tlass)|\bnccl|nvrtc|tensorrt|[\w*]\.cuh?\b"
)


def cuda_named_in_recipe_text(f: TextFile, ctx: Context) -> Iterator[Hit]:
    named = _ANY if f.kind == "recipe" else _TOOLCHAIN
    for entry in f.entries:
        for number, line in rows(f, entry):
            if _SAID.match(line) or AMD.search(line):
                continue
            if named.search(line):
                made = entry_hit(f, entry, text=line.strip()[:90], group="names")
                yield replace(made, line=number, end_line=number)


def cuda_named_in_recipe_recipe(f: TextFile, ctx: Context) -> Iterator[Hit]:
    if not (ctx.project.has_hip_build and AMD.search(f.text)):
        yield from cuda_named_in_recipe_text(f, ctx)
