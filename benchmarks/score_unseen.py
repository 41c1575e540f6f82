"""Score sets of samples as they scored on the day they were collected, and as they score now.

    python benchmarks/score_unseen.py sets.txt --out RESULTS

Each line of sets.txt names a file of samples (in the form of rocm_errors_dev.jsonl) and the commit that
was in use when the set was collected, labelled and first measured. Sources and scoring command of that
commit are unpacked and run, so the first figure is one for samples that no pattern had seen. Afterwards
each set was used to find missing formats; the second figure says what the catalogue makes of it today.
Texts stay out of the result: they are other people's words.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def scored(tree: Path, samples: Path) -> dict[str, Any]:
    """Figures and rows of the scoring command in ``tree``."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [sys.executable, str(tree / "benchmarks/score_diagnostics.py"), str(samples), "--out", str(out)]
        subprocess.run(
            command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(tree / "src")}, check=True, capture_output=True
        )
        found = json.loads(out.read_text())
    wrong = [
        {"id": row["id"], "label": row["label"], "got": row["got"]}
        for row in found["rows"]
        if row["got"] != (None if row["label"] == "none" else row["label"])
    ]
    figures = found["figures"]
    return {
        "samples": figures["samples"],
        "errors": figures["errors"],
        "negatives": figures["negatives"],
        **{key: figures["got"][key] for key in ("recall_percent", "right_label_percent", "false_alarms")},
        "wrong": wrong,
    }


def unpack(commit: str, folder: Path) -> Path:
    archive = subprocess.run(
        ["git", "archive", commit, "src", "benchmarks", "tests/unit/diagnostics"],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("sets", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = []
    for line in options.sets.read_text().split("\n"):
        if not line.strip():
            continue
        name, commit = line.split()
        samples = (options.sets.parent / name).resolve()
        with tempfile.TemporaryDirectory() as folder:
            first = scored(unpack(commit, Path(folder)), samples)
        result.append({"set": samples.stem, "commit": commit, "first": first, "now": scored(ROOT, samples)})
        print(samples.stem, commit, {k: v for k, v in first.items() if k != "wrong"})
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    about = {
        "what": "explain on samples collected after the catalogue was written, at first sight and today",
        "command": "python benchmarks/score_unseen.py sets.txt --out RESULTS",
        "commit": head.stdout.strip(),
    }
    if options.out:
        options.out.write_text(json.dumps(about | {"sets": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
