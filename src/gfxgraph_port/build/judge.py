"""Every translation unit through the compiler, side by side, and what is left as findings.

A verdict is kept by content: the unit, every file of the repository that it reads, the flags and the compiler. A
header that neither the repository nor this machine has is said to be missing; it is no fault of the code unless it is
one of CUDA's.

Enters: a repository, a compiler.
Stays out: edits.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gfxgraph import files
from gfxgraph_port.build.compiler import Compiler, Diagnostic, compile_unit
from gfxgraph_port.build.units import Tree, Unit, read_tree, standard_of, units_of
from gfxgraph_port.files import printable
from gfxgraph_port.fix import compat
from gfxgraph_port.hipify import Hipify

ARCHS = ("gfx1030", "gfx942")  # one of wave 32, one of wave 64
_CACHE_VERSION = 3
_BUILDS = "utils/cpp_extension.py"  # of torch: what its own build gives to hipcc
_HEADERS = {"torch": ("include", "include/torch/csrc/api/include"), "numpy": ("_core/include", "core/include"),
            "pybind11": ("include",)}  # fmt: skip
_NOT_CUDA = re.compile(
    r"(?:cuda|cu[a-z]+(?:_v2)?|cub|thrust|nv\w*|cutlass|cute|cooperative_groups|mma)\b|cu(?:da|dnn|tensor|solver|file)"
)


@dataclass(frozen=True)
class CompilerFinding:
    """One thing that a compiler says, at one place, over all units and sides."""

    kind: str  # "does not compile", "missing header", "unchecked"
    path: str
    line: int
    column: int
    text: str
    sides: tuple[str, ...]
    units: tuple[str, ...]
    notes: tuple[tuple[str, int, str], ...] = ()


@dataclass
class Verdict:
    """What the compiler says of a repository.

    Attributes:
        states: for each unit ``compiles``, ``fails``, or ``missing`` where only headers of others stop it.
        headers: what this machine lacks, with the units that ask for it.
    """

    archs: tuple[str, ...]
    states: dict[str, str] = field(default_factory=dict)
    left: list[CompilerFinding] = field(default_factory=list)
    headers: dict[str, list[str]] = field(default_factory=dict)
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def count(self, state: str) -> int:
        return sum(s == state for s in self.states.values())

    def as_json(self) -> dict[str, object]:
        n = len(self.states)
        judged = n - self.count("missing")
        return {
            "units": n, "compile": self.count("compiles"), "fail": self.count("fails"),
            "missing_headers": self.count("missing"),
            "share": round(self.count("compiles") / judged, 3) if judged else None,
        }  # fmt: skip


def judge(
    root: str,
    compiler: Compiler,
    hipify: Hipify,
    *,
    archs: tuple[str, ...] = ARCHS,
    commands: str | None = None,
    stage: str = "after",
    is_torch: bool = False,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Verdict:
    """Compile every unit below ``root``.

    Args:
        stage: ``before``: as the sources stand; ``hipify``: after hipify alone, in a scratch folder; ``after``: with
            the headers that ``port fix`` wrote, or, for a torch extension, as torch's build translates them.
        is_torch: the units are a torch extension's.
    """
    tree = read_tree(root)
    units = units_of(tree, commands=commands)
    verdict = Verdict(archs, skipped=list(tree.skipped))
    with tempfile.TemporaryDirectory(prefix="gfxgraph-port-") as scratch:
        made = _Scratch(tree, Path(scratch), hipify, stage, is_torch)
        with ThreadPoolExecutor(jobs or os.cpu_count() or 1) as pool:
            results = []
            for done in pool.map(lambda u: _unit(tree, u, compiler, archs, made), units):
                results.append(done)
                if progress:
                    progress(len(results), len(units))
    _collect(verdict, tree, units, results, hipify)
    return verdict


class _Scratch:
    """Flags of a stage, and the files that it needs beside the repository."""

    def __init__(self, tree: Tree, folder: Path, hipify: Hipify, stage: str, is_torch: bool) -> None:
        stage = "after" if is_torch and stage == "hipify" else stage  # what torch's build does in any case
        self.base, self.standard = tree.root, max(standard_of(tree), "gnu++17")  # what ROCm's libraries ask for
        self.before: list[str] = ["-D__HIP_PLATFORM_AMD__=1"]
        self.behind: list[str] = []
        self.tag = f"{stage} {is_torch} {hipify.source}"
        if is_torch or os.path.isfile(os.path.join(tree.root, "setup.py")):
            self.behind = _python_flags(is_torch)
        if is_torch:
            self.standard = max(self.standard, "gnu++20")
        if stage == "before":
            return
        if stage == "hipify":
            self.base = str(folder / "tree")
            self.before += ["-include", "hip/hip_runtime.h"]  # which hipify puts at the head of each source
            for path in tree.paths:
                files.new_folder((folder / "tree" / path).parent)
                files.write(folder / "tree" / path, hipify.translate(tree.text(path)).encode("utf-8", "replace"))
            return
        if is_torch:
            # as torch's hipify has it
            self.before += ["-DUSE_ROCM", "-DTORCH_EXTENSION_NAME=ext", "-DCUDA_VERSION=604"]
            self._use(folder / "compat", torch_headers(hipify))
        else:
            self.before.append("-DUSE_HIP")
            place = next((p for p in tree.paths if p.endswith(f"{compat.FOLDER}/{compat.MAIN}")), None)
            if place is not None:
                self._flags(os.path.join(tree.root, os.path.dirname(place)))

    def _use(self, folder: Path, made: dict[str, str]) -> None:
        self.tag += hashlib.sha256(repr(sorted(made.items())).encode()).hexdigest()
        for name, text in made.items():
            files.new_folder((folder / name).parent)
            files.write(folder / name, text.encode())
        self._flags(str(folder))

    def _flags(self, folder: str) -> None:
        self.before += ["-I", folder, "-include", os.path.join(folder, compat.MAIN)]

    def flags(self, unit: Unit) -> list[str]:
        found = [*self.before, *(f"-D{m}" for m in unit.macros)]
        for folder in unit.folders:
            found += ["-I", os.path.normpath(os.path.join(self.base, folder))]
        standard = unit.standard or self.standard
        is_c = unit.path.endswith(".c")
        return [*found, *self.behind, *([f"-std={standard}"] if standard and not is_c else [])]


def torch_headers(hipify: Hipify) -> dict[str, str]:
    """What the headers of a torch without ROCm ask for: CUDA's headers and names, and a header of its CUDA build."""
    made = compat.headers(hipify.known, compat.STANDING_IN | set(hipify.includes), hipify)
    return {**made, "c10/cuda/impl/cuda_cmake_macros.h": "#pragma once\n"}


def _python_flags(is_torch: bool) -> list[str]:
    """Folders of the headers of Python, numpy and pybind11, or of the torch that is installed, with its macros."""
    import sysconfig

    folders, macros = [Path(sysconfig.get_paths()["include"])], list[str]()
    for name in ("torch",) if is_torch else ("numpy", "pybind11"):
        spec = importlib.util.find_spec(name)
        for place in (spec.submodule_search_locations or ()) if spec is not None else ():
            folders += [p for p in (Path(place, inside) for inside in _HEADERS[name]) if p.is_dir()]
            given = re.findall(r"^COMMON_HIP(?:CC)?_FLAGS = \[([^\]]{0,2000})\]", _text(Path(place, _BUILDS)), re.M)
            macros += [m for row in given for m in re.findall(r"['\"](-D[\w=]+)['\"]", row)]
    return macros + [word for p in folders for word in ("-isystem", str(p))]


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError:
        return ""


def _unit(
    tree: Tree, unit: Unit, compiler: Compiler, archs: tuple[str, ...], made: _Scratch
) -> tuple[bool, list[Diagnostic]]:
    flags = made.flags(unit)
    digest = hashlib.sha256(f"{_CACHE_VERSION}\0{compiler}\0{archs}\0{made.tag}".encode())
    here = (f.replace(made.base, "<root>") for f in flags)  # the loop's copy and the tree itself share verdicts
    digest.update("\0".join(f for f in here if "gfxgraph-port-" not in f).encode())
    for path in tree.closure(unit.path)[0]:
        digest.update(f"\0{path}\0{tree.text(path)}".encode("utf-8", "replace"))
    for path in sorted(p for p in tree.paths if f"/{p}".find(f"/{compat.FOLDER}/") >= 0):
        digest.update(f"\0{path}\0{tree.text(path)}".encode("utf-8", "replace"))
    kept = Path.home() / ".cache" / "gfxgraph" / "port-build" / f"{digest.hexdigest()[:40]}.json"
    try:
        data = files.read_json(kept)
        return data["compiles"], [Diagnostic(**{**d, "notes": tuple(map(tuple, d["notes"]))}) for d in data["said"]]
    except (OSError, ValueError, KeyError, TypeError):
        pass  # never compiled, or an older form of the cache
    is_good, said = compile_unit(compiler, os.path.join(made.base, unit.path), flags, archs)
    said = [place_in(d, made.base) for d in said]
    if any(d.kind == "missing header" for d in said):
        return is_good, said  # it may be installed by the next run: nothing here tells
    try:
        files.new_folder(kept.parent, 0o700)
        files.write(kept, json.dumps({"compiles": is_good, "said": [asdict(d) for d in said]}))
    except OSError:
        pass  # without a cache the next run compiles again
    return is_good, said


def place_in(d: Diagnostic, base: str) -> Diagnostic:
    """A diagnostic at its place in the repository; one of a header of the system where that was asked for."""

    def local(path: str) -> str:
        return os.path.relpath(path, base) if path.startswith(base + os.sep) else path

    path, line, text = local(d.path), d.line, d.text
    if os.path.isabs(path):  # in a header of the system: where the repository asked for it
        asked = [*((p, n) for p, n, _ in d.notes), *reversed(d.through)]
        inner = next((place for place in asked if place[0].startswith(base + os.sep)), None)
        if inner is not None:
            path, line = local(inner[0]), inner[1]
    notes = tuple((local(p), n, t) for p, n, t in d.notes[:4])
    return Diagnostic(path.replace(os.sep, "/"), line, d.column, d.kind, text, d.side, notes)


def _collect(
    verdict: Verdict, tree: Tree, units: list[Unit], results: list[tuple[bool, list[Diagnostic]]], hipify: Hipify
) -> None:
    places: dict[tuple[str, str, int, str], list[tuple[str, Diagnostic]]] = {}
    for unit, (is_good, said) in zip(units, results):
        kinds = set()
        for d in said:
            kind = kind_of(d, hipify)
            if kind == "missing header":
                verdict.headers.setdefault(printable(_header(d)), []).append(unit.path)
            kinds.add(kind)
            places.setdefault((kind, d.path, d.line, d.text), []).append((unit.path, d))
        is_missing = not is_good and "missing header" in kinds and "does not compile" not in kinds
        verdict.states[unit.path] = "compiles" if is_good else "missing" if is_missing else "fails"
    for (kind, path, line, text), found in places.items():
        first = found[0][1]
        verdict.left.append(
            CompilerFinding(
                kind, printable(path), line, first.column, printable(text), _sorted(d.side for _, d in found),
                _sorted(u for u, _ in found), first.notes,
            )
        )  # fmt: skip
    order = {"does not compile": 0, "unchecked": 1, "missing header": 2}
    verdict.left.sort(key=lambda x: (order[x.kind], -len(x.units), x.path, x.line))


def kind_of(d: Diagnostic, hipify: Hipify) -> str:
    """What a diagnostic is as a finding: a header of CUDA's that is missing is left to port."""
    if d.kind == "missing header" and (_NOT_CUDA.match(_header(d)) or compat.is_cuda_header(_header(d), hipify)):
        return "does not compile"
    return {"error": "does not compile"}.get(d.kind, d.kind)


def _header(d: Diagnostic) -> str:
    return re.sub(r"^'|' file not found.*", "", d.text)


def _sorted(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({v for v in values if v}))
