"""Edits that a compiler's message asks for by itself, at the very place that it names.

Each is one that leaves the program the same for every compiler that took it before: a keyword that C++ demands and
nvcc does not, the execution space that a function's declaration has already; for AMD alone, an ``extern`` goes that
shared memory with a bound has, and an operator on CUDA's vectors that AMD's headers define with the same meaning.

Enters: diagnostics, source text.
Stays out: whether the unit then compiles; the loop asks the compiler.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gfxgraph_port.build.judge import CompilerFinding

_TYPENAME = re.compile(r"^missing 'typename' prior to dependent type name")
_TEMPLATE = re.compile(r"^use 'template' keyword to treat '(\w+)' as a dependent template name")
_SPACE = re.compile(r"^((?:__\w+__ ?)+)function '[^']+' cannot overload ((?:__\w+__ ?)+)function")
_AMBIGUOUS = re.compile(r"^use of overloaded operator '([-+*/]=)' is ambiguous")
_NEARLY = re.compile(r"^out-of-line definition of '[^']+' does not match any declaration")
_SIZED = re.compile(r"^__shared__ variable '\w+' cannot be 'extern'")
_SPLIT = re.compile(r"<<[ \t]+<(?!<)|>>[ \t]+>(?!>)")  # of a launch: nvcc joins them, clang does not
_VECTORS = "amd_hip_vector_types.h"
_NOT_AMD = "#if !defined(__HIP_PLATFORM_AMD__)"
_MOST_LINES = 20  # of an operator's definition


def is_known(said: CompilerFinding) -> bool:
    """Whether a message is answered here."""
    known = any(p.match(said.text) for p in (_TYPENAME, _TEMPLATE, _SPACE, _NEARLY, _SIZED))
    return known or said.text == "expected expression" or bool(_operator(said))


def places(said: CompilerFinding) -> list[str]:
    """The files that a message is about: its own, and those of operators that are defined twice."""
    return list(dict.fromkeys([said.path, *(path for path, _, _ in _operator(said))]))


def _operator(said: CompilerFinding) -> list[tuple[str, int, str]]:
    """Candidates of an ambiguous operator that stand beside AMD's own: path, line, operator."""
    match = _AMBIGUOUS.match(said.text)
    if match is None or not any(_VECTORS in path for path, _, _ in said.notes):
        return []
    return [(p, line, match[1]) for p, line, text in said.notes if text == "candidate function" and _VECTORS not in p]


def edit(path: str, text: str, messages: Iterable[CompilerFinding]) -> tuple[str, list[tuple[int, str]]]:
    """A file with what its messages ask for, and where: line and what was done.

    Args:
        messages: those of which `places` names the file.
    """
    lines = text.split("\n")
    done: list[tuple[int, str]] = []
    words: dict[tuple[int, int], str] = {}
    spaces: dict[int, list[str]] = {}
    operators: dict[int, str] = {}
    sized: set[int] = set()
    for said in messages:
        operators |= {line: sign for where, line, sign in _operator(said) if where == path}
        if said.path != path or not 0 < said.line <= len(lines):
            continue
        if _TYPENAME.match(said.text):
            words[said.line, said.column] = "typename "
        elif _TEMPLATE.match(said.text):
            words[said.line, said.column] = "template "
        elif match := _SPACE.match(said.text):
            spaces[said.line] = match[2].split()
        elif _NEARLY.match(said.text) and any(t == "member declaration nearly matches" for _, _, t in said.notes):
            spaces[said.line] = ["__device__" if "__device__" not in lines[said.line - 1] else "__host__"]
        elif _SIZED.match(said.text):
            sized.add(said.line)
        elif said.text == "expected expression" and (row := lines[said.line - 1]) != _joined(row):
            lines[said.line - 1] = _joined(row)
            done.append((said.line, "the brackets of a launch as one token"))
    for (line, column), word in sorted(words.items(), reverse=True):  # from the end, so that columns stay right
        data = lines[line - 1].encode()
        at = data[column - 1 :].decode("utf-8", "ignore")
        before = data[: column - 1].decode("utf-8", "ignore")
        if not re.match(r"[A-Za-z_:]", at) or before.endswith(word):
            continue
        lines[line - 1] = f"{before}{word}{at}"
        done.append((line, f"{word.strip()} before a dependent name"))
    for line, wanted in spaces.items():
        row = lines[line - 1]
        start = re.match(r"\s*(?:template\s*<[^{};]{0,300}?>\s*)?(?=[A-Za-z_])", row)
        has_type = (
            re.search(r"[\w>*&]\s+[*&]?[\w:~<>]{1,200}\s*\(", row[start.end() :]) if start is not None else None
        )
        if start is None or has_type is None:
            continue  # the type stands on a line above
        missing = " ".join(w for w in wanted if w not in row)
        lines[line - 1] = f"{start[0]}{missing} {row[start.end() :]}"
        done.append((line, f"{missing}, as the declaration has it"))
    blocks = {n: (n, re.sub(r"\bextern\s+(?=.*\[[^\[\]]+\])", "", lines[n - 1])) for n in sized}
    blocks |= {n: (last, "") for n, sign in operators.items() if (last := _by_element(lines, n, sign))}
    for line, (last, instead) in sorted(blocks.items(), reverse=True):
        old = lines[line - 1 : last]
        if instead != old[0]:
            lines[line - 1 : last] = [_NOT_AMD, *old, *(["#else", instead] if instead else []), "#endif"]
            done.append((line, "shared memory with a bound is no extern" if instead else "an operator that AMD has"))
    return "\n".join(lines), done


def _joined(row: str) -> str:
    return _SPLIT.sub(lambda m: m[0][0] * 3, row)


def _by_element(lines: list[str], line: int, sign: str) -> int:
    """The last line of an operator's definition that begins a line and works element by element; else 0."""
    if line > len(lines) or not re.match(r"\s*(?:[\w:]+[\s&]+){1,6}operator", lines[line - 1]):
        return 0
    depth, body = 0, ""
    for number, row in enumerate(lines[line - 1 : line - 1 + _MOST_LINES], line):
        if row.lstrip().startswith("#"):
            return 0
        body += row + "\n"
        depth += row.count("{") - row.count("}")
        if "{" in body and depth == 0:
            plain = re.escape(sign[0])
            each = rf"\.{{}}\s*(?:{plain}=|=\s*\w+\.{{}}\s*{plain})\s*\w+"
            fits = row.rstrip().endswith("}") and all(re.search(each.format(c, c), body) for c in "xy")
            return number if fits else 0
    return 0
