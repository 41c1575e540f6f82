"""CMake, make and the scripts that build: languages, packages and libraries of CUDA."""

from __future__ import annotations

from gfxgraph.port.rule_api import *

_OF_CUDA = re.compile(
    r"COMPILE_LANG(?:UAGE|_AND_ID):CUDA|CMAKE_CUDA_(?!ARCHITECTURES)\w+|CUDA_(?:NVCC|TOOLKIT|VERSION|PROPAGATE|HOST|HAS)\w*|-D(?:USE|WITH|HAVE|ENABLE)_CUDA\b"
)
# What CUDA's own arm says and computes of its compiler: nothing that a second platform's arm changes.
_RECKONED = re.compile(
    r"CMAKE_CUDA_(?:ARCHITECTURES\w*|COMPILER\w*|STANDARD\w*)|\w*CUDA_VERSION\w*|\w*(?:COMPUTE_)?CAPABILIT\w+"
)


def is_reckoning(entry: LogicalLine) -> bool:
    """Whether a command under a CUDA option only tells or works out versions and capabilities."""
    if not any(c.taken and _ASKED.search(c.text) and not _both(c) for c in entry.conditions):
        return False
    keyword = entry.keyword.lower()
    named = [m.group() for m in _NAMED.finditer(entry.text)]
    return keyword == "message" or (
        keyword in ("set", "list", "string", "math", "if")
        and bool(_RECKONED.search(entry.text))
        and all(_RECKONED.search(name) for name in named)
    )


def cmake_cuda_language_cmake(f: TextFile, ctx: Context) -> Iterator[Hit]:
    if _FINDS_CUDA.search(f.path):
        return  # it finds NVIDIA's own toolkit or library
    yield from _commands(f)
    if not ctx.project.has_hip_build:
        yield from _rest(f)  # a second platform has no place yet: each of these is where it goes


_FINDS_CUDA = re.compile(
    r"(?i)(^|/)(Find|select_?|use_?)?_?(CUDA|CuDNN|NCCL|NVML|NVTX|CUTLASS|CUPTI|cuTENSOR)\w*\.cmake$"
)


# A variable, target, file or definition of the build that is CUDA's by its name.
_NAMED = re.compile(
    r"\$\{\w*CUDA\w*\}|\b\w*(?<![A-Za-z])CUDA(?![a-z])\w*|\$\{\w*(?:CUDNN|NCCL|NVTX|NVML|CUB|CUTLASS)_\w+\}|(?<![\w/.-])CUDA::\w+|"
    r"(?<![\w./${}-])[\w./${}-]*(?<![A-Za-z])cuda(?![a-z])[\w.-]*|(?<![\w-])(?:cudart|cublas|cublasLt|cudnn|cufft|curand|cusparse|cusolver|nvToolsExt|nvrtc|"
    r"nvml|nvidia-ml|nccl)(?:_static)?(?![\w.-])|[\w./*${}-]+\.cuh?\b"
)
_SAID = ("message", "include_guard", "cmake_minimum_required", "project", "endif", "else", "macro", "function",
         "endfunction", "endmacro", "install", "mark_as_advanced", "unset")  # fmt: skip


def _rest(f: TextFile) -> Iterator[Hit]:
    for entry in f.entries:
        keyword, text = entry.keyword.lower(), entry.text
        if AMD.search(text) or is_reckoning(entry):
            continue
        yield from _named(f, entry)
        shown = f"{keyword}({text[:60]})"
        if keyword in _BUILT and any(c.taken and _ASKED.search(c.text) and not _both(c) for c in entry.conditions):
            yield entry_hit(
                f,
                entry,
                severity=Severity.INFO,
                end_line=entry.last_line,
                group=entry.conditions[-1].text,
                text=shown,
            )
        if keyword == "if":
            if re.search(r"CUDA|NVCC|(?i:cudnn|nccl)", text) and not any(AMD.search(a) for a in entry.arms):
                yield entry_hit(f, entry, severity=Severity.LOW, group="conditions", text=shown)
        elif keyword in ("option", "cmake_dependent_option"):
            if re.search(r"CUDA|cuBLAS|(?i:nvidia)", text):
                yield entry_hit(f, entry, severity=Severity.LOW, text=shown)
        elif match := _OF_CUDA.search(text):
            yield entry_hit(f, entry, re.escape(match.group()), severity=Severity.LOW, group="names", text=shown)


_ASKED = re.compile(r"(?<![A-Za-z])CUDA(?![a-z])|NVCC")
_BUILT = (
    "add_library", "add_executable", "add_definitions", "add_compile_options", "target_sources", "target_link_libraries",
    "target_include_directories", "target_compile_definitions", "target_compile_options", "include_directories",
    "link_directories", "list", "set",
)  # fmt: skip


def _both(condition: PreprocessorBranch) -> bool:
    return bool(
        AMD.search(condition.text) or any(AMD.search(s) for s in condition.siblings) or "NOT" in condition.text
    )


def _named(f: TextFile, entry: LogicalLine) -> Iterator[Hit]:
    """Every physical line of a command that names something of CUDA's."""
    if entry.keyword.lower() in (*_SAID, "if") or any(AMD.search(c.text) for c in entry.conditions):
        return
    for number, line in rows(f, entry):
        if "-D" not in line:
            line = re.sub(r'"[^"$/]*\s[^"]*"', "", line)  # what is said to people
        if match := _NAMED.search(re.sub(r"\bLABELS\s+.*", "", line)):
            group = "sources" if re.search(r"\.cuh?$", match.group()) else "names"
            yield line_hit(number, match.start(), severity=Severity.LOW, text=line.strip()[:60], group=group)


_PACKAGE = re.compile(
    r"(?i)cuda(?:toolkit|_?\w+)?|cu(?:dnn|blas|fft|rand|sparse|solver|tlass|tensor|quantum|pti|file|dss|opt)\w*|nccl|nv\w+|"
    r"cub|cccl|libcudacxx|thrust|optix|tensorrt|nvidia\w*"
)


def _commands(f: TextFile) -> Iterator[Hit]:
    for entry in f.entries:
        keyword, text = entry.keyword.lower(), entry.text
        words_ = text.split()
        first = words_[0] if words_ else ""
        if keyword == "project" and re.search(r"\bCUDA\b", text.partition("LANGUAGES")[2] or " ".join(words_[1:])):
            yield entry_hit(f, entry, text=f"project({text[:60]})")
        elif keyword == "list" and re.match(r"APPEND\s+\w*LANGUAGES\s.*\bCUDA\b", text):
            yield entry_hit(f, entry, text=f"list({text[:60]})")
        elif keyword == "enable_language" and "CUDA" in words_:
            yield entry_hit(f, entry, text=f"enable_language({text})")
        elif keyword == "find_package" and _PACKAGE.fullmatch(first):
            yield entry_hit(f, entry, text=f"find_package({text[:60]})")
        elif keyword in (
            "cuda_add_library",
            "cuda_add_executable",
            "cuda_compile",
            "cuda_wrap_srcs",
            "cuda_add_cublas_to_target",
            "cuda_include_directories",
        ):
            yield entry_hit(f, entry, text=f"{entry.keyword}({first})")
        elif keyword == "check_language" and first == "CUDA":
            yield entry_hit(f, entry, text="check_language(CUDA)")
        elif keyword in (
            "set_target_properties",
            "set_property",
            "set_source_files_properties",
        ) and re.search(
            r"\bCUDA_(SEPARABLE_COMPILATION|RESOLVE_DEVICE_SYMBOLS|STANDARD|RUNTIME_LIBRARY|EXTENSIONS)\b|LANGUAGE CUDA",
            text,
        ):
            yield entry_hit(f, entry, text=text[:60])
        elif keyword == "target_compile_features" and "cuda_std" in text:
            yield entry_hit(f, entry, text=text[:60])


_BUILDS = re.compile(r"\bnvcc\b|\bcmake\b|\$\{?CXX\b|\bg\+\+|\bclang\+\+|\bLINK_FLAGS\b")
_SCRIPT = re.compile(r"(?<![\w-])-l\w*_cuda\w*|\b\w+_cuda\w?\b(?![./(])|-D\w*(?<![A-Za-z])CUDA(?![a-z])\w*=|\bnvcc\b")


def cmake_cuda_language_shell(f: TextFile, ctx: Context) -> Iterator[Hit]:
    """What a script that builds names of CUDA's, where no other platform is built."""
    if ctx.project.has_hip_build or not _BUILDS.search(f.text) or AMD.search(f.text):
        return
    for number, line in enumerate(f.lines, 1):
        text = re.sub(r"(^|\s)#.*", "", line)
        if _SCRIPT.search(text) and not re.search(r"\b(echo|printf)\b", text):
            yield line_hit(number, text=line.strip()[:80], severity=Severity.LOW)


_MAKE = re.compile(
    r"\b\w*(?<![A-Za-z])(?:CUDA|NVCC)(?![a-z])\w*|(?<![\w-])-l(?:cudart|cublas|cudnn|cufft|curand|cusparse|cusolver|nvToolsExt|cuda|nvrtc)\b|"
    r"[\w./*%$(){}-]*\.cuh?\b|\bnvcc\b|/cuda(?:-[\d.]+)?/"
)


def cmake_cuda_language_make(f: TextFile, ctx: Context) -> Iterator[Hit]:
    for number, line in enumerate(f.lines, 1) if not ctx.project.has_hip_build else ():
        line = re.sub(r"#.*|\bCUDA_VISIBLE_DEVICES\b", "", line)
        if named := None if AMD.search(line) else _MAKE.search(line):
            group = "sources" if re.search(r"\.cuh?$", named.group()) else "names"
            yield line_hit(number, text=line.strip()[:80], severity=Severity.LOW, group=group)


_LIB = re.compile(
    r"\bCUDA::\w+|(?<![\w-])-l(cudart|cublas|cublasLt|cudnn|cufft|curand|cusparse|cusolver|nvToolsExt|cuda|nvrtc|nccl|nvidia-ml|cudadevrt)\b|\$\{CUDA_\w*(LIBRARIES|LIBRARY|INCLUDE_DIRS|TOOLKIT_ROOT_DIR)\}|\$\(CUDA_?(PATH|HOME|DIR|ROOT)\w*\)|/usr/local/cuda\b|\blib(cudart|cublas|cudnn|cufft)(_static)?\.(so|a)\b|\$\{?CUDA_(HOME|PATH)\}?/(lib|include)\S*"
)


def cuda_link_libs_text(f: TextFile, ctx: Context) -> Iterator[Hit]:
    for entry, match in f.matching(_LIB.pattern):
        yield entry_hit(f, entry, re.escape(match.group()), text=match.group(), group="libraries")


_LIBRARY = re.compile(
    r"-lcuda|(-l)?(cudart|cublas|cublasLt|cudnn|cufft|curand|cusparse|cusolver|nvToolsExt|nvrtc|nvidia-ml)(\.lib)?"
)


def cuda_link_libs_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node, text in strings(f):
        if _LIBRARY.fullmatch(text):
            owners = (ast.keyword, ast.Assign, ast.AugAssign, ast.Call)
            owner = next((f.source(u) for u in f.ancestors(node) if isinstance(u, owners)), "")
            if re.search(r"(?i)librar|ldflags|link|find_library", owner.replace(text, "", 1)):
                yield hit(node, text=text)
