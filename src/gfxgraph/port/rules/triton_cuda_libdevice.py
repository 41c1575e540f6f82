"""CUDA's libdevice is imported directly."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX321",
    code="triton-cuda-libdevice",
    severity=Severity.MEDIUM,
    phase=3,
    fix=Fix.SUGGEST,
    confidence="documented",
    en=Text(
        "CUDA's libdevice is imported directly",
        "{name}",
        "The module resolves to symbols of NVIDIA's bitcode.",
        "from triton.language.extra import libdevice chooses by target; check that the function you need is there.",
    ),
    zh=Text(
        "直接导入 CUDA 的 libdevice",
        "{name}",
        "该模块解析到 NVIDIA 位码中的符号。",
        "from triton.language.extra import libdevice 会按目标选择；确认所需函数存在。",
    ),
    bad="from triton.language.extra.cuda import libdevice\n",
    good="from triton.language.extra import libdevice\n",
    needs=("libdevice", "extra.cuda"),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    yield from import_hits(
        f,
        r"triton\.language\.extra\.cuda|triton\.language\.libdevice|triton\.language\.math\.libdevice",
        Severity.MEDIUM,
        Severity.MEDIUM,
    )
    for node in f.nodes(ast.Attribute):
        if f.dotted(node) in ("triton.language.extra.cuda.libdevice", "tl.extra.cuda.libdevice"):
            yield hit(node, name=f.source(node))
