"""A list of packages for ROCm beside each list that brings NVIDIA's: ``requirements-rocm.txt``.

The old list stays as it is, so NVIDIA's installs do too. torch and its family are left out, because pip would put
PyPI's CUDA build over an installed ROCm torch; NVIDIA's own wheels go, or their counterparts stand in their place.
"""

from __future__ import annotations

import posixpath

from gfxgraph.port import bounded as re
from gfxgraph.port.fix.edits import Edit
from gfxgraph.port.project import Project, UnreadableError
from gfxgraph.port.readers.requirements import RequirementFile

_LIST = re.compile(r"(?i)requirements?[\w.-]*\.(txt|in)$")
_TORCH = frozenset({"torch", "torchvision", "torchaudio", "triton", "pytorch-triton"})
_NVIDIA = re.compile(
    r"nvidia-.+|cuda-(?:python|bindings|core|toolkit)|cupy-cuda.*|tensorrt.*|torch-tensorrt|nvtx|pycuda|numba-cuda"
)
_INSTEAD = {
    "onnxruntime-gpu": "onnxruntime-migraphx", "pynvml": "amdsmi", "nvidia-ml-py": "amdsmi",
    "nvidia-ml-py3": "amdsmi", "faiss-gpu": "faiss-cpu",
}  # fmt: skip
ANSWERED = frozenset({"GFX001", "GFX003", "GFX004", "GFX005"})
"""Rules whose findings in a list the new list answers."""
NEEDS = "torch for ROCm is installed first; the new list is kept in step with the old one"


def lists(project: Project) -> list[tuple[str, str, str, Edit]]:
    """Path, text and origin of each new list, and the edit that it stands for."""
    made = []
    for path in sorted(project.paths("requirements")):
        folder, name = posixpath.split(path)
        stem, ext = posixpath.splitext(name)
        new = posixpath.join(folder, f"{stem}-rocm{ext}")
        if not _LIST.search(name) or project.vendor_of(path, "requirements") or project.has_file(new):
            continue
        try:
            text = project.read(path)[0]
        except (OSError, UnreadableError):
            continue
        if "--hash" in text:
            continue  # compiled: it is made anew from its source
        lines, changed = _for_rocm(RequirementFile(path, text))
        if changed:
            use = f"pip install -r {posixpath.basename(new)}"
            head = f"# {name} for AMD GPUs. Install torch for ROCm first, then: {use}\n"
            edit = Edit(1, 0, "", "GFX001", needs=NEEDS)
            made.append((new, head + "\n".join(lines).rstrip("\n") + "\n", path, edit))
    return made


def _for_rocm(f: RequirementFile) -> tuple[list[str], bool]:
    needs = {need.line: need for need in f.needs}
    indexes = {index.line for index in f.indexes if re.search(r"/cu\d{2,3}\b|nvidia", index.url)}
    lines: list[str] = []
    changed = False
    for number, line in enumerate(f.lines, 1):
        need = needs.get(number)
        instead = _INSTEAD.get(need.name) if need else None
        if number in indexes:
            lines.append(f"# without NVIDIA's index: {line.strip()}")
        elif need and need.name in _TORCH and "rocm" not in need.spec:
            lines.append(f"# installed before, as ROCm's build: {line.strip()}")
        elif instead:
            lines.append(f"{instead}  # in the place of {line.strip()}")
        elif need and _NVIDIA.fullmatch(need.name):
            lines.append(f"# NVIDIA only: {line.strip()}")
        else:
            lines.append(line)
            continue
        changed = True
    return lines, changed
