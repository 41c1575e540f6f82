"""Edits of CMake files: ``project()`` with HIP in CUDA's place behind ``USE_HIP``, and the toolkit folder below it.

The old command stays as it was, so that with ``USE_HIP`` off the build is the same (``gate.check_cmake``). Languages,
targets, packages, flags and ``.cu`` lists need no edit: ``hip_compat/hip.cmake`` answers them.
"""

from __future__ import annotations

import re

from gfxgraph_port.fix.edits import Edit, EditRefusal
from gfxgraph_port.project import HOME
from gfxgraph_port.readers.text import TextFile

OPTION = 'option(USE_HIP "Build for AMD GPUs with HIP" OFF)'
NEEDS = "CMake 3.21 or later for the HIP language; configure with -DUSE_HIP=ON"
_LANGUAGE = re.compile(r"(?<![A-Za-z_])CUDA(?![A-Za-z_])")


def fix_project(f: TextFile) -> Edit | EditRefusal | None:
    """The edit of a top file's first ``project()``."""
    entry = next((e for e in f.entries if e.keyword.lower() == "project"), None)
    if entry is None:
        return None
    first, last = entry.line, max(entry.line, entry.last_line)
    rows = f.lines[first - 1 : last]
    if not rows[0].lstrip().lower().startswith("project") or not rows[-1].split("#")[0].rstrip().endswith(")"):
        return EditRefusal(first, "the command shares its lines with another")
    if any(re.search(r"(?i)hip|rocm", c.text) for c in entry.conditions):
        return None
    home = f'"${{CMAKE_CURRENT_SOURCE_DIR}}/{"../" * f.path.count("/")}{HOME}/hip.cmake"'
    below = f"if(USE_HIP)\n  include({home})\nendif()"
    if not _LANGUAGE.search(entry.text):
        return Edit(first, 0, "\n".join([*rows, OPTION, below]), last_line=last, needs=NEEDS, rule="build")
    old = [f"  {row}" if row.strip() else row for row in rows]
    hip = [_LANGUAGE.sub("HIP", row) for row in old]
    new = [OPTION, "if(USE_HIP)", *hip, "else()", *old, "endif()", below]
    return Edit(first, 0, "\n".join(new), last_line=last, needs=NEEDS, rule="build")
