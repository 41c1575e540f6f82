"""Run gfxgraph 1.1.0's own tests, unmodified, against this tree, in the simulator; write what became of each.

    pip download --no-deps --no-binary :all: --ignore-requires-python gfxgraph==1.1.0
    tar xzf gfxgraph-1.1.0.tar.gz
    python tools/run_older_tests.py gfxgraph-1.1.0 --out benchmarks/results/older_tests.json

The tests stay outside of this repository. They are copied beside a link `python` to this tree's `src`, because one of
them starts a program with `../python` on its path. A test that fails counts as one of private internals only where
INTERNAL gives the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
GRAPH = "test_graph_manager"
REPLACED_LOG = "replaces `hipgraph_bridge.graph_manager._log` and looks at the message that goes there"
REPLACED_GRAPH = "puts a mock into `_graph`: 1.1.0 wrapped torch's graph object, here the graph is one (a subclass)"
ADAPTIVE = "calls private methods of 1.1.0's adaptive replay and sets its module's private variables"
RUST = "of the optional Rust package `rs_gfxgraph_stats`, and of `gfxgraph._enable`, which loaded it"
INTERNAL = {
    f"{GRAPH}::test_debug_dump_no_graph": REPLACED_LOG,
    f"{GRAPH}::test_debug_dump_with_graph_no_method": REPLACED_LOG,
    f"{GRAPH}::test_debug_dump_success": REPLACED_GRAPH,
    f"{GRAPH}::test_enable_debug_mode_success": REPLACED_GRAPH,
    f"{GRAPH}::test_adaptive_signature_varies_by_shape": ADAPTIVE,
    f"{GRAPH}::test_cached_adaptive_decision_sets_preferred_eager": ADAPTIVE,
    f"{GRAPH}::test_hot_replay_mode_bypasses_validation": ADAPTIVE,
    f"{GRAPH}::test_resolve_replay_mode": "calls the private `_resolve_replay_mode`",
    f"{GRAPH}::test_trusted_replay_promotes_and_skips_non_sampled_diagnostics": ADAPTIVE,
    f"{GRAPH}::test_trusted_replay_keeps_fallback_on_replay_error": ADAPTIVE,
    f"{GRAPH}::test_standard_mode_ignores_adaptive_prefer_eager": ADAPTIVE,
    "test_rust_stats": RUST,
    "test_gfxgraph_rs::test_rust_bucket_selector": "of the optional Rust package `rs_gfxgraph`; it skips itself",
}


def run(source: Path, profile: str) -> list[dict[str, str]]:
    """What became of each test: its name, outcome and, where it did not pass, the last line of why."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        shutil.copytree(source / "tests", place / "tests")
        (place / "python").symlink_to(ROOT / "src")
        report = place / "report.xml"
        command = [sys.executable, "-m", "gfxgraph", "run", f"--simulate={profile}", "-m", "pytest", "-q"]
        command += ["-p", "no:cacheprovider", "--continue-on-collection-errors", f"--junitxml={report}", "tests"]
        path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH", "")])])
        subprocess.run(command, cwd=place, env={**os.environ, "PYTHONPATH": path}, check=False)
        return [result(case) for case in ET.parse(report).iter("testcase")]


def result(case: ET.Element) -> dict[str, str]:
    """One test of the report."""
    module = (case.get("classname") or case.get("name") or "").split(".")[-1]
    name = module if not case.get("classname") else f"{module}::{case.get('name')}"
    for outcome in ("failure", "error", "skipped"):
        found = case.find(outcome)
        if found is not None:
            lines = [line for line in (found.get("message") or found.text or "").splitlines() if line.strip()]
            why = INTERNAL.get(name, "")
            kind = {"failure": "failed", "error": "failed", "skipped": "skipped"}[outcome]
            said = lines[0].strip()[:200] if lines else ""
            return {"test": name, "outcome": "internal" if why else kind, "said": said, "reason": why}
    return {"test": name, "outcome": "passed", "said": "", "reason": ""}


def commit() -> str:
    """This tree's commit, with a plus where it is changed."""
    say = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(say, capture_output=True, text=True, check=False).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("source", type=Path, help="the unpacked source package of gfxgraph 1.1.0")
    parser.add_argument("--simulate", default="cuda", metavar="PROFILE")
    parser.add_argument("--out", type=Path, help="where the result goes, as JSON")
    given = parser.parse_args()
    results = run(given.source, given.simulate)
    # lazily: the tests run without it, too
    import torch

    sys.path.insert(0, str(ROOT / "src"))
    import gfxgraph

    counts = dict(sorted(Counter(each["outcome"] for each in results).items()))
    public = [each for each in results if each["outcome"] != "internal"]
    told = {
        "what": "gfxgraph 1.1.0's own tests, unmodified, in the simulator",
        "source": given.source.name,
        "gfxgraph": gfxgraph.__version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "simulate": given.simulate,
        "counts": counts,
        "public": {"total": len(public), "passed": sum(each["outcome"] == "passed" for each in public)},
        "tests": [{name: value for name, value in each.items() if value} for each in results],
    }
    print(json.dumps({name: told[name] for name in ("counts", "public")}))
    if given.out:
        sys.path.insert(0, str(ROOT / "src"))
        from gfxgraph import files

        files.write(given.out, json.dumps(told, indent=1, ensure_ascii=False) + "\n")
    return 0 if told["public"]["total"] == told["public"]["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
