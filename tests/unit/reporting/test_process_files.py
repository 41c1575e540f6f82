"""What processes left for a report: whatever a file of that name holds, the others are read."""

import json
import os

import pytest

from gfxgraph.reporting import page, process_files

GOOD = {"pid": 1, "argv": ["a.py"], "at": 1.0, "stats": {"replay_count": 3}}


@pytest.mark.parametrize(
    "content",
    [
        "[" * 100_000,
        '{"pid":' * 50_000,
        "9" * 5000,
        '{"pid": 1, "argv"',
        "",
        "\0" * 100,
        json.dumps({**GOOD, "pid": "x"}),
    ],
    ids=["deep", "deep objects", "a long number", "cut off", "empty", "zeros", "another type"],
)
def test_a_file_that_holds_anything_else_is_left_out(tmp_path, content):
    """Each by itself, beside one that is right."""
    (tmp_path / "gfxgraph-1.json").write_text(json.dumps(GOOD))
    (tmp_path / "gfxgraph-2.json").write_text(content)
    assert process_files.read(tmp_path) == [GOOD]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_what_is_no_file_is_left_out(tmp_path):
    """A FIFO is not waited for, a folder and a link are not followed."""
    (tmp_path / "gfxgraph-1.json").write_text(json.dumps(GOOD))
    os.mkfifo(tmp_path / "gfxgraph-2.json")
    (tmp_path / "gfxgraph-3.json").mkdir()
    (tmp_path / "gfxgraph-4.json").symlink_to(tmp_path / "gfxgraph-1.json")
    assert process_files.read(tmp_path) == [GOOD]


@pytest.mark.parametrize(
    "wrong",
    [
        {"at": float("inf")},
        {"argv": ["\ud800"]},
        {"stats": {"replay_count": "x"}},
        {"inspection": {"captures": 5}},
        {"inspection": {"captures": [{"steps": None}]}},
    ],
    ids=lambda wrong: json.dumps(wrong),
)
def test_a_page_is_made_without_what_it_cannot_show(wrong):
    """The right kinds on top, anything below."""
    assert page.is_readable(GOOD)
    assert not page.is_readable({**GOOD, **wrong})
