"""Which way to port a repository, with the reasons found in it, and the order of the edits.

Four ways: a header of aliases with a build option, torch's hipify at build time, a second source for AMD beside
NVIDIA's, or Triton kernels that run on both. Which one is settled by what builds the sources and by how much of them
has no counterpart in HIP.

Enters: an audit and its project.
Stays out: words on a screen.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from gfxgraph.port.audit import Audit
from gfxgraph.port.impact import Impact, impact_of
from gfxgraph.port.model import Finding
from gfxgraph.port.project import Project

Pair = tuple[str, str]
_NO_COUNTERPART = frozenset(
    {"inline-ptx", "cutlass", "wmma", "libcudacxx-cg", "dynamic-parallelism", "cudnn-cpp", "ptx-cubin-load"}
)
_MANY = 0.4  # of the files with device code: beyond, translating them is writing them anew


class PortingRoute(StrEnum):
    """How the CUDA sources come to run on AMD."""

    NONE = "no-kernels"
    EXISTING = "existing-hip-build"
    HIPIFY = "hipify-at-build"
    HEADER = "compat-header"
    DUAL = "dual-source"
    TRITON = "triton"


@dataclass(frozen=True, slots=True)
class Strategy:
    """The way, its reasons in this repository, and what speaks for another."""

    way: PortingRoute
    reasons: tuple[Pair, ...]
    also: tuple[Pair, ...] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of the work: what to do, and the findings it is about, worst first."""

    name: Pair
    codes: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def count(self) -> int:
        return len(self.findings)


def choose(audit: Audit, project: Project) -> Strategy:
    """Choose the way for a repository."""
    sources = [p for p in project.paths("cpp") if p.endswith((".cu", ".cuh"))]
    by_file: dict[str, set[str]] = {}
    for f in audit.findings:
        by_file.setdefault(f.path, set()).add(f.code)
    native = {
        p
        for p, codes in by_file.items()
        if codes & {"untranslated-cuda", *_NO_COUNTERPART} and p in set(project.paths("cpp"))
    }
    native |= set(sources)
    stuck = {p for p in native if by_file.get(p, set()) & _NO_COUNTERPART}
    triton = sum(1 for codes in by_file.values() if any(c.startswith("triton-") for c in codes))
    share = len(stuck) / len(native) if native else 0.0
    counts = (f"{len(native)} files with CUDA code, {len(stuck)} of them with parts that HIP has no counterpart for",
              f"{len(native)} 个文件含 CUDA 代码，其中 {len(stuck)} 个含 HIP 没有对应的部分")  # fmt: skip
    if not native:
        if triton:
            said = (f"no CUDA sources; {triton} files of Triton kernels, which compile for AMD",
                    f"没有 CUDA 源码；{triton} 个文件含 Triton 核函数，可为 AMD 编译")  # fmt: skip
            return Strategy(PortingRoute.TRITON, (said,))
        said = (
            "no CUDA sources and no Triton kernels: packages, flags and gates only",
            "没有 CUDA 源码与 Triton 核函数：只涉及软件包、标志与判断",
        )
        return Strategy(PortingRoute.NONE, (said,))
    if share > _MANY:
        instead = (
            f"{triton} files of Triton kernels may take the place of the kernels",
            f"{triton} 个文件的 Triton 核函数可替代这些核函数",
        )
        rest = (
            "beyond 40% a translation would be written anew: keep NVIDIA's files, write AMD's beside them",
            "超过 40% 时翻译等于重写：保留 NVIDIA 的文件，在旁边写 AMD 的",
        )
        route = PortingRoute.TRITON if triton > len(native) else PortingRoute.DUAL
        return Strategy(route, (counts, rest), (instead,) if triton else ())
    if project.has_torch_extension:
        why = (
            "a torch extension: its build translates the sources on ROCm by itself, keep CUDA's spelling",
            "torch 扩展：在 ROCm 上构建时会自动转换源码，保留 CUDA 写法",
        )
        return Strategy(PortingRoute.HIPIFY, (why, counts))
    if project.has_hip_build:
        return Strategy(
            PortingRoute.EXISTING, (("a HIP build exists already: extend it", "已有 HIP 构建：在其上扩展"), counts)
        )
    cmake = any(True for _ in project.paths("cmake"))
    why = (
        (
            "CMake builds the sources: an option marks them LANGUAGE HIP, a header gives CUDA's names HIP's meaning",
            "由 CMake 构建：用选项把源码标为 LANGUAGE HIP，用头文件把 CUDA 名称映射到 HIP",
        )
        if cmake
        else (
            "no CMake and no torch extension: hipcc as the compiler, with a header of aliases",
            "没有 CMake 与 torch 扩展：以 hipcc 为编译器，加别名头文件",
        )
    )
    return Strategy(PortingRoute.HEADER, (why, counts))


_STAGES: tuple[tuple[Pair, tuple[int, ...], tuple[Impact, ...]], ...] = (
    (("packages and images, so that a ROCm environment stays one", "软件包与镜像：让 ROCm 环境保持为 ROCm"), (0,), (Impact.BREAKS, Impact.SILENT)),
    (("the build, until every file is compiled for AMD", "构建：直到每个文件都为 AMD 编译"), (4,), (Impact.BREAKS, Impact.SILENT)),
    (("what stops the compiler or an import", "阻止编译或导入的部分"), (1, 2, 3, 5, 6, 7, 8), (Impact.BREAKS,)),
    (("what runs and is wrong: warps, gates, types", "能运行但结果错误：warp、判断、类型"), (1, 2, 3, 5, 6, 7, 8), (Impact.SILENT,)),
    (("what is slow, once results agree", "结果一致之后再处理慢的部分"), tuple(range(9)), (Impact.SLOW,)),
    (("names, which the chosen way takes care of", "名称：由所选方式统一处理"), tuple(range(9)), (Impact.NAME,)),
)  # fmt: skip


def stages(findings: list[Finding]) -> list[Stage]:
    """The stages that have anything to do, in order; each finding is in one of them."""
    made, seen = [], set()
    for name, phases, impacts in _STAGES:
        mine = [f for f in findings if f.phase in phases and impact_of(f.code) in impacts and id(f) not in seen]
        seen |= {id(f) for f in mine}
        codes = Counter(f.code for f in mine)
        if mine:
            made.append(Stage(name, tuple(c for c, _ in codes.most_common()), tuple(mine)))
    return made
