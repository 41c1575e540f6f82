"""__CUDA_ARCH__ decides code that HIP also needs."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX207",
    code="cuda-arch-guard",
    severity=Severity.HIGH,
    phase=2,
    fix=Fix.SUGGEST,
    en=Text(
        "__CUDA_ARCH__ decides code that HIP also needs",
        "{text}",
        "It is undefined under HIP, where < 700 is then true (0 < 700) and >= 800 false: polyfills and fast paths disappear without a word.",
        "Decide which side AMD belongs to, then add || defined(USE_ROCM) or an arm of its own; to tell device from host code use __HIP_DEVICE_COMPILE__ beside it.",
    ),
    zh=Text(
        "由 __CUDA_ARCH__ 决定 HIP 也需要的代码",
        "{text}",
        "HIP 下它未定义，于是 < 700 成立（0 < 700）而 >= 800 不成立：补丁代码与快速路径会无声消失。",
        "先确定 AMD 属于哪一侧，再加 || defined(USE_ROCM) 或单独的分支；区分设备与主机代码时并用 __HIP_DEVICE_COMPILE__。",
    ),
    path="atomics.cuh",
    bad="#if __CUDA_ARCH__ < 700\n__device__ void add_half() {}\n#endif\n",
    good="#if defined(USE_ROCM) || __CUDA_ARCH__ < 700\n__device__ void add_half() {}\n#endif\n",
    needs=("__cuda_arch__",),
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    for arm, _ in macro_tests(f, r"__CUDA_ARCH__|__CUDA_ARCH_FEAT_\w+|__CUDA_ARCH_LIST__", ctx.project.macros):
        yield line_hit(arm.line + f.offset, text=arm.text[:100], guard_free=True)


def fix_cpp(hit: Hit, f: CppFile, ctx: Context) -> Edit | EditRefusal:
    """``#ifdef __CUDA_ARCH__`` tells device from host code: HIP's name for that is added."""
    line = f.line_text(hit.line)
    match = re.fullmatch(
        r"(\s*#\s*)(?:ifdef\s+__CUDA_ARCH__|if\s+defined\s*\(?\s*__CUDA_ARCH__\s*\)?)(\s*(?://.*|/\*.*\*/\s*)?)", line
    )
    if match is not None:
        text = f"{match.group(1)}if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__){match.group(2)}"
        return Edit(hit.line, 0, text, length=len(line), needs="the arm holds no PTX and no intrinsic that HIP lacks")
    least = re.fullmatch(r"(\s*#\s*(?:el)?if\s+)(__CUDA_ARCH__\s*>=?\s*(\d+))(\s*(?://.*)?)", line)
    if least is not None and int(least.group(3)) <= 700:
        text = f"{least.group(1)}{least.group(2)} || defined(__HIP_DEVICE_COMPILE__){least.group(4)}"
        return Edit(hit.line, 0, text, length=len(line), needs="the arm is what every AMD GPU can run, too")
    return EditRefusal(hit.line, "a test of a version: which side AMD belongs to is a decision")
