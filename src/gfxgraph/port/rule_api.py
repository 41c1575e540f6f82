"""What a rule needs, in one import.

A rule that looks for names states them: ``check_cpp = named(r"cudaFoo\\w*")``. One that must think writes a check.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import replace

from gfxgraph.port import bounded as re
from gfxgraph.port.archs import (
    ALL,
    FNUZ,
    GCN5,
    GFX94,
    INSTINCT,
    INSTINCT3,
    NOT_FNUZ_FP8,
    WAVE32,
    WAVE64,
    ArchSet,
    lds_below,
    select,
)
from gfxgraph.port.embedded import embedded_sources
from gfxgraph.port.engine import Context
from gfxgraph.port.env import Env
from gfxgraph.port.fix import lanes
from gfxgraph.port.fix.cmake import fix_entry
from gfxgraph.port.fix.edits import ROCM, Edit, EditRefusal, torch_import, torch_is_bound
from gfxgraph.port.guards.worlds import NVIDIA, DeviceKind, truth
from gfxgraph.port.model import Effort, Fix, Hit, Rule, Scope, Severity, Text
from gfxgraph.port.project import CUDA_ONLY, Project, UnreadableError
from gfxgraph.port.readers.cpp import CppCall, CppFile
from gfxgraph.port.readers.directives import blank_comments
from gfxgraph.port.readers.python import PyFile, argument, defaults, int_of, is_true, keyword, text_of
from gfxgraph.port.readers.requirements import RequirementFile
from gfxgraph.port.readers.text import LogicalLine, PreprocessorBranch, TextFile
from gfxgraph.port.rules._common import (
    CAPTURES,
    EXCHANGE,
    SYNC_INTRINSICS,
    asm_blocks,
    assigned,
    captured_blocks,
    compile_modes,
    cpp_hit,
    entry_hit,
    env_writes,
    exchange_lines,
    exchanges,
    functions_with,
    hit,
    ident_hits,
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
    line_hit,
    lines_of,
    macro_tests,
    may_exchange,
    mentions_amd,
    once_a_line,
    optional_import,
)

__all__ = [
    "ALL", "ArchSet", "CAPTURES", "CUDA_ONLY", "Context", "CppCall", "CppFile", "DeviceKind", "EXCHANGE", "Edit",
    "EditRefusal", "Effort", "Env", "FNUZ", "Fix", "GCN5", "GFX94", "Hit", "INSTINCT", "INSTINCT3", "Iterator",
    "LogicalLine", "NOT_FNUZ_FP8", "NVIDIA", "PreprocessorBranch", "Project", "PyFile", "ROCM", "RequirementFile",
    "Rule", "SYNC_INTRINSICS", "Scope", "Severity", "Text", "TextFile", "UnreadableError", "WAVE32", "WAVE64",
    "argument", "asm_blocks", "assigned", "ast", "blank_comments", "captured_blocks", "compile_modes", "cpp_hit",
    "defaults", "embedded_sources", "entry_hit", "env_writes", "exchange_lines", "exchanges", "fix_entry",
    "functions_with", "hit", "ident_hits", "import_guard", "import_hits", "imports_of", "in_function_named",
    "include_hits", "inductor_settings", "inside", "int_of", "is_cuda_group", "is_full_mask_32", "is_test_file",
    "is_thread_index", "is_true", "keyword", "lanes", "lds_below", "line_hit", "lines_matching", "lines_of",
    "macro_tests", "may_exchange", "mentions_amd", "named", "once_a_line", "optional_import", "re", "replace",
    "select", "text_of", "torch_import", "torch_is_bound", "truth",
]  # fmt: skip


def named(pattern: str, *, group: str = "") -> Callable[[CppFile, Context], Iterator[Hit]]:
    """A check of C++ for identifiers that match in full and are not the project's own."""

    def check(f: CppFile, ctx: Context) -> Iterator[Hit]:
        found = (x for x in f.idents_like(pattern) if x[0] not in ctx.project.own_names)
        yield from once_a_line(line_hit(line, column, name=name, group=group) for name, line, column in found)

    return check


def lines_matching(pattern: str) -> Callable[[CppFile, Context], Iterator[Hit]]:
    """A check of C++ for lines of code in which a pattern is found."""
    matcher = re.compile(pattern)

    def check(f: CppFile, ctx: Context) -> Iterator[Hit]:
        for number, line in enumerate(f.code.split("\n"), 1):
            if match := matcher.search(line):
                yield line_hit(number + f.offset, match.start(), name=line.strip()[:90])

    return check
