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


def test_code_lines():
    """Blank lines, comments, docstrings and texts that are statements do not count; a text of three lines does."""
    text = (
        '"""About."""\n\nx = """a\nb\nc"""\n"""of x"""\n\n# why\n'
        'def f():\n    """Does.\n\n    Well.\n    """\n    return (\n        1\n    )\n'
    )
    assert ratchet.code_lines(text) == 3 + 1 + 3


def test_rooms_are_folders_and_files_beside_them(tmp_path):
    """Each has its sum, and src/ the sum of all."""
    for name in ("gfxgraph/a/b/c.py", "gfxgraph/a/d.py", "gfxgraph/e.py", "other/f.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    counted = {"a/": 2, "e.py": 1, "other": 1, "src/": 4}
    assert ratchet.code_lines_by_room(tmp_path) == {f"code lines of {room}": n for room, n in counted.items()}


@pytest.fixture
def ratchet_of(monkeypatch, tmp_path):
    """Run the tool over given places, beside an ARCHITECTURE.md with one promise."""
    monkeypatch.setattr(ratchet, "NUMBERS", tmp_path / "ratchet.json")
    monkeypatch.setattr(ratchet, "PROMISES", tmp_path / "ARCHITECTURE.md")
    ratchet.PROMISES.write_text("# Map\n\n## Promises\n\n| Promise | By |\n| --- | --- |\n| **Same results** | x |\n")
    monkeypatch.setattr(ratchet, "code_lines_by_room", lambda source: {"code lines of src/": 7})
    monkeypatch.setattr(ratchet, "cold_call", lambda: {"files of a cold graphed call": 3})
    places = {name: [] for name in ("complex functions", "long functions", "Any", "shared class names")}
    monkeypatch.setattr(ratchet, "measured", lambda: places)
    places["complex functions"].append(ratchet.Found(12, "a.py:3 f"))
    today = ratchet.numbers(places) | ratchet.code_lines_by_room(tmp_path) | ratchet.cold_call()
    ratchet.NUMBERS.write_text(json.dumps(today))

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["ratchet.py", *words])
        return ratchet.main()

    run.places = places
    return run


def held():
    return json.loads(ratchet.NUMBERS.read_text())


def test_a_rise_is_refused_and_a_fall_is_told(ratchet_of, capsys):
    """Status 1 and the worst places where a number rose, also with --write; a fall asks to be written down."""
    assert ratchet_of() == 0 and not capsys.readouterr().out
    ratchet_of.places["complex functions"].append(ratchet.Found(11, "b.py:1 g"))
    for words in ([], ["--write"]):
        assert ratchet_of(*words) == 1
        said = capsys.readouterr().err
        assert "functions more complex than 10: 2, and 1 are held" in said and "a.py:3 f (12)" in said
    assert held()["functions more complex than 10"] == 1
    ratchet_of.places["complex functions"].clear()
    assert ratchet_of() == 0 and "--write" in capsys.readouterr().out
    assert ratchet_of("--write") == 0 and held()["complexity of the most complex function"] == 0


@pytest.mark.parametrize("what", ["code lines of src/", "files of a cold graphed call"])
def test_lines_and_the_cold_call_are_held(ratchet_of, capsys, what):
    """A room that grows and a longer way down fail as a rise of any other number."""
    ratchet.NUMBERS.write_text(json.dumps(held() | {what: held()[what] - 1}))
    assert ratchet_of() == 1 and what in capsys.readouterr().err


def test_a_rise_is_bought_with_a_promise(ratchet_of, tmp_path, capsys):
    """--buys takes a fragment that names a promise of ARCHITECTURE.md, and no other."""
    ratchet_of.places["complex functions"].append(ratchet.Found(11, "b.py:1 g"))
    (tmp_path / "1.md").write_text("Faster.")
    for name in ("1.md", "none.md"):
        assert ratchet_of("--write", "--buys", str(tmp_path / name)) == 1
        assert "names none of the promises" in capsys.readouterr().err
    (tmp_path / "2.md").write_text("A step that ... (promise: same results).")
    assert ratchet_of("--write", "--buys", str(tmp_path / "2.md")) == 0
    assert held()["functions more complex than 10"] == 2
