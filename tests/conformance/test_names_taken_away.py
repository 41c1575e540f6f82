"""Each private name of torch is taken away in turn, and eight ordinary programs run as before."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
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


KEYS = [key for key, name in torch_names.NAMES.items() if name.feature != "simulator" and key not in ABORTS]


@pytest.fixture(scope="module")
def programs() -> Iterator[subprocess.Popen[str]]:
    """One process that has imported torch and its compiler, and forks for each name."""
    line = [sys.executable, "-m", torch_names_programs.__name__]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.stdin.close()  # type: ignore[union-attr]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.timeout(300)
def test_nothing_is_raised_and_the_results_are_right(key: str, programs: subprocess.Popen[str]) -> None:
    """Nothing that torch does not raise without gfxgraph; what needs the name is off, by its name."""
    print(key, file=programs.stdin, flush=True)
    found = json.loads(programs.stdout.readline())  # type: ignore[union-attr]
    name = torch_names.NAMES[key]
    assert found["name"] == name.path
    assert found.get("wrong", found) == {}
    needed = name.feature in NEEDED and not {"optional", "loaded"} & set(name.marks)
    is_reached = name.feature != "compiled regions" or not found["raised"]  # by the compiled module
    if found["gone"] and needed and is_reached and not is_found_again(name):
        assert name.feature in found["off"], found


def is_found_again(name: torch_names.Name) -> bool:
    """A module is, by its import, and so is what a class inherits."""
    owner, attribute = torch_names.place(name.key)
    inherited = isinstance(owner, type) and any(attribute in vars(base) for base in owner.__mro__[1:])
    return inherited or isinstance(torch_names._find(name), ModuleType)
