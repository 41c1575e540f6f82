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
_NO_COUNTERPART = frozenset({"inline-ptx", "cutlass", "wmma", "libcudacxx-cg", "cudnn-cpp", "ptx-cubin-load"})
_MANY = 0.4  # of the files with device code: beyond, translating them is writing them anew


class PortingRoute(StrEnum):
    """How the CUDA sources come to run on AMD."""

    NONE = "no-kernels"
    EXISTING = "existing-hip-build"
    HIPIFY = "hipify-at-build"
    HEADER = "compat-header"
    DUAL = "dual-source"
    TRITON = "triton"


_WHY: dict[PortingRoute, Pair] = {
    PortingRoute.NONE: ("no CUDA sources and no Triton kernels: packages, flags and gates only",
                        "没有 CUDA 源码与 Triton 核函数：只涉及软件包、标志与判断"),
    PortingRoute.EXISTING: ("a HIP build exists already: extend it", "已有 HIP 构建：在其上扩展"),
    PortingRoute.HIPIFY: ("a torch extension: its build translates the sources on ROCm by itself, keep CUDA's spelling",
                          "torch 扩展：在 ROCm 上构建时会自动转换源码，保留 CUDA 写法"),
    PortingRoute.HEADER: ("the project's own build with hipcc, and a folder that stands in for CUDA's toolkit",
                          "用 hipcc 进行项目自己的构建，并以一个文件夹代替 CUDA 工具包"),
    PortingRoute.DUAL: ("beyond 40% a translation would be written anew: keep NVIDIA's files, write AMD's beside them",
                        "超过 40% 时翻译等于重写：保留 NVIDIA 的文件，在旁边写 AMD 的"),
    PortingRoute.TRITON: ("kernels in Triton compile for AMD", "Triton 核函数可为 AMD 编译"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Strategy:
    """The way, and its reasons in this repository."""

    way: PortingRoute
    reasons: tuple[Pair, ...]


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
    by_file: dict[str, set[str]] = {}
    for f in audit.findings:
        by_file.setdefault(f.path, set()).add(f.code)
    sources = set(project.paths("cpp"))
    native = {p for p in sources if p.endswith((".cu", ".cuh"))}
    native |= project.cuda_sources | {p for p in sources & by_file.keys() if by_file[p] & _NO_COUNTERPART}
    stuck = {p for p in native if by_file.get(p, set()) & _NO_COUNTERPART}
    triton = sum(1 for codes in by_file.values() if any(c.startswith("triton-") for c in codes))
    if not native:
        way = PortingRoute.TRITON if triton else PortingRoute.NONE
    elif len(stuck) > _MANY * len(native):
        way = PortingRoute.TRITON if triton > len(native) else PortingRoute.DUAL
    elif project.has_torch_extension:
        way = PortingRoute.HIPIFY
    else:
        way = PortingRoute.EXISTING if project.has_hip_build else PortingRoute.HEADER
    counts = (f"{len(native)} files with CUDA code, {len(stuck)} of them with parts that HIP has no counterpart for",
              f"{len(native)} 个文件含 CUDA 代码，其中 {len(stuck)} 个含 HIP 没有对应的部分")  # fmt: skip
    return Strategy(way, (_WHY[way], *([counts] if native else [])))


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
