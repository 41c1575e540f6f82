"""Guards in C++ and CUDA: which preprocessor arms a device's build reaches.

A macro is known by name (``USE_ROCM``, ``__HIP_PLATFORM_AMD__``, ``BNB_HIP``), by architecture
(``__gfx942__``), or by closure over the repository: one that is only ever defined inside an AMD arm is AMD,
one only defined where AMD never gets is undefined there.

``__CUDA_ARCH__`` is undefined under HIP, so ``>= 800`` is false and ``< 700`` is true; ``__CUDACC__`` is
rewritten by torch's hipify and counts as not known.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass, field

from gfxgraph_port.archs import Arch, select
from gfxgraph_port.guards.names import AMD_WORDS, CLAIM_WORDS, CUDA_WORDS, NVIDIA_WORDS, arch_word, words
from gfxgraph_port.guards.worlds import NVIDIA, UNKNOWN, DeviceKind, Value, all_of, any_of, negate, truth
from gfxgraph_port.readers.directives import Arm, names_in

_NOT_ON_AMD = frozenset(
    {
        "__CUDA_ARCH__", "__NVCC__", "__CUDACC_VER_MAJOR__", "__CUDACC_VER_MINOR__", "__CUDACC_VER_BUILD__",
        "__HIP_PLATFORM_NVIDIA__", "__HIP_PLATFORM_NVCC__", "__CUDA_ARCH_LIST__", "__CUDA_ARCH_FEAT_SM90_ALL",
        "__CUDACC_RELAXED_CONSTEXPR__", "__CUDACC_EXTENDED_LAMBDA__", "__NVCOMPILER",
    }
)  # fmt: skip
_BOTH_PASSES = frozenset({"__HIP_DEVICE_COMPILE__"})
_NEGATIVE = frozenset({"no", "not", "disable", "disabled", "without"})


@dataclass(slots=True)
class Macros:
    """What the repository's headers say about its macros: name to (defined on AMD, defined on NVIDIA)."""

    known: dict[str, tuple[bool, bool]] = field(default_factory=dict)


def judge_macro(name: str, world: DeviceKind, macros: Macros) -> Value:
    """Whether a macro is defined in a world."""
    if name in _NOT_ON_AMD:
        return False if world.is_amd else UNKNOWN
    if name in _BOTH_PASSES:
        return UNKNOWN if world.is_amd else False
    parts = words(name)
    lowered = set(parts)
    amd = lowered & AMD_WORDS
    if amd and not lowered & (NVIDIA_WORDS | CUDA_WORDS):
        rest = [w for w in parts if w not in AMD_WORDS and w not in CLAIM_WORDS and w not in _NEGATIVE]
        negated = bool(lowered & _NEGATIVE)
        if not world.is_amd:
            return UNKNOWN if negated else False
        if len(rest) <= 1 and not negated:
            return True
    if world.arch is not None:
        outcomes = [r for w in parts if (r := arch_word(w, world.arch)) is not None]
        if outcomes:
            return any(outcomes)
    elif any(w.startswith("gfx") for w in parts):
        return False
    if name in macros.known:
        defined = macros.known[name][0 if world.is_amd else 1]
        if not defined:
            return False
        if not macros.known[name][1 if world.is_amd else 0]:
            return True
    return UNKNOWN


def evaluate(condition: ast.expr | None, world: DeviceKind, macros: Macros) -> Value:
    """Evaluate an ``#if`` condition in a world."""
    match condition:
        case None:
            return True
        case ast.Call(func=ast.Name(id="defined"), args=[ast.Name(id=name)]) | ast.Name(id=name):
            return name == "true" if name in ("true", "false") else judge_macro(name, world, macros)
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return negate(evaluate(inner, world, macros))
        case ast.BoolOp(op=op, values=values):
            every = [evaluate(v, world, macros) for v in values]
            return all_of(every) if isinstance(op, ast.And) else any_of(every)
        case ast.Constant(value=int(n)):
            return n != 0
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            a, b = _number(left, world, macros), _number(right, world, macros)
            compare = _COMPARE.get(type(op))
            return UNKNOWN if a is None or b is None or compare is None else compare(a, b)
    return UNKNOWN


_COMPARE: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.Gt: operator.gt, ast.LtE: operator.le,
    ast.GtE: operator.ge,
}  # fmt: skip


def _number(side: ast.expr, world: DeviceKind, macros: Macros) -> int | None:
    if isinstance(side, ast.Constant):
        return side.value if isinstance(side.value, int) else None
    return 0 if isinstance(side, ast.Name) and truth(judge_macro(side.id, world, macros)) is False else None


def _is_cuda_only(expr: ast.expr | None) -> bool:
    names = names_in(expr)
    return bool(names) and all(set(words(n)) & (CUDA_WORDS | NVIDIA_WORDS | {"cudnn", "nccl"}) for n in names)


def arm_outcome(arm: Arm, world: DeviceKind, macros: Macros) -> bool | None:
    """Whether one arm is taken, looking at its own chain only."""
    own = truth(evaluate(arm.condition, world, macros))
    earlier = [truth(evaluate(a.condition, world, macros)) for a in arm.earlier]
    if own is False or any(e is True for e in earlier):
        return False
    if world.is_amd and arm.condition is not None and _is_cuda_only(arm.condition):
        # ``#ifdef USE_CUDA ... #elif defined(USE_ROCM)``: the project names its two platforms apart.
        if any(
            a.condition is not None
            and truth(evaluate(a.condition, world, macros)) is True
            and truth(evaluate(a.condition, NVIDIA, macros)) is False
            for a in (*arm.earlier, *arm.later)
        ) and not isinstance(arm.condition, ast.UnaryOp):
            return False
    if own is True and all(e is False for e in earlier):
        return True
    return None


def excluding_arm(arm: Arm | None, world: DeviceKind, macros: Macros) -> Arm | None:
    """The outermost arm on the way to a line that this world does not take."""
    if arm is None:
        return None
    for step in arm.lineage():
        if arm_outcome(step, world, macros) is False:
            return step
    return None


Sites = dict[str, list[Arm | None]]


def close_over(sites: Sites, rounds: int = 3) -> Macros:
    """Learn the repository's macros from where they are defined.

    Args:
        sites: for each macro, the innermost arm of every definition.
        rounds: definitions that depend on definitions settle after a few passes.
    """
    guarded = {n: arms for n, arms in sites.items() if all(a is not None for a in arms)}
    macros, samples = Macros(), select("gfx90a,gfx1030")
    for _ in range(rounds):
        fresh: dict[str, tuple[bool, bool]] = {}
        for name, arms in guarded.items():
            on_amd = any(excluding_arm(a, DeviceKind(s), macros) is None for a in arms for s in samples)
            on_nvidia = any(excluding_arm(a, NVIDIA, macros) is None for a in arms)
            if on_amd != on_nvidia:
                fresh[name] = (on_amd, on_nvidia)
        if fresh == macros.known:
            break
        macros.known = fresh
    return macros


def reaching(arm: Arm | None, archs: tuple[Arch, ...], macros: Macros) -> tuple[tuple[Arch, ...], str]:
    """Which architectures' builds reach an arm, and in words what keeps the first of the others out."""
    if arm is None:
        return archs, ""
    reached: list[Arch] = []
    reason = ""
    for arch in archs:
        out = excluding_arm(arm, DeviceKind(arch), macros)
        if out is None:
            reached.append(arch)
        elif not reason:
            reason = f"line {out.line}: {out.text[:100]}"
    return tuple(reached), reason
