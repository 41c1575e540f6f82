"""For whom advice is given: which GPU and which system, as far as a text shows.

Advice in the catalogue may start with a condition ("@windows: ...") and contain the placeholders ``{arch}`` and
``{override}``. The hardware room, which is above this one, adds what is known about this machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from gfxgraph.diagnostics import kinds

CONDITIONS = frozenset({"windows", "linux", "wsl", "container", "apu", "arch", "override", "cdna", "rdna"})
ANY_ARCH = "gfxNNNN"
"""Shown for the target if none is known."""

_CONDITION = re.compile(r"@(!?)([a-z]+): ")
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
    forms = [kinds.of(line) for line in lines]
    found = {name for form in forms for name in CONDITIONS if f"system_{name}" in form}
    if "wsl" in found:
        found.discard("windows")
    if "windows" not in found and found:
        found.add("linux")
    # Of several products in the text the one that is first in the table: names of integrated GPUs come late.
    order = [item.code for item in kinds.rows() if item.kind == "gpus"] if not archs else []
    named = {arch for form in forms for arch in form.get("gpus", ())[:1]}
    arch = next(iter(archs), "") or next((arch for arch in order if arch in named), "")
    return Situation(arch, "", frozenset(found - ({"linux"} if "windows" in found else set())))
