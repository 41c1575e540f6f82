"""For whom advice is given: which GPU and which system, as far as a text shows.

Advice in the catalogue may start with a condition ("@windows: ...") and contain the placeholders ``{arch}``,
``{override}`` and ``{index}``. The hardware room, which is above this one, adds what is known about this machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from gfxgraph.diagnostics import kinds

SYSTEMS = frozenset({"windows", "linux", "wsl", "container", "pip", "fedora", "archlinux"})
CONDITIONS = SYSTEMS | {"apu", "arch", "override", "index", "cdna", "rdna"}
_HERE_ARCH = "$(rocminfo | grep -om1 'gfx[1-9][0-9a-f]*')"
"""Stands for a target that is not known, in commands: the shell fills it in."""

_INDEXES = {
    **dict.fromkeys(("gfx906", "gfx908", "gfx90a"), "gfx90X-dcgpu"),
    **{start: f"{start}X-all" for start in ("gfx103", "gfx110", "gfx120")},
    **{"gfx94": "gfx94X-dcgpu", "gfx950": "gfx950-dcgpu", "gfx101": "gfx101X-dgpu", "gfx115": "{arch}"},
}
"""Folders of AMD's wheel index, by the target's beginning."""
_IN_COMMAND = re.compile(r"(?<=[-=_/\"'])\{arch\}|(?<=grep )\{arch\}")
_THIS_GPU = {"en": "this GPU", "zh": "此 GPU"}
CONDITION = re.compile(r"@(!?)([a-z_]+): ")
APUS = frozenset("gfx902 gfx90c gfx1033 gfx1035 gfx1036 gfx1103 gfx1150 gfx1151 gfx1152 gfx1153".split())
_NOT_ON_WINDOWS = re.compile(
    r"\b(?:sudo|apt|dnf|ldconfig|lsmod|modprobe|usermod|dmesg|rocminfo|chmod|ulimit|journalctl|LD_LIBRARY_PATH)\b"
    r"|/(?:opt|dev|etc|sys|proc|usr|tmp)/|\$\(|whl/rocm\d"
)
_ON_WINDOWS = (
    (re.compile(r"\b(?:export )([A-Z_]+)=(\S+?)(?=[;,)\s]|$)"), r"set \1=\2"),
    (re.compile(r"\bunset ([A-Z_]+(?: [A-Z_]{4,})*)"), lambda found: f"set {found[1].replace(' ', '= & set ')}="),
    (re.compile(r"\| grep -i?E?i? "), "| findstr /i "),
    (re.compile(r"\brm -rf ~/"), r"rmdir /s /q %USERPROFILE%/"),
)


class Situation(NamedTuple):
    """Where a failure happened, as far as that is known.

    ``arch`` is a gfx target or ''; ``override`` is the version under which it runs a related target's code. ``facts``
    are what is known about the machine of the failure.
    """

    arch: str = ""
    override: str = ""
    conditions: frozenset[str] = frozenset()
    facts: Mapping[str, object] = MappingProxyType({})

    def advice(self, step: str, lang: str = "en") -> str:
        """``step`` with values filled in for this situation; '' if it is for another one."""
        index = next((folder for start, folder in _INDEXES.items() if self.arch.startswith(start)), "")
        conditions = self.conditions | ({"arch"} if self.arch else set()) | ({"index"} if index else set())
        is_general = True
        while match := CONDITION.match(step):
            how, name = match.groups()
            if (name in conditions) == bool(how):
                return ""
            is_general = is_general and name != "windows"
            step = step[match.end() :]
        if "{override}" in step and not self.override:
            return ""
        if is_general and "windows" in conditions:
            if _NOT_ON_WINDOWS.search(step):
                return ""
            for pattern, new in _ON_WINDOWS:
                step = pattern.sub(new, step)
        return self.named(step.replace("{index}", index), lang).replace("{override}", self.override)

    def named(self, text: str, lang: str) -> str:
        """``text`` with the GPU's name; if that is not known, commands get it from the shell."""
        unknown = "<gfx target>" if "windows" in self.conditions else _HERE_ARCH
        return _IN_COMMAND.sub(self.arch or unknown, text).replace("{arch}", self.arch or _THIS_GPU[lang])


def read(lines: Iterable[str], archs: Iterable[str]) -> Situation:
    """The situation that ``lines`` show; ``archs`` are the targets named in the text, most frequent first."""
    forms = [kinds.of(line) for line in lines]
    found = {name for form in forms for name in SYSTEMS if f"system_{name}" in form}
    if "wsl" in found:
        found.discard("windows")
    if "windows" in found:
        found &= {"windows", "pip"}
    elif found - {"pip"}:
        found.add("linux")
    # Of several products in the text the one that is first in the table: names of integrated GPUs come late.
    order = [item.code for item in kinds.rows() if item.kind == "gpus"] if not archs else []
    named = {arch for form in forms for arch in form.get("gpus", ())[:1]}
    arch = next(iter(archs), "") or next((arch for arch in order if arch in named), "")
    facts = dict(fact.split("=", 1) for form in forms for fact in form.get("fact", ()))
    return Situation(arch, "", frozenset(found), facts)
