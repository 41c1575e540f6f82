"""What a trace leaves out of Dynamo's work, and that all of it is put back."""

from __future__ import annotations

import gc
import logging
import signal
import threading
import traceback
import types
from contextlib import ExitStack

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo import symbolic_convert  # noqa: E402

import gfxgraph  # noqa: E402
from gfxgraph.callables.trace import corrections, dynamo  # noqa: E402
from gfxgraph.callables.trace.dynamo import Waiting  # noqa: E402


def test_what_is_for_logs_alone_is_left_out():
    """Files are read for the names of functions where Dynamo's log asks for them; afterwards all is as it was."""
    own = symbolic_convert.get_funcname
    with ExitStack() as changes:
        corrections.correct(changes, [], {})
        assert symbolic_convert.get_funcname is not own
    assert symbolic_convert.get_funcname is own
    level = symbolic_convert.trace_call_log.level
    symbolic_convert.trace_call_log.setLevel(logging.DEBUG)
    try:
        with ExitStack() as changes:
            corrections.correct(changes, [], {})
            assert symbolic_convert.get_funcname is own
    finally:
        symbolic_convert.trace_call_log.setLevel(level)


def test_a_keyboard_interrupt_leaves_no_handler_aside(monkeypatch):
    """Struck while handlers are put aside, it waits for the end of the block; then all are the program's again."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM)}
    getsignal, came = signal.getsignal, []

    def struck(number):
        if number == signal.SIGALRM and not came:
            came.append(number)
            signal.raise_signal(signal.SIGINT)
        return getsignal(number)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGALRM, lambda number, frame: None)
    handlers = [signal.getsignal(number) for number in before]
    try:
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(signal, "getsignal", struck)
            with Waiting():
                entered = True
        assert entered and came
        assert [signal.getsignal(number) for number in before] == handlers
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_others_compile_by_dynamos_rules_meanwhile():
    """Another thread's compilation waits for a trace of ours, and has none of its rules."""

    class Kind(type):
        def __instancecheck__(cls, value):
            return True

    class Asked(metaclass=Kind): ...

    held, errors, correct = [True], [], dynamo.correct

    def compiles():
        try:
            torch.compile(lambda a: a * 2 if isinstance(held, Asked) else a, backend="eager", fullgraph=True)(x)
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    gfxgraph.enable(simulate="hip")
    x = torch.ones(4, device="cuda")
    torch._dynamo.reset()
    thread = threading.Thread(target=compiles)

    def corrected(*args):
        correct(*args)
        if thread.ident is None:
            thread.start()
            thread.join(2.0)

    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(dynamo, "correct", corrected)
            gfxgraph.graphed(lambda a: a + 1)(x)
        thread.join()
    finally:
        gfxgraph.disable()
    assert errors == []


def test_the_collector_is_as_it_was():
    """Python's collector rests during a trace, one that fails among them, and goes on if it was on."""
    with pytest.raises(RuntimeError), ExitStack() as changes:
        dynamo._leave_uncollected(changes)
        assert not gc.isenabled()
        raise RuntimeError
    assert gc.isenabled()
    gc.disable()
    try:
        with ExitStack() as changes:
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
