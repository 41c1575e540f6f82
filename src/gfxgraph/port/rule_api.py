"""What a rule needs, in one import.

A rule that looks for names states them: ``check_cpp = named(r"cudaFoo\\w*")``. One that must think writes a check.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from gfxgraph.port import bounded as re
from gfxgraph.port.archs import ALL, FNUZ, GFX94, INSTINCT, INSTINCT3, WAVE32, WAVE64, ArchSet
from gfxgraph.port.engine import Context
from gfxgraph.port.fix.edits import ROCM, Edit, Refusal, torch_is_bound
from gfxgraph.port.model import Effort, Fix, Hit, Rule, Scope, Severity, Text
from gfxgraph.port.project import CUDA_ONLY
from gfxgraph.port.readers.cpp import Call, CppFile
from gfxgraph.port.readers.python import PyFile, argument, int_of, keyword, text_of
from gfxgraph.port.readers.requirements import RequirementFile
from gfxgraph.port.readers.text import TextFile
from gfxgraph.port.rules._common import (
    captured_blocks,
    cpp_hit,
    entry_hit,
    env_writes,
    exchanges,
    functions_with,
    hit,
    import_guard,
    imports_of,
    in_function_named,
    inside,
    is_test_file,
    line_hit,
    lines_of,
    once_a_line,
    optional_import,
)

__all__ = [
    "ALL", "CUDA_ONLY", "FNUZ", "GFX94", "INSTINCT", "INSTINCT3", "ROCM", "WAVE32", "WAVE64", "ArchSet", "Call",
    "Context", "CppFile", "Edit", "Effort", "Fix", "Hit", "Iterator", "PyFile", "Refusal", "RequirementFile",
    "Rule", "Scope", "Severity", "Text", "TextFile", "argument", "ast", "captured_blocks", "cpp_hit", "entry_hit",
    "env_writes", "exchanges", "functions_with", "hit", "import_guard", "imports_of", "in_function_named",
    "inside", "int_of", "is_test_file", "keyword", "line_hit", "lines_matching", "lines_of", "named",
    "once_a_line", "optional_import", "re", "text_of", "torch_is_bound",
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
