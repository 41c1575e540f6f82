"""Code built on a warp-size constant of 32."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX326",
    code="warp-constant-use",
    severity=Severity.LOW,
    phase=3,
    fix=Fix.SUGGEST,
    archs=WAVE64,
    en=Text(
        "Code built on a warp-size constant of 32",
        "{name}, defined as 32, is used here",
        "Once the constant follows the device, every array size, tile, template choice and launch that is built on it changes with it; host code cannot use a device-side constant at all.",
        "Go through the uses: where 32 is a tile or layout, give it a name of its own; where it is the wavefront, ask the device in host code.",
    ),
    zh=Text(
        "建立在值为 32 的 warp 常量之上的代码",
        "此处使用了定义为 32 的 {name}",
        "一旦该常量随设备变化，凡以它为基础的数组大小、tile、模板选择与启动参数都会随之变化；主机代码更不能使用设备侧常量。",
        "逐处检查：若 32 是 tile 或布局，另起名称；若确是 wavefront，主机代码要询问设备。",
    ),
    path="use.cu",
    bad="#define WARP_SIZE 32\nint blocks(int n) { return (n + WARP_SIZE - 1) / WARP_SIZE; }\n",
    good="constexpr int kTile = 32;\nint blocks(int n) { return (n + kTile - 1) / kTile; }\n",
    needs=("warp", "lane", "wave"),
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    names = ctx.project.warp_constants & set(f.idents)
    for name in sorted(names):
        yield from once_a_line(
            line_hit(line, column, name=name, group="uses")
            for line, column in f.idents[name]
            if f.line_text(line)[:column].rstrip()[-1:] not in (".", ">")  # a device's property
            and not re.search(rf"(#\s*define\s+{name}\b|\b{name}\s*=\s*\{{?\s*32)", f.line_text(line))
        )
