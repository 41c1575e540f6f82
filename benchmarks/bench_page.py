"""How large the report of a graph of 5,000 nodes is, and when headless Chromium has drawn it.

    python benchmarks/bench_page.py [--out FILE] [--nodes N] [--runs N]

Each run is a browser of its own with an empty profile; "opened" is from the navigation's beginning to the end of the
frame after the page's own script. The graph is made up: layers of 25 nodes, each with kernel, line and tensors.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.unit.reporting.made import process

from gfxgraph.reporting import page

TIMES = """<script>requestAnimationFrame(() => setTimeout(() => {
  const at = document.body.dataset;
  at.opened = performance.now(); at.nodes = document.querySelectorAll(".node").length;
}, 0));</script></body>"""
MOST_MS, MOST_BYTES = 1000, 2_000_000


def opened(browser: str, source: Path) -> tuple[float, int]:
    with tempfile.TemporaryDirectory() as profile:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        flags += ["--timeout=5000", "--dump-dom"]
        done = subprocess.run([browser, *flags, source.as_uri()], capture_output=True, text=True, check=True)
    return float(re.search(r'data-opened="([\d.]+)"', done.stdout)[1]), int(
        re.search(r'data-nodes="(\d+)"', done.stdout)[1]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--runs", type=int, default=9)
    asked = parser.parse_args()
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("bench_page: no Chromium on the PATH")
        return 1
    html = page.html([process(asked.nodes)])
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "report.html")
        source.write_text(html.replace("</body>", TIMES), encoding="utf-8")
        runs = [opened(browser, source) for _ in range(asked.runs)]
    times = sorted(ms for ms, _ in runs)
    version = subprocess.run([browser, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    table = {
        "nodes": asked.nodes,
        "bytes": len(html.encode()),
        "opened_ms": {"median": statistics.median(times), "min": times[0], "max": times[-1], "values": times},
        "rows_drawn_at_first": runs[0][1],
        "browser": version,
        "machine": f"{platform.machine()}, no GPU, two shared cores",
        "commit": subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], text=True).strip(),
        "at": time.strftime("%Y-%m-%d"),
        "met": {"opens_under_1_s": times[-1] < MOST_MS, "at_most_2_mb": len(html.encode()) <= MOST_BYTES},
    }
    print(json.dumps({key: table[key] for key in ("bytes", "opened_ms", "rows_drawn_at_first", "met")}))
    if asked.out is not None:
        asked.out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
