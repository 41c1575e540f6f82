"""Textures or surfaces."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX218",
    code="texture-surface",
    severity=Severity.HIGH,
    phase=2,
    archs=INSTINCT3,
    confidence="documented",
    en=Text(
        "Textures or surfaces",
        "{name}",
        "Texture functions exist only on devices that report image support, which MI300-class parts are not expected to. Texture references are deprecated on both sides.",
        "Plain loads with filtering of your own, or gate on hipDeviceAttributeImageSupport.",
    ),
    zh=Text(
        "纹理或表面",
        "{name}",
        "只有报告支持 image 的设备才有纹理函数，MI300 级产品预计不支持。纹理引用在两边都已弃用。",
        "改为普通读取并自行滤波，或根据 hipDeviceAttributeImageSupport 判断。",
    ),
    path="tex.cu",
    bad="__global__ void k(cudaTextureObject_t t, float* o) { o[0] = tex2D<float>(t, 0, 0); }\n",
    good="void bind_textures(int tex1);\n",
    needs=("tex", "surf"),
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    names = r"cudaTextureObject_t|cudaSurfaceObject_t|cudaBindTexture\w*|cudaCreateTextureObject|cudaCreateSurfaceObject|tex[123]D(Lod|Grad|fetch|Layered)?|tex1Dfetch|surf[123]D(read|write)"
    for one in ident_hits(f, names):
        # A project's own tex2D is not CUDA's, but its body calls CUDA's.
        name = str(one.values["name"])
        if name in ctx.project.own_names and "cudaTextureObject_t" not in f.text:
            continue
        yield one
    for n in f.nodes("template_type") if "texture<" in f.text else ():
        if f.source(n).startswith("texture<"):
            yield cpp_hit(f, n, name=f.source(n))
