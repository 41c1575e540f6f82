"""One document that a porting agent can work through: ranked findings, their diffs, and the gate that ends the work.

The agent takes ``work`` from the top. Where ``edit.patch`` is there it applies it after checking ``edit.needs``; the
rest it edits itself, by ``do``. After each round it runs the gate, which audits again and compares with the document.

Enters: a repository.
Stays out: running anything of it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from gfxgraph.port import plan
from gfxgraph.port.archs import Arch
from gfxgraph.port.audit import Audit, audit
from gfxgraph.port.facts import gather
from gfxgraph.port.fix import run
from gfxgraph.port.impact import Impact, impact_of, rank
from gfxgraph.port.model import Finding
from gfxgraph.port.project import discover

SCHEMA = "gfxgraph-port-agent/1"
_GATED = (Impact.BREAKS, Impact.SILENT)


def document(path: str, *, archs: tuple[Arch, ...] | None, lang: str = "en") -> dict[str, Any]:
    """The plan, with the diffs that answer its items and the gate that ends the work."""
    report = audit(path, archs=archs)
    project = discover(path)
    gather(project)
    fixes = {f.path: f for f in run.fix(path, unsafe=True, archs=archs)}
    made = plan.made_of(report, project, lang)
    found = {f.fingerprint: f for f in report.findings}
    for row in made["work"]:
        row["edit"] = _edit(found[row["fingerprint"]], fixes)
    return {
        **made,
        "schema": SCHEMA,
        "patches": [
            {
                "path": f.path,
                "new_file": not f.old,
                "rules": sorted({e.rule for e in f.applied}),
                "needs": sorted({e.needs for e in f.applied if e.needs}),
                "patch": f.patch(),
            }
            for f in fixes.values()
            if f.new != f.old
        ],
        "gate": {
            "command": ["gfxgraph", "port", "agent", ".", "--gate", "port.json"],
            "passes_when": "no finding that breaks or is silently wrong is left but those accepted; none is new",
            "accept": "a fingerprint under gate.accepted with its reason, or an inline gfxport: ignore[RULE] reason",
            "accepted": {},
            "counts": _counts(report),
        },
    }


def _edit(f: Finding, fixes: dict[str, run.FileFix]) -> dict[str, object]:
    """Whether a patch answers a finding, what a reviewer is to check, or why it was refused."""
    lines = set(f.lines or (f.line,))
    made = fixes.get(f.path)
    edits = [e for e in made.applied if e.rule == f.rule and _touches(e.line, e.last_line, lines)] if made else []
    edits += (e for beside in fixes.values() if (f.path, f.rule) in beside.answers for e in beside.applied)
    refused = [r.reason for r in made.refused if r.rule == f.rule and r.line in lines] if made else []
    return {
        "in_patch": bool(edits),
        "needs": sorted({e.needs for e in edits if e.needs}),
        "refused": refused[0] if refused and not edits else "",
    }


def _touches(first: int, last: int, lines: set[int]) -> bool:
    return not lines.isdisjoint(range(first, max(first, last) + 1))


def _counts(report: Audit) -> dict[str, int]:
    counts = Counter(impact_of(f.code).label for f in report.findings)
    return {i.label: counts[i.label] for i in Impact}


def gate(path: str, before: dict[str, Any], *, archs: tuple[Arch, ...] | None) -> dict[str, Any]:
    """Audit again and compare with a document.

    Raises:
        ValueError: it is no such document.
    """
    if before.get("schema") != SCHEMA or not isinstance(before.get("work"), list):
        raise ValueError(f"not a document of gfxgraph port agent ({SCHEMA})")
    try:
        accepted = {str(k) for k, why in before.get("gate", {}).get("accepted", {}).items() if str(why).strip()}
        known = {str(item["fingerprint"]) for item in before["work"]}
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not a document of gfxgraph port agent ({SCHEMA}): {error!r}") from error
    report = audit(path, archs=archs)
    now = {f.fingerprint: f for f in report.findings if impact_of(f.code) in _GATED}
    left = [f for k, f in now.items() if k in known and k not in accepted]
    new = [f for k, f in now.items() if k not in known and k not in accepted]
    return {
        "schema": f"{SCHEMA.rpartition('/')[0]}-gate/1",
        "passed": not left and not new,
        "gone": len(known - {f.fingerprint for f in report.findings}),
        "accepted": len(accepted & now.keys()),
        "left": [f.as_json() for f in sorted(left, key=rank)],
        "new": [f.as_json() for f in sorted(new, key=rank)],
        "counts": _counts(report),
    }
