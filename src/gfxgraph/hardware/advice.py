"""Explanations that know this machine: the public ``explain``, which ``diagnostics/hooks.py`` uses, too.

The diagnostics room says what an error means; this adds which GPU it means it for. The device is
only looked up when something was recognised, and never through torch.
"""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gfxgraph import config
from gfxgraph.diagnostics import explain as words
from gfxgraph.diagnostics import hooks
from gfxgraph.diagnostics.explanation import Explanation
from gfxgraph.diagnostics.situation import APUS, Situation

if TYPE_CHECKING:
    from gfxgraph.diagnostics.scan import Scanner
    from gfxgraph.hardware.device import DeviceInfo


def family_of(arch: str) -> str:
    """Return ``RDNA2`` for ``gfx1031``; '' for an unknown target."""
    # lazily: explain must start fast
    from gfxgraph.hardware.architectures import architecture

    known = architecture(arch)
    return known.family if known else ""


def explain(subject: object, *, lang: str = "") -> Explanation:
    """Explain an error: a code, a HIP, HSA or CUDA status name, a number, an exception, or text.

    Args:
        subject: what to explain.
        lang: ``en`` or ``zh``; GFXGRAPH_LANG or the locale where empty.

    Returns:
        An Explanation; false where nothing was recognised. ``.format()`` is the text.
    """
    return _with_device(words.explain(subject, lang=lang, family_of=family_of))


hooks.explain = explain
diagnose, install_diagnostics, report = hooks.diagnose, hooks.install_diagnostics, hooks.report


def conclude(scanner: Scanner, *, lang: str = "") -> Explanation:
    """Finish a scan of a stream, with this machine's notes where the stream names no GPU."""
    return _with_device(words.conclude(scanner, lang=lang, family_of=family_of))


def _with_device(found: Explanation) -> Explanation:
    """Fill in what the text left open from this machine: the GPU, the system, what is wrong here."""
    if not found:
        return found
    said = found.situation
    arch = said.arch
    families = found.families
    known = None
    if not arch and _may_have_gpu():
        device = _device()
        arch = device.physical_arch or device.arch
        families = families or ((device.family,) if device.family else ())
    if arch:
        # lazily: explaining one line needs none of it
        from gfxgraph.hardware.architectures import architecture

        known = architecture(arch)
    conditions = set(said.conditions)
    if not conditions & {"windows", "wsl", "linux"}:
        conditions |= _this_system()
    conditions |= {"wsl", "linux"} if "wsl" in conditions else set()
    if arch in APUS:
        conditions.add("apu")
    if known:
        conditions.add("cdna" if known.is_cdna else "rdna" if known.family.startswith("RDNA") else "gcn")
    override = known.override if known else ""
    if override:
        conditions.add("override")
    situation = Situation(arch, override, frozenset(conditions))
    found = replace(found, families=families, situation=situation)
    if "windows" in conditions or not _may_have_gpu():
        return found
    # lazily: only a machine with an AMD GPU is asked
    from gfxgraph.hardware.answers import with_answers

    return with_answers(found, said.arch)


def _device() -> DeviceInfo:
    """The device; an empty one where GFXGRAPH_ARCH names none: an error is explained all the same."""
    # lazily: explaining one line needs none of it
    from gfxgraph.errors import ConfigError
    from gfxgraph.hardware.device import DeviceInfo, device_info

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
    conditions = {"linux"}
    if Path("/dev/dxg").exists():
        conditions.add("wsl")
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists():
        conditions.add("container")
    return conditions


def environment_report() -> str:
    """Return a few lines about this machine, to paste into a bug report."""
    # lazily: explain does not need them, and it must start fast
    from gfxgraph import __version__
    from gfxgraph.hardware.defect_environment import detect
    from gfxgraph.hardware.device import torch_rocm_status
    from gfxgraph.hardware.versions import show

    device, torch, environment = _device(), torch_rocm_status(), detect()
    rows = [
        ("gfxgraph", __version__),
        ("GPU", f"{device.name} ({device.arch}, {device.source})" if device.arch else "none found"),
        ("family", f"{device.family}, wave{device.wavefront}" if device.arch else ""),
        ("support", device.support),
        ("ROCm", show(environment.rocm) if environment.rocm else "not found"),
        ("PyTorch", str(torch["message"]).removeprefix("PyTorch ")),
        ("Python", platform.python_version()),
        ("system", platform.platform()),
        *config.reported(environment.environ).items(),
    ]
    rows += [
        ("bad setting", f"{problem.variable}={problem.value}, allowed: {problem.allowed}")
        for problem in config.load().problems
    ]
    return "\n".join(f"{label:<10} {value}" for label, value in rows if value)
