"""C++ that hipify translates and that is then not right: guards, PTX, functions that HIP has, unchecked calls."""

from __future__ import annotations

from gfxgraph_port.facts import CUDA_HEADER
from gfxgraph_port.rule_api import *


def no_amd_build(f: CppFile, ctx: Context) -> Iterator[Hit]:
    """One finding a tree, at the first of its CUDA sources that nothing here compiles for AMD."""
    p = ctx.project
    mine = sorted(path for path in p.cuda_sources if not p.is_translated(path))
    if mine and f.path == mine[0] and not (p.has_hip_build or p.has_home):
        line = next((n for n, row in enumerate(f.lines, 1) if CUDA_HEADER.search(row)), 1)
        yield line_hit(line, name=f"{len(mine)} CUDA sources" if len(mine) > 1 else "a CUDA source")


PTX = re.compile(
    r"\b(?:ld|st|mov|cvt|cvta|cp|mma|wgmma|ldmatrix|stmatrix|bar|barrier|red|atom|fma|shfl|lop3|prefetchu?|tanh|ex2|lg2|sin|cos|rcp|rsqrt|sqrt|griddepcontrol|"
    r"mbarrier|fence|membar|setmaxnreg|elect|vote|activemask|nanosleep|createpolicy|prmt|bfe|bfi|bfind|mad|add|sub|mul|div|min|max|shl|shr|shf|and|or|xor|not|neg|abs|"
    r"setp|selp|set|slct|bra|trap|tcgen05|isspacep|applypriority|discard|clz|popc|brev|dp4a|dp2a|copysign|match|redux|mapa|multimem|vadd\w*|vsub\w*|vmin\w*|vmax\w*|vset\w*|testp|rem|sad|cnot|addc|subc|madc|clusterlaunchcontrol)"
    r"\.(?:[a-z]|%)|%%?(?:laneid|smid|warpid|nsmid|nwarpid|globaltimer|clock|clock64|lanemask_\w+|cluster\w*|dynamic_smem_size|total_smem_size|envreg\d)|\bgriddepcontrol\b|\btrap;|\bexit;|\bbrkpt;"
)
_AMD = re.compile(r"\b(?:v_|s_|ds_|buffer_|global_|flat_|image_|scratch_)[a-z0-9_]+")


def inline_ptx(f: CppFile, ctx: Context) -> Iterator[Hit]:
    for line, column, text in asm_blocks(f):
        if PTX.search(text) and not _AMD.search(text):
            yield line_hit(line, column, text=" ".join(text.replace("\\n", " ").replace("\\t", " ").split())[:80])


_LANE = re.compile(
    r'(\s*)asm(?:\s+volatile|\s+__volatile__)?\s*\(\s*"mov\.u32\s+%0,\s*%%?(laneid|lanemask_(?:eq|lt|le|gt|ge));?"\s*'
    r':\s*"=r"\s*\(\s*([\w.\[\]]+)\s*\)\s*\)\s*;\s*(?://.*)?'
)


# Loads and stores with a hint to a cache: the hint has no meaning of its own.
_MOVE = re.compile(
    r'(\s*)asm(?:\s+volatile|\s+__volatile__)?\s*\(\s*"(ld|st)\.global((?:\.(?:nc|ca|cg|cs|lu|wb|wt|weak|L[12]::\w+))*)(?:\.v[24])?'
    r'\.([busf])(8|16|32|64)\s+([^"]*?);?\s*"\s*:([^:]*):((?:[^:]|::)*?)(?::\s*"memory"\s*)?\)\s*;\s*'
)
_TYPES = {"f32": "float", "f64": "double", "8": "char", "16": "short", "32": "int", "64": "long long"}
_OPERAND = re.compile(r'"[=+]?\w+"\s*\(((?:[^()]|\([^()]*\))*)\)')


def _moved(text: str) -> str:
    """A load or store of PTX in C++; "" for other PTX."""
    match = _MOVE.fullmatch(text)
    if match is None:
        return ""
    pad, is_load, kind, bits = match[1], match[2] == "ld", match[4], match[5]
    plain = _TYPES.get(kind + bits) or ("signed " if kind == "s" else "unsigned ") + _TYPES[bits]
    values = _OPERAND.findall(match[7]) + _OPERAND.findall(match[8])
    order = [int(n) for n in re.findall(r"%(\d+)", match[6])]  # the address: last of a load, first of a store
    if not re.fullmatch(r"[\s{},%\d\[\]]+", match[6]) or sorted(order) != list(range(len(values))) or len(order) < 2:
        return ""
    address, parts = (order[-1], order[:-1]) if is_load else (order[0], order[1:])
    rows = [
        f"{values[n]} = cuda_at[{i}];" if is_load else f"cuda_at[{i}] = {values[n]};" for i, n in enumerate(parts)
    ]
    const = "const " if is_load else ""
    return f"{pad}{{ auto cuda_at = ({const}{plain}*)({values[address]}); {' '.join(rows)} }}"


def fix_inline_ptx(hit: Hit, f: CppFile, ctx: Context) -> Edit | EditRefusal:
    """A lane's number and masks come from the stand-in toolkit, a load or store is C++; other PTX is a person's."""
    rows = range(hit.line, min(hit.line + 8, len(f.lines) + 1))
    last = next((n for n in rows if re.search(r";\s*(?://.*)?$", f.line_text(n))), hit.line)
    old = "\n".join(f.line_text(n) for n in range(hit.line, last + 1))
    match = _LANE.fullmatch(old) if not ctx.project.has_torch_extension else None
    new = f"{match[1]}{match[3]} = cuda_{match[2]}();" if match is not None else _moved(old)
    if not new:
        return EditRefusal(hit.line, "PTX that no function of the stand-in toolkit replaces")
    gate = "USE_ROCM" if ctx.project.has_torch_extension else "__HIP_PLATFORM_AMD__"
    return Edit(hit.line, 0, "\n".join([f"#if defined({gate})", new, "#else", old, "#endif"]), last_line=last)


def cuda_arch_guard(f: CppFile, ctx: Context) -> Iterator[Hit]:
    """Which side is compiled; a test of a version leaves AMD in the arm for older devices, which most are right in."""
    for arm, _ in macro_tests(f, r"__CUDA_ARCH__|__CUDA_ARCH_FEAT_\w+|__CUDA_ARCH_LIST__", ctx.project.macros):
        severity = Severity.INFO if re.search(r"[<>]", arm.text) else None
        yield line_hit(arm.line, text=arm.text[:100], guard_free=True, severity=severity)


_ASKS = re.compile(
    r"(\s*#\s*(?:el)?)(?:ifdef\s+(\w+)|if\s+defined\s*\(?\s*(\w+)\s*\)?|ifndef\s+(\w+))(\s*(?://.*|/\*.*\*/\s*)?)"
)


def _widened(line: str, names: str, other: str) -> str:
    """A line that asks for one macro, asking for another as well; "" for any other line."""
    match = _ASKS.fullmatch(line)
    name = next((n for n in match.groups()[1:4] if n), "") if match is not None else ""
    if match is None or not re.fullmatch(names, name):
        return ""
    if match[4]:
        return f"{match[1]}if !defined({name}) && !defined({other}){match[5]}"
    return f"{match[1]}if defined({name}) || defined({other}){match[5]}"


def fix_cuda_arch_guard(hit: Hit, f: CppFile, ctx: Context) -> Edit | EditRefusal:
    """``#ifdef __CUDA_ARCH__`` tells device from host code: HIP's name for that is added."""
    line = f.line_text(hit.line)
    needs = "the arm holds no PTX and no intrinsic that HIP lacks"
    text = _widened(line, "__CUDA_ARCH__", "__HIP_DEVICE_COMPILE__")
    if re.search(r"^(?![ \t]*#).*\b__CUDA_ARCH__\b", f.code, re.M):
        return EditRefusal(hit.line, "its value is used: HIP has none")
    least = re.fullmatch(r"(\s*#\s*(?:el)?if\s+)(__CUDA_ARCH__\s*>=?\s*(\d+))(\s*(?://.*)?)", line)
    if least is not None and int(least.group(3)) <= 700:
        text = f"{least.group(1)}{least.group(2)} || defined(__HIP_DEVICE_COMPILE__){least.group(4)}"
        needs = "the arm is what every AMD GPU can run, too"
    if not text:
        return EditRefusal(hit.line, "a test of a version: which side AMD belongs to is a decision")
    return Edit(hit.line, 0, text, last_line=hit.line, needs=needs)


def cudacc_guard(f: CppFile, ctx: Context) -> Iterator[Hit]:
    for arm, _ in macro_tests(f, r"__CUDACC__|__NVCC__", ctx.project.macros):
        inner = [d.kind for d in f.directives if arm.first_line <= d.line <= arm.last_line]
        body = "".join(
            t for t in f.lines[arm.first_line - 1 : arm.last_line] if not t.lstrip().startswith("#")
        ).strip()
        if inner and set(inner) <= {"pragma"} and not body:
            continue  # warning pragmas for nvcc only
        yield line_hit(arm.line, text=arm.text[:100], guard_free=True)


_PARTS = "a condition of several parts: which side AMD belongs to is a decision"


def fix_cudacc_guard(hit: Hit, f: CppFile, ctx: Context) -> Edit | EditRefusal:
    text = _widened(f.line_text(hit.line), "__CUDACC__|__NVCC__", "__HIPCC__")
    return Edit(hit.line, 0, text, last_line=hit.line) if text else EditRefusal(hit.line, _PARTS)


_DEVICE_CODE = re.compile(
    r"__global__\s+\w|__device__\s+\w|__shfl\w*\s*\(|\bthreadIdx\s*\.\s*[xyz]|__syncthreads\s*\(\s*\)|asm\s+volatile\s*\("
)


def _is_cuda_source(text: str) -> bool:
    """Whether a string is device code: it needs a line break or a body, so a word in a message is not."""
    return len(text) > 24 and ("\n" in text or "{" in text) and bool(_DEVICE_CODE.search(text))


def embedded_cuda_source(f: PyFile, ctx: Context) -> Iterator[Hit]:
    if is_test_file(f.path) and "assert" in f.text and "RawKernel" not in f.text:
        return
    for node in f.nodes(ast.Constant, ast.JoinedStr):
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        text = "".join(text_of(part) or "0" for part in parts)
        if not _is_cuda_source(text) or f.is_docstring(node) or isinstance(f.parent(node), ast.JoinedStr):
            continue
        if re.search(r"__HIPCC__|__HIP_PLATFORM_AMD__|USE_ROCM|__HIP__", text):
            continue
        first = next(
            (t.strip() for t in text.splitlines() if re.search(r"__global__|__device__|threadIdx|__shfl", t)), ""
        )
        yield hit(node, first=first[:80])
