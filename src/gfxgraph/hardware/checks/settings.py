"""Environment variables that hurt, and settings of ours that were refused."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from gfxgraph import config
from gfxgraph.hardware.architectures import architecture, name_of_override
from gfxgraph.hardware.checks.check import Check, CheckResult, Site, finding


def override(site: Site) -> list[CheckResult]:
    """HSA_OVERRIDE_GFX_VERSION names code that this card can run."""
    value = site.machine.environ.get("HSA_OVERRIDE_GFX_VERSION", "")
    if not value:
        return []
    name = "HSA_OVERRIDE_GFX_VERSION"
    target = name_of_override(value)
    if not target:
        return [finding("override_form", variable=name, value=value)]
    found = []
    for card in site.gpus:
        known, wanted = card.architecture, architecture(target)
        if card.arch == target:
            continue
        if known and wanted and known.family.split(".")[0] != wanted.family.split(".")[0]:
            fix = f"export {name}={known.override}" if known.override else f"unset {name}"
            facts = {"arch": card.arch, "family": known.family, "wanted": wanted.family, "fix": fix}
            found.append(finding("override_of_other_family", value=value, **facts))
        else:
            found.append(finding("override", arch=card.arch, target=target))
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
            found.append(finding("variable_hurts", variable=name, value=value, en=row["en"], zh=row["zh"]))
    return found + _visibility(environ) + _xnack(site)


def _visibility(environ: Mapping[str, str]) -> list[CheckResult]:
    names = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
    given = {name: environ[name] for name in names if name in environ}
    shown = ", ".join(f"{name}={value}" for name, value in given.items())
    if any(value.strip() in ("", "-1") for value in given.values()):
        return [finding("all_hidden", shown=shown, names=" ".join(given))]
    if "ROCR_VISIBLE_DEVICES" in given and len(given) > 1 and len(set(given.values())) > 1:
        return [finding("hidden_twice", shown=shown)]
    return []


def _xnack(site: Site) -> list[CheckResult]:
    if site.machine.environ.get("HSA_XNACK") != "1":
        return []
    without = [card.arch for card in site.gpus if card.architecture and not card.architecture.xnack]
    return [finding("xnack", shown=", ".join(dict.fromkeys(without)))] if without else []


def own_settings(site: Site) -> list[CheckResult]:
    """Values of our own variables that were refused, and names that are not settings."""
    environ = site.machine.environ
    found = [
        finding("setting_misspelt", variable=name, meant=meant) for name, meant in config.misspelt(environ).items()
    ]
    for each in config.load(environ).problems:
        found.append(finding("setting_refused", variable=each.variable, value=each.value, allowed=each.allowed))
    return found


CHECKS: tuple[Check, ...] = (override, harmful_variables, own_settings)
