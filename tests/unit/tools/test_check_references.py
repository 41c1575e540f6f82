"""tools/check_references.py: what a docstring or a comment may name."""

import importlib.util
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
spec = importlib.util.spec_from_file_location("check_references", ROOT / "tools" / "check_references.py")
checked = importlib.util.module_from_spec(spec)
spec.loader.exec_module(checked)

SOURCE = """
'''Says {0}.'''
x = "{0} as a value"


def f():
    # a comment on {0}
    '''and

    {0}
    '''
"""
THERE = ("one/state.py", "state.py", "../one/state.py", "one/", "two/one/", "decision 0001", "torch/cuda/graphs.py",
         "script.py", "*.py", "{name}.py", "decisions 0001 and 0002", "either/or")  # fmt: skip
GONE = (
    "gone.py",
    "one/gone.py",
    "gone/",
    "two/gone.md",
    "decision 0003",
    "decisions 0001, 0003",
    "docs/decisions/0001",
)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Files and two decisions, of which git knows."""
    for path in ("two/one/state.py", "docs/decisions/one.md", "said.py", "said.toml"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("", encoding="utf-8")
    (tmp_path / "docs/decisions/one.md").write_text("## 0001 A\n\n## 0002 B\n", encoding="utf-8")
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    monkeypatch.setattr(checked, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", THERE)
def test_what_is_there_or_elsewhere_may_be_named(repository, name):
    """A file, a folder, a decision; a file of another project; a pattern."""
    (repository / "said.py").write_text(SOURCE.replace("{0}", name), encoding="utf-8")
    assert checked.main() == 0


@pytest.mark.parametrize("name", GONE)
def test_what_is_gone_is_told_with_its_lines(repository, capsys, name):
    """In a docstring, a comment, and on a later line of a docstring; a value is no reference."""
    (repository / "said.py").write_text(SOURCE.replace("{0}", name), encoding="utf-8")
    assert checked.main() == 1
    assert sorted(int(line.split(":")[1]) for line in capsys.readouterr().err.splitlines()) == [2, 7, 10]


def test_a_decision_that_is_gone_is_told_in_other_texts(repository, capsys):
    """A table's comment; files are not looked up there."""
    (repository / "said.toml").write_text("a = 1\n# gone.py; decision 0009\n", encoding="utf-8")
    assert checked.main() == 1
    assert capsys.readouterr().err == "said.toml:2: names decision 0009, which is not there\n"
