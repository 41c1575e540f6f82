"""What a name says about the device: ``is_rocm``, ``TEST_WITH_ROCM``, ``BNB_HIP``, ``on_gfx94``.

Names are split into words and judged by the words, so that a project's own spelling is understood without a
list of projects. A name *claims* a vendor when the vendor's word stands with claim words only (``is_hip``,
``rocm_available``); a name that merely contains the word (``use_hip_fused_adam``) is false without such a
device and not known with one.

Sources: the guard lists of the rule data (research of 2026-11); tests/unit/gfxgraph_port/test_guards.py.
"""

from __future__ import annotations

from functools import lru_cache

from gfxgraph_port import bounded as re
from gfxgraph_port.archs import Arch
from gfxgraph_port.guards.worlds import UNKNOWN, DeviceKind, Value

AMD_WORDS = frozenset(
    {"rocm", "hip", "amd", "amdgpu", "hcc", "hipcc", "amdgcn", "rocmpytorch", "rocm5", "rocm6", "rocm7"}
)
NVIDIA_WORDS = frozenset({"nvidia", "nvcc", "cudacc", "nv"})
CUDA_WORDS = frozenset({"cuda"})
CLAIM_WORDS = frozenset(
    "is has have use using with on under build built building run running test torch pytorch platform device "
    "gpu backend available extension installed enabled enable support supported runtime env compile compiled "
    "target home path version root system detected in i am we vendor wheel and or op ops compiler ext any "
    "want wants check get mode current detect config accelerator the a get".split()
)
_NEGATIONS = frozenset({"no", "not", "non", "without", "disable", "disabled", "skip", "never", "except"})
_SPLIT = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z0-9]+")
_GFX = re.compile(r"^gfx[0-9a-f]{1,5}$|^gfx[0-9]+x+$", re.I)


@lru_cache(maxsize=8192)
def words(name: str) -> tuple[str, ...]:
    """``isHipBuild`` and ``IS_HIP_BUILD`` both give ``("is", "hip", "build")``."""
    return tuple(w.lower() for part in name.split("_") for w in _SPLIT.findall(part))


def arch_matches(prefix: str, arch: Arch) -> bool:
    """Whether an architecture answers to ``gfx942``, ``gfx94``, ``gfx9`` or ``gfx94x``, as code means it.

    ``gfx9`` in code means the gfx9 family (three digits), never gfx90a's absence; prefixes are taken as
    ``str.startswith`` takes them.
    """
    return arch.name.startswith(prefix.lower().rstrip("x*"))


@lru_cache(maxsize=8192)
def _may_be_arch(word: str) -> bool:
    return bool(_GFX.match(word) or re.match(r"[cr]dna|navi|mi(\d|$)|fnuz|wave", word))


def arch_word(word: str, arch: Arch) -> bool | None:
    """The outcome of an architecture word in a name; None when the word is not one."""
    if not _may_be_arch(word):
        return None
    if _GFX.match(word):
        return arch_matches(word, arch)
    if word == "cdna":
        return arch.is_cdna
    if word in ("rdna", "navi"):
        return arch.family.startswith("RDNA")
    if re.fullmatch(r"cdna\d", word):
        return arch.family == word.upper()
    if re.fullmatch(r"rdna\d", word):
        return arch.family.split(".")[0] == word.upper()
    if m := re.fullmatch(r"navi(\d)\w*", word):
        return {"1": "RDNA1", "2": "RDNA2", "3": "RDNA3", "4": "RDNA4"}.get(m[1]) == arch.family.split(".")[0]
    if m := re.fullmatch(r"mi(\d{1,3}|\dxx)x?", word):
        series = {"1": "CDNA1", "2": "CDNA2", "35": "CDNA4", "3": "CDNA3"}
        digits = m[1]
        if digits == "3xx":
            return arch.family in ("CDNA3", "CDNA4")
        return series.get(digits[:2], series.get(digits[:1])) == arch.family
    if word == "fnuz":
        return arch.fp8 == "fnuz"
    if word == "wave64":
        return arch.wavefront == 64
    if word == "wave32":
        return arch.wavefront == 32
    return None


def judge(name: str, world: DeviceKind, *, vendor_cuda: bool = False) -> Value:
    """Evaluate a name used as a condition.

    Args:
        name: the last part of a dotted name.
        world: where it is evaluated.
        vendor_cuda: whether ``cuda`` here names the vendor (``current_platform.is_cuda()``), not the device
            type, which is ``cuda`` on AMD too.

    Returns:
        True or False where the name claims a vendor or an architecture; UNKNOWN otherwise.
    """
    parts = words(name)
    if not parts:
        return UNKNOWN
    amd = [w for w in parts if w in AMD_WORDS]
    nvidia = [w for w in parts if w in NVIDIA_WORDS or (vendor_cuda and w in CUDA_WORDS)]
    archs = [] if world.arch is None else [r for w in parts if (r := arch_word(w, world.arch)) is not None]
    names_arch = any(_is_arch_word(w) for w in parts)
    if not (amd or nvidia or names_arch) or (amd and nvidia):
        return UNKNOWN
    if any(w == "amd64" for w in parts):
        return UNKNOWN
    negated = sum(w in _NEGATIONS for w in parts) % 2 == 1
    rest = [w for w in parts if w not in AMD_WORDS | NVIDIA_WORDS | CUDA_WORDS | _NEGATIONS]
    rest = [w for w in rest if not _is_arch_word(w)]
    is_claim = all(w in CLAIM_WORDS or w.isdigit() for w in rest)
    if names_arch:
        here = world.is_amd and bool(archs) and any(archs)
        if not is_claim:
            return UNKNOWN if here or negated else False
    elif amd:
        here = world.is_amd
        if not is_claim:
            return UNKNOWN if here or negated else False
    else:
        here = not world.is_amd
        if not is_claim:
            return UNKNOWN
    return here != negated


@lru_cache(maxsize=8192)
def _is_arch_word(word: str) -> bool:
    return bool(_GFX.match(word) or re.fullmatch(r"[cr]dna\d?|navi\d*x?|mi(\d{2,3}|\dxx)x?|fnuz|wave(32|64)", word))
