"""What the native libraries cost, and what the launch pipeline of the C API is worth in a launch-bound loop.

    python benchmarks/bench_native.py [--out FILE] [--build FOLDER]     against the fake runtime
    python benchmarks/bench_native.py --gpu [--out FILE]                the pipeline, on an NVIDIA GPU

The fake runtime's launch of an empty graph does next to nothing, so that what is left there is ours. The second
form needs nvcc and g++ and takes half a minute; what the preload library costs on a GPU is measured by
tests/gpu/test_native_preload.py.
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
sys.path.append(str(ROOT / "tests" / "gpu"))
REPEATS = 9
LAUNCHES = 20 * 50_000  # of each figure: as app.cpp does
# pipeline_loop.cpp says what each does; in turns, so that all see the same machine.
WAYS = ("kernels", "waiting", "exec", "pipeline", "same", "same_pipeline")
KERNELS, STEPS, GPU_REPEATS = 20, 10_000, 5
LOOP_FIGURES = ("ns_per_step", "cpu_ns_per_step")  # by the clock, to the end of the last kernel; of the CPU's time


def build(folder: Path) -> None:
    for command in (
        ["cmake", "-S", str(ROOT / "native"), "-B", str(folder), f"-DPython3_EXECUTABLE={sys.executable}"],
        ["cmake", "--build", str(folder), "--parallel", "2", "--target"]
        + ["gfxgraph_preload", "fake_hip", "fake_driver", "app_linked", "cuda_opened", "pipeline_loop"],
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
    figures |= {"ns_per_node_in_an_exec": spread(inside), "ns_per_node_walked": spread(walked)}
    return figures | {"pipeline": loop(folder / "tests/pipeline_loop", REPEATS)}


def loop(program: Path, repeats: int) -> dict[str, object]:
    """Time of a step in every way; a step that computed something else fails."""
    seen: dict[str, dict[str, list[float]]] = {name: {way: [] for way in WAYS} for name in LOOP_FIGURES}
    waits = 0
    for _ in range(repeats):
        for way in WAYS:
            command = [str(program), way, str(KERNELS), str(STEPS)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            told = dict(line.split() for line in done.stdout.splitlines())
            assert told["right"] == "1", f"{way}: wrong results"
            for name in LOOP_FIGURES:
                seen[name][way].append(float(told[name]))
            waits = max(waits, int(told["waits"]))
    return {
        "kernels_in_a_step": KERNELS,
        "steps": STEPS,
        "repeats": repeats,
        **{name: {way: spread(values) for way, values in ways.items()} for name, ways in seen.items()},
        "most_waits_of_a_pipeline": waits,
    }


def measure_on_gpu() -> dict[str, object]:
    """Build by nvcc and g++ alone, and run."""
    import cuda_tools

    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        cuda_tools.build_library("bridge", folder)
        linked = ["-x", "cu", f"-L{folder}", "-lhipgraph_bridge", f"-Xlinker=-rpath,{folder}"]
        program = cuda_tools.compile_cuda(ROOT / "native/tests/pipeline_loop.cpp", folder / "loop", "shared", *linked)
        return loop(program, GPU_REPEATS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="write the figures there as JSON")
    parser.add_argument("--build", type=Path, help="a build of native/ to measure, instead of making one")
    parser.add_argument("--gpu", action="store_true", help="the launch pipeline on an NVIDIA GPU, and nothing else")
    given = parser.parse_args()
    if given.gpu:
        import cuda_tools

        what = "a step of a launch-bound loop: one argument changes, then every kernel runs"
        try:
            report = {"what": what, "device": cuda_tools.device()[0], "cpus": os.cpu_count(), **measure_on_gpu()}
        except cuda_tools.Missing as missing:
            sys.exit(f"bench_native: {missing}")
        return tell(report, given.out)
    if given.build:
        figures = measure(given.build)
    else:
        with tempfile.TemporaryDirectory() as folder:
            build(Path(folder))
            figures = measure(Path(folder))
    report = {
        "what": "libgfxgraph_preload.so: cost of a launch, paired; of a node run by itself (graph of 100 kernels)",
        "device": "none: fake runtime, whose launch of an empty graph does next to nothing",
        "launches_per_figure": LAUNCHES,
        "repeats": REPEATS,
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        **figures,
    }
    tell(report, given.out)


def tell(report: dict[str, object], out: Path | None) -> None:
    """Print the report, and write it where asked to."""
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    day = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    given = os.environ.get("BENCH_COMMIT", "")
    text = json.dumps({**report, "commit": commit.stdout.strip() or given, "date": day}, indent=1) + "\n"
    sys.stdout.write(text)
    if out:
        out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
