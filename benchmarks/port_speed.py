"""How long an audit takes and how much memory it needs.

    python benchmarks/port_speed.py FOLDER [FOLDER...] [--jobs 2]

Prints, for each folder: lines, wall time, processor time of all processes, the largest process, the sum of the
largest process and its workers as an upper bound, and the machine's load, without which a wall time says little.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time


def measure(folder: str, jobs: int) -> dict[str, object]:
    """Audit in a fresh process, so that peaks are its own."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, os.path.abspath(__file__), folder, "--jobs", str(jobs), "--inner"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {**json.loads(done.stdout), "wall_s": round(time.perf_counter() - started, 1)}


def inner(folder: str, jobs: int) -> None:
    from gfxgraph_port.audit import audit

    load = os.getloadavg()[0]
    report = audit(folder, jobs=jobs, vendored=True)
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    failed = sum(s.reason == "rule failed" for s in report.skipped)
    data = {
        "folder": os.path.basename(folder), "lines": report.n_lines, "files": report.n_files,
        "findings": len(report.findings), "rules_failed": failed, "jobs": jobs, "load_before": round(load, 1),
        "processor_s": round(sum((own.ru_utime, own.ru_stime, children.ru_utime, children.ru_stime)), 1),
        "largest_process_mib": round(max(own.ru_maxrss, children.ru_maxrss) / 1024),
        "at_most_mib": round((own.ru_maxrss + jobs * children.ru_maxrss) / 1024),
    }  # fmt: skip
    print(json.dumps(data))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for folder in options.folders:
        if options.inner:
            inner(folder, options.jobs)
        else:
            print(json.dumps(measure(folder, options.jobs)), flush=True)


if __name__ == "__main__":
    main()
