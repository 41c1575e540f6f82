"""Environment variables that hurt, and settings of ours that were refused."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from gfxgraph import config
from gfxgraph.hardware.architectures import architecture, name_of_override
from gfxgraph.hardware.checks.check import Check, CheckResult, CheckState, Site


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


@lru_cache(maxsize=1)
def _hurting() -> dict[str, dict[str, str]]:
    """The variables of ``harmful_variables.toml``, by name."""
    return tomllib.loads(Path(__file__).with_name("harmful_variables.toml").read_text(encoding="utf-8"))


def harmful_variables(site: Site) -> list[CheckResult]:
    """Variables left over from debugging or from CUDA that cost speed or break captures."""
    environ = site.machine.environ
    found = []
    for name, row in _hurting().items():
        if name in environ and re.search(row["hurts"], value := environ[name].strip()):
            text = f"{name}={value}: {row['en']}", f"{name}={value}：{row['zh']}"
            found.append(CheckResult("variables", CheckState.AMBER, *text, f"unset {name}"))
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
