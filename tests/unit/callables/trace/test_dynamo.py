"""What a trace leaves out of Dynamo's work, and that all of it is put back."""

from __future__ import annotations

import gc
import logging
import traceback
import types

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo import symbolic_convert  # noqa: E402

from gfxgraph.callables.trace import corrections, dynamo  # noqa: E402
from gfxgraph.callables.trace.changes import Changes  # noqa: E402


def test_what_is_for_logs_alone_is_left_out():
    """Files are read for the names of functions where Dynamo's log asks for them; afterwards all is as it was."""
    own = symbolic_convert.get_funcname
    with Changes() as changes:
        corrections.correct(changes, [], {})
        assert symbolic_convert.get_funcname is not own
    assert symbolic_convert.get_funcname is own
    level = symbolic_convert.trace_call_log.level
    symbolic_convert.trace_call_log.setLevel(logging.DEBUG)
    try:
        with Changes() as changes:
            corrections.correct(changes, [], {})
            assert symbolic_convert.get_funcname is own
    finally:
        symbolic_convert.trace_call_log.setLevel(level)


def test_the_collector_is_as_it_was():
    """Python's collector rests during a trace, one that fails among them, and goes on if it was on."""
    with pytest.raises(RuntimeError), Changes() as changes:
        dynamo._leave_uncollected(changes)
        assert not gc.isenabled()
        raise RuntimeError
    assert gc.isenabled()
    gc.disable()
    try:
        with Changes() as changes:
            dynamo._leave_uncollected(changes)
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_quicker_answers_are_dynamos():
    """The lines of a node's callers, and whether code is a module of torch's, are what Dynamo itself says."""
    frames = traceback.extract_stack()
    found = {each.__name__: make for each, _, make in corrections._quicker() if hasattr(each, "__name__")}
    known = found["torch._dynamo.output_graph"](traceback)
    assert known.StackSummary.from_list(frames).format() == traceback.StackSummary.from_list(frames).format()
    translator = symbolic_convert.InstructionTranslatorBase
    own = translator.is_co_filename_from_nn_modules
    for function in (
        torch.nn.Linear.forward,
        torch.nn.functional.linear,
        test_the_collector_is_as_it_was,
        frames.sort,
    ):
        here = types.SimpleNamespace(f_code=getattr(function, "__code__", make_code("<string>")))
        assert found["InstructionTranslatorBase"](own)(here) == own(here)


def make_code(file):
    return compile("1", file, "eval")
