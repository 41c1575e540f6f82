"""Find docstrings and comments that name a file, a folder or a decision which is not there.

    python tools/check_references.py

A file is named by its path or by the end of it (``state.py``, ``record/recorder.py``), a folder with its slash
(``trace/``), a decision by its number (``decision 0069``, a heading of docs/decisions). Only Python, Markdown and
TOML files are looked up: a C++ header or a JSON file is more often somebody else's. Decisions are looked up in every
text of the repository.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE = re.compile(r"(?<![\w./<{$~*-])(?:\.\./)*((?:[\w.-]+/)*[\w-]+\.(?:py|md|toml))(?![\w*/])")
FOLDER = re.compile(r"(?<![\w./<{$~*-])((?:[a-z_]\w*/)+)(?=[\s`),.;:]|$)")
DECISION = re.compile(r"docs/decisions/(\d{4})|\bdecisions? (\d{4})(?:(?:,| and) (\d{4}))?")
TEXTS = (".py", ".md", ".toml", ".cpp", ".h", ".inc", ".html", ".yml")
ELSEWHERE = re.compile(
    r"(?:torch|comfy|aten|_inductor|inductor|path|platforms|config)/.*|test_cuda\.py"  # other projects' sources
    r"|(?:[ab]|app|copies|coverage|file|model|old|new|script|train|version)\.py|[A-Z_]+\.md"  # a user's, an example's
)
"""Names of files that are not meant to be in this repository."""


def texts(source: str) -> Iterator[tuple[int, str]]:
    """The first line and the text of each comment and each string that stands as a statement."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def gone(text: str, tracked: frozenset[str], decisions: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Lines into ``text`` and what it names that is not there; ``tracked`` has each path, and each end of one."""
    yield from gone_decisions(text, decisions)
    for match in FILE.finditer(text):
        if match[1] not in tracked and not ELSEWHERE.fullmatch(match[1]):
            yield text.count("\n", 0, match.start()), match[1]
    for match in FOLDER.finditer(text):
        if match[1] not in tracked:
            yield text.count("\n", 0, match.start()), match[1]


def gone_decisions(text: str, decisions: frozenset[str]) -> Iterator[tuple[int, str]]:
    """As `gone`, of decisions alone; a number after the folder is no file, since a page holds a room's."""
    for match in DECISION.finditer(text):
        line = text.count("\n", 0, match.start())
        if match[1]:
            yield line, match[0]
        yield from ((line, f"decision {number}") for number in match.groups() if number and number not in decisions)


def ends(paths: list[str]) -> frozenset[str]:
    """Each path, each folder with its slash, and what either ends with."""
    found = set()
    for path in paths:
        parts = path.split("/")
        for end in range(1, len(parts) + 1):
            slash = "/" if end < len(parts) else ""
            found |= {"/".join(parts[start:end]) + slash for start in range(end)}
    return frozenset(found)


def main() -> int:
    shown = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [path for path in shown.splitlines() if (ROOT / path).is_file()]
    tracked = ends(paths)
    pages = [(ROOT / path).read_text(encoding="utf-8") for path in paths if path.startswith("docs/decisions/")]
    decisions = frozenset(number for page in pages for number in re.findall(r"^## (\d{4}) ", page, re.MULTILINE))
    n = 0
    for path in (path for path in paths if path.endswith(TEXTS) and not path.startswith("CHANGELOG")):
        whole = (ROOT / path).read_text(encoding="utf-8")
        if path.endswith(".py"):
            found = [
                (start + at, what) for start, text in texts(whole) for at, what in gone(text, tracked, decisions)
            ]
        else:
            found = [(1 + at, what) for at, what in gone_decisions(whole, decisions)]
        n += len(found)
        sys.stderr.writelines(f"{path}:{line}: names {what}, which is not there\n" for line, what in found)
    return 1 if n else 0


if __name__ == "__main__":
    sys.exit(main())
