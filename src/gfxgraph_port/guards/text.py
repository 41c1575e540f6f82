"""Guards in shell, CMake, Make and Dockerfiles, judged by the words of a branch's test."""

from __future__ import annotations

from gfxgraph_port import bounded as re
from gfxgraph_port.archs import Arch
from gfxgraph_port.guards.names import AMD_WORDS, words
from gfxgraph_port.readers.text import LogicalLine, PreprocessorBranch

_AMD_TOOLS = frozenset({"rocminfo", "rocmsmi", "amdsmi", "hipcc", "hipconfig", "kfd"})
_NVIDIA = frozenset({"cuda", "nvidia", "nvcc", "nvidiasmi", "smi"})


def _vendor(text: str) -> str:
    """``"amd"``, ``"nvidia"`` or ``""`` for what a test asks about."""
    tokens = {w for name in re.findall(r"[A-Za-z_][\w-]*", text.replace("-", "_")) for w in words(name)}
    squeezed = text.replace("-", "").lower()
    if tokens & AMD_WORDS or any(t in squeezed for t in _AMD_TOOLS):
        return "amd"
    return "nvidia" if tokens & _NVIDIA else ""


def _negated(text: str) -> bool:
    lowered = text.lower()
    return (
        bool(re.search(r"(^|[\s(])(not|!)\s|!=|\s-z\s|strequal\s+\"?\"?\s*$", lowered))
        and "strequal off" not in lowered
    )


def excludes_amd(condition: PreprocessorBranch) -> bool:
    """Whether a branch is one that an AMD build does not take."""
    vendor = _vendor(condition.text)
    if condition.taken and re.search(r" = \(?cu\d{2,3}\b", condition.text):
        return True  # a case arm for one CUDA version
    if vendor == "amd":
        return condition.taken == _negated(condition.text)
    others = (s for s in condition.siblings if s and s != condition.text)
    beside_amd = any(_vendor(s) == "amd" and not _negated(s) for s in others)
    if condition.taken:
        return vendor == "nvidia" and not _negated(condition.text) and beside_amd
    return beside_amd  # the else of a chain that tested AMD before


def reaching(entry: LogicalLine, archs: tuple[Arch, ...]) -> tuple[tuple[Arch, ...], str]:
    """Which architectures' builds run a line, and in words the branch that keeps them out."""
    for condition in entry.conditions:
        if excludes_amd(condition):
            return (), f"line {condition.line}: {condition.text[:100]}"
    return archs, ""
