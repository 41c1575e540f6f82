"""Environment variables that hurt, and settings of ours that were refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gfxgraph import config
from gfxgraph.hardware.architectures import architecture, name_of_override
from gfxgraph.hardware.checks.check import Check, CheckResult, CheckState, Site

Judge = Callable[[str], bool]


def override(site: Site) -> list[CheckResult]:
    """HSA_OVERRIDE_GFX_VERSION names code that this card can run."""
    value = site.machine.environ.get("HSA_OVERRIDE_GFX_VERSION", "")
    if not value:
        return []
    name = "HSA_OVERRIDE_GFX_VERSION"
    target = name_of_override(value)
    if not target:
        text = f"{name}={value} is not of the form 10.3.0", f"{name}={value} 的格式应为 10.3.0"
        return [CheckResult("override", CheckState.RED, *text, f"unset {name}")]
    found = []
    for card in site.gpus:
        known, wanted = card.architecture, architecture(target)
        if card.arch == target:
            continue
        if known and wanted and known.family.split(".")[0] != wanted.family.split(".")[0]:
            text = (
                f"{value} makes the {card.arch} ({known.family}) run {wanted.family} code: it crashes",
                f"{value} 让 {card.arch}（{known.family}）运行 {wanted.family} 的代码：会崩溃或结果错误",
            )
            fix = f"export {name}={known.override}" if known.override else f"unset {name}"
            found.append(CheckResult("override", CheckState.RED, *text, fix))
        else:
            shown = f"{card.arch} runs as {target}"
            found.append(CheckResult("override", CheckState.GREEN, shown, f"{card.arch} 以 {target} 运行"))
    return found


def _is_set(value: str) -> bool:
    return value not in ("", "0")


# name, when it hurts, English, Chinese, fix
_HURTS: tuple[tuple[str, Judge, str, str, str], ...] = (
    (
        "PYTORCH_CUDA_ALLOC_CONF",
        lambda value: "expandable_segments:true" in value.lower(),
        "expandable_segments is refused by many ROCm builds and moves memory under captured graphs",
        "expandable_segments 在许多 ROCm 版本上不受支持，且会移动已捕获图所用的内存",
        "unset PYTORCH_CUDA_ALLOC_CONF",
    ),
    (
        "PYTORCH_HIP_ALLOC_CONF",
        lambda value: "expandable_segments:true" in value.lower(),
        "expandable_segments is refused by many ROCm builds and moves memory under captured graphs",
        "expandable_segments 在许多 ROCm 版本上不受支持，且会移动已捕获图所用的内存",
        "unset PYTORCH_HIP_ALLOC_CONF",
    ),
    (
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
        _is_set,
        "the caching allocator is off: captures fail",
        "显存缓存分配器被关闭：捕获会失败",
        "unset PYTORCH_NO_CUDA_MEMORY_CACHING",
    ),
    (
        "TORCHINDUCTOR_CUDAGRAPHS",
        _is_set,
        "inductor captures graphs of its own inside ours",
        "inductor 会在我们的捕获之内再次捕获",
        "unset TORCHINDUCTOR_CUDAGRAPHS",
    ),
    (
        "AMD_SERIALIZE_KERNEL",
        _is_set,
        "kernels run one at a time: for debugging only",
        "核函数逐个串行执行：仅适合调试",
        "unset AMD_SERIALIZE_KERNEL",
    ),
    (
        "HIP_LAUNCH_BLOCKING",
        _is_set,
        "every launch waits for its end: for debugging only",
        "每次启动都会等待完成：仅适合调试",
        "unset HIP_LAUNCH_BLOCKING",
    ),
    (
        "CUDA_LAUNCH_BLOCKING",
        _is_set,
        "every launch waits for its end, and captures fail",
        "每次启动都会等待完成，且捕获会失败",
        "unset CUDA_LAUNCH_BLOCKING",
    ),
    (
        "AMD_LOG_LEVEL",
        lambda value: value.isdigit() and int(value) >= 3,
        "the runtime writes a line for every call",
        "运行时会为每次调用输出日志",
        "unset AMD_LOG_LEVEL",
    ),
    (
        "HSA_ENABLE_SDMA",
        lambda value: value == "0",
        "copies run on compute units and disturb kernels",
        "拷贝占用计算单元，会影响核函数执行",
        "unset HSA_ENABLE_SDMA",
    ),
)


def harmful_variables(site: Site) -> list[CheckResult]:
    """Variables left over from debugging or from CUDA that cost speed or break captures."""
    environ = site.machine.environ
    found = [
        CheckResult(
            "variables", CheckState.AMBER, f"{name}={environ[name]}: {en}", f"{name}={environ[name]}：{zh}", fix
        )
        for name, hurts, en, zh, fix in _HURTS
        if name in environ and hurts(environ[name].strip())
    ]
    return found + _visibility(environ) + _xnack(site)


def _visibility(environ: Mapping[str, str]) -> list[CheckResult]:
    names = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
    given = {name: environ[name] for name in names if name in environ}
    shown = ", ".join(f"{name}={value}" for name, value in given.items())
    if any(value.strip() in ("", "-1") for value in given.values()):
        text = f"{shown}: hides every GPU", f"{shown}：隐藏了所有 GPU"
        return [CheckResult("variables", CheckState.RED, *text, f"unset {' '.join(given)}")]
    if "ROCR_VISIBLE_DEVICES" in given and len(given) > 1 and len(set(given.values())) > 1:
        text = (
            f"{shown}: applied one after the other, the second counts what the first left",
            f"{shown}：会先后生效，后者按前者筛选后的编号计算",
        )
        return [CheckResult("variables", CheckState.AMBER, *text, "unset ROCR_VISIBLE_DEVICES")]
    return []


def _xnack(site: Site) -> list[CheckResult]:
    if site.machine.environ.get("HSA_XNACK") != "1":
        return []
    without = [card.arch for card in site.gpus if card.architecture and not card.architecture.xnack]
    if not without:
        return []
    shown = ", ".join(dict.fromkeys(without))
    text = f"HSA_XNACK=1, but {shown} cannot retry page faults", f"HSA_XNACK=1，但 {shown} 不支持缺页重试"
    return [CheckResult("variables", CheckState.AMBER, *text, "unset HSA_XNACK")]


def own_settings(site: Site) -> list[CheckResult]:
    """Values of our own variables that were refused, and names that are not settings."""
    unread = [
        CheckResult(
            "settings",
            CheckState.AMBER,
            f"{name} is not a setting of gfxgraph; did you mean {meant}?",
            f"没有任何代码读取 {name}；是否想写 {meant}？",
            f"unset {name}",
        )
        for name, meant in config.misspelt(site.machine.environ).items()
    ]
    return unread + [
        CheckResult(
            "settings",
            CheckState.RED,
            f"{problem.variable}={problem.value} is not one of: {problem.allowed}",
            f"{problem.variable}={problem.value} 不在允许的取值内：{problem.allowed}",
            f"unset {problem.variable}",
        )
        for problem in config.load(site.machine.environ).problems
    ]


CHECKS: tuple[Check, ...] = (override, harmful_variables, own_settings)
