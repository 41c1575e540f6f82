"""Whether a text decides something is read from the source that runs."""

import linecache
import sys

from gfxgraph.capture import texts

FILENAME = "a_cell_run_again.py"


def outcome(*lines):
    """What ``texts.decides`` says of the call of ``f`` in a source kept under one name."""
    said = []
    source = "\n".join(lines) + "\n"
    linecache.cache[FILENAME] = (len(source), None, source.splitlines(keepends=True), FILENAME)
    try:
        names = {"f": lambda: said.append(texts.decides(sys._getframe(1))), "shown": [], "known": set()}
        exec(compile(source, FILENAME, "exec"), names)
    finally:
        del linecache.cache[FILENAME]
    return said


def test_name_that_gets_another_source():
    shows, decides = "shown.append(str(f()))", "known.add(str(f()))"
    for _ in range(2):
        assert outcome(shows) == [False]
        assert outcome(decides) == [True]
        assert outcome("", "", shows) == [False]
        assert outcome("x = 1", decides, shows) == [True, False]


def test_same_code_with_and_without_source():
    source = "shown.append(str(f()))"
    said = []
    names = {"f": lambda: said.append(texts.decides(sys._getframe(1))), "shown": []}
    exec(compile(source + "\n", "a_cell_without_source.py", "exec"), names)
    assert said == [True]
    assert outcome(source) == [False]
