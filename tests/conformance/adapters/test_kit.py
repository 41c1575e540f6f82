"""What every adapter must do, whatever its engine: the kit runs on each one found in the folder.

An engine that is not installed is replaced by a stand-in of ``stand_ins/``: its names, nothing else.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from gfxgraph import adapters
from gfxgraph.adapters import adapter as adapter_interface
from gfxgraph.adapters._needs import NeededName, missing
from gfxgraph.errors import ActivationError

STAND_INS = Path(__file__).parent / "stand_ins"


@pytest.fixture(params=adapters.names())
def adapter(request, monkeypatch):
    """An adapter that is not in place, with its engine there."""
    found = adapters.get(request.param)
    stand_in = STAND_INS / found.name
    before = set(sys.modules)
    if stand_in.exists():
        monkeypatch.syspath_prepend(stand_in)
    elif not found.version():
        pytest.skip(f"{found.name} is not installed, and there is no stand-in for it")
    monkeypatch.setattr(adapter_interface, "installed_version", lambda module: "1.0")
    assert not found.is_installed
    yield found
    found.uninstall()
    if stand_in.exists():
        for name in set(sys.modules) - before:
            if name.split(".")[0] == found.module:
                del sys.modules[name]


def surface(adapter):
    """Every attribute of every class and function container of the modules that the adapter changes."""
    found = {}
    for part in adapter.needs:
        module = import_module(part)
        for name, value in vars(module).items():
            found[part, name] = value
            if isinstance(value, type) and value.__module__ == module.__name__:
                found.update({(part, name, member): inner for member, inner in vars(value).items()})
    return {key: value for key, value in found.items() if key[-1] not in ("__builtins__", "__dict__", "__weakref__")}


def changed(before, after):
    return {key for key in before.keys() | after.keys() if before.get(key) is not after.get(key)}


def test_name_is_the_files(adapter):
    """The name that users give is the file's, it says what it was tested with, and what it needs of every part."""
    assert type(adapter).__module__ == f"gfxgraph.adapters.{adapter.name}"
    assert adapter.tested and all(adapter.needs.values())


def test_install_changes_something_and_uninstall_puts_it_back(adapter):
    """What install replaced is, after uninstall, the very object that was there before."""
    before = surface(adapter)
    adapter.install()
    assert adapter.is_installed
    assert adapter.name in adapters.installed()
    assert changed(before, surface(adapter))
    adapter.uninstall()
    assert not adapter.is_installed
    assert changed(before, surface(adapter)) == set()


def test_install_twice_is_once(adapter):
    """A second install replaces nothing, and one uninstall undoes both."""
    before = surface(adapter)
    adapter.install()
    once = surface(adapter)
    adapter.install()
    assert changed(once, surface(adapter)) == set()
    adapter.uninstall()
    assert changed(before, surface(adapter)) == set()
    adapter.uninstall()
    assert changed(before, surface(adapter)) == set()


def test_install_again_after_uninstall(adapter):
    """Installed, taken out and installed again, it is in place."""
    before = surface(adapter)
    adapter.install()
    first = changed(before, surface(adapter))
    adapter.uninstall()
    adapter.install()
    assert changed(before, surface(adapter)) == first


@pytest.mark.parametrize("version", ["0.0.1", "9999.1"])
def test_an_unknown_version_that_has_what_is_needed_is_used(adapter, monkeypatch, version):
    """Older or newer than any that was tested: the number alone refuses nothing."""
    monkeypatch.setattr(adapter_interface, "installed_version", lambda module: version)
    assert adapter.available()
    adapter.install()
    assert adapter.is_installed


def test_what_is_missing_is_named_and_counted(adapter, monkeypatch, caplog):
    """Asked for, it is an error; by itself, one warning and one fallback that says what; nothing is touched."""
    part = list(adapter.needs)[-1]
    lacking = (*adapter.needs[part], NeededName("Moved.elsewhere"))
    monkeypatch.setattr(adapter, "needs", adapter.needs | {part: lacking}, raising=False)
    before = surface(adapter)
    with pytest.raises(ActivationError) as caught:
        adapter.install()
    assert caught.value.code == "engine_layout"
    for language in ("en", "zh"):
        assert f"{part}.Moved.elsewhere" in caught.value.text(language) and adapter.tested in caught.value.text(
            language
        )
    for _ in range(2):
        adapter.install_when_imported()
    assert not [key for key in changed(before, surface(adapter)) if key[0] == part]
    assert len([one for one in caplog.records if "engine_layout" in one.getMessage()]) == 1
    assert not adapter.available()


def test_engine_absent(adapter, monkeypatch):
    """Without the engine it is not available, and install says what is missing."""
    monkeypatch.setattr(adapter_interface, "installed_version", lambda module: "")
    assert not adapter.available()
    with pytest.raises(ActivationError) as caught:
        adapter.install()
    assert caught.value.code == "engine_missing"
    assert not adapter.is_installed


def test_a_missing_name_leaves_nothing_behind(adapter, monkeypatch):
    """An engine in part: where the last part is not as expected, the parts before it are put back."""
    before = surface(adapter)
    original = adapter.put_in_place

    def put_in_place(undo, part):
        if part.__name__ == list(adapter.needs)[-1]:
            original(undo, part)
            raise AttributeError(f"module {part.__name__!r} has no attribute 'Moved'")
        original(undo, part)

    monkeypatch.setattr(adapter, "put_in_place", put_in_place)
    with pytest.raises(ActivationError) as caught:
        adapter.install()
    assert caught.value.code == "engine_layout" and "Moved" in str(caught.value)
    assert changed(before, surface(adapter)) == set() and not adapter.is_installed


def test_asking_costs_no_import(adapter):
    """Listing the adapters and asking for their names imports no engine."""
    code = (
        "import sys, gfxgraph.adapters as a\n"
        "for name in a.names(): a.get(name)\n"
        f"assert {adapter.module!r} not in sys.modules and 'torch' not in sys.modules, 'imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_engine():
    """A name that there is no adapter for is refused with those that there are."""
    with pytest.raises(ActivationError) as caught:
        adapters.install("no_such_engine")
    assert caught.value.code == "engine_unknown"
    assert all(name in str(caught.value) for name in adapters.names())


def test_needs_are_looked_for_by_name_argument_and_attribute():
    """A name that is gone, an argument that is called otherwise, an attribute that no instance gets."""

    class Engine:
        declared: int

        def __init__(self):
            self.kept = 1

        def capture(self, key, *, pool=None):
            return key, pool

    module = type(sys)("engine")
    module.Engine, module.compiled = Engine, print
    met = (
        NeededName("Engine", keeps="kept declared capture"),
        NeededName("Engine.capture", takes="key pool"),
        NeededName("compiled", takes="end"),
    )
    assert missing(module, met) == []
    lacking = (
        NeededName("Engine", keeps="kept gone"),
        NeededName("Engine.capture", takes="shape"),
        NeededName("Engine.begin"),
        NeededName("Other"),
    )
    said = ["Engine().gone", "Engine.capture(shape=)", "engine.Engine.begin", "engine.Other"]
    assert missing(module, lacking) == said
