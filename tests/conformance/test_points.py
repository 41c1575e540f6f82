"""The points of the documents that the project grew from: each has a check that holds, or is a test that is there."""

from __future__ import annotations

import re
import shlex
import tomllib
from functools import cache
from pathlib import Path

import click
import pytest

import gfxgraph
import gfxgraph.startup.activation
from gfxgraph import compat
from gfxgraph.cli.main import cli

ROOT = Path(__file__).parents[2]
LIST = ROOT / "tests/older/points.txt"
PAGE = ROOT / "docs/older-names.md"
ROWS = [
    tuple(part.strip() for part in line.split(" | "))
    for line in LIST.read_text(encoding="utf-8").splitlines()
    if line and line[0] not in "#["
]
DIFFERS = [row for row in ROWS if len(row) == 3]


def of_kind(*kinds):
    return [row for row in ROWS if row[1].split()[0] in kinds]


def test_each_point_has_a_check_and_each_difference_its_reason():
    """Two parts, or three of which the last begins with "differs:" and goes on."""
    for row in ROWS:
        assert len(row) == 2 or (len(row) == 3 and re.match(r"differs: .{20}", row[2])), row
    assert len(ROWS) > 200 and len({row[0] for row in ROWS}) == len(ROWS)


def test_the_page_tells_the_count_and_every_difference():
    """docs/older-names.md has the figures and, word for word, what differs."""
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"{len(ROWS)} points: {len(ROWS) - len(DIFFERS)} as promised, {len(DIFFERS)} differ" in text
    assert [row[0] for row in DIFFERS if f"- {row[0]}: {row[2].removeprefix('differs: ')}" not in text] == []


@cache
def names_in(path):
    return set(re.findall(r"^def test_(\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))


def test_the_tests_are_there():
    """Each test that is named; they run with the others."""
    missing = []
    for _, check, *_ in ROWS:
        if "::" not in check:
            continue
        place, name = check.split("::")
        folder, _, stem = place.rpartition("/")
        path = ROOT / "tests" / folder / f"test_{stem}.py"
        if not path.exists() or name not in names_in(path):
            missing.append(check)
    assert missing == []
    kinds = ("py", "cmd", "rule", "row", "entry")
    assert [row for row in ROWS if "::" not in row[1] and row[1].split()[0] not in kinds] == []


def test_rules_rows_and_entries_are_there():
    """By their names; the audit's own test runs each rule's examples."""
    defects = (ROOT / "src/gfxgraph/hardware/defects.toml").read_text(encoding="utf-8")
    rules = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "src/gfxgraph_port/rules").glob("*.toml"))
    for _, check, *_ in of_kind("rule", "row", "entry"):
        kind, name = check.split()
        if kind == "rule":
            assert f'code = "{name.replace("_", "-")}"' in rules, check
        elif kind == "row":
            assert f'id = "{name}"' in defects, check
        else:
            assert (ROOT / f"src/gfxgraph/diagnostics/catalogue/{name}.toml").exists(), check


def test_commands_are_accepted():
    """The command is there, with its options."""
    for _, check, *_ in of_kind("cmd"):
        words = shlex.split(check.removeprefix("cmd "))
        group: click.Command = cli
        while isinstance(group, click.Group) and words:
            group = group.get_command(click.Context(group), words.pop(0))
            assert group is not None, check
        known = {option for each in group.params for option in each.opts}
        assert {word.split("=")[0] for word in words if word.startswith("--")} <= known, check


@pytest.mark.parametrize(("says", "code"), [(row[0], row[1].removeprefix("py ")) for row in of_kind("py")])
def test_what_can_be_asked_at_once_is_so(platform, monkeypatch, says, code):
    """A line of Python, true in the simulator."""
    if platform == "gpu":
        __import__("torch").cuda.init()  # device_info() asks a torch that is awake, and wakes none

    def with_env(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return True

    names = {"gfxgraph": gfxgraph, "compat": compat, "torch": __import__("torch"), "with_env": with_env}
    names["native_project"] = tomllib.loads((ROOT / "native/pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert eval(code, names), says  # noqa: S307  (lines of our own list)
