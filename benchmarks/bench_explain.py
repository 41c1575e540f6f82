"""Measure gfxgraph explain: start, logs through the pipe, and the scanner on many kinds of text.

    python benchmarks/bench_explain.py [--out results.json] [--kinds-only]

Through the pipe: ordinary (few forms of line, other numbers each time) and failing (every line holds "failed"
and "error"), 200 MB each. Kinds: 8 MB each of what else may be piped in, through the scanner alone; the first
block is measured as well. Processor time is given beside wall time, because
only it is comparable on a shared machine; and it, too, suffers from a busy one: see load_before.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import platform
import random
import re
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

COMMAND = [sys.executable, "-m", "gfxgraph", "explain"]


def ordinary(i: int) -> str:
    return f"2026-11-21 09:{i % 60:02d}:00,{i % 1000:03d} INFO [engine.py:{i % 900}] step {i} at 0x{i * 7919:x}\n"


def failing(i: int) -> str:
    return f"09:{i % 60:02d} ERROR [worker {i % 8}] request {i * 7919:x} failed: not supported, error {i % 5}\n"


def sources(folder: Path, suffixes: tuple[str, ...], nbytes: int) -> bytes:
    """Text of files below ``folder``, up to ``nbytes``."""
    parts: list[bytes] = []
    size = 0
    for path in sorted(folder.rglob("*")):
        if path.suffix in suffixes and size < nbytes:
            parts.append(path.read_bytes())
            size += len(parts[-1])
    return b"".join(parts)[:nbytes]


def kinds(nbytes: int) -> dict[str, bytes]:
    """Texts of many kinds; what is near to a message comes from the catalogue itself."""
    from gfxgraph.diagnostics.expression_index import rows

    packages = Path(sysconfig.get_path("purelib"))
    python = sources(packages, (".py",), nbytes)
    words = sorted({word for word in re.findall(r"[A-Za-z]{2,14}", python[: 1 << 20].decode("utf-8", "replace"))})
    literal = re.compile(r"(?<!\\)[A-Za-z_ ]{4,}")
    needed = [
        max(found, key=len) for item in rows() if item.kind == "strong" and (found := literal.findall(item.regex))
    ]
    cut = [text[: max(3, len(text) - 2)] for text in needed]

    def lines(line: Callable[[int], str]) -> bytes:
        return "".join(line(i) for i in range(nbytes // max(1, len(line(1))))).encode()

    return {
        "ordinary log": lines(ordinary),
        "failing log": lines(failing),
        "kernel log of amdgpu": lines(
            lambda i: f"[{i}.{i % 10**6:06d}] amdgpu 0000:03:00.0: ring gfx_{i % 3} uses eng {i}\n"
        ),
        "Python source": python,
        "C++ headers": sources(packages, (".h", ".hpp"), nbytes) or python,
        "random words": lines(lambda i: " ".join(random.choices(words, k=12)) + "\n"),
        "base64": base64.encodebytes(random.randbytes(nbytes * 3 // 4)),
        "base64 in one line": base64.b64encode(random.randbytes(nbytes * 3 // 4)),
        "lines of 1 MB": lines(lambda i: " ".join(random.choices(words, k=120_000))[: 1 << 20] + "\n"),
        "one line of near misses of 8 KB, again and again": (" ".join(cut * 9)[:8191] + "\n").encode()
        * (nbytes >> 13),
        "near misses of 8 KB, each another": lines(lambda i: " ".join(random.choices(cut, k=700))[:8191] + "\n"),
        "hexadecimal dump": lines(lambda i: f"{i * 16:08x}  {random.randbytes(16).hex(' ')}\n"),
        "JSON lines": lines(lambda i: f'{{"level":"info","n":{i},"msg":"{" ".join(random.choices(words, k=6))}"}}\n'),
        "colours": lines(
            lambda i: f"\x1b[32mINFO\x1b[0m step {i} {random.choice(words)} \x1b[1m{random.choice(words)}\x1b[0m\n"
        ),
        "binary": random.randbytes(nbytes),
        "one failure, again and again": lines(lambda i: f"[{i}] HIP out of memory. Tried to allocate {i} MiB\n"),
        "narration of failures": lines(
            lambda i: f"MIOpen(HIP): Info [Find{i}] {random.choice(words)} hipErrorOutOfMemory\n"
        ),
        "the words of one expression, repeated in lines of 100 KB": (
            b"invalid argument " + b"hipMemcpy" * 11_000 + b"\n"
        )
        * (nbytes // 99_000),
    }


def scanned(text: bytes) -> dict[str, float]:
    from gfxgraph.diagnostics.scan import Scanner

    best = 0.0
    for _ in range(3):
        scanner = Scanner()
        started = time.process_time()
        for begin in range(0, len(text), 1 << 20):
            scanner.feed(text[begin : begin + (1 << 20)])
        scanner.finish()
        best = max(best, len(text) / 1e6 / (time.process_time() - started))
    return {"cpu_mb_s": round(best, 1), "found": len(scanner.hits)}


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
    parser.add_argument("--kinds-only", action="store_true")
    options = parser.parse_args()
    random.seed(1)
    result: dict[str, Any] = {"kinds": {name: scanned(text) for name, text in kinds(8 << 20).items()}}
    if options.kinds_only:
        print(json.dumps(result, indent=1))
        return
    result["start"] = start()
    with tempfile.TemporaryDirectory() as folder:
        for line, nbytes in ((ordinary, 200 << 20), (failing, 200 << 20)):
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
