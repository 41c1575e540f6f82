"""tools/ratchet.py: what is counted, and that a rise is refused."""

import ast
import importlib.util
import json
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[3] / "tools" / "ratchet.py"
spec = importlib.util.spec_from_file_location("ratchet", FILE)
ratchet = importlib.util.module_from_spec(spec)
sys.modules["ratchet"] = ratchet
spec.loader.exec_module(ratchet)


@pytest.mark.parametrize(
    ("text", "n"),
    [
        ("def f(a: Any, *b: int, **c: list[Any]) -> Any: ...", 3),
        ("x: dict[str, Any] = {}\ny = Any", 1),
        ("def f(a: int) -> None: ...", 0),
    ],
)
def test_annotations_with_any(text, n):
    """An annotation counts once, wherever in it Any stands; other uses of the name do not."""
    assert len(list(ratchet.vague_annotations(ast.parse(text)))) == n


def test_length_of_functions():
    """Every line from ``def`` to the last one, at any depth."""
    tree = ast.parse("class A:\n    def f(self):\n        'said'\n\n        return 1\n")
    assert list(ratchet.long_functions(tree, limit=3)) == [(4, 2, "f")]
    assert not list(ratchet.long_functions(tree, limit=4))


def test_shared_class_names(monkeypatch):
    """A class counts once for each file that defines it, at any depth; names shared by intent do not count."""
    monkeypatch.setattr(ratchet, "SHARED_BY_INTENT", {"Older": "as it was"})
    texts = {
        "a.py": "class Step: ...\nclass Older: ...\nclass Twice: ...\nclass Twice: ...\n",
        "b.py": "def f():\n    class Step: ...\nclass Older: ...\nclass Alone: ...\n",
    }
    trees = {Path(name): ast.parse(text) for name, text in texts.items()}
    assert list(ratchet.shared_class_names(trees)) == [ratchet.Found(2, "Step in a.py, b.py")]


def test_a_rise_is_refused_and_a_fall_is_told(monkeypatch, tmp_path, capsys):
    """Status 1 and the worst places where a number rose; a fall asks to be written down."""
    places = {
        "complex functions": [ratchet.Found(12, "a.py:3 f")],
        "long functions": [],
        "Any": [],
        "shared class names": [],
    }
    monkeypatch.setattr(ratchet, "measured", lambda: places)
    monkeypatch.setattr(ratchet, "NUMBERS", tmp_path / "ratchet.json")
    monkeypatch.setattr(sys, "argv", ["ratchet.py"])
    ratchet.NUMBERS.write_text(json.dumps(ratchet.numbers(places)))
    assert ratchet.main() == 0 and not capsys.readouterr().out
    places["complex functions"].append(ratchet.Found(11, "b.py:1 g"))
    assert ratchet.main() == 1
    said = capsys.readouterr().err
    assert "functions more complex than 10: 2, and 1 are held" in said and "a.py:3 f (12)" in said
    places["complex functions"].clear()
    assert ratchet.main() == 0 and "--write" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["ratchet.py", "--write"])
    assert ratchet.main() == 0
    assert json.loads(ratchet.NUMBERS.read_text())["complexity of the most complex function"] == 0
