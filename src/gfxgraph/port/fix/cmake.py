"""Edits of CMake files: CUDA's commands go under ``if(NOT USE_HIP)``, HIP's in the else branch.

The old command stays as it was, so that with ``USE_HIP`` off the build is the same (``gate.check_cmake``).
"""

from __future__ import annotations

import re

from gfxgraph.port.fix.edits import Edit, EditRefusal
from gfxgraph.port.readers.text import LogicalLine, TextFile

OPTION = 'option(USE_HIP "Build for AMD GPUs with HIP" OFF)'
DEFINED = "if(USE_HIP)\n  add_compile_definitions(USE_HIP)\nendif()"
NEEDS = "CMake 3.21 or later for the HIP language; configure with -DUSE_HIP=ON"
_LIBRARIES = {
    "cublas": "roc::hipblas", "cublasLt": "roc::hipblaslt", "cufft": "hip::hipfft", "curand": "hip::hiprand",
    "cusparse": "roc::hipsparse", "cusolver": "roc::hipsolver", "cudart": "hip::host", "cudart_static": "hip::host",
}  # fmt: skip
_PACKAGES = {
    "CUDA": "hip", "CUDAToolkit": "hip", "CUB": "hipcub", "Thrust": "rocthrust", "CUBLAS": "hipblas", "NCCL": "rccl",
    "CUDNN": "miopen", "cuDNN": "miopen",
}  # fmt: skip
_SETS = {"set", "list", "string", "find_package", "enable_language", "check_language", "target_compile_features",
         "set_target_properties", "set_property", "set_source_files_properties", "target_link_libraries",
         "cuda_add_library", "cuda_add_executable", "cuda_select_nvcc_arch_flags", "include", "project",
         "cuda_include_directories", "cuda_add_cublas_to_target", "include_directories", "add_compile_options",
         "target_compile_options", "add_definitions", "target_include_directories"}  # fmt: skip


def fix_entry(f: TextFile, line: int) -> Edit | EditRefusal | None:
    """The edit for the command that holds a line."""
    entry = next((e for e in f.entries if e.line <= line <= max(e.line, e.last_line) and e.keyword != "if"), None)
    if entry is None:
        return None
    keyword = entry.keyword.lower()
    first, last = entry.line, max(entry.line, entry.last_line)
    rows = f.lines[first - 1 : last]
    indent = rows[0][: len(rows[0]) - len(rows[0].lstrip())]
    if not rows[0].lstrip().lower().startswith(keyword) or not rows[-1].split("#")[0].rstrip().endswith(")"):
        return EditRefusal(line, "the command shares its lines with another")
    if keyword not in _SETS:
        return EditRefusal(line, f"{keyword}() is the project's own, or says which sources are built: a decision")
    if any(re.search(r"(?i)hip|rocm", c.text) for c in entry.conditions):
        return None
    if "COMPILE_LANGUAGE:CUDA" in entry.text and keyword != "project":
        return EditRefusal(line, "conditional on the language CUDA already: nothing of it reaches HIP")
    instead = _instead(entry)
    if keyword == "project":
        new = [OPTION, "if(USE_HIP)", *(f"  {row}" for row in instead), "else()"]
        return Edit(first, 0, "\n".join([*new, *_deeper(rows), "endif()", DEFINED]), last_line=last, needs=NEEDS)
    if instead:
        new = [f"{indent}if(USE_HIP)", *(f"{indent}  {row}" for row in instead), f"{indent}else()"]
    else:
        new = [f"{indent}if(NOT USE_HIP)"]
    return Edit(first, 0, "\n".join([*new, *_deeper(rows), f"{indent}endif()"]), last_line=last, needs=NEEDS)


def _deeper(rows: list[str]) -> list[str]:
    return [f"  {row}" if row.strip() else row for row in rows]


def _instead(entry: LogicalLine) -> list[str]:
    """HIP's replacement for one command."""
    keyword, words = entry.keyword.lower(), entry.text.split()
    if keyword == "project":
        return [f"project({re.sub(r'(?<![A-Za-z])CUDA(?![A-Za-z])', 'HIP', entry.text)})"]
    if keyword == "enable_language":
        return ["enable_language(HIP)"]
    if keyword == "check_language":
        return ["check_language(HIP)"]
    if keyword == "find_package" and words:
        found = [f"find_package({_PACKAGES[words[0]]} REQUIRED)"] if words[0] in _PACKAGES else []
        return ["enable_language(HIP)", *found] if words[0] in ("CUDA", "CUDAToolkit") else found
    if keyword in ("cuda_add_library", "cuda_add_executable") and len(words) > 1:
        kinds = ("STATIC", "SHARED", "MODULE", "WIN32", "EXCLUDE_FROM_ALL")
        sources = [w for w in words[1:] if w not in kinds and w != "OPTIONS" and w.endswith((".cu", "}"))]
        made = [f"set_source_files_properties({' '.join(sources)} PROPERTIES LANGUAGE HIP)"] if sources else []
        return [*made, f"add_{keyword.removeprefix('cuda_add_')}({entry.text})"]
    if keyword == "target_link_libraries" and "CUDA::" in entry.text:
        kept = [_LIBRARIES.get(w.removeprefix("CUDA::"), "") if w.startswith("CUDA::") else w for w in words]
        kept = list(dict.fromkeys(w for w in kept if w))
        return [f"target_link_libraries({' '.join(kept)})"]
    if re.search(r"--?fmad=(?:false|0)\b", entry.text):  # what else is there is nvcc's own
        if keyword in ("set", "string", "list") and words and words[0].upper().endswith("CUDA_FLAGS"):
            return ['set(CMAKE_HIP_FLAGS "${CMAKE_HIP_FLAGS} -ffp-contract=off")']
        if keyword == "add_compile_options":
            return ["add_compile_options($<$<COMPILE_LANGUAGE:HIP>:-ffp-contract=off>)"]
        if keyword == "target_compile_options" and words:
            return [f"target_compile_options({words[0]} PRIVATE $<$<COMPILE_LANGUAGE:HIP>:-ffp-contract=off>)"]
    if keyword == "set_source_files_properties" and "LANGUAGE CUDA" in entry.text:
        return [f"set_source_files_properties({entry.text.replace('LANGUAGE CUDA', 'LANGUAGE HIP')})"]
    return []


def add_option(text: str) -> Edit | None:
    """The option below a file's ``project()``; None where it is defined or there is none."""
    lines = text.splitlines()
    if re.search(r"option\s*\(\s*USE_HIP\b", text):
        return None
    f = TextFile("CMakeLists.txt", text, "cmake")
    entry = next((e for e in f.entries if e.keyword.lower() == "project"), None)
    if entry is None:
        return None
    last = max(entry.line, entry.last_line)
    return Edit(last, 0, f"{lines[last - 1]}\n{OPTION}\n{DEFINED}", last_line=last, rule="GFX405", needs=NEEDS)
