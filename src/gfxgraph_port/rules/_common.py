"""What several rules share: making hits, and reading imports, environment writes and compile modes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from gfxgraph_port import bounded as re
from gfxgraph_port.archs import ArchSet, table
from gfxgraph_port.fix.edits import Edit, EditRefusal, torch_is_bound
from gfxgraph_port.fix.edits import of as edit_of
from gfxgraph_port.guards.cpp import Macros, judge_macro
from gfxgraph_port.guards.worlds import NVIDIA, DeviceKind, truth
from gfxgraph_port.model import Hit, Severity
from gfxgraph_port.readers.cpp import CppFile
from gfxgraph_port.readers.directives import Arm, names_in
from gfxgraph_port.readers.python import Function, PyFile, argument, keyword, text_of
from gfxgraph_port.readers.text import LogicalLine, TextFile

# AMD's platform by name: HIP, ROCm, their libraries, an architecture.
AMD = re.compile(
    r"(?i)(?<![a-z])(?:hip(?!po|py|s\b)|roc(?:m|blas|sparse|fft|rand|solver|prim|thrust|tracer|profiler|tx|al|wmma)|"
    r"miopen|rccl|amd(?!ahl)|gfx\d)|(?-i:(?<=[a-z])H(?:ip|IP)(?![a-z]))"
)


def hit(
    node: ast.AST, *, severity: Severity | None = None, archs: ArchSet | None = None, guarded_by: str = "",
    **values: str,
) -> Hit:  # fmt: skip
    """A hit on a Python node."""
    line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
    return Hit(line, column, node, values, severity, archs, guarded_by)


def line_hit(line: int, column: int = 0, **kwargs: Any) -> Hit:
    """A hit on a place without a node."""
    fields = {k: kwargs.pop(k) for k in ("severity", "archs", "guarded_by", "end_line", "guard_free") if k in kwargs}
    return Hit(line, column, values=kwargs, **fields)


def entry_hit(entry: LogicalLine, **kwargs: Any) -> Hit:
    """A hit on a line of a shell script, Dockerfile or the like; the branch round it counts."""
    return Hit(entry.line, entry.column, entry, kwargs)


# -- Python ----------------------------------------------------------------------------------------


def imported(file: PyFile) -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    """Every import with the full names it asks for; relative imports are the project's own."""
    for node in file.nodes(ast.Import):
        for alias in node.names:
            yield node, alias.name
    for source in file.nodes(ast.ImportFrom):
        if source.level == 0 and source.module:
            yield source, source.module
            for alias in source.names:
                yield source, f"{source.module}.{alias.name}"


def imports_of(file: PyFile, pattern: str) -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    """Imports whose full name matches a pattern from its start, each statement once."""
    matcher = re.compile(rf"(?:{pattern})(?:\.|$)")
    seen: set[int] = set()
    for node, name in imported(file):
        if matcher.match(name) and id(node) not in seen:
            seen.add(id(node))
            yield node, name


_AVAILABLE = re.compile(
    r"avail|installed|find_spec|\bhas_|_has_|HAS_|importable|is_\w*(attn|flash|apex|te)\w*\(|package", re.I
)


def import_guard(file: PyFile, node: ast.AST) -> str:
    """In words, what makes a missing package harmless: a ``try``, or a test that it is there."""
    tried = file.caught(node, "ImportError", "ModuleNotFoundError", "OSError", "RuntimeError")
    if tried is not None:
        return f"line {tried.lineno}: try that catches the missing package"
    child: ast.AST = node
    for up in file.ancestors(node):
        if isinstance(up, ast.If) and child in up.body and _AVAILABLE.search(file.source(up.test)):
            return f"line {up.lineno}: {file.source(up.test)[:80]}"
        child = up
    return ""


def import_hits(file: PyFile, pattern: str, top: Severity, inner: Severity, instead: str = "") -> Iterator[Hit]:
    """Hits for imports of a package, milder inside functions, guarded where a missing package is handled."""
    for node, name in imports_of(file, pattern):
        severity = top if file.at_import(node) else inner
        yield hit(node, severity=severity, guarded_by=import_guard(file, node), name=name, instead=instead)


def env_writes(file: PyFile) -> Iterator[tuple[ast.AST, str, ast.expr | None]]:
    """Writes to the process environment, as (node, variable, value)."""
    for node in file.nodes(ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and file.dotted(target.value).endswith("environ"):
                key = text_of(target.slice)
                if key:
                    yield node, key, node.value
    for call in file.calls("os.environ.setdefault", "os.putenv", "*.setenv", "environ.setdefault"):
        key = text_of(argument(call, 0, "name"))
        if key:
            yield call, key, argument(call, 1, "value")
    for call in file.calls("os.environ.update", "environ.update"):
        for arg in call.args:
            if isinstance(arg, ast.Dict):
                for k, v in zip(arg.keys, arg.values):
                    key = text_of(k)
                    if key:
                        yield v, key, v
        for kw in call.keywords:
            if kw.arg:
                yield kw.value, kw.arg, kw.value


def assigned(file: PyFile) -> Iterator[tuple[ast.AST, str, ast.expr]]:
    """Assignments to dotted names, as (statement, resolved name, value)."""
    for node in file.nodes(ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Attribute):
                name = file.dotted(target)
                if name:
                    yield node, name, node.value


def strings(file: PyFile) -> Iterator[tuple[ast.Constant, str]]:
    """Texts of a file that are no docstrings."""
    for node in file.nodes(ast.Constant):
        if isinstance(node.value, str) and not file.is_docstring(node):
            yield node, node.value


def around(file: PyFile, node: ast.AST) -> str:
    """The statement round an expression; of an ``if`` its test."""
    statement = file.statement(node)
    return file.source(statement.test if isinstance(statement, ast.If) else statement) if statement else ""


def rows(file: TextFile, entry: LogicalLine) -> Iterator[tuple[int, str]]:
    """The physical lines of an entry, comments dropped."""
    for number in range(entry.line, min(max(entry.line, entry.last_line), len(file.lines)) + 1):
        yield number, re.sub(r"(?:^|\s)#.*", "", file.lines[number - 1][:2000])


def meanings(file: PyFile, node: ast.AST | None, depth: int = 3) -> Iterator[ast.AST]:
    """An expression, its arms, and what the name that it is was bound to."""
    if isinstance(node, ast.IfExp):
        yield from meanings(file, node.body, depth)
        yield from meanings(file, node.orelse, depth)
    elif node is not None:
        yield node
    if isinstance(node, ast.Name) and depth:
        for bound in file.lookup(node.id, node):
            if bound is not node:
                yield from meanings(file, bound, depth - 1)


def last_name(file: PyFile, call: ast.Call) -> str:
    """The last part of what a call names, also where the parts before it are no names."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else file.call_name(call).rpartition(".")[2]


def is_test_file(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.startswith("test_") or name.endswith("_test.py") or name == "conftest.py" or "/tests/" in f"/{path}"


_MODES = ("reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def compile_modes(file: PyFile) -> Iterator[tuple[ast.Constant, str]]:
    """Constants that become torch.compile's ``mode``: nothing else has their names. Asking for one sets none."""
    for node, text in strings(file):
        up = file.parent(node)
        if isinstance(up, ast.List | ast.Tuple | ast.Set):
            up = None  # what may be chosen
        if text in _MODES and up is not None and not isinstance(up, ast.Compare | ast.match_case | ast.MatchValue):
            yield node, text


def inductor_settings(file: PyFile) -> Iterator[tuple[ast.AST, str, ast.expr]]:
    """Settings of torch._inductor.config, as (node, key without the prefix, value)."""
    prefix = "torch._inductor.config."
    for node, name, value in assigned(file):
        if name.startswith(prefix):
            yield node, name.removeprefix(prefix), value
        elif name.startswith(("inductor_config.", "torch_inductor_config.")):
            yield node, name.partition(".")[2], value
    dicts: list[ast.Dict] = []
    for call in file.calls("torch.compile", "*.patch", "*.compile"):
        options = keyword(call, "options")
        if isinstance(options, ast.Dict):
            dicts.append(options)
        if file.call_name(call).endswith("config.patch"):
            dicts += [a for a in call.args if isinstance(a, ast.Dict)]
            for kw in call.keywords:
                if kw.arg:
                    yield kw.value, kw.arg.replace("__", "."), kw.value
            if len(call.args) == 2 and (key := text_of(call.args[0])):
                yield call, key, call.args[1]
    for mapping in dicts:
        for key_node, value in zip(mapping.keys, mapping.values):
            key = text_of(key_node)
            if key:
                yield value, key, value


def inside(file: PyFile, block: ast.With) -> Iterator[ast.AST]:
    """Nodes that run in a block: not those of functions defined in it."""
    stack: list[ast.AST] = list(block.body)
    while stack:
        node = stack.pop(0)
        if isinstance(node, Function | ast.Lambda):
            continue
        yield node
        stack.extend(ast.iter_child_nodes(node))


# -- requirements ----------------------------------------------------------------------------------

_CUDA_GROUP = re.compile(r"cuda|cu1\d|gpu|nvidia", re.I)


def is_cuda_group(group: str) -> bool:
    """Whether an extra or dependency group is for CUDA by its name."""
    return bool(_CUDA_GROUP.search(group))


# -- C++ -------------------------------------------------------------------------------------------


def mentions_amd(arm: Arm, macros: Macros) -> bool:
    """Whether a condition, its chain or anything round it already tells AMD apart."""
    amd, nvidia = DeviceKind(table()[0]), NVIDIA
    for step in arm.lineage():
        for one in (step, *step.earlier, *step.later):
            if AMD.search(one.text):
                return True
            for name in names_in(one.condition):
                if (
                    truth(judge_macro(name, amd, macros)) is True
                    and truth(judge_macro(name, nvidia, macros)) is False
                ):
                    return True
    return False


def macro_tests(file: CppFile, pattern: str, macros: Macros) -> Iterator[tuple[Arm, str]]:
    """Conditions that ask about a macro and do not already tell AMD apart."""
    matcher = re.compile(pattern)
    for arm in file.conditions():
        name = next((n for n in sorted(names_in(arm.condition)) if matcher.fullmatch(n)), "")
        if name and not mentions_amd(arm, macros):
            yield arm, name


def asm_blocks(file: CppFile) -> Iterator[tuple[int, int, str]]:
    """Every ``asm(...)`` by its text, as (line, column, instructions); parse errors do not hide one."""
    for match in re.finditer(r"\b(?:asm|__asm__|__asm)\b\s*(?:(?:volatile|__volatile__|goto)\b\s*)*\(", file.code):
        depth, end = 1, match.end()
        while end < len(file.code) and depth:
            depth += {"(": 1, ")": -1}.get(file.code[end], 0)
            end += 1
        text = " ".join(re.findall(r'"([^"\\]*(?:\\.[^"\\]*)*)"', file.code[match.end() : end]))
        line = file.code.count("\n", 0, match.start()) + 1
        column = match.start() - (file.code.rfind("\n", 0, match.start()) + 1)
        yield line, column, text


def gated(node: ast.expr, file: PyFile, text: str) -> Edit | EditRefusal:
    """An edit that asks ``torch.version``, where torch is there to be asked."""
    if not torch_is_bound(file.tree, node, at_import=file.at_import(node)):
        return EditRefusal(node.lineno, "torch is not imported before this line")
    return edit_of(node, text)
