"""Versions that may be known in part only, and ranges over them.

HIP reports ``7.2.26015``: the third number is a build, not ROCm's patch level, so ``7.2`` is all
that is known, and it must match both "before 7.2.2" and "from 7.2.1". A defect that may be
there is treated as being there.
"""

from __future__ import annotations

import re

from gfxgraph.diagnostics.causes import numbers

Version = tuple[int, ...]
parse = numbers


def show(version: Version) -> str:
    """``7.2``, or ``?`` where nothing is known."""
    return ".".join(map(str, version)) or "?"


def rocm_of_hip(hip: Version) -> Version:
    """Return what a HIP version says about ROCm's: major and minor, never the patch level."""
    # HIP calls itself 7.15 on ROCm 10.0 (read from package rocm-bindings-hip 10.0.0.0.1.2).
    if hip[:2] == (7, 15):
        return (10, 0)
    if hip[:2] > (7, 15) and hip[0] == 7:
        return (10,)
    return hip[:2]


def may_be_below(version: Version, bound: Version) -> bool:
    """True where some completion of ``version`` is below ``bound``."""
    padded = version + (0,) * (len(bound) - len(version))
    return padded < bound


def may_match(version: Version, spec: str) -> bool:
    """True where ``version`` may satisfy every part of ``spec``, as ``>=7.2,<7.2.4``.

    An empty spec matches everything; an unknown version, (), matches every spec.
    """
    for part in filter(None, (piece.strip() for piece in spec.split(","))):
        match = re.fullmatch(r"(>=|<|==)(\d+(?:\.\d+)*)", part)
        if match is None:
            raise ValueError(f"not a version range: {spec!r}")
        bound = parse(match[2])
        if not version:
            continue
        if match[1] == ">=":
            fits = version[: len(bound)] + (10**9,) * (len(bound) - len(version)) >= bound  # some completion is
        elif match[1] == "<":
            fits = may_be_below(version, bound)
        else:
            fits = version[: len(bound)] == bound[: len(version)]
        if not fits:
            return False
    return True
