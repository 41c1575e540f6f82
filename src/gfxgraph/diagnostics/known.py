"""Known cases: below a recognised class, what others with the same signature found to be the cause and the fix.

Records are in ``cases/CODE.toml``, where CODE is the class that is recognised in their logs. A record is near if
most of the weight of its signature's words is in the log; a word weighs the more the fewer records contain it. What
the text or the machine contradicts (another GPU, system or version) is removed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent / "cases"
FACTS = frozenset(
    "not_in_render no_kfd no_dri in_container in_wsl override_set visible_empty amdgpu_not_loaded cuda_torch"
    " cpu_torch arch_not_in_torch iommu_on low_memlock small_shm".split()
)
"""What a machine can prove or contradict."""
_NONE: Mapping[str, str] = MappingProxyType({})


class KnownCase(NamedTuple):
    """One known case; empty fields say nothing. The fields are described in docs/explaining-errors.md."""

    signature: str
    cause: Mapping[str, str]
    fix: Mapping[str, str]
    check: Mapping[str, str]
    source: str
    message: str = ""
    program: str = ""
    arch: str = ""
    system: str = ""
    versions: Mapping[str, str] = _NONE
    machine: str = ""


@lru_cache(maxsize=32)
def cases(code: str) -> tuple[KnownCase, ...]:
    """The known cases below this class."""
    try:
        data = (FOLDER / f"{code}.toml").read_text(encoding="utf-8")
    except FileNotFoundError:
        return ()
    return tuple(map(parse, tomllib.loads(data)["case"]))


def parse(row: Mapping[str, Any]) -> KnownCase:
    """Turn one record of a file into a ``KnownCase``; its texts by language, Chinese only where it differs.

    Raises:
        TypeError: a key is missing or unknown.
        ValueError: an unknown fact about machines.
    """
    fields = dict(row)
    for name in ("cause", "fix", "check"):
        english = fields.pop("cause_en") if name == "cause" else fields.pop(name, "")
        fields[name] = {"en": english, "zh": fields.pop(f"{name}_zh", english)}
    if fields.get("machine", "") not in {"", *FACTS}:
        raise ValueError(f"unknown fact about a machine: {fields['machine']!r}; known: {', '.join(sorted(FACTS))}")
    return KnownCase(**fields)
