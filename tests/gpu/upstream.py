"""Run PyTorch's own graph tests on stock torch and under gfxgraph, and list the tests lost.

The tests themselves are not part of this project: name a folder that holds ``test_cuda.py`` and
``inductor/test_cudagraph_trees.py`` of a PyTorch close to the one installed.

    python tests/gpu/upstream.py --tests FOLDER --out upstream.json

1. Both configurations run at the same time, each in parallel processes.
2. Every test that failed under gfxgraph runs again alone, in both: tests that measure the device's memory
   disturb each other, and one that breaks the CUDA context takes down those after it.
3. A test that then passes on stock torch and fails under gfxgraph is lost. It runs once more under
   GFXGRAPH_ON_UNSAFE=raise, which gives torch's own behaviour at operations that no graph can record: tests
   that assert that limit pass there.

With ``--stock-from REPORT`` only gfxgraph's half runs: which tests there are, and which fail on stock torch,
is taken from an earlier report of the same machine and torch. A test skipped under gfxgraph counts as skipped
on stock, and the report says if that gives another number of passes than the earlier one had.

Exit status: 0 if none is lost other than those that pass under ``raise``, 1 otherwise, 3 if nothing ran because
a file could not be collected.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

FILES = ("test_cuda.py", "inductor/test_cudagraph_trees.py")
SELECTED = re.compile(
    r"cudagraph_trees\.py::"
    r"|::(TestMemPool|TestBlockStateAbsorption|TestCachingHostAllocatorCudaGraph)::"
    r"|::test_\w*(graph|capture)",
    re.IGNORECASE,
)
"""By node id: all of the cudagraph trees' tests, and of test_cuda.py those about graphs and their memory."""

CONFIGURATIONS = ("stock", "gfxgraph")
BAD = ("failed", "error", "crashed")
ALONE_AT_ONCE = 4
START_S = 60
"""What a process may take until its test begins, which the time limit of a test does not count."""


class Runs:
    """Starts pytest on the folder, within the time there is."""

    def __init__(self, folder: Path, scratch: Path, deadline: float, test_timeout_s: int) -> None:
        self.folder, self.scratch, self.deadline, self.test_timeout_s = (
            folder,
            scratch,
            deadline,
            test_timeout_s,
        )
        self.not_collected: list[str] = []
        (scratch / "pytest.ini").write_text("[pytest]\n")

    def environment(self, configuration: str, outcomes: Path, **more: str) -> dict[str, str]:
        base = {name: value for name, value in os.environ.items() if not name.startswith(("GFXGRAPH", "HGB_"))}
        search_path = os.pathsep.join(filter(None, [str(Path(__file__).parent), base.get("PYTHONPATH", "")]))
        cache = self.scratch / f"cache-{configuration}"
        base |= {
            "PYTHONPATH": search_path,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "UPSTREAM_OUTCOMES": str(outcomes),
            "UPSTREAM_EXPECTED": configuration,
            # One compile thread a process: sixteen of them times every test process is too many.
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
            "TRITON_CACHE_DIR": str(cache / "triton"),
        }
        if configuration == "gfxgraph":
            from gfxgraph.startup.child_environment import PATH

            # The tests of Inductor's trees are about those trees, not about what stands in their place.
            base |= {"GFXGRAPH": "1", "GFXGRAPH_ALLOW_CUDA": "1", "GFXGRAPH_COMPILE": "0", **more}
            base["PYTHONPATH"] = os.pathsep.join([str(PATH), base["PYTHONPATH"]])
        return base

    def pytest(self, environment: dict[str, str], arguments: list[str], log: Path, limit_s: float) -> int:
        """Run pytest to its end or to the limit; return its status, 124 where it was cut off."""
        line = [sys.executable, "-m", "pytest", "-q", "-p", "upstream_plugin", "-p", "no:cacheprovider"]
        line += ["-p", "xdist", "-p", "pytest_timeout"]  # no others: a process would take twice as long to start
        line += ["-c", str(self.scratch / "pytest.ini"), "--rootdir", str(self.folder)]
        # "thread" ends the process of a test that hangs inside a driver call; xdist replaces it.
        line += ["--timeout", str(self.test_timeout_s), "--timeout-method", "thread"]
        with log.open("ab") as output:
            child = subprocess.Popen(
                line + arguments,
                cwd=self.folder,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                return child.wait(max(1.0, min(limit_s, self.deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)  # the session that we started, with its test processes
                child.wait()
                return 124

    def collect(self) -> list[str]:
        """Return the ids of the tests selected."""
        listing = self.scratch / "collected.log"
        environment = self.environment("stock", self.scratch / "unused.jsonl")
        self.pytest(environment, ["--collect-only", *FILES], listing, 180)
        lines = listing.read_text(errors="replace").splitlines()
        self.not_collected = [name for name in FILES if any(line.startswith(f"ERROR {name}") for line in lines)]
        ids = [line.strip() for line in lines if "::" in line]
        return [test for test in ids if SELECTED.search(test) and not test.startswith("ERROR")]

    def together(self, configuration: str, tests: list[str], n_processes: int) -> dict[str, dict[str, Any]]:
        """Run all ``tests`` in parallel processes."""
        outcomes = self.scratch / f"{configuration}.jsonl"
        chosen = self.scratch / f"{configuration}.args"
        chosen.write_text("\n".join(tests))
        arguments = ["-n", str(n_processes), "--dist", "worksteal", f"@{chosen}"]
        log = self.scratch / f"{configuration}.log"
        status = self.pytest(self.environment(configuration, outcomes), arguments, log, 1e9)
        print(f"{configuration}: pytest ended with status {status}", flush=True)
        found = worst(outcomes)
        slowest = sorted(((row["seconds"], test) for test, row in found.items()), reverse=True)[:5]
        print(f"{sum(row['seconds'] for row in found.values()):.0f} s in {len(found)} tests, slowest {slowest}")
        if status == 124:
            print(log.read_text(errors="replace")[-1500:])
        return found

    def alone(self, configuration: str, tests: list[str], **more: str) -> dict[str, dict[str, Any]]:
        """Run each of ``tests`` in a process of its own."""

        def one(numbered: tuple[int, str]) -> dict[str, dict[str, Any]]:
            number, test = numbered
            if time.monotonic() > self.deadline:
                return {test: {"outcome": "not run", "seconds": 0.0, "detail": "no time left"}}
            name = f"alone-{configuration}-{'-'.join(more.values())}-{number}"
            outcomes, log = self.scratch / f"{name}.jsonl", self.scratch / f"{name}.log"
            limit_s = self.test_timeout_s + START_S
            status = self.pytest(self.environment(configuration, outcomes, **more), [test], log, limit_s)
            tail = log.read_text(errors="replace")[-1500:]
            missing = {"outcome": "crashed", "seconds": 0.0, "detail": f"status {status}\n{tail}"}
            return {test: worst(outcomes).get(test, missing)}

        results: dict[str, dict[str, Any]] = {}
        with ThreadPoolExecutor(ALONE_AT_ONCE) as pool:
            for result in pool.map(one, enumerate(tests)):
                results |= result
        return results


def worst(outcomes: Path) -> dict[str, dict[str, Any]]:
    """Read a file of outcomes; of a test's phases the worst counts."""
    order = ("passed", "skipped", *BAD)
    result: dict[str, dict[str, Any]] = {}
    lines = outcomes.read_text(encoding="utf-8").splitlines() if outcomes.exists() else []
    for row in map(json.loads, lines):
        test = row.pop("test").split("@")[0]
        known = result.get(test)
        if known is None or order.index(row["outcome"]) > order.index(known["outcome"]):
            result[test] = row
    return result


def final(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> str:
    """The outcome that counts: alone where it ran alone, else together."""
    chosen = second if second is not None and second["outcome"] != "not run" else first
    return str(chosen["outcome"]) if chosen is not None else "not run"


def lost(outcomes: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return the tests that pass on stock torch and not under gfxgraph; one that was not run is no proof."""
    return sorted(t for t, o in outcomes.items() if o["stock"] == "passed" and o["gfxgraph"] != "passed")


def count(outcomes: Iterable[str]) -> dict[str, int]:
    found = list(outcomes)
    return {outcome: found.count(outcome) for outcome in sorted(set(found))}


def compare(runs: Runs, n_processes: int, earlier: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Do all three steps and return the report.

    Args:
        earlier: a report to take the list of tests and stock torch's part from.
    """
    tests = list(earlier["tests"]) if earlier is not None and "tests" in earlier else runs.collect()
    print(f"{len(tests)} tests selected", flush=True)
    if not tests or runs.not_collected:  # a file that cannot be imported is none in which nothing is lost
        return {"tests": {}, "not_collected": runs.not_collected, "n_selected": len(tests)}
    if earlier is None:
        with ThreadPoolExecutor(len(CONFIGURATIONS)) as pool:
            started = {c: pool.submit(runs.together, c, tests, n_processes) for c in CONFIGURATIONS}
            first = {c: future.result() for c, future in started.items()}
    else:
        failed: dict[str, Any] = {t: {"outcome": "failed"} for t in earlier["failed_on_stock"]}
        chosen = [t for t in tests if t not in failed]
        ours = runs.together("gfxgraph", chosen, n_processes)
        skipped = {t for t in chosen if final(ours.get(t), None) == "skipped"}
        stock = failed | {t: {"outcome": "skipped" if t in skipped else "passed"} for t in chosen}
        first = {"stock": stock, "gfxgraph": dict.fromkeys(failed, {"outcome": "left out"}) | ours}
    # A test that crashed its process may be reported under another id, or not at all: those count as failed.
    again = [t for t in tests if final(first["gfxgraph"].get(t), None) in (*BAD, "not run")]
    print(f"{len(again)} did not pass under gfxgraph; running them alone", flush=True)
    second = {"gfxgraph": runs.alone("gfxgraph", again)}
    if earlier is not None:  # made on another machine, maybe, which a test may depend on: stock torch is asked here
        again = [t for t in again if final(first["gfxgraph"].get(t), second["gfxgraph"].get(t)) in (*BAD, "not run")]
    second["stock"] = runs.alone("stock", again)
    outcomes = {t: {c: final(first[c].get(t), second[c].get(t)) for c in CONFIGURATIONS} for t in tests}
    missing = lost(outcomes)
    third = runs.alone("gfxgraph", missing, GFXGRAPH_ON_UNSAFE="raise") if missing else {}
    pass_under_raise = [t for t in missing if third[t]["outcome"] == "passed"]
    details = {
        t: {
            "together": first["gfxgraph"].get(t, {}).get("detail", ""),
            "alone": second["gfxgraph"].get(t, {}).get("detail", ""),
            "under_raise": third[t]["detail"],
        }
        for t in missing
    }
    return {
        "n_selected": len(tests),
        "counts": {c: count(o[c] for o in outcomes.values()) for c in CONFIGURATIONS},
        "lost": [t for t in missing if t not in pass_under_raise],
        "lost_but_pass_under_raise": pass_under_raise,
        "not_run": sorted(t for t, o in outcomes.items() if "not run" in o.values()),
        "failed_on_stock": sorted(t for t, o in outcomes.items() if o["stock"] in BAD),
        "details": details,
        "tests": outcomes,
    }


def machine() -> dict[str, str]:
    """What the tests ran on."""
    code = "import torch; print(torch.__version__); print(torch.cuda.get_device_name())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    version, device = (done.stdout.splitlines() + ["", ""])[:2]
    return {"torch": version, "device": device, "python": sys.version.split()[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tests", type=Path, required=True, help="folder with test_cuda.py and inductor/")
    parser.add_argument("--out", type=Path, default=Path("upstream.json"))
    parser.add_argument("--stock-from", type=Path, metavar="REPORT", help="an earlier report, for stock torch's part")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) // 2 - 1))
    parser.add_argument("--limit-s", type=float, default=480, help="for everything together")
    parser.add_argument("--test-timeout-s", type=int, default=120)
    args = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="upstream-") as scratch:
        runs = Runs(args.tests.resolve(), Path(scratch), began + args.limit_s, args.test_timeout_s)
        earlier = json.loads(args.stock_from.read_text()) if args.stock_from else None
        report = compare(runs, args.processes, earlier)
        if not report["tests"]:
            print((Path(scratch) / "collected.log").read_text(errors="replace")[-4000:])
    if earlier is not None:
        report["stock_passes_in_earlier_report"] = earlier["counts"]["stock"]["passed"]
    report |= {"machine": machine(), "wall_s": round(time.monotonic() - began, 1)}
    args.out.write_text(json.dumps(report, indent=1))
    summary = {k: v for k, v in report.items() if k not in ("tests", "details")}
    print(json.dumps(summary, indent=1))
    sys.exit(3 if not report["tests"] else 1 if report["lost"] else 0)


if __name__ == "__main__":
    main()
