"""Checks that a rule states as data: what to look for, without code of its own.

A table by what is asked; each line counts once.

    C++            idents    names that match in full and are not the project's own
                   lines     lines of code in which a pattern is found, comments blanked
                   includes  headers
    Python         imports   packages, milder inside functions, guarded where a missing one is handled; tests and
                             benchmarks may need what they like
                   calls     calls by dotted name
                   names     dotted names that are read, by pattern
                   strings   string constants that are no docstring
                   writes    variables of the environment that are written, as NAME=value
    requirements   packages  names of packages, outside groups that are CUDA's by name
    other kinds    lines     lines, comments dropped; logical ones where only these have it

Of ``imports`` and ``packages`` a table maps the pattern to what serves on AMD. ``severity`` departs from the rule's.
``unless`` silences a file in whose text it is found, ``only`` one in which it is not, ``not_line`` a line.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from gfxgraph_port import bounded as re
from gfxgraph_port.engine import Context
from gfxgraph_port.model import Hit, Severity
from gfxgraph_port.readers.cpp import CppFile
from gfxgraph_port.readers.python import PyFile, text_of
from gfxgraph_port.readers.requirements import RequirementFile
from gfxgraph_port.readers.text import TextFile
from gfxgraph_port.registry import Check, Table
from gfxgraph_port.rules._common import entry_hit, env_writes, hit, import_hits, is_cuda_group, line_hit, rows

Found = Iterator[Hit]
Question = Callable[..., Found]
_HOW = frozenset({"severity", "unless", "only", "not_line"})


def made(kind: str, spec: Table) -> Check:
    """The check of one kind of file that a table describes.

    Raises:
        KeyError: the table asks what no check of that kind answers.
    """
    asked = [(_QUESTIONS[kind if kind in _QUESTIONS else "text"][key], spec[key]) for key in spec if key not in _HOW]
    unless, only, not_line = (re.compile(spec[k]) if k in spec else None for k in ("unless", "only", "not_line"))
    severity = Severity[spec["severity"].upper()] if "severity" in spec else None

    def check(f: CppFile | PyFile | RequirementFile | TextFile, ctx: Context) -> Found:
        if (unless is not None and unless.search(f.text)) or (only is not None and not only.search(f.text)):
            return
        for one in (h for question, wanted in asked for h in question(f, wanted, ctx)):
            if not_line is None or not not_line.search(f.lines[one.line - 1]):
                yield replace(one, severity=severity or one.severity)

    return check


def _idents(f: CppFile, wanted: str, ctx: Context) -> Found:
    known = ctx.project.macros.known  # a macro that only AMD's arm defines is the project's answer
    own = ctx.project.own_names | f.defines()
    for name, line, column in f.idents_like(wanted):
        if name not in own and known.get(name) != (True, False):
            yield line_hit(line, column, **_named(name, f.line_text(line)))


def _code(f: CppFile, wanted: str, ctx: Context) -> Found:
    matcher = re.compile(wanted)
    if not matcher.search(f.code):
        return
    for number, line in enumerate(f.code.split("\n") if '"' in wanted else f.bare, 1):
        if (match := matcher.search(line)) and not re.match(r"\s*#\s*(?:error|warning|pragma\s+message)", line):
            yield line_hit(number, match.start(), **_named(match.group(), line))


def _includes(f: CppFile, wanted: str, ctx: Context) -> Found:
    for header, at in f.includes():
        if re.fullmatch(wanted, header) and not any(p.endswith(f"/{header}") for p in ctx.project.paths("cpp")):
            yield line_hit(at, **_named(header, header))


_BESIDE = re.compile(r"(?:^|/)(?:tests?|benchmarks?|bench|examples?)/|(?:^|/)(?:test|bench)\w*_[^/]*$")


def _imports(f: PyFile, wanted: str | Mapping[str, str], ctx: Context) -> Found:
    for pattern, instead in _pairs(wanted) if not _BESIDE.search(f.path) else ():
        for one in import_hits(f, pattern, Severity.HIGH, Severity.MEDIUM, instead=instead):
            root = one.values["name"].partition(".")[0]
            if (
                root not in ctx.project.extension_names and ctx.project.module_path(f.path, root) is None
            ):  # else its own
                yield one


def _python_calls(f: PyFile, wanted: list[str], ctx: Context) -> Found:
    for call in f.calls(*wanted):
        yield hit(call, **_named(f.call_name(call), f.source(call)))


def _names(f: PyFile, wanted: str, ctx: Context) -> Found:
    for node in f.nodes(ast.Attribute):
        if re.fullmatch(wanted, f.dotted(node) or node.attr) and not isinstance(f.parent(node), ast.Compare):
            yield hit(node, **_named(f.source(node), f.source(f.parent(node) or node)))


def _strings(f: PyFile, wanted: str, ctx: Context) -> Found:
    matcher = re.compile(wanted)
    for text in f.nodes(ast.Constant):
        if isinstance(text.value, str) and len(text.value) < 1000 and (match := matcher.search(text.value)):
            if not f.is_docstring(text) and not isinstance(f.parent(text), ast.Expr):
                yield hit(text, **_named(match.group().strip(), f.source(text)))


def _writes(f: PyFile, wanted: str, ctx: Context) -> Found:
    for place, key, value in env_writes(f):
        if re.fullmatch(wanted, f"{key}={text_of(value) or ''}"):
            yield hit(place, **(_named(key, f.source(place)) | {"value": text_of(value) or "?"}))


def _packages(f: RequirementFile, wanted: str | Mapping[str, str], ctx: Context) -> Found:
    for need in f.needs:
        for pattern, instead in _pairs(wanted):
            if re.fullmatch(pattern, need.name) and not is_cuda_group(need.group) and "rocm" not in need.spec:
                severity = Severity.LOW if need.group not in ("", "build-system") else None
                yield line_hit(need.line, severity=severity, instead=instead, **_named(need.name, need.text))


def _lines(f: TextFile, wanted: str, ctx: Context) -> Found:
    matcher = re.compile(wanted)
    for entry in f.entries:
        found = [(n, m) for n, line in rows(f, entry) if (m := matcher.search(line))]
        if not found and (match := matcher.search(entry.text)):
            found = [(entry.line, match)]
        for number, match in found:
            text = next((g for g in match.groups() if g), match.group()).strip()
            yield replace(entry_hit(entry, **_named(text, entry.text)), line=number, end_line=number)


_QUESTIONS: dict[str, dict[str, Question]] = {
    "cpp": {"idents": _idents, "lines": _code, "includes": _includes},
    "python": {"imports": _imports, "calls": _python_calls, "names": _names, "strings": _strings, "writes": _writes},
    "requirements": {"packages": _packages},
    "text": {"lines": _lines},
}


def _named(found: str, around: str) -> Table:
    """The placeholders that a rule's text may hold."""
    found = " ".join(found.split())[:80]
    return {"name": found, "text": found, "value": found, "flag": found, "expr": " ".join(around.split())[:100]}


def _pairs(wanted: str | Mapping[str, str]) -> Iterable[tuple[str, str]]:
    return [(wanted, "")] if isinstance(wanted, str) else wanted.items()
