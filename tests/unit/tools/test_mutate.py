"""tools/mutate.py: what a mutant is, which tests are nearest, and that the file is as before."""

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[3] / "tools" / "mutate.py"
spec = importlib.util.spec_from_file_location("mutate", FILE)
mutate = importlib.util.module_from_spec(spec)
sys.modules["mutate"] = mutate
spec.loader.exec_module(mutate)

TEXT = '''"""Über."""
LIMIT = 3
def f(a, b):
    if a < b and b:
        self.n = 1
        g(a)
    return True
'''


def test_mutants_of_a_function(monkeypatch, tmp_path):
    """Each is one change that still is Python; what stands outside functions is left alone."""
    monkeypatch.setattr(mutate, "ROOT", tmp_path)
    path = tmp_path / "a.py"
    path.write_text(TEXT, encoding="utf-8")
    data, changed = path.read_bytes(), []
    for each in mutate.mutants(path):
        text = (data[: each.begin] + each.text.encode() + data[each.end :]).decode()
        ast.parse(text)
        new = set(text.splitlines()) - set(TEXT.splitlines())
        changed.append((each.kind, next(iter(new)).strip()))
    assert sorted(changed) == [
        ("and for or", "if ((a < b) or (b)):"),
        ("assignment dropped", "pass"),
        ("call dropped", "pass"),
        ("comparison changed", "if (a <= b) and b:"),
        ("condition negated", "if (not (a < b and b)):"),
        ("constant changed", "return False"),
        ("constant changed", "self.n = 2"),
    ]


@pytest.mark.parametrize(("failing", "noticed"), [([["t::x"], []], "t::x"), ([["t::x"], ["t::x"]], ""), ([[]], "")])
def test_a_mutant_is_noticed_by_a_test_that_passes_without_it(monkeypatch, tmp_path, failing, noticed):
    """A test that fails anyhow does not count, and the file is put back."""
    monkeypatch.setattr(mutate, "ROOT", tmp_path)
    monkeypatch.setattr(mutate, "nearest_tests", lambda mutant, folder: ["t"])
    path = tmp_path / "a.py"
    path.write_text(TEXT, encoding="utf-8")
    answers, seen = iter(failing), []
    monkeypatch.setattr(mutate, "failing", lambda tests, jobs: (seen.append(path.read_text()), next(answers))[1])
    assert mutate.tried(next(mutate.mutants(path)), tmp_path, 1)["noticed_by"] == noticed
    assert seen[0] != TEXT and set(seen[1:]) <= {TEXT} and path.read_text() == TEXT


def test_a_mutants_tests_are_those_that_run_its_line(monkeypatch, tmp_path):
    """Among them those first that do the least beside the module; a line that no test runs has none."""
    executed = {
        "wide.py": {"a.py": {3, 4}, "b.py": set(range(90))},
        "own.py": {"a.py": {3, 4}, "b.py": {1}},
        "other.py": {"a.py": {3}},
    }
    monkeypatch.setattr(mutate, "_executed", lambda folder: executed)
    near = [mutate.nearest_tests(mutate.Mutant("a.py", line, "", 0, 0, ""), tmp_path) for line in (4, 5)]
    assert near == [["own.py", "wide.py"], []]


def test_measuring_without_the_package_that_measures_is_refused(monkeypatch, tmp_path):
    """It would run every test and have measured nothing."""
    monkeypatch.setattr(mutate.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="pip install coverage"):
        mutate.cover(tmp_path / "kept", ["core"], 1)
    assert not (tmp_path / "kept").exists()
