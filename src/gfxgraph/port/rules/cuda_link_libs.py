"""CUDA libraries linked by name."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX407",
    code="cuda-link-libs",
    severity=Severity.MEDIUM,
    phase=4,
    fix=Fix.SUGGEST,
    tier="extended",
    confidence="documented",
    en=Text(
        "CUDA libraries linked by name",
        "{text}",
        "They are not there on ROCm.",
        "hip::host, roc::hipblas and so on; torch's CUDAExtension adds amdhip64 by itself.",
    ),
    zh=Text(
        "按名称链接 CUDA 库",
        "{text}",
        "ROCm 上没有它们。",
        "使用 hip::host、roc::hipblas 等；torch 的 CUDAExtension 会自行加入 amdhip64。",
    ),
    path="CMakeLists.txt",
    bad="target_link_libraries(x CUDA::cublas)\n",
    good="target_link_libraries(x roc::hipblas)\n",
    needs=("cuda", "cublas", "cudnn", "cufft", "curand", "cusparse", "nvtoolsext", "nvrtc", "nccl"),
)
_LIB = re.compile(
    r"\bCUDA::\w+|(?<![\w-])-l(cudart|cublas|cublasLt|cudnn|cufft|curand|cusparse|cusolver|nvToolsExt|cuda|nvrtc|nccl|nvidia-ml|cudadevrt)\b|\$\{CUDA_\w*(LIBRARIES|LIBRARY|INCLUDE_DIRS|TOOLKIT_ROOT_DIR)\}|\$\(CUDA_?(PATH|HOME|DIR|ROOT)\w*\)|/usr/local/cuda\b|\blib(cudart|cublas|cudnn|cufft)(_static)?\.(so|a)\b|\$\{?CUDA_(HOME|PATH)\}?/(lib|include)\S*"
)


def _scan(f: TextFile, ctx: Context) -> Iterator[Hit]:
    for entry, match in f.matching(_LIB.pattern):
        yield entry_hit(f, entry, re.escape(match.group()), text=match.group())


check_cmake = check_make = check_shell = check_docker = _scan


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node in f.nodes(ast.Constant):
        if not isinstance(node.value, str):
            continue
        text = node.value
        if re.fullmatch(
            r"-lcuda|(-l)?(cudart|cublas|cublasLt|cudnn|cufft|curand|cusparse|cusolver|nvToolsExt|nvrtc|nvidia-ml)(\.lib)?",
            text,
        ):
            owner = next(
                (u for u in f.ancestors(node) if isinstance(u, ast.keyword | ast.Assign | ast.AugAssign | ast.Call)),
                None,
            )
            if owner is not None and re.search(
                r"(?i)librar|ldflags|link|find_library", f.source(owner).replace(text, "", 1)
            ):
                yield hit(node, text=text)


def fix_cmake(hit: Hit, f: TextFile, ctx: Context) -> Edit | EditRefusal | None:
    return fix_entry(f, hit.line)
