"""Which half of the ports drawn late each repository belongs to.

    python benchmarks/port_split.py NAME [NAME...]

The name alone decides: odd SHA-256 is ``dev``, even is ``held``. With no name, the rows of ``port_repos.toml`` that
are in either half are checked against the rule.
"""

from __future__ import annotations

import hashlib
import sys
import tomllib
from pathlib import Path


def half(name: str) -> str:
    return "dev" if int(hashlib.sha256(name.encode()).hexdigest(), 16) % 2 else "held"


def main() -> None:
    for name in sys.argv[1:]:
        print(half(name), name)
    if len(sys.argv) == 1:
        rows = tomllib.loads((Path(__file__).parent / "port_repos.toml").read_text())["port"]
        drawn = [r for r in rows if r["set"] in ("dev", "held")]
        wrong = [r["repo"] for r in drawn if r["set"] != half(r["repo"])]
        print(f"{len(drawn)} ports, {len(wrong)} in the wrong half", *wrong)
        sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
