"""The project's own build with AMD's compiler, behind ``USE_HIP``.

Idea: a folder that looks like a CUDA toolkit and has HIP behind it. CMake, make and configure scripts are told of it
by a few gated lines; a build that is told where the toolkit is by a variable needs none. With ``USE_HIP`` off nothing
of it is read, which the gate (CMake) or the form of the edit (make, shell: lines are only added, under a condition)
proves.

Torch extensions need none of it: their build runs hipify by itself.

Enters: a repository's build files.
Stays out: sources, and running a build.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from importlib import resources

from gfxgraph_port.build.units import Tree
from gfxgraph_port.fix import compat, gate
from gfxgraph_port.fix.cmake import fix_project
from gfxgraph_port.fix.edits import Edit, EditRefusal, apply_lines
from gfxgraph_port.hipify import WORD, Hipify
from gfxgraph_port.project import HOME, Project, UnreadableError
from gfxgraph_port.readers.text import TextFile

_LIBRARIES = {
    "cudart": "amdhip64", "cuda": "amdhip64", "cublas": "hipblas", "cublasLt": "hipblaslt", "cufft": "hipfft",
    "curand": "hiprand", "cusparse": "hipsparse", "cusolver": "hipsolver", "nvrtc": "hiprtc", "nvToolsExt": "roctx64",
    "nccl": "rccl", "cudnn": "MIOpen",
}  # fmt: skip
# What programs that look for a compiler are made of (CMake, Meson, autoconf); what a build's own name is read there.
_PROBED = frozenset("cudaDeviceProp cudaError_t cudaGetDeviceCount cudaGetDeviceProperties cudaSuccess".split())
_STATIC = ("cudart", "cudadevrt", "culibos", "cublas", "cufft", "curand", "cusparse", "cusolver")
_MAKE = re.compile(
    r"^(?P<indent>[ \t]*)(?:export[ \t]+)?(?P<name>\w{1,60})[ \t]*(?::|\?|::)?=[ \t]*(?P<value>[^\n#]*)"
)
_SHELL = re.compile(r"^(?P<indent>[ \t]*)(?:export[ \t]+)?(?P<name>\w{1,60})=(?P<value>[^\n#]*)$")
_NVCC = re.compile(r"(?:^|/)nvcc(?:\.exe)?[ \t\"']*$")
_TOOLKIT = re.compile(r"^[\"']?(?:\$\{?\w+:?-)?(?:/usr/local/cuda|/opt/cuda|/usr/lib/cuda)[\w./-]*\}?[\"']?[ \t]*$")


def headers(project: Project, tree: Tree, hipify: Hipify) -> dict[str, str]:
    """The folder's files for what the sources use."""
    words: set[str] = set()
    outside: set[str] = set()
    for path in tree.paths:
        text = tree.text(path)
        words |= {*WORD.findall(text), *re.findall(r"\bthrust::(?:system::cuda|cuda|cuda_cub)\b", text)}
        outside |= {name for name in tree.includes(path) if not tree.find(name, path)}
    builds = [_text(project, s.path) for s in project.sources if s.kind in ("cmake", "recipe", "shell")]
    words |= {*_PROBED, *(w for text in builds for w in WORD.findall(text))}
    made = compat.headers(words - project.own_names, outside, hipify)
    before = _text(project, f"{compat.FOLDER}/{compat.MAIN}").partition(compat.FOUND)
    made[compat.MAIN] = made[compat.MAIN] + "\n" + before[1] + before[2] if before[1] else made[compat.MAIN]
    found = {f"{compat.FOLDER}/{name}": text for name, text in made.items()}
    library_of = {f"{HOME}/lib64/lib{cuda}.so": f"INPUT(-l{hip})\n" for cuda, hip in _LIBRARIES.items()}
    for name in _STATIC:
        ending = ".a" if name in ("cudadevrt", "culibos") else "_static.a"
        library_of[f"{HOME}/lib64/lib{name}{ending}"] = f"INPUT(-l{_LIBRARIES.get(name, 'amdhip64')})\n"
    if any(s.path.endswith("meson.build") for s in project.sources):  # which asks for the toolkit of a machine
        target = f"{HOME}/targets/x86_64-linux"
        found |= {
            f"{target}/include/{name}": f'#include "{compat.up(name)}../../../include/{name}"\n' for name in made
        }
        found |= {name.replace(f"{HOME}/lib64", f"{target}/lib"): text for name, text in library_of.items()}
        found[f"{HOME}/version.txt"] = "CUDA Version 12.0\n"
    toolkit = resources.files("gfxgraph_port.fix") / "toolkit"
    for name, place in (
        ("nvcc", "bin/nvcc"),
        *((n, n) for n in ("hip.cmake", "hip.mk", "FindCUDA.cmake", "FindCUDAToolkit.cmake")),
    ):
        found[f"{HOME}/{place}"] = (toolkit / name).read_text("utf-8")
    named = outside | {_text(project, s.path) for s in project.sources if s.kind == "cmake"}
    wanted = [
        n for n in _LIBRARIES if n != "cuda" and any(re.search(rf"(?i)(?<![a-z]){n}(?![a-z])", t) for t in named)
    ]
    cmake = f"{HOME}/hip.cmake"
    found[cmake] = found[cmake].replace("@WANTED@", "|".join(wanted) or "none")
    return {**found, **library_of}


def _text(project: Project, path: str) -> str:
    """A file's text; "" where there is none."""
    try:
        return project.read(path)[0]
    except (OSError, UnreadableError):
        return ""


def edits(project: Project) -> list[tuple[str, str, str, list[Edit], list[EditRefusal]]]:
    """Each build file that changes: its path, old and new text, what was done and what was not."""
    found = []
    tops = _tops([s.path for s in project.sources if s.path.rpartition("/")[2] == "CMakeLists.txt"])
    for source in project.sources:
        how = {"cmake": _cmake, "make": _make, "shell": _shell, "recipe": _recipe}.get(source.kind)
        if source.kind == "cmake" and source.path not in tops:
            continue
        if how is None or project.vendor_of(source.path, source.kind) == "amd":
            continue
        try:
            text, note = project.read(source.path)
        except (OSError, UnreadableError):
            continue
        done, refused = how(source.path, text) if "Latin" not in note else ([], [])
        new = apply_lines(text, done) if done else text
        if done and source.kind == "cmake" and not (verdict := gate.check_cmake(text, new)).passes:
            done, refused, new = [], [EditRefusal(done[0].line, verdict.reason, "build")], text
        if done or refused:
            found.append((source.path, text, new, done, refused))
    return found


def _tops(paths: list[str]) -> set[str]:
    """The CMakeLists.txt of the tree's root; without one, those that have none above them."""
    folders = {p.rpartition("/")[0] for p in paths}
    return {
        p for p in paths
        if not any(f != p.rpartition("/")[0] and (not f or p.startswith(f"{f}/")) for f in folders)
    }  # fmt: skip


def _cmake(path: str, text: str) -> tuple[list[Edit], list[EditRefusal]]:
    """The first ``project()`` with HIP in CUDA's place; the rest is the toolkit folder's."""
    made = fix_project(TextFile(path, text, "cmake"))
    return ([made], []) if isinstance(made, Edit) else ([], [made] if made is not None else [])


def _make(path: str, text: str) -> tuple[list[Edit], list[EditRefusal]]:
    """The toolkit folder at the head, and variables of other names that hold nvcc or the toolkit's place."""
    if "USE_HIP" in text or not re.search(r"nvcc|(?i:cuda)", text):
        return [], []
    up = "../" * path.count("/")
    done = _assignments(
        text,
        _MAKE,
        lambda name, value, pad: f"{pad}ifdef USE_HIP\n{pad}{name} := {value}\n{pad}endif",
        f"$(CURDIR)/{up}{HOME}",
    )
    first = text.partition("\n")[0]
    head = f"ifdef USE_HIP\ninclude $(dir $(lastword $(MAKEFILE_LIST))){up}{HOME}/hip.mk\nendif"
    if done and done[0].line == 1:
        done[0] = replace(done[0], text=f"{head}\n{done[0].text}")
    else:
        done.insert(0, Edit(1, 0, f"{head}\n{first}", last_line=1, rule="build"))
    return done, []


def _shell(path: str, text: str) -> tuple[list[Edit], list[EditRefusal]]:
    home = f'"$(dirname "$0")/{"../" * path.count("/")}{HOME}"'
    return _assignments(
        text, _SHELL, lambda name, value, pad: f'{pad}if [ -n "${{USE_HIP:-}}" ]; then {name}={value}; fi', home
    ), []


def _recipe(path: str, text: str) -> tuple[list[Edit], list[EditRefusal]]:
    """Meson and Bazel: their CUDA support takes the toolkit from the environment."""
    name = path.rpartition("/")[2].lower()
    if name.startswith("configure"):
        return _shell(path, text)
    if (name == "meson.build" and re.search(r"['\"]cuda['\"]", text)) or (
        name.startswith(("build", "workspace", "module")) and "cuda" in text
    ):
        line = text[: text.lower().index("cuda")].count("\n") + 1
        variable = "CUDA_PATH" if name == "meson.build" else "CUDA_TOOLKIT_PATH"
        return [], [
            EditRefusal(
                line,
                f"no edit: run this build with {variable} set to {HOME}, which stands in for the toolkit",
                "build",
            )
        ]
    return [], []


def _assignments(text: str, pattern: re.Pattern[str], gated: Callable[[str, str, str], str], home: str) -> list[Edit]:
    """Below each variable that names nvcc or the toolkit's folder, the same variable for HIP."""
    done: list[Edit] = []
    if "USE_HIP" in text:
        return done
    rows = text.split("\n")
    for number, row in enumerate(rows, 1):
        match = pattern.match(row[:2000])
        if match is None or row.rstrip().endswith("\\"):
            continue
        value = match["value"].strip()
        quote = '"' if home.startswith('"') else ""
        if _NVCC.search(value.strip("\"'")):
            instead = f"{home.rstrip(quote)}/bin/nvcc{quote}"
        elif _TOOLKIT.match(value):
            instead = home
        else:
            continue
        done.append(
            Edit(
                number, 0, f"{row}\n{gated(match['name'], instead, match['indent'])}", last_line=number, rule="build"
            )
        )
    return done


def how_to_build(project: Project) -> list[str]:
    """The commands that build the fixed tree for AMD, by the build that the repository has."""
    kinds = {s.kind for s in project.sources if s.path.count("/") == 0 or s.kind == "cmake"}
    said = []
    if project.has_torch_extension:
        return ["PYTORCH_ROCM_ARCH=gfx1030 pip install --no-build-isolation ."]
    if project.has_file("CMakeLists.txt"):
        path = f"PATH=$PWD/{HOME}/bin:$PATH"  # for builds that look for nvcc themselves
        said.append(f"{path} cmake -S . -B build -DUSE_HIP=ON -DCMAKE_HIP_ARCHITECTURES=gfx1030")
    if "make" in kinds:
        said.append("make USE_HIP=1 HIP_ARCHITECTURES=gfx1030")
    if project.has_file("configure") or project.has_file("configure.ac"):
        said.append(f"USE_HIP=1 ./configure NVCC=$PWD/{HOME}/bin/nvcc CUDA_HOME=$PWD/{HOME}")
    return said or [
        f"CUDA_HOME=$PWD/{HOME} CUDA_PATH=$PWD/{HOME} PATH=$PWD/{HOME}/bin:$PATH with the project's own build"
    ]
