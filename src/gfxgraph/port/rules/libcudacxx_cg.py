"""Libcu++, or cooperative groups beyond HIP's."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX205",
    code="libcudacxx-cg",
    severity=Severity.HIGH,
    phase=2,
    confidence="documented",
    en=Text(
        "libcu++, or cooperative groups beyond HIP's",
        "{name}",
        "HIP's cooperative groups have thread_block, grid, tiled_partition and coalesced groups; not reduce, memcpy_async or clusters. libcu++ headers are absent.",
        "A shuffle loop for reduce, plain copies for memcpy_async; libhipcxx where it is installed.",
    ),
    zh=Text(
        "libcu++，或超出 HIP 范围的 cooperative groups",
        "{name}",
        "HIP 的 cooperative groups 有 thread_block、grid、tiled_partition 与 coalesced，没有 reduce、memcpy_async 和 cluster；也没有 libcu++ 头文件。",
        "reduce 改为 shuffle 循环，memcpy_async 改为普通复制；装有 libhipcxx 时可用它。",
    ),
    path="reduce.cu",
    bad="#include <cooperative_groups/reduce.h>\n",
    good="namespace tools { int reduce(int a); }\n",
    needs=("cuda/", "cooperative_groups", "cluster", "cg::", "cuda::"),
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    yield from include_hits(
        f,
        r"cuda/(barrier|pipeline|atomic|semaphore|annotated_ptr|ptx|functional|std/.*|stream_ref|memory_resource|cmath)$|cooperative_groups/(reduce|scan|memcpy_async)\.h$",
    )
    yield from once_a_line(_libcudacxx(f))
    yield from ident_hits(f, r"this_cluster|cluster_group|this_cluster_dim|cluster_sync")
    for call in f.calls("memcpy_async", "reduce", "inclusive_scan", "exclusive_scan"):
        if re.match(r"(cg|cooperative_groups)::", call.callee):
            yield cpp_hit(f, call, name=call.callee)


_CUDA_STD = re.compile(
    r"(?<![\w:])(?:::)?cuda::(std|atomic|atomic_ref|barrier|pipeline|pipeline_shared_state|memory_order\w*|thread_scope\w*|"
    r"atomic_thread_fence|aligned_size_t|annotated_ptr|access_property|ptx|proclaim_\w+|latch|binary_semaphore|"
    r"counting_semaphore|make_pipeline|memcpy_async|stream_ref|minimum|maximum|device::\w+|experimental|mr)\b"
)
_GROUPS = re.compile(
    r"(?<!\w)(?:cg|cooperative_groups)::(labeled_partition|invoke_one\w*|this_cluster|wait_prior|wait)\b"
)


def _libcudacxx(f: CppFile) -> Iterator[Hit]:
    """Names of libcu++ and of groups that HIP lacks, wherever they are used: each use needs another name."""
    if "cuda::" not in f.code and "labeled_partition" not in f.code and "cg::" not in f.code:
        return
    for number, line in enumerate(f.code.split("\n"), 1):
        if match := _CUDA_STD.search(line) or _GROUPS.search(line):
            yield line_hit(number + f.offset, match.start(), name=match.group())
