"""A part of faults.py: after a failure at any of these positions later captures, replays and eager work are right."""

from __future__ import annotations

import contextlib
import dis
import sys

import pytest
import torch

import gfxgraph
from tests.property import faults

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="failures are planted in the simulator")
EVERY = 7
"""Of the lines of a scenario one in so many is interrupted; faults.py run whole takes each."""


@pytest.fixture
def simulated():
    gfxgraph.enable(simulate="hip", validate=False)
    yield
    gfxgraph.disable()


@pytest.mark.parametrize("scenario", [faults.capture, faults.split, faults.graphed_replay], ids=lambda s: s.__name__)
def test_driver_calls(simulated, scenario):
    """Each call of the driver that a scenario makes fails once."""
    n_struck = 0
    for nth in range(1, 10_000):
        struck, bad = faults.with_failing_driver(scenario, nth)
        assert not bad, (nth, struck, bad)
        if not struck:
            break
        n_struck += 1
    assert n_struck or scenario is faults.graphed_replay


@pytest.mark.parametrize("kind", [KeyboardInterrupt, MemoryError])
def test_lines(simulated, kind):
    """An interrupt, or memory that runs out, at lines of a capture that splits."""
    lines = faults.lines_of(faults.split, most_hits=1)[::EVERY]
    struck = 0
    for line, nth in lines:
        was_struck, bad = faults.interrupted(faults.split, line, nth, kind)
        assert not bad, (line, bad)
        struck += was_struck
    assert struck > len(lines) // 2


def test_signals(simulated):
    """Real signals at random times."""
    found = faults.signals(25, 1000.0, seed=1)
    assert found["then"] == [] and found["survived"] == 25, found


ENTER_AND_EXIT = [
    torch.inference_mode.__enter__,
    torch.inference_mode.__exit__,
    contextlib._GeneratorContextManager.__enter__,
    contextlib._GeneratorContextManager.__exit__,
]


def _state():
    keys = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    flags = torch.is_inference_mode_enabled(), torch.is_grad_enabled(), torch.autograd.is_multithreading_enabled()
    return *(each.raw_repr() for each in keys), *flags, torch._C._is_fwd_grad_enabled()


@contextlib.contextmanager
def _without_gradients():
    torch._C._set_grad_enabled(False)
    try:
        yield
    finally:
        torch._C._set_grad_enabled(True)


@pytest.mark.parametrize("inside", [contextlib.nullcontext, torch.inference_mode])
@pytest.mark.parametrize("where", ENTER_AND_EXIT, ids=lambda where: where.__qualname__)
def test_half_entered_blocks(simulated, where, inside):
    """An interrupt in the entry or the exit of a block of the program's: its state goes with the capture, not later."""
    x = torch.ones(8, device="cuda")
    block = torch.inference_mode if where.__module__.startswith("torch") else _without_gradients
    is_entry = where.__name__ == "__enter__"
    before = _state()

    def strike(frame, event, _):
        """An entry is struck when all is done but its return, an exit before its first line."""
        if frame.f_code is not where.__code__:
            return None
        frame.f_trace_opcodes = True
        is_last = event == "opcode" and dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN")
        if is_last if is_entry else event == "line":
            sys.settrace(None)
            raise KeyboardInterrupt
        return strike

    def body():
        with inside():
            sys.settrace(strike)
            with block():
                x * 2

    kept = None
    try:
        faults.captured(body)
    except KeyboardInterrupt as error:
        kept = error  # and with it the frames that hold the block
    finally:
        sys.settrace(None)
    assert kept is not None
    assert _state() == before
    del kept
    assert _state() == before
    assert faults.faults_left(x, faults.before(faults.capture, x)) == []


def test_half_left_inner_capture(simulated):
    """An interrupt before the first line of an inner block's exit is what the program sees, not the open capture."""
    code = torch.cuda.graph.__exit__.__code__
    x = torch.ones(8, device="cuda")
    kept = faults.before(faults.capture, x)

    def strike(frame, event, _):
        if frame.f_code is not code:
            return None
        sys.settrace(None)
        raise KeyboardInterrupt

    def inner():
        sys.settrace(strike)
        return x + 1

    try:
        with pytest.raises(KeyboardInterrupt):
            faults.captured(lambda: (faults.program(x), faults.captured(inner), x * 3))
    finally:
        sys.settrace(None)
    assert faults.faults_left(x, kept) == []
