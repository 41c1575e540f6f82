"""What libgfxgraph_preload.so costs a program: a launch, and a node that is run by itself.

    python benchmarks/bench_native.py [--out FILE] [--build FOLDER]

Against the fake runtime, whose launch of an empty graph does next to nothing, so that what is left is ours.
On an NVIDIA GPU, tests/gpu/test_native_preload.py measures the same with the real driver.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPEATS = 9
LAUNCHES = 20 * 50_000  # of each figure: as app.cpp does


def build(folder: Path) -> None:
    for command in (
        ["cmake", "-S", str(ROOT / "native"), "-B", str(folder), f"-DPython3_EXECUTABLE={sys.executable}"],
        ["cmake", "--build", str(folder), "--parallel", "2", "--target"]
        + ["gfxgraph_preload", "fake_hip", "fake_driver", "app_linked", "cuda_opened"],
    ):
        subprocess.run(command, check=True, capture_output=True)


def figure(folder: Path, command: list[str], name: str, preload: bool, **settings: str) -> float:
    environ = {**os.environ, "LD_LIBRARY_PATH": str(folder / "fake"), "GFXGRAPH_DIAG": "0", **settings}
    if preload:
        environ["LD_PRELOAD"] = str(folder / "libgfxgraph_preload.so")
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    return next(float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith(name))


def spread(values: list[float]) -> dict[str, float]:
    return {name: round(f(values), 1) for name, f in (("median", statistics.median), ("least", min), ("most", max))}


def measure(folder: Path) -> dict[str, object]:
    hip = [str(folder / "tests/app_linked"), "linked", str(folder / "fake/libamdhip64.so.6")]
    cuda = [str(folder / "tests/cuda_opened"), "procaddress"]
    figures: dict[str, object] = {}
    for name, command in (("hip", [*hip, "bench"]), ("cuda", [*cuda, "bench"])):
        pairs = [
            [figure(folder, command, "ns_per_launch", preload) for preload in (False, True)] for _ in range(REPEATS)
        ]
        figures[f"{name}_ns_per_launch_without_and_with"] = pairs
        figures[f"{name}_overhead_ns"] = spread([after - before for before, after in pairs])
    nodes = [*hip, "bench_nodes"]
    inside = [figure(folder, nodes, "ns_per_node", True) for _ in range(REPEATS)]
    walked = [figure(folder, nodes, "ns_per_node", True, GFXGRAPH_PRELOAD_NODE_LIMIT="1") for _ in range(REPEATS)]
    return figures | {"ns_per_node_in_an_exec": spread(inside), "ns_per_node_walked": spread(walked)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="write the figures there as JSON")
    parser.add_argument("--build", type=Path, help="a build of native/ to measure, instead of making one")
    given = parser.parse_args()
    if given.build:
        figures = measure(given.build)
    else:
        with tempfile.TemporaryDirectory() as folder:
            build(Path(folder))
            figures = measure(Path(folder))
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    report = {
        "what": "libgfxgraph_preload.so: cost of a launch, paired; of a node run by itself (graph of 100 kernels)",
        "device": "none: fake runtime, whose launch of an empty graph does next to nothing",
        "launches_per_figure": LAUNCHES,
        "repeats": REPEATS,
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        **figures,
        "commit": commit.stdout.strip(),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
    }
    text = json.dumps(report, indent=1) + "\n"
    sys.stdout.write(text)
    if given.out:
        given.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
