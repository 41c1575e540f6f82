"""Measure gfxgraph explain: start, and how fast logs pass through it.

    python benchmarks/bench_explain.py [--out results.json]

Three logs of 200 MB: ordinary (few forms of line, other numbers each time), failing (every line
holds "failed" and "error"), and ever new (random words: no form repeats, the worst case, 20 MB).
Processor time is given beside wall time, because only it is comparable on a shared machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

COMMAND = [sys.executable, "-m", "gfxgraph", "explain"]
WORDS = """loading model tensor decode layer attention prompt request token batch finished scheduler cache
engine worker update throughput running waiting hello world sampling""".split()


def ordinary(i: int) -> str:
    return f"2026-11-21 09:{i % 60:02d}:00,{i % 1000:03d} INFO [engine.py:{i % 900}] step {i} at 0x{i * 7919:x}\n"


def failing(i: int) -> str:
    return f"09:{i % 60:02d} ERROR [worker {i % 8}] request {i * 7919:x} failed: not supported, error {i % 5}\n"


def ever_new(i: int) -> str:
    return f"{i} INFO {' '.join(random.choices(WORDS, k=9))} id={random.getrandbits(64):x}\n"


def write(path: Path, line: Callable[[int], str], nbytes: int) -> None:
    size = i = 0
    with path.open("w") as file:
        while size < nbytes:
            size += file.write(line(i))
            i += 1


def run(path: Path) -> dict[str, float]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    with path.open("rb") as source, open(os.devnull, "wb") as sink:
        subprocess.run(COMMAND, stdin=source, stdout=sink, stderr=subprocess.DEVNULL, check=False)
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    nbytes = path.stat().st_size / 1e6
    return {"wall_mb_s": round(nbytes / wall), "cpu_mb_s": round(nbytes / cpu), "cpu_s": round(cpu, 2)}


def start() -> dict[str, float]:
    subprocess.run([*COMMAND, "700"], capture_output=True, check=False)
    times = []
    for _ in range(9):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        started = time.perf_counter()
        subprocess.run([*COMMAND, "700"], capture_output=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        times.append((cpu * 1000, (time.perf_counter() - started) * 1000))
    cpu_ms, wall_ms = sorted(t[0] for t in times), sorted(t[1] for t in times)
    return {
        "cpu_ms_least": round(cpu_ms[0]), "cpu_ms_median": round(cpu_ms[4]), "cpu_ms_most": round(cpu_ms[-1]),
        "wall_ms_least": round(wall_ms[0]), "wall_ms_median": round(wall_ms[4]), "repeats": 9,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    random.seed(1)
    result: dict[str, Any] = {"start": start()}
    with tempfile.TemporaryDirectory() as folder:
        for line, nbytes in ((ordinary, 200 << 20), (failing, 200 << 20), (ever_new, 20 << 20)):
            path = Path(folder) / "log"
            write(path, line, nbytes)
            result[line.__name__] = [run(path) for _ in range(3)]
    result["peak_memory_mb"] = round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    head = {
        "what": "gfxgraph explain: start, and speed of the pass-through, on one core",
        "command": "python benchmarks/bench_explain.py --out RESULTS",
        "commit": commit.stdout.strip(),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
    }
    print(json.dumps(head | result, indent=2))
    if options.out:
        options.out.write_text(json.dumps(head | result, indent=1) + "\n")


if __name__ == "__main__":
    main()
