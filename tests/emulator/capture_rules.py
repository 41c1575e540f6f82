"""The capture table of the HIP that is there, and a table as the simulator's profile has it.

python tests/emulator/capture_rules.py [-o TABLE.json]      all cells, each in a process of its own
python tests/emulator/capture_rules.py --rules TABLE.json   a table as a profile's [calls] and [capture]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gfxgraph import files
from gfxgraph.selftest.native import capture_table as table
from gfxgraph.selftest.native.native_suite import NativeSuite


def as_rules(found: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """The rows of a table as those of a profile: one rule for ``all`` modes where they agree."""
    rows = {}
    for name in table.CALLS:
        if name in table.OF_CAPTURE or name not in found:
            continue
        row = dict(found[name])
        rows[name] = {"all": row["global"]} if len(row) == 3 and len(set(row.values())) == 1 else row
    return rows


def as_capture(measured: Mapping[str, Any]) -> dict[str, Any]:
    """What a table says of [capture]: a second begin, and the stream's status after an end that was refused."""
    left = {0: "none", 1: "stays", 2: "stays"}
    whole = measured["whole"]
    dead = {cell["after"] for row in whole.values() for cell in row.values() if cell.get("end") == 901}
    unjoined = {cell["after"] for cell in whole["fork_not_joined"].values()}
    again = {cell["status"] for cell in whole["begin_again"].values()}
    assert len(again) == 1 and len(dead) == 1 and len(unjoined) == 1, (again, dead, unjoined)
    return {"nested_begin": again.pop(), "after_failed_end": {901: left[dead.pop()], 904: left[unjoined.pop()]}}


def capture_table() -> dict[str, Any]:
    """The capture table of the HIP that is there."""
    suite = NativeSuite(limit_s=3600, programs=())
    suite.identify()
    jobs = [{"kind": "cell", "name": name, "mode": mode} for name, mode in table.cells()]
    told = {(cell["name"], cell["mode"]): cell.get("told", {}) for cell in suite._keep(jobs)}
    whole = {name: {mode: told[name, mode] for mode in sorted(table.MODES)} for name in table.CALLS}
    return {
        "what": "what each call does in a capture",
        "device": suite.device,
        "cells": {
            name: {mode: cell.pop("rule", "ends the process") for mode, cell in row.items()}
            for name, row in whole.items()
        },
        "whole": whole,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--rules", type=Path, metavar="TABLE")
    options = parser.parse_args()
    if options.rules:
        measured = json.loads(options.rules.read_text("utf-8"))
        for name, row in as_rules(measured["cells"]).items():
            print(f"{name} = {{ {', '.join(f'{mode} = {json.dumps(said)}' for mode, said in row.items())} }}")
        print(f"# [capture] {json.dumps(as_capture(measured))}")
        return
    text = json.dumps(capture_table(), indent=1) + "\n"
    if options.output:
        files.write(options.output, text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
