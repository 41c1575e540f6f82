"""Compiler flags that only nvcc takes."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX402",
    code="nvcc-flags",
    severity=Severity.HIGH,
    phase=4,
    fix=Fix.SUGGEST,
    en=Text(
        "Compiler flags that only nvcc takes",
        "{flag}",
        "hipcc is clang and rejects most of them.",
        "Build the list under not is_rocm; for ROCm -O3, -ffast-math where wanted, -fgpu-rdc for -rdc=true.",
    ),
    zh=Text(
        "只有 nvcc 接受的编译选项",
        "{flag}",
        "hipcc 即 clang，多数会被拒绝。",
        "在 not is_rocm 之下构造该列表；ROCm 用 -O3，按需 -ffast-math，-rdc=true 换成 -fgpu-rdc。",
    ),
    path="setup.py",
    bad='NVCC = ["-O3", "--expt-relaxed-constexpr", "--use_fast_math"]\n',
    good='FLAGS = ["-O3", "-std=c++17", "-DNDEBUG"]\n',
    needs=(
        "--expt",
        "-expt",
        "use_fast_math",
        "-xptxas",
        "--ptxas",
        "-xcudafe",
        "-xfatbin",
        "diag-suppress",
        "--threads",
        "-ccbin",
        "line-info",
        "lineinfo",
        "-rdc",
        "maxrregcount",
        "-xcompiler",
        "extended-lambda",
        "--compiler-options",
        "--default-stream",
        "-keep",
        "--fmad",
        "ftz=",
        "prec-",
        "forward-unknown",
        "dlink",
        "-dlto",
        "device-debug",
        "nvlink",
        "fatbin-options",
        "cudafe",
        "source-in-ptx",
        "keep-dir",
        "--device-",
        "--restrict",
        "-dc",
        "all-warnings",
        "unsupported-compiler",
        "global-template-stub",
        "cudart",
        "generate-code",
        "compress-mode",
    ),
)
FLAG = re.compile(
    r"(?:^|[\s\"'=;])(--?expt-(?:relaxed-constexpr|extended-lambda)|--?extended-lambda|--?use_fast_math|-Xptxas\S*|--ptxas-options\S*|-Xcudafe\S*|-Xfatbin\S*|-?-diag[-_]suppress\S*|--threads(?:[= ]\d+)?|-ccbin|--compiler-bindir|--generate-line-info|-lineinfo|--?rdc=true|--relocatable-device-code\S*|--?maxrregcount\S*|-Xcompiler\S*|--compiler-options|--default-stream\S*|--?fmad=\S+|--ftz=\S+|--prec-\S+|-extra-device-vectorization|--resource-usage|-split-compile\S*|--disable-warnings|--?forward-unknown(?:-opts|-to-host-compiler|-to-host-linker)|--forward-unknown-to-host-compiler|--?dlink-time-opt|-dlto|--device-debug|--?nvlink-options\S*|-Xnvlink\S*|--fatbin-options\S*|--cudafe-options\S*|--source-in-ptx|--keep-dir\S*|--dryrun|--(?:device-w|device-c|device-link)|--restrict|-(?:dc|dlink)(?=[\s\"']|$)|--Werror\s+(?:cross-execution-space-call|reorder|all-warnings)|--allow-unsupported-compiler|-allow-unsupported-compiler|--static-global-template-stub\S*|--expt-\S+|--cudart(?:=|\s)\S+|-cudart\s+\S+|--extra-device-vectorization|--generate-code\S*|--compress-mode\S*)"
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node in f.nodes(ast.Constant):
        if not isinstance(node.value, str) or len(node.value) > 400 or f.is_docstring(node):
            continue
        match = FLAG.search(node.value)
        if not match:
            continue
        flag = match.group(1)
        if flag.startswith(("--threads", "-lineinfo", "--disable-warnings", "-ccbin")) and not _is_build(f):
            continue
        if any(
            isinstance(u, ast.Call) and isinstance(u.func, ast.Attribute) and u.func.attr == "add_argument"
            for u in f.ancestors(node)
        ):
            continue
        up = f.parent(node)
        if isinstance(up, ast.Compare):
            continue
        yield hit(node, flag=flag)


def _is_build(f: PyFile) -> bool:
    return f.path.endswith("setup.py") or "nvcc" in f.text or "cpp_extension" in f.text


# What no other compiler has, so that the line need not name nvcc.
_SURE = re.compile(
    r"-Xcompiler|--?expt-|--?extended-lambda|use_fast_math|-Xptxas|--ptxas-options|-Xcudafe|-Xfatbin|-lineinfo|--generate-line-info"
)
_CUDA = re.compile(r"(?i)nvcc|cuda")
_DEBUG = re.compile(r"(?:^|[\s\"'])(-G)(?=[\"'\s]|$)")


def _scan(f: TextFile, ctx: Context) -> Iterator[Hit]:
    for entry in f.entries:
        if entry.keyword == "if" or re.search(r"hip|rocm", entry.text, re.I):
            continue
        named = f.kind == "make" or bool(_CUDA.search(entry.keyword + entry.text))
        for number in range(entry.line, max(entry.line, entry.last_line) + 1):
            line = f.lines[number - 1].split("#")[0] if number <= len(f.lines) else ""
            match = FLAG.search(line) or (_DEBUG.search(line) if named and f.kind in ("cmake", "make") else None)
            if (
                match
                and (named or _SURE.search(line))
                and not re.search(r"\bmessage\b|\becho\b|^cmake\b.* -G", line.strip())
            ):
                yield replace(entry_hit(f, entry, flag=match.group(1)), line=number, end_line=number)


check_cmake = check_make = check_shell = _scan


_FOR_CLANG = {
    "--use_fast_math": "-ffast-math", "-use_fast_math": "-ffast-math", "-rdc=true": "-fgpu-rdc", "--rdc=true": "-fgpu-rdc",
    "--relocatable-device-code=true": "-fgpu-rdc", "-lineinfo": "-gline-tables-only",
    "--generate-line-info": "-gline-tables-only", "--fmad=false": "-ffp-contract=off", "-fmad=false": "-ffp-contract=off",
}  # fmt: skip


def fix_python(node: ast.expr, f: PyFile, ctx: Context) -> Edit | EditRefusal:
    """A flag that clang has under another name is chosen; a list of those it lacks is left out as a whole."""
    define = torch_import(f.tree, node)
    if not isinstance(node, ast.Constant) or define is None:
        return EditRefusal(node.lineno, "torch is not imported before this line")
    needs = "the build runs with the torch that the extension is for"
    up = f.parent(node)
    if node.value in _FOR_CLANG and not isinstance(up, ast.JoinedStr):
        return Edit(
            node.lineno,
            node.col_offset,
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
        return Edit(up.lineno, up.col_offset, f"([{shown}] if {ROCM} else {{old}})", needs=needs, define=define)
    return EditRefusal(node.lineno, "not an element of a list of flags")


_ARCH = re.compile(r"-gencode|arch=compute|code=sm_|-arch=sm_")


def fix_cmake(hit: Hit, f: TextFile, ctx: Context) -> Edit | EditRefusal | None:
    return fix_entry(f, hit.line)
