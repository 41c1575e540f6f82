"""Result files of these tests: what ran, on which versions, by which command, and how each part ended.

GFXGRAPH_EMULATOR_RESULTS   the folder for the files; without it nothing is written
GFXGRAPH_EMULATOR           what to say of the emulator: its version, and what was mended in it
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PACKAGES = r"libamdhip64-|libhsa-runtime64|libamd-comgr3|libhiprtc\d|hipcc$"


def asked(*command: str) -> str:
    """What a program prints; '' where it is not there or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=HERE).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def versions() -> dict[str, Any]:
    """The emulator, the HIP packages as Debian calls them, commit and command: what a repetition needs."""
    shown = asked("dpkg-query", "-W", "-f", "${Package} ${Version}\n").splitlines()
    return {
        "emulator": os.environ.get("GFXGRAPH_EMULATOR") or asked("rocjitsu", "--version") or "unknown",
        "packages": [each for each in shown if re.match(PACKAGES, each.split()[0]) and "-dev" not in each],
        "commit": asked("git", "rev-parse", "--short", "HEAD") or "unknown",
        "command": " ".join(["python -m pytest", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
    }


def keep(
    name: str,
    what: str,
    hip: str,
    outcomes: Mapping[str, Mapping[str, Any]],
    controls: Collection[str] = (),
    **more: Any,
) -> None:
    """Write the outcomes on one HIP into ``emulator_NAME.json``, beside those on others.

    Args:
        hip: the runtime's version as it says it.
        outcomes: by name, each with ``passed``.
        controls: names of those in which nothing of gfxgraph's took part; they are counted apart.
    """
    folder = os.environ.get("GFXGRAPH_EMULATOR_RESULTS")
    if not folder or not outcomes:
        return
    path = Path(folder) / f"emulator_{name}.json"
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else {}
    before = runs.get(hip, {})
    ours = before.get("outcomes", {}) | {each: dict(told) for each, told in outcomes.items() if each not in controls}
    theirs = before.get("controls", {}) | {each: dict(told) for each, told in outcomes.items() if each in controls}
    said = versions()
    if said["command"] not in before.get("command", ""):  # several runs may make one file
        said["command"] = "; ".join(filter(None, (before.get("command"), said["command"])))
    runs[hip] = {
        **said,
        **more,
        "passed": sum(told["passed"] for told in ours.values()),
        "failed": sorted(each for each, told in ours.items() if not told["passed"]),
        "outcomes": dict(sorted(ours.items())),
        "controls": dict(sorted(theirs.items())),
    }
    report = {
        "what": what,
        "device": "gfx1030 emulated: evidence on calls and results, not on faults, speed or AMD hardware",
        "runs": dict(sorted(runs.items())),
    }
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
