"""CUDA's names and headers as HIP's: the tables of torch's hipify, or those of ``hipify-perl`` on the PATH.

The tables are a file of torch's that imports nothing of torch; it is loaded by its place, so a port never starts a
driver. No list of ours stands beside them.

Enters: identifiers, header names, source text.
Stays out: which of them a repository uses, and where the result goes.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

WORD = re.compile(r"[A-Za-z_]\w*")
INCLUDE = re.compile(r'^([ \t]*#[ \t]*include[ \t]*)([<"])([^>"\n]{1,200})([>"])', re.M)
_MAPS = ("CUDA_TYPE_NAME_MAP", "CUDA_IDENTIFIER_MAP", "CUDA_SPECIAL_MAP")
_TIMEOUT_S = 120


class NoHipifyError(Exception):
    """Neither table is here; the message says how to get one."""


@dataclass(frozen=True)
class Hipify:
    """One set of tables; ``source`` says whose.

    Attributes:
        known: CUDA's names with HIP's; empty where a program answers.
        includes: CUDA's headers with HIP's, likewise.
    """

    source: str
    known: dict[str, str] = field(default_factory=dict)
    includes: dict[str, str] = field(default_factory=dict)
    program: str = ""

    def names(self, words: Iterable[str]) -> dict[str, str]:
        """HIP's name for each word that is CUDA's."""
        wanted = sorted(set(words))
        if not self.program:
            return {w: self.known[w] for w in wanted if w in self.known}
        lines = _run(self.program, "".join(f"{w} ;\n" for w in wanted)).splitlines()
        made = {w: line.rstrip("; \n") for w, line in zip(wanted, lines)} if len(lines) == len(wanted) else {}
        return {w: hip for w, hip in made.items() if hip != w}

    def headers(self, names: Iterable[str]) -> dict[str, str]:
        """HIP's header for each header that is CUDA's."""
        wanted = sorted(set(names))
        if not self.program:
            return {name: hip for name in wanted if (hip := self._header(name))}
        lines = _run(self.program, "".join(f"#include <{n}>\n" for n in wanted)).splitlines()
        found = [m[3] if (m := INCLUDE.match(line)) else "" for line in lines if line.strip()]
        return {n: hip for n, hip in zip(wanted, found) if hip and hip != n} if len(found) == len(wanted) else {}

    def _header(self, name: str) -> str:
        if name.startswith("thrust/system/cuda/"):
            return name.replace("/cuda/", "/hip/", 1)
        if name.startswith("cub/"):
            return "hipcub/hipcub.hpp"  # one header holds what CUDA spreads over many
        return self.includes.get(name.removeprefix("nvtx3/"), "") or self.includes.get(name, "")

    def translate(self, text: str) -> str:
        """A source with CUDA's names and headers replaced; its lines stay where they are."""
        if self.program:
            return _run(self.program, text)
        text = INCLUDE.sub(lambda m: f"{m[1]}{m[2]}{self._header(m[3]) or m[3]}{m[4]}", text)
        text = re.sub(r"(?<![\w:])cub::", "hipcub::", text).replace("thrust::cuda", "thrust::hip")
        return WORD.sub(lambda m: self.known.get(m[0], m[0]), text)


@lru_cache(maxsize=1)
def load() -> Hipify:
    """The tables that this machine has.

    Raises:
        NoHipifyError: torch is not installed and hipify-perl is not on the PATH.
    """
    spec = importlib.util.find_spec("torch")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        tables = _tables(Path(place, "utils", "hipify"))
        if tables is not None:
            return tables
    program = shutil.which("hipify-perl")
    if program is None:
        raise NoHipifyError("no hipify here: install torch (any build of it), or put hipify-perl on the PATH")
    return Hipify("hipify-perl", program=program)


def _tables(folder: Path) -> Hipify | None:
    """The tables below a torch installation, without importing torch."""
    if not (folder / "cuda_to_hip_mappings.py").is_file():
        return None
    package = importlib.util.spec_from_file_location(
        "_gfxgraph_hipify", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    found = load_module(package) and importlib.util.find_spec("_gfxgraph_hipify.cuda_to_hip_mappings")
    if not found:
        return None
    maps = load_module(found)
    if maps is None:
        return None
    known = {k: v for name in _MAPS for k, v in getattr(maps, name).items() if WORD.fullmatch(k)}
    includes = {}
    for cuda, hip in maps.CUDA_INCLUDE_MAP.items():
        key = re.sub(r'^include ["<]|[<>"]', "", cuda)
        includes[key] = re.sub(r'^include ["<]|[<>"]', "", hip)
    return Hipify("torch.utils.hipify", known, includes)


def load_module(spec: ModuleSpec | None) -> ModuleType | None:
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _run(program: str, text: str) -> str:
    """What hipify-perl makes of a text."""
    try:
        done = subprocess.run(
            [program, "-quiet-warnings", "/dev/stdin"],
            input=text, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True, errors="surrogateescape",
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise NoHipifyError(f"{program}: {error}") from error
    return done.stdout
