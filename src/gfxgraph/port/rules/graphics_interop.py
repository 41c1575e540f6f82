"""Buffers shared with OpenGL, Vulkan or Direct3D."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX237",
    code="graphics-interop",
    severity=Severity.HIGH,
    phase=2,
    archs=INSTINCT,
    tier="extended",
    confidence="verified",
    en=Text(
        "Buffers shared with a graphics API",
        "{name}",
        "CDNA has no graphics pipeline: there is no context to share with, and registering a buffer fails at run time although everything links.",
        "Keep a path without the display, and name the architectures that have one (RDNA).",
    ),
    zh=Text(
        "与图形 API 共享缓冲区",
        "{name}",
        "CDNA 没有图形管线：没有可共享的上下文，链接虽然成功，注册缓冲区却在运行时失败。",
        "保留不依赖显示的路径，并写明支持的架构（RDNA）。",
    ),
    path="gl.cpp",
    bad="void f(unsigned vbo) { cudaGraphicsGLRegisterBuffer(&r, vbo, 0); }\n",
    good="void f(unsigned vbo);\n",
    needs=("graphics", "externalmemory", "externalsemaphore", "egl"),
)


check_cpp = named(
    r"(?:cuda|cu)Graphics(?:GL|VK|D3D|EGL|Map|Unmap|Register|Unregister|Resource|SubResource)\w*|cudaGL\w+|cuGL\w+|cuda(?:EGL|VDPAU|D3D)\w+|"
    r"(?:cuda|cu)Import(?:External(?:Memory|Semaphore))"
)
