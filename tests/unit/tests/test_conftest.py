"""tests/conftest.py and tests/conformance/conftest.py: what holds for every test here."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest


def test_pytest_does_not_listen_to_dynamos_traces() -> None:
    """Where it does, each step of each trace is written as JSON, which takes 5 % of the suite's time."""
    pytest.importorskip("torch")
    heard = {type(each).__module__ for each in logging.getLogger("torch.__trace").handlers}
    assert not any(name.startswith("_pytest") for name in heard)


def platforms(name: str, *marks: pytest.MarkDecorator) -> list[str]:
    """What the test of that name is given by the hook; none where the fixture's own are left."""
    conftest = pytest.importorskip("tests.conformance.conftest")
    given = list(marks)
    definition = SimpleNamespace(
        iter_markers=lambda kind: [each.mark for each in given if each.name == kind],
        get_closest_marker=lambda kind: next((each for each in given if each.name == kind), None),
        add_marker=given.append,
    )
    function = SimpleNamespace(__name__=name)
    metafunc = SimpleNamespace(definition=definition, fixturenames=["platform"], function=function)
    conftest.pytest_generate_tests(metafunc)
    return [each.args[1] for each in given if each.name == "parametrize"]


def test_one_platform_is_enough_where_a_test_says_so() -> None:
    """By its name, the same each time, some on each; all of them where the test names them, and without the mark."""
    conftest = pytest.importorskip("tests.conformance.conftest")
    chosen = [platforms(name, pytest.mark.any_platform) for name in "abcdefgh"]
    assert {each for [[each]] in chosen} == set(conftest.PLATFORMS)
    assert chosen == [platforms(name, pytest.mark.any_platform) for name in "abcdefgh"]
    assert platforms("a", pytest.mark.any_platform, conftest.on_both_platforms) == [conftest.PLATFORMS]
    assert platforms("a") == []
