"""For whom advice is given: which GPU and which system, as far as a text shows.

Advice in the catalogue may start with a condition ("@windows: ...") and contain the placeholders ``{arch}`` and
``{override}``. The hardware room, which is above this one, adds what is known about this machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from gfxgraph.diagnostics.lazy import Expression

CONDITIONS = frozenset({"windows", "linux", "wsl", "container", "apu", "arch", "override", "cdna", "rdna"})
ANY_ARCH = "gfxNNNN"
"""Shown for the target if none is known."""

_CONDITION = Expression(r"@(!?)([a-z]+): ")
_SYSTEMS = {
    "wsl": Expression(r"\bWSL|/dev/dxg|dxgkio|microsoft-standard|thunk_proxy|librocdxg|WDDM adapter", re.IGNORECASE),
    "windows": Expression(
        r"\b[A-Z]:\\|\bWinError\b|\.dll\b|\.exe\b|Windows fatal|\bWindows 1[01]\b|win_amd64|0xC000\d{4}|\bMSVC\b"
    ),
    "container": Expression(
        r"\bdocker|\bpodman|kubernetes|kubelet|\bLX[CD]\b|apptainer|singularity|containerd|/\.dockerenv"
        r"|\w+@[0-9a-f]{6,12}:|distrobox|toolbx"
    ),
}
# Product names of GPUs that identify the target. In this order: "RX 6800M" is not an RX 6800.
_NAMES = tuple(
    (Expression(rf"\b(?:{names})\b", re.IGNORECASE), arch)
    for names, arch in (
        ("MI35[05]X", "gfx950"),
        ("MI3(?:00[AX]|08X|25X)", "gfx942"),
        ("MI2(?:10|50X?)", "gfx90a"),
        ("MI100", "gfx908"),
        ("MI[56]0|Radeon (?:Pro )?VII", "gfx906"),
        ("RX Vega ?(?:56|64)?|MI25|Vega (?:56|64)", "gfx900"),
        ("80[456]0S|Ryzen AI MAX\\+?|Strix Halo", "gfx1151"),
        ("8[89]0M|Strix Point", "gfx1150"),
        ("8[46]0M|Krackan", "gfx1152"),
        ("7[468]0M", "gfx1103"),
        ("6[68]0M", "gfx1035"),
        ("(?:RX ?)?9070(?: ?(?:XT|GRE))?|(?:AI PRO )?R9[67]00S?", "gfx1201"),
        ("RX ?9060(?: ?XT)?", "gfx1200"),
        ("(?:RX ?)?7900(?: ?(?:XTX?|GRE|M))?|W7[89]00", "gfx1100"),
        ("RX ?7[78]00(?: ?XT)?|W7700", "gfx1101"),
        ("RX ?7[56]\\d0(?: ?XT)?|W7[56]00|7600M", "gfx1102"),
        ("RX ?6[78][05]0M|RX ?67[05]0(?: ?(?:XT|GRE))?", "gfx1031"),
        ("RX ?6[89][05]0(?: ?XT)?|W6800", "gfx1030"),
        ("RX ?6[67][05]0[MS]|RX ?66[05]0(?: ?XT)?|W6600", "gfx1032"),
        ("RX ?6[345]00[MSXT ]*|W6[34]00", "gfx1034"),
        ("RX ?5[67]00(?: ?XT)?", "gfx1010"),
        ("RX ?5[35]00(?: ?XT)?", "gfx1012"),
        ("RX ?(?:4[678]0|5[6789]0)", "gfx803"),
        # Names used by the driver and lspci; names of painters only after their vendor.
        ("Aldebaran", "gfx90a"),
        ("Arcturus", "gfx908"),
        ("Vega ?20", "gfx906"),
        ("Vega ?10", "gfx900"),
        ("Navi ?48", "gfx1201"),
        ("Navi ?44", "gfx1200"),
        ("Navi ?33", "gfx1102"),
        ("Navi ?32", "gfx1101"),
        ("Navi ?31", "gfx1100"),
        ("Navi ?24", "gfx1034"),
        ("Navi ?23", "gfx1032"),
        ("Navi ?22", "gfx1031"),
        ("Navi ?21", "gfx1030"),
        ("Navi ?14", "gfx1012"),
        ("Navi ?10", "gfx1010"),
        ("Phoenix[123]|Hawk Point", "gfx1103"),
        ("A(?:MD|TI)\\W{1,2}Rembrandt", "gfx1035"),
        ("Granite Ridge|A(?:MD|TI)\\W{1,2}Raphael", "gfx1036"),
        ("A(?:MD|TI)\\W{1,2}(?:Barcelo|Cezanne|Lucienne|Renoir)", "gfx90c"),
        ("Raven Ridge|A(?:MD|TI)\\W{1,2}Picasso", "gfx902"),
        ("Polaris ?1[0-2]|Ellesmere|Baffin|WX ?[457]100", "gfx803"),
    )
)
APUS = frozenset("gfx902 gfx90c gfx1033 gfx1035 gfx1036 gfx1103 gfx1150 gfx1151 gfx1152 gfx1153".split())


class Situation(NamedTuple):
    """``arch`` is a gfx target or ''; ``override`` is the version under which it runs a related target's code."""

    arch: str = ""
    override: str = ""
    conditions: frozenset[str] = frozenset()

    def advice(self, step: str) -> str:
        """``step`` with values filled in for this situation; '' if it is for another one."""
        conditions = self.conditions | ({"arch"} if self.arch else set())
        while match := _CONDITION.match(step):
            if (match[2] in conditions) == bool(match[1]):
                return ""
            step = step[match.end() :]
        if "{override}" in step and not self.override:
            return ""
        return step.replace("{arch}", self.arch or ANY_ARCH).replace("{override}", self.override)


def general(step: str) -> tuple[list[str], str]:
    """The conditions of ``step`` and its text, for pages that cover all situations."""
    conditions = []
    while match := _CONDITION.match(step):
        conditions.append(f"{match[1]}{match[2]}")
        step = step[match.end() :]
    return conditions, step.replace("{arch}", ANY_ARCH).replace("{override}", "X.Y.Z")


def read(lines: Iterable[str], archs: Iterable[str]) -> Situation:
    """The situation that ``lines`` show; ``archs`` are the targets named in the text, most frequent first."""
    text = "\n".join(lines)
    found = {name for name, pattern in _SYSTEMS.items() if pattern.search(text)}
    if "wsl" in found:
        found.discard("windows")
    if "windows" not in found and (found or re.search(r"(?:^|[\s\"'=(])/(?:usr|opt|home|dev|lib|var|root)/", text)):
        found.add("linux")
    arch = next(iter(archs), "") or next((arch for names, arch in _NAMES if names.search(text)), "")
    return Situation(arch, "", frozenset(found))
