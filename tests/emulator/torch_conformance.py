"""The conformance tests of the drop-in on PyTorch's own HIP code and AMD's own libamdhip64, on AMD's emulator.

    python tests/emulator/torch_conformance.py --out FILE.json [--limit SECONDS] [--like NAME] test_basic...

Needs what test_torch.py needs. Each file is a process of its own, on the one platform that conftest.py finds where
there is a GPU. Results are added to FILE.json; a file that ends before its last test says so as ``unfinished``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TEST_LIMIT_S = 240
PYTEST = ("-v", "-p", "no:cacheprovider", "-o", "addopts=", "--timeout", str(TEST_LIMIT_S))

sys.path.insert(0, str(HERE))
from hip_tests import emulator  # noqa: E402


def outcomes(said: str) -> dict[str, list[str]]:
    """Names of tests by what became of them; a failure with its message, where pytest came to say it."""
    found: dict[str, list[str]] = {"passed": [], "failed": [], "skipped": []}
    why = dict(re.findall(r"^(?:FAILED|ERROR) \S+?::(\S+) - (.*)$", said, re.MULTILINE))
    for name, verdict in re.findall(r"^\S+?::(\S+) (PASSED|FAILED|ERROR|SKIPPED)", said, re.MULTILINE):
        kind = {"PASSED": "passed", "SKIPPED": "skipped"}.get(verdict, "failed")
        found[kind].append(f"{name}: {why[name][:160]}" if name in why else name)
    return found


def run(command: list[str], name: str, limit: int, like: str) -> dict[str, Any]:
    """One file's outcomes, and the time that it took."""
    begin = time.time()
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    line = [*command, sys.executable, "-m", "pytest", *PYTEST, f"tests/conformance/{name}.py"]
    line += ["-k", like] if like else []
    with tempfile.TemporaryFile("w+") as told:
        try:
            done = subprocess.run(line, cwd=ROOT, env=environ, stdout=told, stderr=subprocess.STDOUT, timeout=limit)
            ended = done.returncode in (0, 1)
        except subprocess.TimeoutExpired:
            ended = False
        told.seek(0)
        said = told.read()
    found: dict[str, Any] = outcomes(said)
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

    revision = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(revision, capture_output=True, text=True).stdout.strip() if shutil.which("git") else ""
    known = json.loads(asked.out.read_text()) if asked.out.exists() else {"files": {}}
    for name in asked.names:
        known["files"][name] = run(command, name, asked.limit, asked.like)
        files = known["files"].values()
        counts = {kind: sum(len(each[kind]) for each in files) for kind in ("passed", "failed", "skipped")}
        about = {"what": "conformance of the drop-in on PyTorch's HIP code", "device": "gfx1030 emulated"}
        about |= {"torch": torch.__version__, "hip": torch.version.hip, "date": time.strftime("%Y-%m-%d")}
        known = {**about, "commit": commit, **counts, "files": known["files"]}
        asked.out.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        print(name, {kind: len(known["files"][name][kind]) for kind in counts}, flush=True)


if __name__ == "__main__":
    main()
