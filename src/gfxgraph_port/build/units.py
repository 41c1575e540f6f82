"""Translation units of a repository: which files a GPU build compiles, with which folders of headers and macros.

Where the build wrote ``compile_commands.json`` it says so. Elsewhere a unit is a ``.cu`` file or a source that
includes one of CUDA's headers, and a folder is needed because some ``#include "a/b.h"`` is found below it.

Enters: a repository's files, which are not trusted: of their flags only folders, macros and the language's version
are taken.
Stays out: running anything.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gfxgraph import files
from gfxgraph_port.files import read_inside
from gfxgraph_port.hipify import INCLUDE
from gfxgraph_port.project import _SKIP_DIRS, HOME, MAX_BYTES, MOST_DEPTH, VENDORED

_MOST_FILES = 200_000
_MOST_COMMANDS = 32_000_000
SOURCES = (".cu", ".hip", ".c", ".cc", ".cpp", ".cxx", ".c++", ".C")
_HEADERS = (".h", ".hpp", ".hh", ".hxx", ".cuh", ".inl", ".inc", ".ipp", ".tpp", ".cuinc", ".def", ".tcc", *SOURCES)
_USES_CUDA = re.compile(r"<<<|__global__|\bcuda[A-Z]\w+\s*\(|\bcu(?:blas|sparse|fft|rand|solver)[A-Z]\w+")
_CUDA_INCLUDE = re.compile(r"cu(?:da|blas|sparse|fft|rand|solver)\w*\.h|cub/|nvToolsExt|nccl\.h|cuda/")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_OF_GPU = re.compile(r"^(?!__).*(?:CUDA|GPU)(?!.*(?:HIP|ROCM|_NO_))")
_DEMANDED = re.compile(
    r"^[ \t]*#[ \t]*if(?:ndef[ \t]|[ \t]*![ \t]*(?:defined)?[ \t]*\(?)[ \t]*(\w{1,80})\)?[ \t]*\n\s{0,40}#"
    r"[ \t]*error|^[ \t]*#[ \t]*if(?:def[ \t]|[ \t]+defined[ \t]*\(?)[ \t]*(\w{1,80})\)?[ \t]*\n"
    r"(?:(?![ \t]*#[ \t]*(?:if|endif)).{0,300}\n){0,12}?[ \t]*#[ \t]*else[ \t]*\n\s{0,40}#[ \t]*error",
    re.M,
)

# ``#if X == 8``, other numbers, ``#else`` and ``#error``: the build must say which.
_ONE_OF = re.compile(
    r"^[ \t]*#[ \t]*if[ \t]+\(?[ \t]*(\w{1,80})[ \t]*==[ \t]*(\d{1,9})[ \t]*\)?[ \t]*\n"
    r"(?:(?:(?![ \t]*#).{0,300}|[ \t]*#[ \t]*elif[ \t].{0,200}|[ \t]*#[ \t]*define[ \t].{0,200})\n){0,12}?"
    r"[ \t]*#[ \t]*else[ \t]*\n\s{0,40}#[ \t]*error",
    re.M,
)


@dataclass(frozen=True)
class Unit:
    """One file that is compiled. Folders are relative to the repository where they are inside it."""

    path: str
    folders: tuple[str, ...] = ()
    macros: tuple[str, ...] = ()
    standard: str = ""


@dataclass
class Tree:
    """The headers and sources of a repository by their names, and what each includes."""

    root: str
    paths: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    _by_name: dict[str, list[str]] = field(default_factory=dict)
    _texts: dict[str, str] = field(default_factory=dict)

    def text(self, path: str) -> str:
        """A file's text; "" for one that cannot be read."""
        if path not in self._texts:
            try:
                self._texts[path] = read_inside(self.root, path, MAX_BYTES).decode("utf-8", "replace")
            except OSError as error:
                self.skipped.append((path, str(error.strerror or error)))
                self._texts[path] = ""
        return self._texts[path]

    def includes(self, path: str) -> list[str]:
        return [m[3].strip() for m in INCLUDE.finditer(self.text(path))]

    def find(self, name: str, includer: str) -> str:
        """The file of the repository that an include means, or ""; of several the nearest."""
        beside = os.path.normpath(os.path.join(os.path.dirname(includer), name)).replace(os.sep, "/")
        candidates = self._by_name.get(name.rpartition("/")[2], [])
        if beside in candidates:
            return beside
        plain = os.path.normpath(name).replace(os.sep, "/")
        if plain.startswith("../"):
            return ""
        fits = [p for p in candidates if p == plain or p.endswith(f"/{plain}")]
        return min(fits, key=lambda p: (-len(os.path.commonprefix([p, includer])), len(p)), default="")

    def closure(self, path: str) -> tuple[list[str], list[str], list[str]]:
        """What a file reads: files of the repository, the folders to find them in, and names found nowhere."""
        seen: dict[str, None] = {path: None}
        folders: dict[str, None] = {}
        outside: dict[str, None] = {}
        todo = [path]
        while todo:
            at = todo.pop()
            for name in self.includes(at):
                found = self.find(name, at)
                if not found:
                    outside[name] = None
                    continue
                beside = os.path.normpath(os.path.join(os.path.dirname(at), name)).replace(os.sep, "/")
                if found != beside:
                    folders[found[: -len(os.path.normpath(name)) - 1] if len(found) > len(name) else ""] = None
                if found not in seen:
                    seen[found] = None
                    todo.append(found)
        return list(seen), list(folders), list(outside)


def read_tree(root: str, *, without: str = "") -> Tree:
    """List the sources and headers below a folder; no link is followed, and neither depth nor count is endless.

    Args:
        without: a folder at the top that is left out.
    """
    tree = Tree(os.path.realpath(root))
    stack = [("", 0)]
    while stack:
        folder, depth = stack.pop()
        if depth > MOST_DEPTH:
            tree.skipped.append((folder, f"deeper than {MOST_DEPTH} folders"))
            continue
        try:
            with os.scandir(os.path.join(tree.root, folder)) as listed:
                entries = sorted(listed, key=lambda e: e.name, reverse=True)
        except OSError as error:
            tree.skipped.append((folder, str(error.strerror)))
            continue
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _SKIP_DIRS - {HOME} and path != without:
                    stack.append((path, depth + 1))
            elif entry.is_file(follow_symlinks=False) and entry.name.endswith(_HEADERS):
                if len(tree.paths) >= _MOST_FILES:
                    tree.skipped.append((path, f"more than {_MOST_FILES} sources and headers"))
                    return tree
                tree.paths.append(path)
                tree._by_name.setdefault(entry.name, []).append(path)
    return tree


def uses_cuda(tree: Tree, path: str) -> bool:
    """Whether a source is CUDA's: by its ending, by a header that it includes, or by a call."""
    if path.endswith((".cu", ".hip")):
        return True
    text = tree.text(path)
    if "cuda" not in text and "<<<" not in text and "cu" not in text:
        return False
    code = _COMMENT.sub(" ", text)
    return bool(_USES_CUDA.search(code)) or any(_CUDA_INCLUDE.match(name) for name in tree.includes(path))


def units_of(tree: Tree, wanted: frozenset[str] | None = None, commands: str | None = None) -> list[Unit]:
    """The units of a repository.

    Args:
        wanted: paths of sources to keep; None for all that are CUDA's.
        commands: a ``compile_commands.json``; None looks where builds leave it.

    Raises:
        OSError, ValueError: the file that was named cannot be read or is no such list.
    """
    told = _told(tree, commands)
    if told:
        return [u for u in told if wanted is None or u.path in wanted]
    macros = tuple(sorted(_macros(tree)))
    found = []
    for path in tree.paths:
        if not path.endswith(SOURCES) or _is_foreign(path) or not uses_cuda(tree, path):
            continue
        if wanted is None or path in wanted:
            found.append(Unit(path, tuple(tree.closure(path)[1]), macros))
    return found


def _is_foreign(path: str) -> bool:
    """A third-party folder's own units are not the repository's; its headers are used all the same."""
    return any(part.lower() in VENDORED for part in path.split("/")[:-1])


def _macros(tree: Tree) -> Iterator[str]:
    """Macros that the build files define with a fixed text and that name the GPU, as HIP takes CUDA's place.

    One that CMake gives 1 in one branch and 0 in another is 1 where its name says that it is about the GPU; one that
    a file of the tree demands by ``#error`` is defined where its name says so; where it must be one of several
    numbers it is the first.
    """
    switches: dict[str, set[str]] = {}
    for name in ("setup.py", "CMakeLists.txt", "Makefile", "configure", "meson.build"):
        try:
            text = read_inside(tree.root, name, MAX_BYTES).decode("utf-8", "replace")
        except OSError:
            continue
        yield from (m[1] for m in re.finditer(r"(?<![\w-])-D[ ]?(\w*CUDA\w*)(?![\w=$({])", text) if "NO_" not in m[1])
        if name == "setup.py":
            yield from (m[1] for m in re.finditer(r"\(\s*[\"'](\w*CUDA\w*)[\"']\s*,\s*None\s*\)", text))
        if name == "Makefile":
            yield from _made(text)
        if name == "CMakeLists.txt":
            for m in re.finditer(r"(?<![\w-])(?:-D)?([A-Z]\w{2,60})=([01])(?!\w)", text):
                switches.setdefault(m[1], set()).add(m[2])
    yield from (f"{m}={int(bool(_OF_GPU.search(m)))}" for m, values in switches.items() if len(values) == 2)
    texts = [tree.text(p) for p in tree.paths]
    demanded = {m[1] or m[2] for text in texts if "error" in text for m in _DEMANDED.finditer(text)} - switches.keys()
    defined = {m[1] for text in texts for m in re.finditer(r"#[ \t]*define[ \t]+(\w+)", text)} if demanded else set()
    yield from (f"{m}=1" for m in sorted(demanded - defined) if _OF_GPU.search(m) and not m.endswith("_VERSION"))
    numbers = {m[1]: m[2] for text in reversed(texts) if "error" in text for m in _ONE_OF.finditer(text)}
    yield from (f"{m}={n}" for m, n in sorted(numbers.items()) if not any(_defines(m, text) for text in texts))


def _made(text: str) -> Iterator[str]:
    """Macros that a makefile gives outside its conditions, the first of each name."""
    depth, seen = 0, set()
    for row in text.split("\n"):
        row = row.partition("#")[0]
        depth += bool(re.match(r"[ \t]*if(?:n?def|n?eq)\b", row)) - bool(re.match(r"[ \t]*endif\b", row))
        for m in re.finditer(r"(?<![\w-])-D[ ]?(\w+)(=[\w.+-]+)?(?![\w=$({\"'\\])", row) if not depth else ():
            if m[1] not in seen and not re.search(r"HIP|ROCM|NO_", m[1]):
                seen.add(m[1])
                yield m[1] + (m[2] or "")


def _defines(name: str, text: str) -> bool:
    return name in text and bool(re.search(rf"#[ \t]*define[ \t]+{name}\b", text))


def _told(tree: Tree, commands: str | None) -> list[Unit]:
    """Units of a compile_commands.json: the one named, else one in the repository or its build folder."""
    if commands is not None:
        data = files.read_named(commands, _MOST_COMMANDS)
    else:
        data = b""
        for place in ("compile_commands.json", "build/compile_commands.json"):
            try:
                data = read_inside(tree.root, place, _MOST_COMMANDS)
                break
            except OSError:
                continue
        if not data:
            return []
    rows = files.parse_json(data)
    if not isinstance(rows, list):
        raise ValueError(f"{commands}: not a list of compile commands")
    found = {}
    for row in rows:
        unit = _unit(tree, row) if isinstance(row, dict) else None
        if unit is not None and uses_cuda(tree, unit.path):
            found[unit.path] = unit
    return list(found.values())


def _unit(tree: Tree, row: dict[str, object]) -> Unit | None:
    folder, name = str(row.get("directory", "")), str(row.get("file", ""))
    given = row.get("arguments")
    try:
        words = [str(w) for w in given] if isinstance(given, list) else shlex.split(str(row.get("command", "")))
    except ValueError:
        return None
    path = os.path.relpath(os.path.realpath(os.path.join(folder, name)), tree.root)
    if path.startswith(".."):
        return None
    folders, macros, standard = [], [], ""
    for i, word in enumerate(words):
        for flag in ("-isystem", "-iquote", "-I", "-D"):
            if word.startswith(flag):
                value = word[len(flag) :] or (words[i + 1] if i + 1 < len(words) else "")
                if flag == "-D" and value and not value.startswith("-"):
                    macros.append(value)
                elif flag != "-D" and value:
                    place = os.path.realpath(os.path.join(folder, value))
                    inside = place == tree.root or place.startswith(tree.root + os.sep)
                    folders.append(os.path.relpath(place, tree.root) if inside else place)
                break
        if re.fullmatch(r"-std=(?:gnu|c)\+\+\w{2}", word):
            standard = word.removeprefix("-std=")
    return Unit(path.replace(os.sep, "/"), tuple(dict.fromkeys(folders)), tuple(dict.fromkeys(macros)), standard)


def standard_of(tree: Tree) -> str:
    """The C++ standard that the build's files ask for; "" where they do not."""
    asked = []
    for name in ("CMakeLists.txt", "setup.py", "Makefile", "meson.build", "configure.ac"):
        try:
            text = Path(tree.root, name).read_text(encoding="utf-8", errors="replace")[:MAX_BYTES]
        except OSError:
            continue
        asked += re.findall(
            r"(?:std=(?:gnu|c)\+\+|CXX_STANDARD\s+|cxx_std_|cpp_std=(?:gnu|c)\+\+)(11|14|17|20|23)", text
        )
    return f"gnu++{max(asked)}" if asked else ""
