"""A layered array or texture."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX234",
    code="layered-array",
    severity=Severity.HIGH,
    phase=2,
    tier="extended",
    confidence="verified",
    en=Text(
        "A layered array or texture",
        "{name}",
        "Written one layer at a time on gfx90a (ROCm 7.2.1, ROCm/clr#275), every layer reads back as the last one.",
        "A 3D array that is not layered, with the layer as z; keep the layered one for NVIDIA.",
    ),
    zh=Text(
        "分层数组或纹理",
        "{name}",
        "在 gfx90a 上（ROCm 7.2.1，ROCm/clr#275）逐层写入后，每一层读回的都是最后一层。",
        "改用不分层的 3D 数组，层作为 z；NVIDIA 上保留分层数组。",
    ),
    path="lay.cu",
    bad="int flags = cudaArrayLayered;\n",
    good="int flags = 0;\n",
    needs=("layered",),
)


check_cpp = named(r"cudaArrayLayered|cudaArrayCubemap|(?:surf|tex)[12]DLayered\w*|(?:surf|tex)Cubemap\w*")
