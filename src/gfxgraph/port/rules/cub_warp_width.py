"""A warp collective of CUB at its default width."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX328",
    code="cub-warp-width",
    severity=Severity.HIGH,
    phase=3,
    fix=Fix.SUGGEST,
    archs=WAVE64,
    tier="extended",
    confidence="verified",
    en=Text(
        "A warp collective of CUB at its default width",
        "{name}",
        "hipCUB's default is the wavefront: 64 lanes on gfx9. One TempStorage and one result for each 32 threads is then the wrong count, and lanes 32 to 63 join another group's sum.",
        "Name the width (cub::WarpReduce<T, 32>), or size storage and results by the device's wavefront.",
    ),
    zh=Text(
        "CUB 的 warp 级原语使用默认宽度",
        "{name}",
        "hipCUB 的默认宽度是 wavefront：gfx9 上为 64 个 lane。此时按每 32 个线程分配一个 TempStorage 和一个结果，数量就不对，lane 32 至 63 会并入别的组。",
        "写明宽度（cub::WarpReduce<T, 32>），或按设备的 wavefront 分配存储与结果。",
    ),
    path="w.cu",
    bad="__global__ void k(float* o) {\n  __shared__ typename cub::WarpReduce<float>::TempStorage s;\n  o[0] = cub::WarpReduce<float>(s).Sum(o[threadIdx.x]);\n}\n",
    good="__device__ float f(WarpReduce<float, 32>& w, float v) { return w.Sum(v); }\n",
    needs=("warpreduce", "warpscan", "warpmergesort"),
)


_DEFAULT = re.compile(r"\bWarp(?:Reduce|Scan)\s*<(?![^;{}]*,\s*\w+\s*>)[^;{}<>]*(?:<[^<>]*>[^<>;]*)?>")


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    yield from once_a_line(_all(f))


def _all(f: CppFile) -> Iterator[Hit]:
    types = set()
    for number, line in enumerate(f.code.split("\n"), 1):
        if match := _DEFAULT.search(line):
            if alias := re.search(r"\busing\s+(\w+)\s*=|\btypedef\b.*>\s*(\w+)\s*;", line):
                types.add(alias[1] or alias[2])
            yield line_hit(number + f.offset, match.start(), name=match.group()[:80])
    for name, at, column in f.idents_like("|".join(map(re.escape, sorted(types))) if types else r"(?!)"):
        yield line_hit(at, column, name=name)


def fix_cpp(hit: Hit, f: CppFile, ctx: Context) -> Edit | EditRefusal:
    """The width that NVIDIA's default has is named."""
    line = f.line_text(hit.line)
    match = re.search(r"\bWarp(?:Reduce|Scan)\s*<\s*([\w:]+)\s*(>)", line)
    if match is None:
        return EditRefusal(hit.line, "the type is a template of several parts")
    return Edit(
        hit.line, match.start(2), ", 32>", length=1, equivalent=True,
        needs="storage and results are counted by groups of 32 threads, as NVIDIA's default has it",
    )  # fmt: skip
