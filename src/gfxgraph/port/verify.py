"""Static and build checks of a port, and the report that holds them together with the golden comparison.

The numerical half runs the user's model and lives in ``gfxgraph.rocm.golden``; here nothing is imported.
"""

from __future__ import annotations

import html
import json
import shlex
import shutil
import subprocess
from dataclasses import asdict, dataclass
from typing import Any

from gfxgraph.port.audit import Audit
from gfxgraph.port.files import write_out
from gfxgraph.port.model import Severity

SCHEMA = "gfxgraph-port-verify/1"


@dataclass(frozen=True, slots=True)
class Check:
    """One check: passed, failed, or skipped with a reason."""

    name: str
    outcome: str  # "passed", "failed", "skipped"
    detail: str = ""


def static_checks(audit: Audit) -> list[Check]:
    """What still stands in the way, by kind, and how many tests vanish on AMD."""

    def count(*codes: str) -> int:
        return sum(f.code in codes for f in audit.findings)

    rows = [
        ("inline PTX that AMD reaches", count("inline-ptx", "triton-inline-ptx")),
        (
            "NVIDIA-only libraries that AMD reaches",
            count("cutlass", "wmma", "nvidia-only-library", "cudnn-cpp"),
        ),
        ("CUDA names left in AMD arms", count("hip-arm-has-cuda")),
        ("wavefront width taken for granted", count("warp-size-32", "wave-64-hardcoded", "lane-arithmetic")),
        ("critical and high findings in all", sum(f.severity >= Severity.HIGH for f in audit.findings)),
    ]
    checks = [Check(f"static: {name}", "failed" if n else "passed", str(n)) for name, n in rows]
    skipped = [f for f in (*audit.findings, *audit.guarded) if f.code == "tests-skip-on-amd"]
    checks.append(Check("static: tests that vanish on AMD", "passed", f"{len(skipped)} counted"))
    return checks


def build_check(command: str | None, root: str, timeout_s: int = 3600) -> Check:
    """Run the given build command in the repository; without one, say that nothing was built."""
    if command is None:
        found = shutil.which("hipcc")
        return Check("build", "skipped", "no --build command" + ("" if found else "; hipcc is not on the PATH"))
    try:
        done = subprocess.run(
            shlex.split(command), cwd=root, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("build", "failed", f"{command}: {error}")
    tail = (done.stderr or done.stdout).strip()[-600:]
    return Check(
        "build",
        "failed" if done.returncode else "passed",
        f"{command}: exit {done.returncode} {tail}".strip(),
    )


def report(checks: list[Check], numerics: dict[str, Any] | None) -> dict[str, Any]:
    """Everything as plain data. Skipped checks never count as passed."""
    failed = any(c.outcome == "failed" for c in checks) or (numerics is not None and not numerics["passed"])
    return {
        "schema": SCHEMA,
        "passed": not failed,
        "complete": numerics is not None and all(c.outcome != "skipped" for c in checks),
        "checks": [asdict(c) for c in checks],
        "numerics": numerics,
    }


def write(data: dict[str, Any], json_path: str | None, html_path: str | None) -> None:
    if json_path:
        write_out(json_path, json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    if html_path:
        write_out(html_path, as_html(data))


_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Port verification</title>
<style>body{{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem}}
table{{border-collapse:collapse;width:100%}}td,th{{border-bottom:1px solid #8884;padding:.3rem .6rem;text-align:left}}
.passed{{color:#187a2f}}.failed{{color:#b3261e}}.skipped{{color:#8a6d00}}</style>
<h1>Port verification: <span class="{state}">{state}</span></h1><p>{complete}</p>
<h2>Checks</h2><table><tr><th>check<th>outcome<th>detail</tr>{checks}</table>{numerics}</html>
"""


def _training(row: dict[str, Any]) -> str:
    """One cell about the loss and the gradients."""
    found = row.get("training")
    if found is None:
        return "not compared"
    if found["outcome"] == "skipped":
        return html.escape(f"skipped: {found['reason']}")
    first = f", first gradient that differs: {found['first_gradient']}" if found["first_gradient"] else ""
    return html.escape(f"{found['outcome']}: loss off by {found['loss_error']:.2g}{first}{found['reason']}")


def as_html(data: dict[str, Any]) -> str:
    """One offline page."""
    checks = "".join(
        f"<tr><td>{html.escape(c['name'])}<td class={c['outcome']}>{c['outcome']}<td>{html.escape(c['detail'])}</tr>"
        for c in data["checks"]
    )
    numerics = "<h2>Numerics</h2><p class=skipped>not run</p>"
    if data["numerics"]:
        n = data["numerics"]
        rows = "".join(
            f"<tr><td>{'x'.join(map(str, r['shape']))}<td class={'passed' if r['passed'] else 'failed'}>"
            f"{'passed' if r['passed'] else 'failed'}<td>{r['max_abs_error']:.3g}<td>{r['tolerance']:g}"
            f"<td>{html.escape(r['first_layer'])}"
            f"<td>{r['stability']['n_changed']} of {r['stability']['iterations']}<td>{_training(r)}"
            f"<td>{r.get('first_run_s', 0):g} s, then {r.get('next_run_s', 0):g} s</tr>"
            for r in n["cases"]
        )
        numerics = (
            f"<h2>Numerics ({html.escape(n['dtype'])})</h2><p>made on {html.escape(n['made_on']['device'])}, "
            f"compared on {html.escape(n['compared_on']['device'])}</p><table><tr><th>shape<th>outcome"
            f"<th>largest error<th>tolerance<th>first layer that differs<th>runs with other bits"
            f"<th>loss and gradients<th>first run, next run</tr>{rows}</table>"
        )
    state = "passed" if data["passed"] else "failed"
    complete = "All checks ran." if data["complete"] else "Some checks did not run; see below."
    return _PAGE.format(state=state, complete=complete, checks=checks, numerics=numerics)
