"""The simulator's profiles are the tables that AMD's runtimes gave."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.emulator.capture_rules import as_capture

from gfxgraph.selftest.native import capture_table as table
from gfxgraph.selftest.native import native_suite
from gfxgraph_simulator import profiles

TABLES = {path.stem: path for path in (Path(native_suite.__file__).parent / "tables").glob("*.json")}
PROFILES = {"6.4.3": "hip-6.4", "7.2.4": "hip-7.2"}


def as_said(rule: profiles.CallRule) -> str:
    if rule.code:
        return f"refuses {rule.code}" + (" and invalidates" if rule.invalidates else "")
    return "records" if rule.records else "runs"


@pytest.mark.parametrize("version", sorted(PROFILES))
def test_every_cell_of_the_profile_is_the_runtimes(version: str) -> None:
    """Calls, modes and threads: no cell is from a text, none is left out."""
    found = json.loads(TABLES[version].read_text("utf-8"))
    profile = profiles.load(PROFILES[version])
    wrong = [
        (name, mode, as_said(profile.rule(name, mode)), found["cells"][name][mode])
        for name in profile.calls
        for mode in table.MODES
        if as_said(profile.rule(name, mode)) != found["cells"][name][mode]
    ]
    assert not wrong
    assert set(profile.calls) == found["cells"].keys() - set(table.OF_CAPTURE)
    capture = as_capture(found)
    assert (profile.nested_begin, profile.after_failed_end) == (capture["nested_begin"], capture["after_failed_end"])


def test_differing_cells_are_told_with_their_meaning() -> None:
    """A cell that refuses where the table runs warns the owner; one that runs where the table refuses does not."""
    known = json.loads(TABLES["6.4.3"].read_text("utf-8"))["cells"]
    here = {name: dict(row) for name, row in known.items()}
    here["launch"]["global"], here["malloc"]["global"] = "refuses 900", "runs"
    told = native_suite.differences(here, known)
    assert [(each["call"], each["mode"], each["here"]) for each in told] == [
        ("launch", "global", "refuses 900"),
        ("malloc", "global", "runs"),
    ]
    assert "may fail here" in told[0]["means"] and "nothing to do" in told[1]["means"]
    assert native_suite.nearest("7.2.60000")[0] == "7.2.4" and native_suite.nearest("6.4.43484")[0] == "6.4.3"
