"""CuDNN's C interface."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX214",
    code="cudnn-cpp",
    severity=Severity.HIGH,
    phase=2,
    tier="extended",
    confidence="documented",
    en=Text(
        "cuDNN's C interface",
        "{name}",
        "hipify does not translate most of it; MIOpen's descriptors differ.",
        "Port to MIOpen by hand, or go through ATen.",
    ),
    zh=Text(
        "cuDNN 的 C 接口",
        "{name}",
        "hipify 多半不翻译它；MIOpen 的描述符不同。",
        "手工移植到 MIOpen，或改走 ATen。",
    ),
    path="conv.cpp",
    bad="#include <cudnn.h>\n",
    good="#include <ATen/cudnn/Handle.h>\n",
    needs=("cudnn",),
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    yield from include_hits(f, r"cudnn(?:_(?:ops|cnn|adv|graph|version|backend|frontend|v\d)\w*)?\.h$")
    yield from once_a_line(
        line_hit(line, column, name=name, group="calls") for name, line, column in f.idents_like(r"cudnn[A-Z]\w*")
    )
