"""The conformance tests of the drop-in on PyTorch's own HIP code and AMD's own libamdhip64, on AMD's emulator.

    python tests/emulator/torch_conformance.py --out FILE.json [--limit SECONDS] [--like NAME] test_basic...

Needs what test_torch.py needs. Each file is a process of its own, on the one platform that conftest.py finds where
there is a GPU. Results are added to FILE.json; a file that ends before its last test says so as ``unfinished``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TEST_LIMIT_S = 240
PYTEST = ("-q", "-p", "no:cacheprovider", "-o", "addopts=", "--timeout", str(TEST_LIMIT_S))

sys.path.insert(0, str(HERE))
from hip_tests import emulator  # noqa: E402


def outcomes(report: Path) -> dict[str, list[str]]:
    """Names of tests by what became of them; a failure with the first line of its message."""
    found: dict[str, list[str]] = {"passed": [], "failed": [], "skipped": []}
    for case in ElementTree.parse(report).iter("testcase"):
        bad = [*case.iter("failure"), *case.iter("error")]
        kind = "failed" if bad else "skipped" if case.find("skipped") is not None else "passed"
        about = f": {(bad[0].get('message') or '').splitlines()[0][:160]}" if bad else ""
        found[kind].append(f"{case.get('name')}{about}")
    return found


def run(command: list[str], name: str, limit: int, like: str) -> dict[str, Any]:
    """One file's outcomes, and the time that it took."""
    begin = time.time()
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        line = [*command, sys.executable, "-m", "pytest", *PYTEST, f"--junitxml={report}"]
        line += [f"tests/conformance/{name}.py", *(["-k", like] if like else [])]
        try:
            done = subprocess.run(line, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=limit)
            said, ended = done.stdout + done.stderr, done.returncode in (0, 1)
        except subprocess.TimeoutExpired as late:
            said, ended = str(late.stdout or b"", "utf-8") if isinstance(late.stdout, bytes) else "", False
        found: dict[str, Any] = outcomes(report) if report.exists() else {"passed": [], "failed": [], "skipped": []}
    if not ended:
        found["unfinished"] = said.strip().splitlines()[-3:]
    return {**found, "seconds": round(time.time() - begin)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=1800)
    parser.add_argument("--like", default="")
    asked = parser.parse_args()
    command = emulator()
    import torch

    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    known = json.loads(asked.out.read_text()) if asked.out.exists() else {"files": {}}
    for name in asked.names:
        known["files"][name] = run(command, name, asked.limit, asked.like)
        files = known["files"].values()
        counts = {kind: sum(len(each[kind]) for each in files) for kind in ("passed", "failed", "skipped")}
        about = {"what": "conformance of the drop-in on PyTorch's HIP code", "device": "gfx1030 emulated"}
        about |= {"torch": torch.__version__, "hip": torch.version.hip, "date": time.strftime("%Y-%m-%d")}
        known = {**about, "commit": commit.stdout.strip(), **counts, "files": known["files"]}
        asked.out.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        print(name, {kind: len(known["files"][name][kind]) for kind in counts}, flush=True)


if __name__ == "__main__":
    main()
