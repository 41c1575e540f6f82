"""What a function of a rule needs, in one import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from gfxgraph.port import bounded as re
from gfxgraph.port.archs import INSTINCT3, lds_below
from gfxgraph.port.embedded import embedded_sources
from gfxgraph.port.engine import Context
from gfxgraph.port.fix import lanes
from gfxgraph.port.fix.edits import ROCM, Edit, EditRefusal, torch_import, torch_is_bound
from gfxgraph.port.fix.edits import of as edit_of
from gfxgraph.port.guards.worlds import NVIDIA
from gfxgraph.port.model import Hit, Severity
from gfxgraph.port.project import Project, UnreadableError
from gfxgraph.port.readers.cpp import CppFile
from gfxgraph.port.readers.directives import blank_comments
from gfxgraph.port.readers.python import PyFile, argument, defaults, int_of, is_true, keyword, text_of
from gfxgraph.port.readers.requirements import RequirementFile
from gfxgraph.port.readers.text import LogicalLine, PreprocessorBranch, TextFile
from gfxgraph.port.rules._common import (
    AMD,
    EXCHANGE,
    SYNC_INTRINSICS,
    around,
    asm_blocks,
    assigned,
    body_of,
    compile_modes,
    cpp_hit,
    entry_hit,
    env_writes,
    exchange_lines,
    exchanges,
    functions_with,
    gated,
    hit,
    import_guard,
    import_hits,
    imports_of,
    in_function_named,
    include_hits,
    inductor_settings,
    inside,
    is_cuda_group,
    is_full_mask_32,
    is_test_file,
    is_thread_index,
    last_name,
    line_hit,
    lines_of,
    macro_tests,
    may_exchange,
    meanings,
    once_a_line,
    rows,
    strings,
)

__all__ = [
    "AMD", "Context", "CppFile", "EXCHANGE", "Edit", "EditRefusal", "Hit", "INSTINCT3", "Iterator",
    "LogicalLine", "NVIDIA", "PreprocessorBranch", "Project", "PyFile", "ROCM", "RequirementFile",
    "SYNC_INTRINSICS", "Severity", "TextFile", "UnreadableError", "argument", "around", "asm_blocks", "assigned",
    "ast", "blank_comments", "body_of", "compile_modes", "cpp_hit", "defaults", "edit_of", "embedded_sources",
    "entry_hit", "env_writes", "exchange_lines", "exchanges", "functions_with", "gated", "hit", "import_guard",
    "import_hits", "imports_of", "in_function_named", "include_hits", "inductor_settings", "inside", "int_of",
    "is_cuda_group", "is_full_mask_32", "is_test_file", "is_thread_index", "is_true", "keyword", "lanes",
    "last_name", "lds_below", "line_hit", "lines_of", "macro_tests", "may_exchange", "meanings", "once_a_line",
    "re", "replace", "rows", "strings", "text_of", "torch_import", "torch_is_bound",
]  # fmt: skip
