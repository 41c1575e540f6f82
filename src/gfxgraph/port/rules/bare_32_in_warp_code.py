"""A bare 32 in code that works with warps."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gfxgraph.port.archs import WAVE64
from gfxgraph.port.engine import Context
from gfxgraph.port.model import Fix, Hit, Rule, Severity, Text
from gfxgraph.port.readers.cpp import CppFile
from gfxgraph.port.rules._common import (
    gathered,
    line_hit,
)

RULE = Rule(
    id="GFX327",
    code="bare-32-in-warp-code",
    severity=Severity.LOW,
    phase=3,
    fix=Fix.SUGGEST,
    archs=WAVE64,
    en=Text(
        "A bare 32 in code that works with warps",
        "{expr}",
        "If the 32 is the warp, it is wrong where the wavefront has 64 lanes: buffers of one slot a warp or lane, divisions into warps, limits that a warp handles alone.",
        "Decide for each place: warpSize (or the device's answer in host code) where it is the warp, a name where it is not.",
    ),
    zh=Text(
        "处理 warp 的代码中出现裸数字 32",
        "{expr}",
        "若该 32 指 warp，则在 wavefront 为 64 时是错的：每 warp 或每 lane 一个槽位的缓冲、按 warp 划分、由单个 warp 处理的上限等。",
        "逐处判断：若指 warp，用 warpSize（主机代码询问设备）；否则给它起名。",
    ),
    path="buf.cu",
    bad="template <typename T> __global__ void reduce(T v) { __shared__ T parts[32]; parts[warp_id] = warp_sum(v); }\n",
    good="__global__ void copy(float* v) { __shared__ float tile[32][33]; tile[0][0] = v[0]; }\n",
    needs=("warp", "lane", "shfl", "ballot"),
)
_WORDS = re.compile(r"(?i)warp|\blane|__shfl|__ballot")
_BARE = re.compile(
    r"__shared__[^;=]*\w\[32\]\s*;|[%/]\s*32\b(?!\s*[.\w])|\b(?:div_?up|ceil_?div|divide_up|DIVUP|roundUp|round_up)\w*\s*\([^;]*,\s*(?:\(\w+\)\s*)?32\s*\)|<=?\s*32\s*[)&|?]|==\s*32\s*[)&|,]"
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    if not _WORDS.search(f.code) or not re.search(r"__global__|__device__|<<<|cuda|gpu", f.code, re.I):
        return
    groups: dict[int, list[Hit]] = {}
    for number, line in enumerate(f.code.split("\n"), 1):
        match = _BARE.search(line)
        if not match or line.lstrip().startswith("#") or re.search(r"threadIdx|\b(lane|tid)\w*\s*[%/]", line):
            continue
        if re.search(r"(?i)\bbits?\b|uint32|int32|float32|sizeof|1u?\s*<<", line):
            continue
        arm = f.arm(number + f.offset)
        h = line_hit(number + f.offset, match.start(), expr=line.strip()[:90])
        groups.setdefault(-1 if arm is None else arm.index, []).append(h)
    for group in groups.values():
        yield from gathered(group)
