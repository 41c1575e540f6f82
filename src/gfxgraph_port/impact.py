"""The order in which findings are shown and worked through: by what each does to a port.

Enters: findings.
Stays out: severities beyond their order, which say how bad one place is within its impact.
"""

from __future__ import annotations

from gfxgraph_port.model import Finding, Impact
from gfxgraph_port.registry import find

__all__ = ["Impact", "impact_of", "rank"]


def impact_of(code: str) -> Impact:
    """The impact of a rule, by its code."""
    loaded = find(code)
    return Impact.BREAKS if loaded is None else loaded.rule.harm


def rank(f: Finding) -> tuple[int, int, str, str, int]:
    """A sort key: impact, then severity, then the place."""
    return impact_of(f.code), -f.severity, f.rule, f.path, f.line
