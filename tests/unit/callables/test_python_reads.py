"""A snapshot tells of every kind of change, whether it is compared by a word of memory or asked of Python."""

from __future__ import annotations

import collections
import sys
import types

import pytest

torch = pytest.importorskip("torch")

from gfxgraph.callables.python_reads import Snapshot  # noqa: E402


class Thing:
    __slots__ = ("factor",)

    def __init__(self):
        self.factor = 2


class Other(Thing):
    __slots__ = ()


def make():
    count, items, emptied, last, table, members, thing = (
        1000,
        [1, 2],
        [],
        collections.deque([1]),
        {"a": 1},
        {3},
        Thing(),
    )

    def step(x, more=1):
        return (
            x * count
            + len(items)
            + len(emptied)
            + len(last)
            + table["a"]
            + len(members)
            + thing.factor
            + more
            + KNOWN
        )

    def recount(value):
        nonlocal count
        count = value

    return types.SimpleNamespace(**locals())


KNOWN = 5

CHANGES = {
    "a closure's number": lambda made: made.recount(1001),
    "an item of a list": lambda made: made.items.__setitem__(0, 7),
    "a list's length": lambda made: made.items.append(3),
    "an empty list": lambda made: made.emptied.append(3),
    "a deque": lambda made: made.last.append(3),
    "a dict": lambda made: made.table.update(a=2),
    "a set": lambda made: made.members.add(4),
    "a slot": lambda made: setattr(made.thing, "factor", 3),
    "an object's class": lambda made: setattr(made.thing, "__class__", Other),
    "a default": lambda made: setattr(made.step, "__defaults__", (2,)),
    "code": lambda made: setattr(made.step, "__code__", make().step.__code__.replace(co_name="another")),
    "a global": lambda made: setattr(sys.modules[__name__], "KNOWN", 6),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_is_told(kind, monkeypatch):
    """Nothing has changed at first; after the change it is not the same, whoever else stays."""
    monkeypatch.setattr(sys.modules[__name__], "KNOWN", 5)
    made = make()
    snapshot = Snapshot({"fn": made.step}).watched()
    assert snapshot.is_same()
    CHANGES[kind](made)
    assert not snapshot.is_same()
    assert Snapshot({"fn": made.step}).key != snapshot.key


def test_a_program_in_a_folder_of_our_name_is_the_programs(tmp_path):
    """Only this package is taken for settled, not everything below a folder that is named like it."""
    path = tmp_path / "gfxgraph" / "train.py"
    path.parent.mkdir()
    path.write_text("scale = 2\ndef step(x):\n    return x * scale\n")
    made = {"__name__": "train"}
    exec(compile(path.read_text(), str(path), "exec"), made)
    snapshot = Snapshot({"fn": made["step"]}).watched()
    made["scale"] = 3
    assert not snapshot.is_same()


def test_of_a_librarys_module_only_the_forward_is_compared(monkeypatch):
    """The rest of its class is settled, and reads half of the library."""
    net = torch.nn.Linear(2, 2)
    before = Snapshot({"fn": net}).key
    monkeypatch.setattr(torch.nn.Linear, "note", 1, raising=False)
    assert Snapshot({"fn": net}).key == before
    monkeypatch.setattr(torch.nn.Linear, "forward", lambda self, x: x)
    assert Snapshot({"fn": net}).key != before
