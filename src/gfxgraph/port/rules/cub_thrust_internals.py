"""CUB or Thrust beyond their public names."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX206",
    code="cub-thrust-internals",
    severity=Severity.LOW,
    phase=2,
    fix=Fix.SUGGEST,
    tier="extended",
    en=Text(
        "CUB or Thrust beyond their public names",
        "{name}",
        "hipCUB and rocThrust mirror the public interface only.",
        "hipcub:: public primitives, thrust::hip::par, __syncthreads() for CTA_SYNC.",
    ),
    zh=Text(
        "使用了 CUB 或 Thrust 的非公开名称",
        "{name}",
        "hipCUB 与 rocThrust 只对应公开接口。",
        "使用 hipcub:: 的公开原语、thrust::hip::par；CTA_SYNC 换成 __syncthreads()。",
    ),
    path="sort.cu",
    bad="__global__ void k() { cub::CTA_SYNC(); }\n",
    good="void f() { thrust::sort(a, b); }\n",
    needs=("cub", "thrust"),
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    matcher = re.compile(
        r"(::)?(cub::(detail\b.*|CTA_SYNC|PtxVersion|WARP_SYNC|LaneId|WarpId|Shuffle(Down|Up|Index)|CachingDeviceAllocator::internal)|thrust::(system::)?cuda\b.*|cuda::std\b.*)"
    )
    named = f.nodes("qualified_identifier") if matcher.search(f.code) else ()
    hits = [cpp_hit(f, n, name=f.source(n)[:60]) for n in named if matcher.match(f.source(n))]
    yield from once_a_line(hits)
    yield from ident_hits(f, r"CUB_PTX_\w+|CUB_NS_\w+")
