"""One document that a porting agent works through: the plan, and the gate that ends the work.

The agent runs ``start``, makes the document again, and takes ``work`` from the top. After each round it runs the
gate, which audits again and compares with the document.

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
from gfxgraph.port.impact import Impact, impact_of, rank
from gfxgraph.port.model import Severity
from gfxgraph.port.project import discover

SCHEMA = "gfxgraph-port-agent/2"
_GATED = (Impact.BREAKS, Impact.SILENT)


def document(path: str, *, archs: tuple[Arch, ...] | None, lang: str = "en") -> dict[str, Any]:
    """The plan, with the gate that ends the work."""
    report = audit(path, archs=archs, min_severity=Severity.LOW)
    project = discover(path)
    gather(project)
    return {
        **plan.made_of(report, project, lang),
        "schema": SCHEMA,
        "gate": {
            "command": ["gfxgraph", "port", "agent", ".", "--gate", "port.json"],
            "passes_when": "no finding that breaks or is silently wrong is left but those accepted; none is new",
            "accept": "a fingerprint under gate.accepted with its reason, or an inline gfxport: ignore[RULE] reason",
            "accepted": {},
            "counts": _counts(report),
        },
    }


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
        known = {str(item["fingerprint"]): (item["rule"], item["path"]) for item in before["work"]}
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not a document of gfxgraph port agent ({SCHEMA}): {error!r}") from error
    report = audit(path, archs=archs, min_severity=Severity.LOW)
    now = {f.fingerprint: f for f in report.findings if impact_of(f.code) in _GATED}
    rest = [f for k, f in now.items() if k not in accepted]
    left = [f for f in rest if (f.rule, f.path) in known.values()]  # some of its places may be gone
    new = [f for f in rest if (f.rule, f.path) not in known.values()]
    return {
        "schema": f"{SCHEMA.rpartition('/')[0]}-gate/1",
        "passed": not left and not new,
        "gone": len(known.keys() - {f.fingerprint for f in report.findings}),
        "accepted": len(accepted & now.keys()),
        "left": [f.as_json() for f in sorted(left, key=rank)],
        "new": [f.as_json() for f in sorted(new, key=rank)],
        "counts": _counts(report),
    }
