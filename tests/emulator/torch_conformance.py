"""The conformance tests of the drop-in on PyTorch's own HIP code and AMD's own libamdhip64, on AMD's emulator.

    python tests/emulator/torch_conformance.py --out FILE.json [--limit SECONDS] [--like NAME] test_basic...

Needs what test_torch.py needs. Each file is a process of its own, on the one platform that conftest.py finds where
there is a GPU. A test that ends its process, or that takes longer than the emulator is given, is told as ``ended``,
and the rest of its file goes on in the next process. Results are added to FILE.json; tests which a file had not come
to at its limit are told as ``not run``.
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
KINDS = {"PASSED": "passed", "FAILED": "failed", "ERROR": "failed", "SKIPPED": "skipped"}
PYTEST = ("-v", "-p", "no:cacheprovider", "-o", "addopts=", "--timeout-method", "thread")
NAME = r"^tests/\S+?::(\w+(?:\[.*?\])?)(?= |$)"

sys.path.insert(0, str(HERE))
from hip_tests import emulator  # noqa: E402


def outcomes(said: str) -> dict[str, list[str]]:
    """Names of tests by what became of them; a failure with its message, where pytest came to say it."""
    found: dict[str, list[str]] = {"passed": [], "failed": [], "skipped": [], "ended": []}
    why = dict(re.findall(r"^(?:FAILED|ERROR) \S+?::(\S+) - (.*)$", said, re.MULTILINE))
    told: dict[str, str] = {}
    for line in said.split("= short test summary info =")[0].splitlines():
        if begun := re.match(NAME, line):
            verdict = re.match(r" (\w+)", line[begun.end() :])
            kind = KINDS.get(verdict.group(1), "ended") if verdict else "ended"
            told[begun.group(1)] = "failed" if told.get(begun.group(1)) == "failed" else kind
    for name, kind in told.items():
        found[kind].append(f"{name}: {why[name][:200]}" if name in why else name)
    return found


def run(command: list[str], name: str, limit: int, each: int, like: str) -> dict[str, Any]:
    """One file's outcomes, and the time that it took."""
    begin = time.time()
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    place = f"tests/conformance/{name}.py"
    found: dict[str, Any] = {"passed": [], "failed": [], "skipped": [], "ended": []}
    while True:
        line = [*command, sys.executable, "-m", "pytest", *PYTEST, "--timeout", str(each), place]
        line += ["-k", like] if like else []
        for entry in (entry for kind in ("passed", "failed", "skipped", "ended") for entry in found[kind]):
            line += ["--deselect", f"{place}::{entry.split(': ')[0]}"]
        with tempfile.TemporaryFile("w+", errors="replace") as told:
            left = max(limit - (time.time() - begin), 1)
            expired = False
            try:
                subprocess.run(line, cwd=ROOT, env=environ, stdout=told, stderr=subprocess.STDOUT, timeout=left)
            except subprocess.TimeoutExpired:
                expired = True
            told.seek(0)
            said = told.read()
        if keep := os.environ.get("GFXGRAPH_EMULATOR_LOG"):
            with Path(keep).open("a", encoding="utf-8") as log:
                log.write(said)
        new = outcomes(said)
        whole = re.search(r"^=+ .* in [\d.]+s", said, re.MULTILINE)
        if not whole and not expired and not new["ended"]:
            found["not run"] = said.strip().splitlines()[-3:]
        if expired:
            at = new["ended"].pop() if new["ended"] else "the start"
            found["not run"] = f"from {at}: {limit} s were over"
        for kind, entries in new.items():
            found[kind] += entries
        if whole or "not run" in found:
            return {**found, "seconds": round(time.time() - begin)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=1800)
    parser.add_argument("--each", type=int, default=120)
    parser.add_argument("--like", default="")
    asked = parser.parse_args()
    command = emulator()
    import torch

    revision = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(revision, capture_output=True, text=True).stdout.strip() if shutil.which("git") else ""
    known = json.loads(asked.out.read_text()) if asked.out.exists() else {"files": {}}
    for name in asked.names:
        known["files"][name] = run(command, name, asked.limit, asked.each, asked.like)
        files = known["files"].values()
        counts = {kind: sum(len(each[kind]) for each in files) for kind in ("passed", "failed", "skipped", "ended")}
        about = {"what": "conformance of the drop-in on PyTorch's HIP code", "device": "gfx1030 emulated"}
        about |= {"torch": torch.__version__, "hip": torch.version.hip, "date": time.strftime("%Y-%m-%d")}
        known = {**about, "commit": commit, **counts, "files": known["files"]}
        asked.out.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        print(name, {kind: len(known["files"][name][kind]) for kind in counts}, flush=True)


if __name__ == "__main__":
    main()
