"""Explanations that know this machine: the public ``explain``, which ``diagnostics/hooks.py`` uses, too.

The diagnostics room says what an error means; this adds which GPU it means it for. The device is
only looked up when something was recognised, and never through torch.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gfxgraph import config
from gfxgraph.diagnostics import explainer as words
from gfxgraph.diagnostics import hooks
from gfxgraph.diagnostics.causes import numbers, values
from gfxgraph.diagnostics.explanation import Explanation
from gfxgraph.diagnostics.situation import APUS, Situation

if TYPE_CHECKING:
    from gfxgraph.diagnostics.scan import Scanner
    from gfxgraph.hardware.chosen_device import DeviceInfo
    from gfxgraph.hardware.facts import Site


_LIBRARY = re.compile(r"/[\w./+-]{1,300}\.so(?:\.\d+)*")


def family_of(arch: str) -> str:
    """Return ``RDNA2`` for ``gfx1031``; '' for an unknown target."""
    # lazily: explain must start fast
    from gfxgraph.hardware.architectures import architecture

    known = architecture(arch)
    return known.family if known else ""


def explain(subject: object, *, lang: str = "", facts: Mapping[str, object] | None = None) -> Explanation:
    """Explain an error: a code, a HIP, HSA or CUDA status name, a number, an exception, or text.

    Args:
        subject: what to explain.
        lang: ``en`` or ``zh``; GFXGRAPH_LANG or the locale where empty.
        facts: of the machine that failed (``gfxgraph doctor --json``); this one's where None, if it may be the one.

    Returns:
        An Explanation; false where nothing was recognised. ``.format()`` is the text.
    """
    return _with_device(words.explain(subject, lang=lang, family_of=family_of), facts)


hooks.explain = explain
diagnose, install_diagnostics, report = hooks.diagnose, hooks.install_diagnostics, hooks.report


def conclude(scanner: Scanner, *, lang: str = "", facts: Mapping[str, object] | None = None) -> Explanation:
    """Finish a scan of a stream, with this machine's notes where the stream names no GPU."""
    return _with_device(words.conclude(scanner, lang=lang, family_of=family_of), facts)


def _with_device(found: Explanation, facts: Mapping[str, object] | None) -> Explanation:
    """Fill in what the text left open from the machine: the GPU, the system, the facts that decide on causes."""
    if not found:
        return found
    said = found.situation
    arch = said.arch
    families = found.families
    known = None
    is_elsewhere = facts is not None
    if not arch and facts and (named := values(facts, "gpu.arch")):
        arch = named[0]
        families = families or tuple(filter(None, [family_of(arch)]))
    elif not arch and not is_elsewhere and _may_have_gpu():
        device = _device()
        arch = device.physical_arch or device.arch
        families = families or ((device.family,) if device.family else ())
    if arch:
        # lazily: explaining one line needs none of it
        from gfxgraph.hardware.architectures import architecture

        known = architecture(arch)
    conditions = set(said.conditions)
    if not conditions & {"windows", "wsl", "linux"}:
        conditions |= (
            _this_system() if not is_elsewhere else {"wsl" if facts and facts.get("system.wsl") else "linux"}
        )
    conditions |= {"wsl", "linux"} if "wsl" in conditions else set()
    if arch in APUS:
        conditions.add("apu")
    if known:
        conditions.add("cdna" if known.is_cdna else "rdna" if known.family.startswith("RDNA") else "gcn")
    override = known.override if known else ""
    if override:
        conditions.add("override")
    if facts is None:
        facts = _facts_of(found) if "windows" not in conditions else {}
    of_text: dict[str, object] = {"gpu.arch": [said.arch], "gpu.seen_as": [said.arch]} if said.arch else {}
    facts = {**of_text, **said.facts, **facts, **_majors(facts)}
    situation = Situation(arch, override, frozenset(conditions), facts)
    return _with_bad_versions(replace(found, families=families, situation=situation))


def _majors(facts: Mapping[str, object]) -> dict[str, object]:
    """The numbers that the names of ROCm's libraries end in, of the installed ones."""
    found = {str(numbers(one)[0]) for one in values(facts, "rocm.versions") if numbers(one)}
    return {"rocm.majors": sorted(found)} if found else {}


def _with_bad_versions(found: Explanation) -> Explanation:
    if not found.matches[0].text and not found.situation.facts:
        return found
    # lazily: a code is explained without it
    from gfxgraph.hardware import bad_versions

    return replace(found, bad_versions=tuple(bad_versions.causes_of(found.matches[0].code)))


def _facts_of(found: Explanation) -> dict[str, object]:
    path = _LIBRARY.search(found.matches[0].text)
    return facts_here(found.situation.arch, path[0] if path else "") if _may_have_gpu() else {}


def facts_here(arch: str, library: str = "", site: Site | None = None) -> dict[str, object]:
    """This machine's facts, and those of a library that the log names; none if it failed elsewhere.

    That is: there is no AMD GPU here, or not the one that the text names.
    """
    # lazily: only a machine with an AMD GPU is asked
    from gfxgraph.hardware import facts
    from gfxgraph.hardware.access import has_amd_gpu
    from gfxgraph.hardware.facts import Site

    site = site or Site()
    if not has_amd_gpu(site.machine) or (arch and arch not in {gpu.arch for gpu in site.gpus}):
        return {}
    return facts.probe(site, library)


def _device() -> DeviceInfo:
    """The device; an empty one where GFXGRAPH_ARCH names none: an error is explained all the same."""
    # lazily: explaining one line needs none of it
    from gfxgraph.errors import ConfigError
    from gfxgraph.hardware.chosen_device import DeviceInfo, device_info

    try:
        return device_info()
    except ConfigError:
        return DeviceInfo()


def _may_have_gpu() -> bool:
    """Whether a look for this machine's GPU can find one; looking takes a quarter of the whole command."""
    return (
        any(map(os.path.exists, ("/sys/class/kfd", "/sys/module/amdgpu", "/dev/dxg")))
        or bool(config.load().arch)
        or "torch" in sys.modules
    )


def _this_system() -> set[str]:
    if sys.platform == "win32":
        return {"windows"}
    marks = {"/dev/dxg": "wsl", "/.dockerenv": "container", "/run/.containerenv": "container"}
    return {"linux"} | {name for path, name in marks.items() if Path(path).exists()}


def environment_report() -> str:
    """Return what is true of this machine, a line a fact, to paste into a bug report."""
    # lazily: explain does not need them, and it must start fast
    from gfxgraph import __version__
    from gfxgraph.hardware.facts import probe

    device, found = _device(), probe()
    gpu = f"{device.name} ({device.arch}, {device.family}, {device.source})" if device.arch else "none found"
    torch = str(found.get("torch.version", "not installed"))
    rows = [("gfxgraph", __version__), ("GPU", gpu), ("PyTorch", torch), ("Python", platform.python_version())]
    rows += [("system", platform.platform())]
    rows += [(name, ", ".join(shown)) for name in found if (shown := values(found, name))]
    rows += [(f"bad {one.variable}", f"{one.value}, allowed: {one.allowed}") for one in config.load().problems]
    return "\n".join(f"{name:<26} {shown}" for name, shown in rows)
