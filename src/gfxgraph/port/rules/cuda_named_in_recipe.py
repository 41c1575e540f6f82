"""A recipe of a build or an install that names CUDA's toolchain."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX416",
    code="cuda-named-in-recipe",
    severity=Severity.LOW,
    phase=4,
    confidence="documented",
    en=Text(
        "A recipe that names CUDA's toolchain",
        "{text}",
        "It installs, asks for or passes on what only NVIDIA's toolchain has, or builds kernels from a source that is another one on ROCm; a ROCm build needs its own answer here.",
        "Choose by platform in one place (an option, a build argument, a second list) and keep CUDA's value as the default.",
    ),
    zh=Text(
        "提到 CUDA 工具链的构建或安装脚本",
        "{text}",
        "它安装、询问或传递只有 NVIDIA 工具链才有的东西，或从源码编译在 ROCm 上来源不同的核函数；ROCm 构建在此需要自己的答案。",
        "在一处按平台选择（选项、构建参数或第二份清单），并保留 CUDA 的值为默认。",
    ),
    path="meson.build",
    bad="nvcc = find_program('nvcc', required: true)\ndeps += cc.find_library('cublas')\n",
    good="gpu = dependency('gpu-runtime', required: true)\n",
    needs=(
        *("cuda", "nvcc", "nvidia", "cublas", "cudnn", "nccl", "cu11", "cu12", "cu13", ".cu'", "requirement"),
        *("flash", "vllm", "apex", "xformers", "exllama", "transformerengine", "sageattention"),
    ),
)
_AMD = re.compile(r"(?i)\bhip|_hip\b|rocm|\bamd")
_SAID = re.compile(r"(?i)^\s*@?(echo|printf|print|message|rem|write-host|dnl|//|::|description|title)\b")
# A toolchain, its packages and variables; not "device: cuda", which holds on AMD too.
_TOOLCHAIN = re.compile(
    r"\bcudatoolkit\b|\bpytorch-cuda\b|\bcuda-(?:nvcc|toolkit|runtime|version|libraries|cudart|compiler|keyring)\w*|(?:^|\s)-c[ =]nvidia\b|"
    r"\bCUDA_(?:HOME|PATH|VERSION|ROOT|ARCH\w*|TOOLKIT\w*|DEVICE_ORDER|LAUNCH_BLOCKING|TAG|IMAGE)\b|\bTORCH_CUDA_ARCH_LIST\b|"
    r"\bnvcc\b|/usr/local/cuda\b|\bpytorch-cu\d{2,3}\b|(?<![\w.])cu1[1-3]\d(?!\w)|\bWITH_CUDA\b|\bUSE_CUDA\b|\bFORCE_CUDA\b"
)
_ANY = re.compile(
    r"(?i)cuda|nvcc\b|nvidia|\bcu(?:blas|dnn|fft|rand|sparse|solver|tlass)|\bnccl|nvrtc|tensorrt|[\w*]\.cuh?\b"
)
# Built here from source; for ROCm from another branch, fork or with other settings.
_KERNELS = re.compile(
    r"(?i)(?<![\w.])(?:flash[-_]?att\w*(?:-v?\d)?|vllm|apex|xformers|exllama\w*|transformerengine|flashinfer|sageattention)\b"
)
_FROM_SOURCE = re.compile(
    r"\bgit clone\b|\bgit\+|\bsetup\.py (?:build|install|bdist)|\bpip3? (?:install|wheel)\b.* \.(?:\s|$)"
)
_INSTALLS = re.compile(r"(?:-r|--requirements?)[ =]*[\"']?([^\s\"';&|]{1,200})")


def _lines(f: TextFile, ctx: Context) -> Iterator[Hit]:
    named = _ANY if f.kind == "recipe" else _TOOLCHAIN
    found = []
    for entry in f.entries:
        for number in range(entry.line, max(entry.line, entry.last_line) + 1):
            line = f.lines[number - 1].partition(" #")[0] if number <= len(f.lines) else ""
            if _SAID.match(line) or _AMD.search(line):
                continue
            match = named.search(line[:2000])
            installed = _INSTALLS.search(line[:2000]) if f.kind in ("shell", "docker", "recipe") else None
            if match is None and _FROM_SOURCE.search(line[:2000]):
                match = _KERNELS.search(line[:2000])
            if match or (installed and installed[1].rpartition("/")[2] in ctx.project.cuda_lists):
                made = entry_hit(f, entry, text=line.strip()[:90], group="names")
                found.append(Hit(number, made.column, entry, made.values, group="names", end_line=number))
    yield from once_a_line(found)


def check_recipe(f: TextFile, ctx: Context) -> Iterator[Hit]:
    if not (ctx.project.has_hip_build and _AMD.search(f.text)):
        yield from _lines(f, ctx)


def check_make(f: TextFile, ctx: Context) -> Iterator[Hit]:
    """Kernels that a Makefile fetches or builds; what it names of CUDA's is another rule's."""
    for number, line in enumerate(f.lines, 1):
        if _AMD.search(line) or _SAID.match(line) or not _FROM_SOURCE.search(line[:2000]):
            continue
        if match := _KERNELS.search(line[:2000]):
            yield line_hit(number, match.start(), text=line.strip()[:90], group="names")


check_shell = check_docker = check_yaml = check_ini = _lines
