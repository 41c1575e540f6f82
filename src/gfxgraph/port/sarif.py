"""An audit as SARIF 2.1.0, for code-scanning services.

Suppressed findings are listed with their suppression, files passed over as notifications of the invocation:
nothing is dropped.
"""

from __future__ import annotations

import urllib.parse
from typing import Any

from gfxgraph.port.audit import Audit
from gfxgraph.port.model import Finding, Severity, fill
from gfxgraph.port.registry import load

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVEL = {
    Severity.CRITICAL: "error",
    Severity.HIGH: "error",
    Severity.MEDIUM: "warning",
    Severity.LOW: "note",
    Severity.INFO: "note",
}
_SCORE = {"critical": "9.0", "high": "7.0", "medium": "5.0", "low": "3.0", "info": "1.0"}


def as_sarif(audit: Audit, *, lang: str = "en", version: str = "2.0.0") -> dict[str, Any]:
    """The audit as one SARIF run; paths are relative to the audited folder."""
    rules = load()
    index = {r.rule.id: i for i, r in enumerate(rules)}
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "gfxgraph-port",
                        "semanticVersion": version,
                        "rules": [_rule(r.rule, lang) for r in rules],
                    }
                },
                "originalUriBaseIds": {"SRCROOT": {"description": {"text": "The audited folder."}}},
                "columnKind": "unicodeCodePoints",
                "invocations": [
                    {
                        "executionSuccessful": True,
                        "toolExecutionNotifications": [
                            {
                                "level": "warning",
                                "message": {"text": f"{s.reason}: {s.detail}" if s.detail else s.reason},
                                "locations": [{"physicalLocation": {"artifactLocation": _uri(s.path)}}],
                            }
                            for s in audit.skipped
                        ],
                    }
                ],
                "results": [
                    *(_result(f, index, lang) for f in audit.findings),
                    *(_result(f, index, lang, "inSource") for f in audit.suppressed),
                    *(_result(f, index, lang, "external") for f in audit.baselined),
                ],
            }
        ],
    }


def _rule(rule: Any, lang: str) -> dict[str, Any]:
    text = rule.text(lang)
    return {
        "id": rule.id,
        "name": "".join(w.capitalize() for w in rule.code.split("-")),
        "shortDescription": {"text": text.title},
        "fullDescription": {"text": text.why},
        "help": {"text": f"{text.why}\n\n{text.do}", "markdown": f"{text.why}\n\n**{text.do}**"},
        "defaultConfiguration": {"level": _LEVEL[rule.severity]},
        "properties": {
            "tags": [f"phase-{rule.phase}", rule.archs.label, f"fix-{rule.fix.value}"],
            "problem.severity": _LEVEL[rule.severity].replace("note", "recommendation"),
            "security-severity": _SCORE[rule.severity.label],
        },
    }


def _result(f: Finding, index: dict[str, int], lang: str, suppression: str = "") -> dict[str, Any]:
    text = load()[index[f.rule]].rule.text(lang)
    region: dict[str, Any] = {"startLine": max(1, f.line), "startColumn": f.column + 1}
    if f.end_line > f.line:
        region["endLine"] = f.end_line
    if f.evidence:
        region["snippet"] = {"text": f.evidence}
    row: dict[str, Any] = {
        "ruleId": f.rule,
        "ruleIndex": index[f.rule],
        "level": _LEVEL[f.severity],
        "message": {"text": f"{text.title}: {fill(text.what, f.values)}. {text.do}"},
        "locations": [{"physicalLocation": {"artifactLocation": _uri(f.path), "region": region}}],
        "partialFingerprints": {"gfxgraphPort/v1": f.fingerprint or f"{f.rule}:{f.path}:{f.line}"},
        "properties": {"archs": list(f.archs), "effort": f.effort.label, "phase": f.phase},
    }
    if suppression:
        row["suppressions"] = [{"kind": suppression}]
    return row


def _uri(path: str) -> dict[str, str]:
    return {"uri": urllib.parse.quote(path or "."), "uriBaseId": "SRCROOT"}
