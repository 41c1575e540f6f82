"""A PTX or cubin module, or NVRTC options for an NVIDIA architecture."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX215",
    code="ptx-cubin-load",
    severity=Severity.HIGH,
    phase=2,
    tier="extended",
    confidence="documented",
    en=Text(
        "A PTX or cubin module, or NVRTC options for an NVIDIA architecture",
        "{name}",
        "The binary is for another instruction set; hiprtc wants --offload-arch=gfx*.",
        "Compile from source with hiprtc for the device's architecture.",
    ),
    zh=Text(
        "加载 PTX 或 cubin，或使用针对 NVIDIA 架构的 NVRTC 选项",
        "{name}",
        "该二进制属于另一套指令集；hiprtc 需要 --offload-arch=gfx*。",
        "用 hiprtc 针对设备架构从源码编译。",
    ),
    path="mod.cpp",
    bad='const char* opt[] = {"--gpu-architecture=compute_80"};\n',
    good='const char* opt[] = {"-O3"};\n',
    needs=("compute_", "sm_", ".ptx", ".cubin", ".fatbin", "cumoduleload", "culibraryload"),
)
_ARCH = re.compile(r"(--gpu-architecture|-arch)[= ]*(compute|sm)_\d*|\.(ptx|cubin|fatbin)$")


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    yield from ident_hits(f, r"cuModuleLoad(Data|DataEx|FatBinary)?|cuLibraryLoad\w*")
    for number, line in enumerate(f.code.split("\n"), 1):
        for match in re.finditer(r'"((?:\\.|[^"\\])*)"', line):
            if _ARCH.search(match.group(1)) and not line.lstrip().startswith("#"):
                yield line_hit(number + f.offset, match.start(), name=match.group(1)[:60])


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node in f.nodes(ast.Constant):
        if isinstance(node.value, str) and not f.is_docstring(node):
            if re.search(r"\.(cubin|ptx|fatbin)$|--gpu-architecture=", node.value) and len(node.value) < 120:
                yield hit(node, name=node.value[:60])
