"""Each private name of torch is taken away in turn, and eight ordinary programs run as before."""

from __future__ import annotations

import json
import subprocess
import sys
from types import ModuleType

import pytest
import torch

from gfxgraph import torch_names
from tests.unit import torch_names_programs

ABORTS = ("_pop_mode",)
"""Without it torch itself ends the process, in a plain ``nn.Linear`` (torch 2.13)."""
NEEDED = ("capture", "graphed", "tracing", "compiled regions")
"""Features that the programs need from their first calls on."""


pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="its programs run in the simulator")


@pytest.mark.parametrize("feature", [each for each in torch_names.TABLE if each != "simulator"])
@pytest.mark.timeout(900)
def test_nothing_is_raised_and_the_results_are_right(feature: str) -> None:
    """Nothing that torch does not raise without gfxgraph; what needs the name is off, by its name."""
    keys = [name.key for name in torch_names.NAMES.values() if name.feature == feature and name.key not in ABORTS]
    line = [sys.executable, "-m", torch_names_programs.__name__, *keys]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    found = [json.loads(each) for each in done.stdout.splitlines()]
    assert [each["name"] for each in found] == [torch_names.NAMES[key].path for key in keys]
    assert [each for each in found if each.get("wrong", each)] == []
    marks = {name.path: {"optional", "loaded"} & set(name.marks) for name in torch_names.NAMES.values()}
    again = {name.path for name in torch_names.NAMES.values() if is_found_again(name)}
    for each in found:
        if each["name"] not in again and each["gone"] and feature in NEEDED and not marks[each["name"]]:
            assert feature in each["off"], each


def is_found_again(name: torch_names.Name) -> bool:
    """A module is, by its import, and so is what a class inherits."""
    owner, attribute = torch_names.place(name.key)
    inherited = isinstance(owner, type) and any(attribute in vars(base) for base in owner.__mro__[1:])
    return inherited or isinstance(torch_names._find(name), ModuleType)
