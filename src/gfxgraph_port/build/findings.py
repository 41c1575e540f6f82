"""The list of what is left: the compiler's and the build's errors with the rule that explains the line, and beside
them what no compiler knows.

Enters: a verdict, its repository.
Stays out: stdout.
"""

from __future__ import annotations

import re

from gfxgraph_port.archs import select
from gfxgraph_port.audit import audit
from gfxgraph_port.build.judge import CompilerFinding, Verdict
from gfxgraph_port.build.real import BuildOutcome
from gfxgraph_port.fix import compiled
from gfxgraph_port.model import Finding, Severity, fill
from gfxgraph_port.registry import find, impact_of, rank

SCHEMA = "gfxgraph-port-build/1"
# Words of messages that name what a rule is about, where the rule has no finding on the line itself.
_ABOUT = ((re.compile(r"invalid (?:output|input) constraint|asm"), "inline-ptx"),)
_DO = {
    "does not compile": "change the line so that hipcc takes it; behind USE_HIP or USE_ROCM where NVIDIA needs it so",
    "missing header": "install what has this header, or configure the build that makes it; the code is not at fault",
    "no such library": "take AMD's library where there is one; else leave the unit out of the HIP build, or put what "
                       "needs the library behind #ifndef USE_HIP",
    "does not configure": "what the build asks for is not there: give it, or take the other way behind USE_HIP",
    "does not link": "link the library that has the symbol, or compile the unit that defines it into this target",
    "not built": "find the condition that keeps the GPU sources out of the build, and let USE_HIP pass it (setup.py: "
                 "torch.version.hip: CUDA_HOME is None there)",
    "unchecked": "check the hipError_t, or cast it to void where a failure is of no consequence",
}  # fmt: skip


def as_json(root: str, verdict: Verdict, lang: str = "en", real: BuildOutcome | None = None) -> dict[str, object]:
    """The verdict as plain data; errors of the project's build stand with the compiler's, each once."""
    left = list(verdict.left)
    known = {(x.path, x.line, x.text) for x in left}
    left += [x for x in real.left if (x.path, x.line, x.text) not in known] if real is not None else []
    if real is not None and real.is_linked:  # its own options found what the fast stage did not
        left = [x for x in left if x.kind != "missing header" or not {*real.unbuilt}.isdisjoint(x.units)]
    left.sort(key=lambda x: x.kind in ("unchecked", "missing header"))
    rules = _rules(root, verdict.archs)
    explained = {
        (f.path, n): f for f in reversed(rules) for n in {*range(f.line, max(f.line, f.end_line) + 1), *f.lines}
    }
    failing = {(x.path, x.line) for x in left}
    return {
        "schema": SCHEMA,
        "targets": list(verdict.archs),
        **verdict.as_json(),
        "states": verdict.states,
        "headers_this_machine_lacks": {name: len(units) for name, units in verdict.headers.items()},
        "findings": [_row(x, explained.get((x.path, x.line)), lang) for x in left]
        + [_unseen(f, lang) for f in rules if not any((f.path, n) in failing for n in f.lines)],
        "real": real.as_json() if real is not None else None,
        "skipped": [{"path": path, "reason": why} for path, why in verdict.skipped],
    }


def _rules(root: str, archs: tuple[str, ...]) -> list[Finding]:
    """What the rules find, the worst first: it explains errors, and says what no compiler knows."""
    return sorted(audit(root, archs=select(archs), min_severity=Severity.LOW).findings, key=rank)


def _unseen(finding: Finding, lang: str) -> dict[str, object]:
    """A finding of the rules in the list's form."""
    loaded = find(finding.rule)
    assert loaded is not None
    text = loaded.rule.text(lang)
    return {
        "kind": {"breaks": "a rule: stops", "silent": "a rule: runs and is wrong"}.get(
            impact_of(finding.code).label, "a rule: is slow"
        ),
        **finding.as_json(),
        "message": f"{text.title}: {fill(text.what, finding.values)}",
        "sides": list(finding.archs),
        "units": [],
        "notes": [],
        "why": text.why,
        "do": text.do,
        "edit": "gfxgraph port fix --unsafe" if loaded.rule.fix.value != "none" else "",
        "check": f"gfxgraph port audit . --rule {finding.rule}",
    }


def _row(left: CompilerFinding, finding: Finding | None, lang: str) -> dict[str, object]:
    code = finding.code if finding is not None else next((c for p, c in _ABOUT if p.search(left.text)), "")
    what = "no such library" if left.kind == "does not compile" and "file not found" in left.text else left.kind
    loaded = find(code) if code else None
    text = loaded.rule.text(lang) if loaded is not None else None
    return {
        "kind": left.kind,
        "path": left.path,
        "line": left.line,
        "column": left.column,
        "message": left.text,
        "sides": list(left.sides),
        "units": list(left.units),
        "notes": [{"path": p, "line": n, "message": t} for p, n, t in left.notes],
        "rule": loaded.rule.id if loaded is not None else "",
        "code": code,
        "why": text.why if text is not None else "",
        "do": text.do if text is not None else _DO[what],
        "edit": "gfxgraph port fix --loop"
        if compiled.is_known(left) or (loaded and loaded.rule.fix.value != "none")
        else "",
        "check": "gfxgraph port build . --json",
    }
