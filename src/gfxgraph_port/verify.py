"""Static and build checks of a port, and the report that holds them together with the golden comparison.

The numerical half runs the user's model and lives in ``gfxgraph_port.rocm.golden``; here nothing is imported.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from dataclasses import asdict, dataclass
from typing import Any

from gfxgraph_port.audit import Audit
from gfxgraph_port.model import Severity

SCHEMA = "gfxgraph-port-verify/1"


@dataclass(frozen=True, slots=True)
class Check:
    """One check: passed, failed, or skipped with a reason."""

    name: str
    outcome: str  # "passed", "failed", "skipped"
    detail: str = ""


def static_checks(audit: Audit) -> list[Check]:
    """What still stands in the way, by kind."""

    def count(*codes: str) -> int:
        return sum(f.code in codes for f in audit.findings)

    rows = [
        ("inline PTX that AMD reaches", count("inline-ptx", "triton-inline-ptx")),
        ("NVIDIA-only libraries that AMD reaches", count("cutlass", "nvidia-only-library")),
        ("wavefront width taken for granted", count("warp-size-32", "wave-64-hardcoded")),
        ("critical and high findings in all", sum(f.severity >= Severity.HIGH for f in audit.findings)),
    ]
    return [Check(f"static: {name}", "failed" if n else "passed", str(n)) for name, n in rows]


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
