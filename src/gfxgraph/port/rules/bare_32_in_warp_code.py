"""A bare 32 in code that works with warps."""

from gfxgraph.port.rule_api import *

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
    needs=("32",),
)
_WORDS = re.compile(r"(?i)warp|\blane|__shfl|__ballot|shuffle")
_LAUNCH = re.compile(r"<<<|dim3\b")
_DEVICE = re.compile(r"__global__|__device__|<<<")
_ROUND = r"\b(?:div_?up|ceil_?div|divide_up|round_?up|round_?down)\w*\s*\([^;]*,\s*(?:\(\w+\)\s*32|\w+\(32\)|32)\s*\)"
_SLOTS = re.compile(r"__shared__[^;=(]*\w\s*\[\s*32\s*\]\s*[;,]")  # one dimension: a slot a warp or lane
_BARE = re.compile(
    rf"(?i)[%/]\s*32\b(?!\s*[.\w])|{_ROUND}|(?<!<)<=?\s*32\s*[)&|?]|==\s*32\s*[)&|,]|\bwarp_?(?:id|idx)?\s*\*\s*32\b|"
    r"\b32\s*\*\s*warp_?(?:id|idx)?\b"
)
_BITS = re.compile(r"(?i)(?<![a-z])bits?(?![a-z])|\+\s*31\)|uint32|int32|float32|sizeof|1u?\s*<<|32\s*/\s*8\b")
_CHUNK = re.compile(r"(?<![\w.])32\s*\*|(?<![*/])\*\s*32\b(?![.\w])|[%/]\s*32\b(?!\s*[.\w])|<\s*32\s*;")


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    is_device = bool(_DEVICE.search(f.code))
    in_warp_code = bool(_WORDS.search(f.code)) and (is_device or bool(re.search(r"(?i)cuda|gpu", f.code)))
    beside = f.path.rpartition("/")[0] in ctx.project.warp_folders  # layouts that the kernels next door fix
    chunked = (in_warp_code or beside) and bool(re.search(f"(?i){_ROUND}", f.code))
    if not (is_device or in_warp_code or chunked):
        return
    candidates = list(_candidates(f, is_device=is_device, in_warp_code=in_warp_code, chunked=chunked))
    if not candidates:
        return  # without parsing
    exchanging = exchange_lines(f)
    bodies = {n for node in f.nodes("function_definition") for n in range(f.line(node), int(node.end_point[0]) + 2)}
    launching = {
        n
        for node, _ in functions_with(f, _LAUNCH)
        for n in range(f.line(node), int(node.end_point[0]) + 2 + f.offset)
    }
    in_file = bool(EXCHANGE.search(f.code)) or beside
    for number, column, line in candidates:
        if not in_file or (number in bodies and number + f.offset not in exchanging and is_device):
            if number not in launching or not in_file:
                continue  # the lanes of this function do not see each other: 32 is a tile here
        yield line_hit(number + f.offset, column, expr=line.strip()[:90])


def _candidates(f: CppFile, *, is_device: bool, in_warp_code: bool, chunked: bool) -> Iterator[tuple[int, int, str]]:
    """Lines of the text with a 32 that may be a warp: number, column, line."""
    for number, line in enumerate(f.code.split("\n"), 1):
        if "32" not in line or line.lstrip().startswith("#"):
            continue
        line = re.sub(r'"(?:\\.|[^"\\])*"', lambda m: " " * len(m.group()), line)  # what is said or written out
        match = _SLOTS.search(line) if is_device else None
        if match is None and (in_warp_code or chunked):
            if re.search(r"threadIdx|\b(lane|tid)\w*\s*[%/]", line):
                continue  # GFX302's
            if chunked:
                match = _CHUNK.search(line) or re.search(f"(?i){_ROUND}", line)
            if match is None and in_warp_code and not _BITS.search(line):
                match = _BARE.search(line)
        if match:
            yield number, match.start(), line
