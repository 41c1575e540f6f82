"""Draw findings at random for a hand count of noise.

    python benchmarks/port_noise.py MIRRORS [--seed 20261121] [--count 200] [--set held] > sample.md

Audits the state before each port of ``port_repos.toml`` that is named by no rule, draws the same number of findings
from each repository (all of them where there are fewer), and prints each with its lines around, for a person to
judge: is this a place that a ROCm port must look at (kept, changed or guarded), or noise?
"""

from __future__ import annotations

import argparse
import random
import tempfile
import tomllib
from pathlib import Path

from port_recall import clone_of, unpack

from gfxgraph.port.audit import audit
from gfxgraph.port.model import fill
from gfxgraph.port.registry import find


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("mirrors", type=Path)
    parser.add_argument("--seed", type=int, default=20261121)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--set", choices=["read", "unread", "dev", "held"])
    parser.add_argument("--repos", nargs="*", default=[])
    options = parser.parse_args()
    rows = tomllib.loads((Path(__file__).parent / "port_repos.toml").read_text())["port"]
    seen: dict[str, str] = {}
    for row in rows:
        if (not options.repos or row["repo"] in options.repos) and options.set in (None, row["set"]):
            seen.setdefault(row["repo"], row["commit"])
    chooser = random.Random(options.seed)
    share = -(-options.count // len(seen))
    number = 0
    for repo, commit in sorted(seen.items()):
        with tempfile.TemporaryDirectory() as folder:
            unpack(clone_of(options.mirrors, repo), f"{commit}^", folder)
            report = audit(folder)
            for f in chooser.sample(report.findings, min(share, len(report.findings))):
                number += 1
                rule = find(f.rule)
                assert rule is not None
                what = fill(rule.rule.en.what, f.values)
                print(f"{number}. {repo} {f.path}:{f.line} {f.rule} {f.severity.label}: {what}")
                lines = (Path(folder) / f.path).read_text(errors="replace").splitlines()
                for n in range(max(1, f.line - 1), min(len(lines), f.line + 1) + 1):
                    print(f"    {'>' if n == f.line else ' '} {lines[n - 1].rstrip()[:150]}")


if __name__ == "__main__":
    main()
