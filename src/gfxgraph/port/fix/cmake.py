"""Edits of CMake files: CUDA's commands go under ``if(NOT USE_HIP)``, HIP's in the else branch.

The old command stays as it was, so that with ``USE_HIP`` off the build is the same (``gate.check_cmake``). Targets,
packages and ``.cu`` lists need no edit: ``hip_compat/hip.cmake`` answers them.
"""

from __future__ import annotations

import re

from gfxgraph.port.fix.edits import Edit, EditRefusal
from gfxgraph.port.readers.text import LogicalLine, TextFile

OPTION = 'option(USE_HIP "Build for AMD GPUs with HIP" OFF)'
_INCLUDE = 'if(USE_HIP)\n  include("${CMAKE_CURRENT_SOURCE_DIR}/hip_compat/hip.cmake")\nendif()'
NEEDS = "CMake 3.21 or later for the HIP language; configure with -DUSE_HIP=ON"
_LANGUAGE = re.compile(r"(?<![A-Za-z_])CUDA(?![A-Za-z_])")
_FLAGS = frozenset({"add_compile_options", "target_compile_options", "add_definitions"})


def fix_entry(f: TextFile, line: int) -> Edit | EditRefusal | None:
    """The edit for the command that holds a line."""
    entry = next((e for e in f.entries if e.line <= line <= max(e.line, e.last_line) and e.keyword != "if"), None)
    if entry is None:
        return None
    keyword = entry.keyword.lower()
    if keyword not in ("project", "enable_language", "check_language", *_FLAGS):
        return None
    if keyword not in ("project", *_FLAGS) and not _LANGUAGE.search(entry.text):
        return None
    first, last = entry.line, max(entry.line, entry.last_line)
    rows = f.lines[first - 1 : last]
    indent = rows[0][: len(rows[0]) - len(rows[0].lstrip())]
    if not rows[0].lstrip().lower().startswith(keyword) or not rows[-1].split("#")[0].rstrip().endswith(")"):
        return EditRefusal(line, "the command shares its lines with another")
    if any(re.search(r"(?i)hip|rocm", c.text) for c in entry.conditions) or "COMPILE_LANGUAGE:CUDA" in entry.text:
        return None
    deeper = [f"  {row}" if row.strip() else row for row in rows]
    if keyword == "project":
        return _project(f, entry, rows, deeper, first, last)
    if keyword in _FLAGS:
        if not re.search(r"--?expt-|-gencode|--?arch[= ]|-Xcompiler|-Xptxas|--extended-lambda|sm_\d\d", entry.text):
            return None
        new = [f"{indent}if(NOT USE_HIP)", *deeper, f"{indent}endif()"]
    else:
        new = [f"{indent}if(USE_HIP)", f"{indent}  {keyword}(HIP)", f"{indent}else()", *deeper, f"{indent}endif()"]
    return Edit(first, 0, "\n".join(new), last_line=last, needs=NEEDS, rule="GFX405")


def _project(
    f: TextFile, entry: LogicalLine, rows: list[str], deeper: list[str], first: int, last: int
) -> Edit | None:
    is_top = "/" not in f.path
    below = [_INCLUDE] if is_top else []
    option = [OPTION] if is_top else []
    if not _LANGUAGE.search(entry.text):
        return (
            Edit(first, 0, "\n".join([*rows, *option, *below]), last_line=last, needs=NEEDS, rule="GFX405")
            if below
            else None
        )
    hip = [row for row in ("  " + r if r.strip() else r for r in rows)]
    hip = [_LANGUAGE.sub("HIP", row) for row in hip]
    new = [*option, "if(USE_HIP)", *hip, "else()", *deeper, "endif()", *below]
    return Edit(first, 0, "\n".join(new), last_line=last, needs=NEEDS, rule="GFX405")
