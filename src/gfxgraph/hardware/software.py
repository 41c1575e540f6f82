"""Installed software, read from files and never imported: torch, ROCm trees, the kernel module."""

from __future__ import annotations

import ast
import importlib.machinery
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gfxgraph.hardware import versions
from gfxgraph.hardware.machine import Machine


@dataclass(frozen=True, slots=True)
class Torch:
    """A PyTorch installation as its ``version.py`` describes it."""

    version: str = ""
    hip: str = ""
    cuda: str = ""
    rocm: str = ""
    path: str = ""

    @property
    def kind(self) -> str:
        """``rocm``, ``cuda``, ``cpu``, or ``none`` where torch is not installed."""
        if not self.version:
            return "none"
        return "rocm" if self.hip else "cuda" if self.cuda else "cpu"


@dataclass(frozen=True, slots=True)
class Rocm:
    """A ROCm installation: where it is and what it calls itself."""

    path: str
    version: str


def find_torch(search: Sequence[str] | None = None) -> Torch:
    """Describe the torch that ``import torch`` would load, without importing it.

    Args:
        search: folders to look in; the interpreter's own path where None.
    """
    # PathFinder rather than find_spec: it never runs import hooks or a parent package.
    spec = importlib.machinery.PathFinder.find_spec("torch", list(sys.path if search is None else search))
    if spec is None or spec.origin is None:
        return Torch()
    folder = Path(spec.origin).parent
    try:
        values = _assignments((folder / "version.py").read_text())
    except (OSError, SyntaxError):
        return Torch()
    return Torch(
        version=values.get("__version__", ""),
        hip=values.get("hip", ""),
        cuda=values.get("cuda", ""),
        rocm=values.get("rocm", ""),
        path=str(folder),
    )


def other_gfxgraph(search: Sequence[str] | None = None) -> tuple[str, str]:
    """Version and folder of another project's distribution called gfxgraph, ``("", "")`` where there is none.

    PyPI's gfxgraph 1.1.0 is another build. Where both are installed, whichever folder comes first on the path is
    imported.
    """
    # lazily: reading the metadata of what is installed is for those who ask
    from importlib.metadata import distributions

    for found in distributions(name="gfxgraph", path=list(sys.path if search is None else search)):
        if found.version.partition(".")[0] in ("0", "1"):
            return found.version, str(found.locate_file(""))
    return "", ""


def _assignments(source: str) -> dict[str, str]:
    """Return the module-level names that are set to plain strings."""
    found = {}
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign):
            targets, value = statement.targets, statement.value
        elif isinstance(statement, ast.AnnAssign):
            targets, value = [statement.target], statement.value or ast.Constant(None)
        else:
            continue
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            found.update({target.id: value.value for target in targets if isinstance(target, ast.Name)})
    return found


def find_rocm(machine: Machine) -> list[Rocm]:
    """Return every ROCm under /opt and /usr, the one that /opt/rocm points at first."""
    current = machine.path("/opt/rocm").resolve()
    found: dict[Path, Rocm] = {}
    for path in [machine.path("/opt/rocm"), *machine.glob("/opt/rocm-*"), machine.path("/usr")]:
        real = path.resolve()
        version = _rocm_version(path)
        runtime = any((path / lib / "libamdhip64.so").exists() for lib in ("lib", "lib64"))
        runtime = runtime or bool(list(path.glob("lib*/libamdhip64.so.*")))
        runtime = runtime or bool(list(path.glob("lib/*-linux-gnu/libamdhip64.so*")))
        if path.name == "usr" and not runtime:
            continue
        if (version or runtime) and real not in found:
            found[real] = Rocm("/" + str(path.relative_to(machine.root)), version)
    return sorted(found.values(), key=lambda rocm: machine.path(rocm.path).resolve() != current)


def runtime_version(machine: Machine, library_path: str = "") -> str:
    """HIP's version as the runtime's own file name says it (``libamdhip64.so.7.2.70204``); "" where none does.

    Args:
        library_path: folders to look in before ROCm's, as in LD_LIBRARY_PATH.
    """
    trees = [folder for one in find_rocm(machine) for folder in _library_folders(one)]
    return _named_version(machine, [*(one for one in library_path.split(":") if one.startswith("/")), *trees])


def tree_version(machine: Machine, tree: Rocm) -> str:
    """The version that a ROCm tree says, or, where it says none (a distribution's), its HIP runtime's file."""
    if tree.version:
        return tree.version
    found = versions.rocm_of_hip(versions.parse(_named_version(machine, _library_folders(tree))))
    return versions.show(found) if found else ""


def _library_folders(tree: Rocm) -> list[str]:
    return [f"{tree.path}/{lib}" for lib in ("lib", "lib64", "lib/x86_64-linux-gnu")]


def _named_version(machine: Machine, folders: Sequence[str]) -> str:
    for folder in folders:
        names = {file.resolve().name for file in machine.glob(f"{folder}/libamdhip64.so*")}
        found = [match[1] for name in names if (match := re.fullmatch(r"libamdhip64\.so\.(\d+(?:\.\d+)+).*", name))]
        if found:
            return found[0]
    return ""


def migraphx_available(machine: Machine | None = None, rocm: Sequence[Rocm] | None = None) -> bool:
    """Whether AMD's MIGraphX is installed: its Python module, or its library in a ROCm tree. Imports nothing.

    Args:
        machine: where to look; this machine where None.
        rocm: the ROCm trees to look in; those of the machine where None.
    """
    import importlib.metadata  # here: it costs as much to load as everything that explain needs

    for name in ("migraphx", "torch-migraphx"):
        with suppress(importlib.metadata.PackageNotFoundError):
            return bool(importlib.metadata.version(name))
    # ROCm's packages put the module beside the library, without package metadata.
    if machine is None and importlib.machinery.PathFinder.find_spec("migraphx") is not None:
        return True
    machine = machine or Machine()
    trees = find_rocm(machine) if rocm is None else rocm
    return any((machine.path(one.path) / "lib/libmigraphx.so").exists() for one in trees)


def _rocm_version(path: Path) -> str:
    for name in (".info/version", ".info/version-dev", ".info/version-hiprt"):
        try:
            return (path / name).read_text().strip().split("-")[0]
        except OSError:
            continue
    match = re.fullmatch(r"rocm-(\d+(?:\.\d+)+)", path.resolve().name)
    return match[1] if match else ""


def kernel_module(machine: Machine) -> dict[str, str]:
    """Return the amdgpu module's state: ``loaded``, ``version`` (only a DKMS build has one), ``kernel``."""
    loaded = machine.exists("/sys/module/amdgpu")
    return {
        "loaded": "yes" if loaded else "no",
        "version": machine.text("/sys/module/amdgpu/version"),
        "kernel": machine.text("/proc/sys/kernel/osrelease"),
    }


def built_targets(torch: Torch) -> list[str]:
    """The targets that a torch's rocBLAS has kernels for, as its files are named; [] where there are none."""
    files = Path(torch.path, "lib/rocblas/library").glob("*_gfx*") if torch.path else ()
    return sorted({match[1] for file in files if (match := re.search(r"_(gfx[0-9a-f]+)\.", file.name))})
