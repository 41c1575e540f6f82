"""Private names of torch are taken away, one alone or all of a feature, and six ordinary programs run as before."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from gfxgraph import torch_names
from tests.unit import torch_names_programs

ABORTS = ("_pop_mode",)
"""Without it torch itself ends the process, in a plain ``nn.Linear`` (torch 2.13)."""
NEEDED = ("capture", "graphed", "tracing", "compiled regions")
"""Features that the programs need from their first calls on."""
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="its programs run in the simulator")


KEYS = [key for key, name in torch_names.NAMES.items() if name.feature != "simulator" and key not in ABORTS]
FEATURES = sorted({torch_names.NAMES[key].feature for key in KEYS})


@pytest.fixture(scope="module")
def programs() -> Iterator[Callable[[str], dict[str, Any]]]:
    """One process that has imported torch and its compiler, and forks for each name; the answer for a name."""
    line = [sys.executable, "-m", torch_names_programs.__name__]

    def answer(name: str) -> dict[str, Any]:
        print(name, file=process.stdin, flush=True)
        return json.loads(process.stdout.readline())  # type: ignore[no-any-return, union-attr]

    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield answer
        process.stdin.close()  # type: ignore[union-attr]


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.timeout(600)
def test_nothing_is_raised_and_the_results_are_right(feature: str, programs: Callable[[str], dict[str, Any]]) -> None:
    """Nothing that torch does not raise without gfxgraph; what needs the name is off, by its name."""
    for key in (key for key in KEYS if torch_names.NAMES[key].feature == feature):
        found, name = programs(key), torch_names.NAMES[key]
        assert found["name"] == name.path
        if not found["programs"]:
            continue  # none asks for it
        assert found.get("wrong", found) == {}
        needed = name.feature in NEEDED and not {"optional", "loaded"} & set(name.marks)
        is_reached = name.feature != "compiled regions" or not found["raised"]  # by the compiled module
        if found["gone"] and needed and is_reached and not is_found_again(name):
            assert name.feature in found["off"], found


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_without_any_of_its_names_is_off(feature: str, programs: Callable[[str], dict[str, Any]]) -> None:
    """Each name that is gone is noticed, and the results are right; names that programs ask for all the same are there."""
    found = programs(feature)
    assert found.get("wrong", found) == {} and found["unnoticed"] == []


def is_found_again(name: torch_names.Name) -> bool:
    """A module is, by its import, and so is what a class inherits."""
    owner, attribute = torch_names.place(name.key)
    inherited = isinstance(owner, type) and any(attribute in vars(base) for base in owner.__mro__[1:])
    return inherited or isinstance(torch_names._find(name), ModuleType)
