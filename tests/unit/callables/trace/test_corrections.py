"""What a trace changes about Dynamo, and that all of it is put back."""

from __future__ import annotations

import gc
import signal
import threading
from contextlib import ExitStack

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo import symbolic_convert  # noqa: E402

import gfxgraph  # noqa: E402
from gfxgraph.callables.trace import corrections  # noqa: E402
from gfxgraph.callables.trace.corrections import Waiting  # noqa: E402


def test_every_rule_is_put_back():
    """Others' compilations have Dynamo's own."""
    rules = symbolic_convert.compare_op_handlers
    own = dict(rules)
    with ExitStack() as changes:
        corrections.correct(changes, [], {}, set())
        assert rules["is"] is not own["is"]
    assert rules == own


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

    held, errors, correct = [True], [], corrections.correct

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
            patched.setattr(corrections, "correct", corrected)
            gfxgraph.graphed(lambda a: a + 1)(x)
        thread.join()
    finally:
        gfxgraph.disable()
    assert errors == []


def test_the_collector_is_as_it_was():
    """Python's collector rests during a trace, one that fails among them, and goes on if it was on."""
    with pytest.raises(RuntimeError), ExitStack() as changes:
        corrections.leave_uncollected(changes)
        assert not gc.isenabled()
        raise RuntimeError
    assert gc.isenabled()
    gc.disable()
    try:
        with ExitStack() as changes:
            corrections.leave_uncollected(changes)
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
