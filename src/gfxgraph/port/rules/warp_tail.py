"""The end of a reduction that one warp finishes."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX330",
    code="warp-tail",
    severity=Severity.MEDIUM,
    phase=3,
    fix=Fix.SUGGEST,
    tier="extended",
    confidence="verified",
    en=Text(
        "The end of a reduction is left to 32 lanes",
        "{name}",
        "The loop over the block stops, and barriers turn into warp fences, where 32 lanes are left: that is NVIDIA's warp. On 32-lane wavefronts two of them take part in the step of 32; on 64-lane ones the fence is no barrier for the block.",
        "Let the loop with __syncthreads() go down to the device's wavefront, or to 0; it is as fast.",
    ),
    zh=Text(
        "归约的末尾交给 32 个 lane",
        "{name}",
        "循环在剩 32 个 lane 处停止，屏障换成 warp 级同步：那是 NVIDIA 的 warp。在 32 宽的 wavefront 上，步长 32 那一步有两个 wavefront 参与；在 64 宽的上，warp 级同步对块不是屏障。",
        "让带 __syncthreads() 的循环一直走到设备的 wavefront 宽度或 0，速度相同。",
    ),
    path="r.cu",
    bad="__global__ void k(float* s) {\n  for (int o = blockDim.x >> 1; o > 32; o >>= 1) {\n    if (threadIdx.x < o) s[threadIdx.x] += s[threadIdx.x + o];\n    __syncthreads();\n  }\n  for (int o = 32; o > 0; o >>= 1) {\n    if (threadIdx.x < o) s[threadIdx.x] += s[threadIdx.x + o];\n    __syncwarp();\n  }\n}\n",
    good="__global__ void k(float* s) {\n  for (int o = blockDim.x >> 1; o > 0; o >>= 1) {\n    if (threadIdx.x < o) s[threadIdx.x] += s[threadIdx.x + o];\n    __syncthreads();\n  }\n}\n",
    needs=("__syncwarp", "volatile"),
)


_TAIL = re.compile(r"__syncwarp|\bvolatile\b[^;]*\*|warp_?[Rr]educe")
_LOOP = r"\bfor\s*\([^;]*;[^;]*>=?\s*32u?\s*;[^)]*|\bfor\s*\([^;]*=\s*32u?\s*;[^;]*>[^;]*;[^)]*(?:>>=\s*1|/=\s*2)"
_STEP = r"\bif\s*\(\s*\(?(?:threadIdx\.x|\w*[tT]id\w*|\w*[tT]hread\w*)\s*(?:<\s*32u?|<=\s*31)\s*\)"


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    yield from once_a_line(_all(f))


def _all(f: CppFile) -> Iterator[Hit]:
    for node, text in functions_with(f, _TAIL):
        fenced = "__syncwarp" in text or "volatile" in text
        for line, column, found in lines_of(f, node, text, f"{_LOOP}|{_STEP}" if fenced else _STEP):
            yield line_hit(line, column, name=" ".join(found.split())[:80])


_FIRST = re.compile(r"(\s*for\s*\([^;]*;\s*\w+\s*>=?\s*)32u?(\s*;[^{}]*\)\s*)\{")
_SECOND = re.compile(r"\s*for\s*\([^;]*=\s*32u?\s*;\s*\w+\s*>\s*0\s*;[^{}]*\)\s*\{")


def fix_cpp(hit: Hit, f: CppFile, ctx: Context) -> Edit | EditRefusal | None:
    """The loop with barriers takes the steps of the tail; the tail goes."""
    rest = "\n".join(f.code.split("\n")[hit.line - 1 - f.offset :])
    first = _FIRST.match(rest)
    if first is None:
        return None if _SECOND.match(rest) else EditRefusal(hit.line, "not a loop that a tail follows")
    end = _closing(rest, first.end())
    second = _SECOND.match(rest, end)
    if second is None:
        return EditRefusal(hit.line, "the tail does not follow the loop")
    last = _closing(rest, second.end())
    bodies = [re.sub(r"\s", "", rest[a:b]) for a, b in ((first.end(), end), (second.end(), last))]
    if bodies[0] != bodies[1].replace("__syncwarp()", "__syncthreads()") or "__syncthreads()" not in bodies[0]:
        return EditRefusal(hit.line, "the two loops do different things")
    row = rest.count("\n", 0, len(rest[: first.start(1)]) + len(first[1]) - len(first[1].lstrip("\n")))
    text = f"{first[1]}0{first[2]}{{" + rest[first.end() : end]
    return Edit(
        hit.line + row, 0, text, last_line=hit.line + rest.count("\n", 0, last), equivalent=True,
        needs="the loop is reached by every thread of the block, as its barrier already asks",
    )  # fmt: skip


def _closing(text: str, at: int) -> int:
    """Past the bracket that closes the one before ``at``."""
    depth = 1
    while depth and at < len(text):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return at
