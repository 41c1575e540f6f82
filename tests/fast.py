"""What `make test-fast` runs of tests/unit: the files that start no other process, and of those all tests.

    pytest -p tests.fast tests/unit

A rule and not a list, so that a new test falls on its side by itself: where a file of tests, or of fixtures that a
test uses, imports ``subprocess``, the test is left to `make test`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import conftest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    slow = [item for item in items if any("subprocess" in names for names in _names_of(item))]
    config.hook.pytest_deselected(items=slow)
    left = set(slow)
    items[:] = [item for item in items if item not in left]


def _names_of(item: pytest.Item) -> Iterator[dict[str, object]]:
    """What the files know by name that the test and its fixtures are in; those for all tests are no test's own."""
    if isinstance(item, pytest.Function):
        yield vars(item.module)
        for fixtures in item._fixtureinfo.name2fixturedefs.values():
            yield from (f.func.__globals__ for f in fixtures if f.func.__module__ != conftest.__name__)
