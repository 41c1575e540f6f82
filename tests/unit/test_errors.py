"""errors: the tree, the text, and what raising costs."""

import pickle
import subprocess
import sys

import pytest

from gfxgraph import config, errors
from gfxgraph.types import Where


def test_the_text_is_the_five_lines_of_the_style(monkeypatch):
    """what, why, do and more stand under a first line that never varies."""
    monkeypatch.setenv("GFXGRAPH_LANG", "en")
    error = errors.CaptureError(
        "capture_invalidated",
        api="hipStreamEndCapture",
        status="hipErrorStreamCaptureInvalidated (901)",
        op="aten::_local_scalar_dense",
        where=Where("model.py", 88),
    )
    assert str(error).splitlines() == [
        "capture_invalidated: the capture was invalidated before it ended",
        "  what: hipStreamEndCapture returned hipErrorStreamCaptureInvalidated (901)",
        "  why:  aten::_local_scalar_dense at model.py:88 did something that a capture forbids, and "
        "everything recorded so far was thrown away by the runtime",
        "  do:   move it out of the captured function",
        "        use a new stream for the next capture: this one may stay in a broken state",
        "  more: gfxgraph explain capture_invalidated",
    ]


def test_the_language_is_that_of_the_moment_of_showing(monkeypatch):
    """An error raised under one setting and shown under another follows the second."""
    error = errors.ActivationError("no_torch", python="python3")
    monkeypatch.setenv("GFXGRAPH_LANG", "zh")
    assert str(error).startswith("no_torch: 没有安装 PyTorch\n  现象：在 python3 中")
    monkeypatch.setenv("GFXGRAPH_LANG", "en")
    assert str(error).startswith("no_torch: PyTorch is not installed\n  what: ")


def test_a_quote_survives_word_for_word():
    """Engines search exceptions for torch's own words, line by line."""
    one = "CUDA error: operation not permitted when stream is capturing"
    assert one in str(errors.CaptureError("end_failed", quote=one))
    text = str(errors.CaptureError("end_failed", quote=one + "\nCompile with TORCH_USE_CUDA_DSA"))
    assert one in text
    assert "Compile with TORCH_USE_CUDA_DSA" in text


def test_values_with_braces_are_not_filled_twice():
    """A user's value that looks like a placeholder stays as it is."""
    assert "{where}" in errors.CaptureError("end_failed", op="{where}", where="m.py:1", status="s").text("en")


def test_an_unknown_code_still_shows_its_fields():
    """Showing an error never raises another."""
    assert errors.GfxGraphError("no_such_code", a=1).text("en") == "no_such_code: a=1"


def test_pickling_keeps_code_fields_and_quote():
    """A worker's error reaches the parent whole."""
    sent = errors.GuardMismatch("guard_mismatch", quote="q", where="m.py:1", actual=3)
    got = pickle.loads(pickle.dumps(sent))
    assert type(got) is errors.GuardMismatch
    assert (got.code, got.fields, got.quote) == (sent.code, sent.fields, sent.quote)


@pytest.mark.parametrize("name", ["CaptureError", "ReplayError", "ActivationError", "DriverError"])
def test_everything_is_a_runtime_error(name):
    """Engines that catch torch's RuntimeError catch ours."""
    assert issubclass(getattr(errors, name), RuntimeError)


def test_a_bad_setting_becomes_a_config_error():
    """The first refused variable is named with its value and what is allowed."""
    with pytest.raises(errors.ConfigError) as caught:
        errors.check_settings(config.load({"GFXGRAPH_GUARD": "9"}))
    assert caught.value.fields["variable"] == "GFXGRAPH_GUARD"
    assert "allowed: 0 | 1 (safe)" in caught.value.text("en")


def test_importing_errors_reads_no_catalogue():
    """A program that never fails pays for no parsing."""
    code = (
        "import sys, gfxgraph.errors as e; x = e.CaptureError('end_failed');"
        "assert 'tomllib' not in sys.modules and 'gfxgraph.diagnostics.entries' not in sys.modules;"
        "str(x); assert 'tomllib' in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
