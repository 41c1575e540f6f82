"""The project's own build for AMD: configured, compiled and linked, in a copy outside the tree.

What a build says becomes findings of the same form as the compiler's: what does not configure, compile or link, each
with its place. A build that ends well and compiled no unit of CUDA's took a path without a GPU: it is said to be
unbuilt. The build runs code of the repository, as building it always does; it is asked for by name (``--real``).

Enters: a repository with the stand-in toolkit, or with a build for HIP of its own; a compiler.
Stays out: the repository itself; running what was built.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from gfxgraph import files
from gfxgraph_port.build.compiler import Diagnostic, parse
from gfxgraph_port.build.judge import ARCHS, CompilerFinding, kind_of, place_in, torch_headers
from gfxgraph_port.build.units import SOURCES, Tree, read_tree, units_of
from gfxgraph_port.files import printable
from gfxgraph_port.hipify import Hipify
from gfxgraph_port.project import HOME, Project

TIMEOUT_S = 3600
_MOST_OUTPUT, _TAIL = 32_000_000, 40  # characters; lines
_GIVEN = ("USE_HIP=1", "LC_ALL=C", "FORCE_CUDA=1")  # the last is asked where no GPU is in the machine
_IN_HOME = """export PATH="$0/bin:$PATH"
case " $* " in *" cmake "*|*" meson "*) ;; *) # these find the folder by themselves
  export CPATH="$0/include:$(hipconfig --path 2>/dev/null)/include${CPATH:+:$CPATH}"
  export LIBRARY_PATH="$0/lib64${LIBRARY_PATH:+:$LIBRARY_PATH}"
esac
exec "$@"
"""
_LINKER = re.compile(
    r"undefined (?:hidden |protected )?symbol: (?P<lld>.+)$|undefined reference to (?:symbol )?[`'](?P<bfd>.+)'|"
    r"(?:cannot find|unable to find library) (?P<lib>-l\S+)|lld: error: (?P<other>.+)$|"
    r"multiple definition of [`'](?P<twice>.+?)'"
)
_LINKED = {"lld": "undefined symbol", "bfd": "undefined symbol", "lib": "no such library", "other": "linker",
           "twice": "defined twice"}  # fmt: skip
_REFERENCED = re.compile(r"(?:>>> referenced by |^|: )([\w./+-]{1,300}\.(?:cu|cuh|cpp|cc|cxx|c|hip|hpp|h|C))\b")
_CMAKE = re.compile(
    r"^CMake Error(?: at (?P<path>[^:\n]{1,300}):(?P<line>\d{1,7}) \((?P<command>\w+)\))?:(?P<rest>.*)$"
)
_MESON = re.compile(r"^(?P<path>(?:[^:\s]+/)?meson\.(?:build|options)):(?P<line>\d{1,7}):\d+: ERROR: (?P<text>.*)$")
_MAKE = re.compile(
    r"^\w*make(?:\[\d+\])?: \*\*\* (?P<text>No rule to make target.*|.*[Ss]top\.|.*missing separator.*)"
)
_REFUSED = re.compile(r"^(?:clang(?:\+\+)?(?:-\d+)?|g?cc|[cg]\+\+|hipcc): (?:fatal )?error: (?P<text>.+)$")
_ABSENT = re.compile(r"(?:sh|bash)(?:: line)?:? ?\d*: (?P<name>[\w./+-]{1,200}): (?:command )?not found")
_GCC_ABSENT = re.compile(r"^(?P<name>\S{1,300}): No such file or directory$")
# A torch that is no ROCm build is told that it were, where it builds extensions: with its own headers for CUDA, which
# its hipify translates as it does for a ROCm build, and itself for its HIP libraries.
_AS_ROCM = """import os, re, runpy, shutil, subprocess, sys, torch
kit, sys.argv = sys.argv[1], sys.argv[2:]
if not torch.cuda.is_available():  # a build for a machine with a GPU
    torch.cuda.is_available, torch.cuda.device_count = (lambda: True), (lambda: 1)
    torch.cuda.get_device_capability = lambda *_: (10, 3)
if not torch.version.hip:
    from torch.utils.hipify.hipify_python import hipify
    said = subprocess.run(["hipcc", "--version"], capture_output=True, text=True).stdout
    torch.version.hip = re.search(r"\\d+\\.\\d+\\.\\d+|$", said)[0] or "6.4.0"
    torch.cuda._is_compiled = lambda: True
    os.environ["CPATH"], os.environ["LIBRARY_PATH"] = kit + "/include", kit + "/lib"
    for folder in ("ATen/cuda", "c10/cuda"):
        shutil.copytree(os.path.join(os.path.dirname(torch.__file__), "include", folder),
                        os.path.join(kit, "include", folder), dirs_exist_ok=True)
    of = {"is_pytorch_extension": True, "hip_clang_launch": True, "show_progress": False}
    hipify(kit + "/include", output_directory=kit + "/include", includes=[kit + "/include/*/cuda/*"], **of)
runpy.run_path(sys.argv[0], run_name="__main__")
"""
_BUILDS, _CUDA = ("cmake", "make", "recipe"), re.compile(r"(?i)cuda|nvcc|\.cu\b")
_MAIN = re.compile(r"^[ \t]*(?:int|void|auto)\s+main\s*\(", re.M)
_LIBRARY = re.compile(r"cu(?:blasLt|blas|dnn|fft|rand|solver|sparse)|nccl|nvrtc")  # by the name of its header
_FOLDER = re.compile(r"^\w*make(?:\[\d+\])?: Entering directory '(?P<path>[^']+)'")


@dataclass
class BuildOutcome:
    """What the project's build did.

    Attributes:
        commands: what was run, in words.
        is_linked: everything ended well, and at least one unit of CUDA's was compiled.
        made: executables and libraries, relative to the build's folder.
        unbuilt: units of CUDA's that the build did not compile.
        tail: the last lines of what a failed build said.
    """

    commands: list[str] = field(default_factory=list)
    stage: str = ""  # the first that failed: "configure", "build"; "" where none did
    made: list[str] = field(default_factory=list)
    unbuilt: list[str] = field(default_factory=list)
    left: list[CompilerFinding] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)
    is_linked: bool = False

    def as_json(self) -> dict[str, object]:
        return {
            "links": self.is_linked, "failed": self.stage or None, "commands": self.commands, "made": self.made,
            "units_not_built": self.unbuilt, "errors": len(self.left), "tail": self.tail,
        }  # fmt: skip


@dataclass(frozen=True)
class _Step:
    name: str
    folder: str
    words: tuple[str, ...]


def build(root: str, project: Project, hipify: Hipify, *, archs: tuple[str, ...] = ARCHS) -> BuildOutcome:
    """Configure, compile and link a copy of a repository.

    Raises:
        OSError: the copy cannot be made.
        ValueError: no build is known here, or nothing that would make it one for AMD.
    """
    done = BuildOutcome()
    if not (project.has_home or project.has_hip_build or os.path.isfile(os.path.join(root, HOME, "hip.cmake"))):
        if not project.has_torch_extension:
            raise ValueError("the tree has no build for AMD yet: gfxgraph port fix . --apply")
    with tempfile.TemporaryDirectory(prefix="gfxgraph-port-") as scratch:
        tree = os.path.join(os.path.realpath(scratch), "tree")
        files.copy_tree(os.path.realpath(root), tree)
        made = os.path.join(os.path.realpath(scratch), "build")
        files.new_folder(Path(made))
        kit = os.path.join(os.path.realpath(scratch), "torch")
        before, sources = {p for p, _ in _binaries(tree)}, read_tree(tree)
        units = [u.path for u in units_of(sources) if not u.path.startswith(f"{HOME}/")]
        programs = _programs(sources, units, made)
        steps = _steps(tree, made, kit, project, archs) or programs
        if not steps:
            raise ValueError("no build is known here: neither CMake, make, configure, Meson, setup.py nor a main()")
        if kit in steps[0].words:
            _torch_kit(kit, hipify)
        said = _run_all(steps, done, tree, made, archs)
        told = [Path(tree, s.path).read_text("utf-8", "replace") for s in project.sources if s.kind in _BUILDS]
        if not (done.stage or steps == programs or _CUDA.search(said + "".join(told))):
            said += _run_all(programs, done, tree, made, archs)  # no build knows of CUDA
        done.left = [_before_hipify(x, tree, set(sources.paths)) for x in _findings(said, tree, made, hipify)]
        done.made = sorted(name for p, name in [*_binaries(tree), *_binaries(made)] if p not in before)
        done.unbuilt = [u for u in units if not _is_named(u, said)]
        if done.stage and not any(x.kind != "unchecked" for x in done.left):
            rows = [row for row in done.tail if re.search(r"(?i)error|cannot|failed", row)] or done.tail
            done.left.append(_finding("does not link" if done.made else "does not configure", steps[0], rows[-1:]))
        if not done.stage and units and len(done.unbuilt) == len(units):
            why = "the build ended well and compiled no unit of CUDA's: it took a path without a GPU"
            done.left.insert(0, _finding("not built", steps[0], [why]))
        done.is_linked = not done.stage and len(done.unbuilt) < max(len(units), 1) and bool(done.made)
    return done


def _finding(kind: str, step: _Step, text: list[str]) -> CompilerFinding:
    name = {"cmake": "CMakeLists.txt", "make": "Makefile", "meson": "meson.build", "sh": "configure"}
    return CompilerFinding(kind, name.get(step.words[0], "setup.py"), 1, 1, "".join(text), (), ())


def _torch_kit(kit: str, hipify: Hipify) -> None:
    """What a torch without ROCm lacks for a HIP build, in a folder."""
    found = {f"include/{name}": text for name, text in torch_headers(hipify).items()}
    found |= {f"lib/lib{name}_hip.so": f"INPUT(-l{name})\n" for name in ("c10", "torch")}
    for name, text in found.items():
        files.new_folder(Path(kit, name).parent)
        files.write(Path(kit, name), text.encode())


def _is_named(unit: str, said: str) -> bool:
    """Whether a build speaks of a unit, or of what torch's hipify made of it."""
    name, ending = (re.escape(part) for part in os.path.splitext(os.path.basename(unit)))
    return bool(re.search(rf"(?<![\w-]){name}(?:(?:_hip)?{ending}|\.hip)\b", said))


def _before_hipify(x: CompilerFinding, tree: str, sources: set[str]) -> CompilerFinding:
    """A finding in what torch's build wrote, at the source that it wrote it from."""
    if x.path in sources or "hip" not in x.path:
        return x
    plain = re.sub(r"(^|/)hip/", r"\1cuda/", x.path)
    names = [re.sub(r"_hip(?=\.\w+$)", "", re.sub(r"\.hip$", ".cu", p)) for p in (x.path, plain)]
    found = next((n for n in names if n in sources), None)
    if found is None:
        return x
    with open(os.path.join(tree, x.path), encoding="utf-8", errors="replace") as file:
        above = "automatically generated by hipify" in file.readline()
    return replace(x, path=found, line=max(1, x.line - above))


def _steps(tree: str, made: str, kit: str, project: Project, archs: tuple[str, ...]) -> list[_Step]:
    """The commands of the build that the repository has."""

    def has(*names: str) -> bool:
        return any(os.path.isfile(os.path.join(tree, n)) for n in names)

    jobs = str(os.cpu_count() or 1)
    lists = [s.path for s in project.sources if s.path.endswith("CMakeLists.txt")]
    makes = sorted((s.path for s in project.sources if s.kind == "make"), key=lambda p: (p.count("/"), p))
    if project.has_torch_extension and has("setup.py"):
        return [_Step("build", tree, (sys.executable, "-c", _AS_ROCM, kit, "setup.py", "build"))]
    if has("CMakeLists.txt") or (lists and not has("Makefile", "makefile", "GNUmakefile", "configure")):
        top = os.path.join(tree, os.path.dirname(min(lists, key=lambda p: (p.count("/"), p), default="")))
        options = ("-DUSE_HIP=ON", f"-DCMAKE_HIP_ARCHITECTURES={';'.join(archs)}")
        return [
            _Step("configure", tree, ("cmake", "-S", top, "-B", made, *options)),
            _Step("build", tree, ("cmake", "--build", made, "--parallel", jobs, "--verbose", "--", "-k")),
        ]
    make = ("make", "-k", "-w", f"-j{jobs}", "USE_HIP=1", f"HIP_ARCHITECTURES={','.join(archs)}")
    if has("configure"):
        toolkit = (f"NVCC={tree}/{HOME}/bin/nvcc", f"CUDA_HOME={tree}/{HOME}")
        return [_Step("configure", tree, ("sh", "./configure", *toolkit)), _Step("build", tree, make)]
    if makes:
        return [
            _Step("build", os.path.join(tree, os.path.dirname(makes[0])), (*make, "-f", os.path.basename(makes[0])))
        ]
    if has("meson.build"):
        return [
            _Step("configure", tree, ("meson", "setup", made, tree)),
            _Step("build", tree, ("meson", "compile", "-C", made, "-v")),
        ]
    return [_Step("build", tree, (sys.executable, "setup.py", "build"))] if has("setup.py") else []


def _programs(sources: Tree, units: list[str], made: str) -> list[_Step]:
    """For units that no build names: each ``main`` beside one, with what stands in its folder, by nvcc."""
    steps = []
    mains = {p for p in sources.paths if p.endswith(SOURCES) and _MAIN.search(sources.text(p))}
    for main in sorted(mains):
        read, folders, _ = sources.closure(main)
        beside = [p for p in sources.paths if p.endswith(SOURCES) and os.path.dirname(p) == os.path.dirname(main)]
        beside = [main, *(p for p in beside if p not in mains and p not in read)]
        if not any(p in units for p in beside):
            continue
        libraries = {f"-l{m[0]}" for p in (*read, *beside) for n in sources.includes(p) if (m := _LIBRARY.match(n))}
        out = f"{made}/{os.path.splitext(main)[0].replace('/', '-')}"
        words = ("nvcc", "-o", out, *beside, *(f"-I{f or '.'}" for f in folders), *sorted(libraries))
        steps.append(_Step("build", sources.root, words))
    return steps


def _run_all(steps: list[_Step], done: BuildOutcome, tree: str, made: str, archs: tuple[str, ...]) -> str:
    """Commands until one fails, and all that they said."""
    said = ""
    for step in steps:
        words = " ".join(w for w in step.words if w not in (_AS_ROCM, "-c") and not w.endswith("/torch"))
        done.commands.append(words.replace(tree, ".").replace(made, "../build"))
        status, text = _run(step, tree, archs)
        said += f"{words}\n{text}"
        if status != 0:
            done.stage = step.name
            done.tail = [printable(row[:300]) for row in text.rstrip().split("\n")[-_TAIL:]]
            break
    return said


def _run(step: _Step, tree: str, archs: tuple[str, ...]) -> tuple[int, str]:
    """One command of the build, with the toolkit folder in the environment; its status and all that it said."""
    home = os.path.join(tree, HOME)
    toolkit = [f"CUDA_HOME={home}", f"CUDA_PATH={home}"] if os.path.isdir(home) else []
    given = [f"HIP_ARCHITECTURES={','.join(archs)}", f"PYTORCH_ROCM_ARCH={';'.join(archs)}", *_GIVEN, *toolkit]
    words = ["/bin/sh", "-c", _IN_HOME, home, "env", *given, *step.words]
    try:
        process = subprocess.Popen(
            words, cwd=step.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return 127, f"{step.words[0]}: {error.strerror}\n"
    try:
        said, _ = process.communicate(timeout=TIMEOUT_S)
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return 124, f"{step.words[0]}: did not end in {TIMEOUT_S} s\n"
    return process.returncode, said[-_MOST_OUTPUT:].decode("utf-8", "replace")


def _findings(said: str, tree: str, made: str, hipify: Hipify) -> list[CompilerFinding]:
    """The errors of compilers, linkers, CMake and make, once each."""
    found: dict[tuple[str, str, int, str], CompilerFinding] = {}

    def add(kind: str, d: Diagnostic, units: tuple[str, ...] = ()) -> None:
        d = place_in(d, tree)
        path = d.path if not os.path.isabs(d.path) else d.path.replace(made, "build")
        one = CompilerFinding(
            kind, printable(path), d.line, d.column, printable(d.text[:500]), (d.side,) * bool(d.side), units, d.notes
        )
        known = found.setdefault((kind, path, d.line, d.text), one)
        if d.side and d.side not in known.sides:
            found[kind, path, d.line, d.text] = replace(known, sides=(*known.sides, d.side))

    folder, asked = tree, ""
    rows = said.split("\n")
    absolute = []
    for n, row in enumerate(rows):
        if match := _FOLDER.match(row):
            folder = match["path"]
        head = re.match(r"((?:In file included from |\s+from )?)([^\s:/][^\s:]{0,300})(:\d+[:,].*)$", row)
        if head is not None and os.path.isfile(inside := os.path.normpath(os.path.join(folder, head[2]))):
            row = f"{head[1]}{inside}{head[3]}"
        absolute.append(row)
        if match := _CMAKE.match(row):
            text = " ".join(r.strip() for r in [match["rest"], *rows[n + 1 : n + 6]] if r.strip())
            path = os.path.join(tree, match["path"] or "CMakeLists.txt")
            add("does not configure", Diagnostic(path, int(match["line"] or 1), 1, "error", text))
        elif match := _MESON.match(row):
            place = os.path.join(tree, match["path"])
            add("does not configure", Diagnostic(place, int(match["line"]), 1, "error", match["text"]))
        elif match := _MAKE.match(row):
            add("does not configure", Diagnostic(os.path.join(folder, "Makefile"), 1, 1, "error", match["text"]))
        elif (match := _REFUSED.match(row)) and "linker command failed" not in row:
            add("does not compile", Diagnostic("the build", 1, 1, "error", match["text"]))
        elif match := _ABSENT.search(row):
            add("does not configure", Diagnostic(os.path.join(folder, "Makefile"), 1, 1, "error", match[0]))
        elif match := _LINKER.search(row):
            near = _REFERENCED.search("\n".join(rows[max(n - 1, 0) : n + 2]))
            asked = re.sub(r".*\.dir/", "", near[1]) if near is not None else asked
            text = f"{_LINKED[match.lastgroup or '']}: {match[match.lastgroup or 0]}"
            add("does not link", Diagnostic(asked or "the link", 1, 1, "error", text), (asked,) * bool(asked))
    for d in parse("\n".join(absolute)):
        gcc = _GCC_ABSENT.match(d.text)
        if gcc is not None:
            d = replace(d, kind="missing header", text=f"'{gcc['name']}' file not found")
        add(kind_of(d, hipify), d)
    order = {"does not configure": 0, "does not compile": 1, "does not link": 2, "missing header": 3, "unchecked": 4}
    return sorted(found.values(), key=lambda x: (order[x.kind], x.path, x.line))


def _binaries(folder: str) -> list[tuple[str, str]]:
    """Executables and shared libraries below a folder: their paths, and as the report names them."""
    found = []
    for at, folders, names in os.walk(folder):
        folders[:] = [f for f in folders if f not in ("CMakeFiles", ".git", HOME)]
        for name in names:
            path = os.path.join(at, name)
            if os.path.islink(path) or not os.path.isfile(path):
                continue
            with open(path, "rb") as file:
                head = file.read(18)
            if head[:4] == b"\x7fELF" and head[16:18] in (b"\2\0", b"\3\0"):
                found.append((path, os.path.relpath(path, folder)))
            elif head[:8] == b"!<arch>\n":
                found.append((path, os.path.relpath(path, folder)))
    return found
