"""The row pitch of textures."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX235",
    code="texture-pitch",
    severity=Severity.MEDIUM,
    phase=2,
    tier="extended",
    confidence="verified",
    en=Text(
        "The row pitch of textures",
        "{name}",
        "AMD asks for rows of 256 bytes where NVIDIA takes 32: a bind that works there fails here, and a pitch computed from the attribute pads more.",
        "Allocate pitched rows, bind linear memory where only points are sampled, or clamp the attribute to 32 where no texture is bound.",
    ),
    zh=Text(
        "纹理的行间距",
        "{name}",
        "AMD 要求 256 字节对齐的行，NVIDIA 只要 32：在那边能绑定的在这里失败；由该属性算出的间距也会更大。",
        "分配带 pitch 的行；只做点采样时绑定线性内存；未绑定纹理时把该属性限制为 32。",
    ),
    path="pitch.cu",
    bad="int a = cudaDevAttrTexturePitchAlignment;\n",
    good="int pitch = 640;\n",
    needs=("pitch",),
)


check_cpp = named(
    r"cudaDevAttrTexturePitchAlignment|texturePitchAlignment|cudaResourceTypePitch2D|cudaBindTexture2D|CU_RESOURCE_TYPE_PITCH2D"
)
