"""Repositories as they stand, through ``port fix --loop --real --apply`` and ``port build --real``; no edit by hand.

    python benchmarks/port_real.py MIRRORS KEEP OWNER/NAME ... > result.json

MIRRORS holds a git directory for each (``OWNER+NAME/repo``). KEEP gets the trees and the list of what
is left of each. To measure another version of gfxgraph put its ``src`` first on PYTHONPATH.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import port_recall
from port_fresh import unpack


def run(*words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "gfxgraph", "port", *words], capture_output=True, text=True, check=False
    )
    print(done.stderr[-2000:], file=sys.stderr, flush=True)
    return done.returncode, done.stdout


def measure(clone: Path, keep: Path, name: str) -> dict[str, Any]:
    tree = keep / name.replace("/", "+")
    tree.mkdir(parents=True)
    unpack(clone, "HEAD", tree)
    began = time.monotonic()
    fixed, said = run("fix", str(tree), "--loop", "--real", "--apply")
    Path(f"{tree}.fix").write_text(said)
    status, text = run("build", str(tree), "--real", "--json")
    Path(f"{tree}.json").write_text(text)
    data = json.loads(text) if status in (0, 1) and text.startswith("{") else {}
    left = [f"{f['kind']}: {f['path']}:{f['line']}: {f['message']}"[:200] for f in data.get("findings", ())]
    real = data.get("real") or {}
    return {
        "repo": name, "commit": port_recall.git(clone, "rev-parse", "--short=8", "HEAD").strip(), "fix": fixed,
        "build": status, "minutes": round((time.monotonic() - began) / 60, 1),
        **{k: data.get(k) for k in ("units", "compile", "fail", "missing_headers")},
        "links": real.get("links"), "made": real.get("made"), "not_built": real.get("units_not_built"),
        "left": [row for row in left if not row.startswith("unchecked")][:30],
    }  # fmt: skip


def main() -> None:
    mirrors, keep = Path(sys.argv[1]), Path(sys.argv[2])
    rows = []
    for name in sys.argv[3:]:
        clone = mirrors / name.replace("/", "+") / "repo"
        rows.append(measure(clone / ".git" if (clone / ".git").is_dir() else clone, keep, name))
        print(json.dumps(rows[-1], indent=1), file=sys.stderr, flush=True)
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
