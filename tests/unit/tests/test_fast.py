"""tests/fast.py: which tests `make test-fast` leaves out."""

from types import SimpleNamespace

import pytest
from tests import fast


@pytest.fixture
def helper():
    """A fixture whose file may start processes."""


def is_run(item):
    left: list[pytest.Item] = []
    config = SimpleNamespace(hook=SimpleNamespace(pytest_deselected=lambda items: left.extend(items)))
    items = [item]
    fast.pytest_collection_modifyitems(config, items)
    assert items + left == [item]
    return bool(items)


def test_a_file_that_imports_subprocess_is_left_out(request, monkeypatch):
    """The rule looks at what the test's file imports."""
    assert is_run(request.node)
    monkeypatch.setitem(globals(), "subprocess", object())
    assert not is_run(request.node)


def test_so_is_a_test_whose_fixture_may_start_processes(request, helper, monkeypatch):
    """A fixture of another file counts by that file."""
    assert is_run(request.node)
    definition = request.node._fixtureinfo.name2fixturedefs["helper"][0]
    monkeypatch.setattr(definition, "func", eval("lambda: None", {"subprocess": object(), "__name__": "elsewhere"}))
    assert not is_run(request.node)
