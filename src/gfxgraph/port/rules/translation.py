"""C++ that hipify translates and that is then not right: guards, PTX, functions that HIP has, unchecked calls."""

from __future__ import annotations

from gfxgraph.port.rule_api import *

_HEADER = r"cuda_runtime\w*\.h|cuda\.h|cuda_(fp16|bf16|fp8|profiler_api|texture_types|device_runtime_api)\.h|cublas\w*\.h|cufft\w*\.h|curand\w*\.h|cusparse\w*\.h|cusolver\w*\.h|device_launch_parameters\.h|nvrtc\.h|channel_descriptor\.h|library_types\.h|driver_types\.h|vector_types\.h|helper_(cuda|math)\.h|device_functions\.h|(?:[\w.-]+/)*cub/.*|math_constants\.h|cuComplex\.h|sm_\d+_intrinsics\.h"
# By the families of the tables that HIPIFY and torch.utils.hipify translate from: the runtime, the libraries, the
# driver (calls, handle types, constants), complex numbers and bfloat16.
_API = (
    r"cu(da|blas|blasLt|fft|rand|sparse|solver|solverDn)[A-Z]\w*|CU(BLAS|FFT|RAND|SPARSE|SOLVER)_[A-Z_]+|"
    r"cu(?:Mem|Module|Launch|Ctx|Device|Stream|Event|Init|Func|Get|Link|Array|Driver|Graph|Ipc|Mipmapped|Occupancy|Param|"
    r"Pointer|Profiler|Surf|Tex|Kernel|Library)[A-Z]?\w*|"
    r"CU(?:result|device|deviceptr|context|module|function|stream|event|array|texref|surfref|graph|graphExec|graphNode|"
    r"jit_option|limit|link(?:State)?|mem[A-Z]\w*|ipc\w+|texObject|surfObject|stream_flags|\w+_attribute|uuid|kernel|library)|"
    r"CU_(?:MEM|CTX|STREAM|EVENT|DEVICE|FUNC|JIT|LIMIT|POINTER|IPC|LAUNCH|LIBRARY|AD_FORMAT|TR|GET_PROC)_\w+|"
    r"CUDA_(?:SUCCESS|ERROR_[A-Z_]+|KERNEL_NODE_PARAMS\w*|MEMCPY[23]D\w*|ARRAY3?D?_DESCRIPTOR\w*|LAUNCH_PARAMS\w*)|"
    r"nvrtc[A-Z]\w*|NVRTC_[A-Z_]+|CU(?:stream|event|graph|graphExec|graphNode|ctx|mod|func|array)_st|CUDA_[RC]_(?:4|8|16|32|64)(?:U|I|F|BF)\w*|"
    r"(?:make_)?cu(?:Double|Float)?Complex|cuC(?:add|sub|mul|div|abs|fma|real|imag)f?|cu(?:Conj|Creal|Cimag)f?|"
    r"(?:__)?nv_bfloat16[2]?|__nv_fp8_\w+"
)
_MAY = re.compile(r"(?<![A-Za-z])(?:cu[A-Zdbfrs]|CU[A-Z_a-z]|nvrtc|NVRTC|nv_|make_cu)|_nv_")


def untranslated_cuda(f: CppFile, ctx: Context) -> Iterator[Hit]:
    guarded = "torch's hipify translates this source during the build" if ctx.project.is_translated(f.path) else ""
    yield from include_hits(f, rf"(?:{_HEADER})$", guarded_by=guarded)
    if not _MAY.search(f.code):
        return  # before every identifier is listed
    known = ctx.project.macros.known
    hits = [
        line_hit(line, column, name=name, guarded_by=guarded)
        for name, line, column in f.idents_like(_API)
        if known.get(name) != (True, False) and name not in ctx.project.own_names
    ]
    yield from hits


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


def cuda_arch_guard(f: CppFile, ctx: Context) -> Iterator[Hit]:
    """Which side is compiled; a test of a version leaves AMD in the arm for older devices, which most are right in."""
    for arm, _ in macro_tests(f, r"__CUDA_ARCH__|__CUDA_ARCH_FEAT_\w+|__CUDA_ARCH_LIST__", ctx.project.macros):
        severity = Severity.INFO if re.search(r"[<>]", arm.text) else None
        yield line_hit(arm.line, text=arm.text[:100], guard_free=True, severity=severity)


_ASKS = re.compile(
    r"(\s*#\s*)(?:ifdef\s+(\w+)|if\s+defined\s*\(?\s*(\w+)\s*\)?|ifndef\s+(\w+))(\s*(?://.*|/\*.*\*/\s*)?)"
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


_NAMES = r"CUDA_VERSION|CUDART_VERSION|CUDNN_(VERSION|MAJOR|MINOR)|CUBLAS_VER\w*|CUSPARSE_VER\w*|CUFFT_VER\w*|NCCL_(VERSION_CODE|MAJOR|MINOR)|__CUDACC_VER_\w+"


def cuda_version_guard(f: CppFile, ctx: Context) -> Iterator[Hit]:
    for arm, _ in macro_tests(f, _NAMES, ctx.project.macros):
        yield line_hit(arm.line, text=arm.text[:100], guard_free=True)
    conditions = {d.line for d in f.directives if d.kind != "define"}
    places = (p for p in f.idents_like(_NAMES) if p[1] not in conditions)
    yield from (line_hit(line, column, text=name) for name, line, column in places)


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
            (t.strip() for t in text.splitlines() if re.search(r"__global__|__device__|threadIdx|__shfl", t)),
            "",
        )
        yield hit(node, first=first[:80])


_TYPE = re.compile(r"\b(?:struct|class)\s+(?:__\w+__\s*(?:\([^)]*\)\s*)?)?(\w+)\b[^;{}()]*\{")


def device_only_special_member(f: CppFile, ctx: Context) -> Iterator[Hit]:
    names = {m.group(1) for m in _TYPE.finditer(f.code)}
    if not names:
        return
    for number, line in enumerate(f.code.split("\n"), 1):
        match = re.match(
            r"\s*(?:inline\s+|__forceinline__\s+)*__device__\s+(?:inline\s+|__forceinline__\s+|constexpr\s+|explicit\s+)*(.*)",
            line,
        )
        if not match or "__host__" in line:
            continue
        rest = match.group(1)
        made = re.match(r"~?\s*(\w+)\s*\(\s*(?:const\s+\w+\s*&[^,()]*)?\)", rest)
        given = re.match(r"(?:\w+::)*(\w+)\s*&\s*operator\s*=\s*\(", rest)
        if (made and made.group(1) in names) or (given and given.group(1) in names):
            yield line_hit(number, line.index("__device__"), expr=line.strip()[:90])
