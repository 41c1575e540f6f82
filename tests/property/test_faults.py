"""A part of faults.py: after a failure at any of these positions later captures, replays and eager work are right."""

from __future__ import annotations

import contextlib
import dis
import gc
import inspect
import signal
import sys
import threading
import time
import warnings

import pytest
import torch
from torch.fx.experimental.sym_node import SymNode

import gfxgraph
from gfxgraph.callables.padding import symbolic
from gfxgraph.callables.trace import dynamo
from gfxgraph.capture import capture_lock
from tests.property import faults, faults_driver, faults_mixed, faults_threads, planted

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


def test_driver_calls_of_a_composition(simulated):
    """A call fails, and the one after it: eager's results or an error that says so, and nothing is left."""
    faults_driver.run(faults_driver.composed, lambda: lambda: "", 1)  # once before: it loads what it needs
    n_struck = 0
    for nth in range(1, 10_000, 5):
        status = list(faults_driver.STATUSES)[nth % len(faults_driver.STATUSES)]
        struck, bad = faults_driver.run(faults_driver.composed, faults_driver.in_our_driver(nth, status, 1), status)
        assert not bad, (nth, struck, bad)
        if not struck:
            break
        n_struck += 1
    assert n_struck > 3


def test_threads_at_random(simulated):
    """Eight threads capture, replay, draw, free and fail for a while, switched 500 times as often as Python does."""
    torch._dynamo.reset()  # functions that compiled code is guarded on are not replaced
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        found = faults_threads.run(seed=1, seconds=3)
    finally:
        sys.setswitchinterval(before)
    assert found["wrong"] == [], found


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


def test_lines_of_functions_that_the_simulator_would_call(simulated, monkeypatch):
    """Its allocator stands for C++, which calls no ``max`` of the program's half way through a block."""
    if "torch._dynamo.convert_frame" in sys.modules:  # once something is compiled, numbers take another way
        torch._dynamo.reset()
        monkeypatch.setattr("torch._dynamo.convert_frame.FRAME_COUNTER", 0)
    lines = [each for each in faults.lines_of(faults.host_values, most_hits=3) if "number_functions" in each[0][0]]
    chosen = [(line, nth) for line, nth in lines if nth > 1]
    assert chosen
    for line, nth in chosen[::4]:
        _, bad = faults.interrupted(faults.host_values, line, nth, MemoryError)
        assert not bad, (line, nth, bad)


class Late(RuntimeError):
    """What a program's handler raises when its time is up."""


@pytest.fixture
def alarmed():
    """A kind of failure that is a signal, whose handler raises ``Late``."""

    def ring(*_):
        raise Late

    def strike(_):
        signal.raise_signal(signal.SIGUSR1)
        time.sleep(0)  # Python looks for signals after a call
        return Late

    saved = signal.signal(signal.SIGUSR1, ring)
    yield strike
    signal.signal(signal.SIGUSR1, saved)


def outcome(planted, call):
    """What the program sees of a planted failure: "Late", another error's type, or nothing."""
    try:
        planted.run(call)
    except BaseException as error:
        return type(error).__name__
    return ""


@pytest.mark.parametrize("scenario", [faults.split, faults.graphed_first], ids=lambda s: s.__name__)
def test_a_handlers_own_error(simulated, alarmed, scenario, monkeypatch):
    """A signal's handler raises a RuntimeError at lines of ours: no fallback is made of it, and nothing is left."""
    dropped, n_lost = [], 0
    monkeypatch.setattr(sys, "unraisablehook", lambda said: dropped.append(said.exc_type))
    lines = faults.lines_of(scenario, most_hits=1)
    of_entry = [each for each in lines if planted.name_of(each[0]) in ("enter", "targets", "instantiate")]
    for line, nth in {*lines[::27], *of_entry}:
        x = torch.ones(8, device="cuda")
        kept = faults.before(scenario, x)
        lately = faults.Lines(line, nth, alarmed)
        seen = outcome(lately, lambda scenario=scenario, x=x, kept=kept: scenario(x, kept))
        assert lately.left or seen in ("Late", "", *dropped), (line, seen)
        n_lost += not (lately.left or seen or dropped)
        gc.collect()
        assert faults.faults_left(x, kept) == [], line
        assert not gfxgraph.stats()["fallbacks"], line
        dropped.clear()
    assert n_lost <= 2  # a query that asks the device for one number takes any RuntimeError for its answer


def test_replay_on_a_full_stack(simulated):
    """What a launch raises because Python's stack is full is no failure of the graph: no fallback is deeper."""
    x = torch.ones(8, device="cuda")
    kept = faults.before(faults.replay, x)
    here, limit = len(inspect.stack(0)), sys.getrecursionlimit()
    seen = set()
    for room in range(4, 30):
        try:
            sys.setrecursionlimit(here + room)
            kept["graph"].replay()
            seen.add("")
        except RuntimeError as error:
            seen.add(type(error).__name__)
        finally:
            sys.setrecursionlimit(limit)
    assert seen == {"", "RecursionError"}
    assert faults.faults_left(x, kept) == []


def test_signals(simulated):
    """Real signals at random times."""
    found = faults.signals(25, 1000.0, seed=1)
    assert found["then"] == [] and found["survived"] == 25, found


def test_signals_in_mixed_programs(simulated):
    """Real signals while gradients, training steps and graphed functions are captured, beside another thread."""
    jobs = (faults_mixed.gradients, faults_mixed.step, faults_mixed.threads)
    found = faults_mixed.signals(12, 1000.0, 1, jobs)
    assert found["then"] == [] and found["survived"] == 12, found


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


def test_an_exit_that_has_not_begun_is_run(simulated):
    """An interrupt before the first instruction of an exit, whatever class it is of: warnings are shown again."""
    code = warnings.catch_warnings.__exit__.__code__
    x = torch.ones(8, device="cuda")
    kept, before = faults.before(faults.capture, x), list(warnings.filters)

    def strike(frame, event, _):
        if frame.f_code is code:
            sys.settrace(None)
            raise KeyboardInterrupt

    def body():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sys.settrace(strike)
        return x + 1

    try:
        with pytest.raises(KeyboardInterrupt):
            faults.captured(body)
    finally:
        sys.settrace(None)
    assert warnings.filters == before
    assert faults.faults_left(x, kept) == []


def test_no_turn_is_taken_in_python(simulated):
    """An interrupt where the lock of turns has just been taken, or is about to be given, leaves it to other threads."""
    x = torch.ones(8, device="cuda")
    places = [("call", "__enter__"), ("return", "__enter__"), ("call", "__exit__")]
    for wanted in places:

        def strike(frame, event, _):
            if not frame.f_code.co_filename.endswith("threading.py"):
                return None
            if (event, frame.f_code.co_name) == wanted:
                sys.settrace(None)
                raise KeyboardInterrupt
            return strike

        sys.settrace(strike)
        with contextlib.suppress(KeyboardInterrupt):
            with capture_lock.held(), capture_lock.held_unless(lambda: False):
                pass
        sys.settrace(None)
        beside = threading.Thread(target=faults.captured, args=(lambda: x + 1,), daemon=True)
        beside.start()
        beside.join(20)
        assert not beside.is_alive(), wanted


def _push_level():
    torch._C._functorch._vmap_increment_nesting(2, "error")


def _half_enter_fake_mode():
    mode = torch._subclasses.FakeTensorMode()
    mode.__enter__()
    mode.enter_stack.clear()  # its own exit raises from here on


def _half_enter_mode():
    torch.utils._python_dispatch._is_in_torch_dispatch_mode = True


def _set_callback():
    torch._C._dynamo.eval_frame.set_eval_frame(False)  # run what is compiled, compile nothing


def _begin_tracing():
    torch._guards._TLS.tracing_context = object()


LEFT = {
    "python_dispatcher": lambda: (
        _kept_guards.append(torch._C._EnablePythonDispatcher()) or _kept_guards[-1].__enter__()
    ),
    "level": _push_level,
    "functions": lambda: torch._C._set_torch_function_state(torch._C._TorchFunctionState.ALL_DISABLED),
    "mode": _half_enter_fake_mode,
    "flag": _half_enter_mode,
    "callback": _set_callback,
    "tracing": _begin_tracing,
    "autocast": lambda: torch.autocast("cuda", torch.bfloat16).__enter__(),
    "host_tensors": lambda: torch._C._set_only_lift_cpu_tensors(True),
}
_kept_guards = []


@pytest.mark.parametrize("leave", LEFT.values(), ids=LEFT)
def test_what_is_left_of_a_thread_is_put_back(simulated, leave):
    """What an interrupt leaves of a block whose own exit is never run."""
    x = torch.ones(8, device="cuda")
    kept = faults.before(faults.capture, x)
    faults_mixed.gradients(x, kept)  # once, before: it loads what it needs
    before = faults_mixed.state()

    def body():
        x + 1
        leave()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        faults.captured(body)
    assert faults_mixed.differing(before, faults_mixed.state()) == []
    assert faults.faults_left(x, kept) == []
    faults_mixed.gradients(x, kept)


def test_a_signal_where_sizes_are_symbols_is_not_lost(monkeypatch):
    """The parser of torch's arguments asks symbols for their kind, and takes any error for a wrong argument."""
    asked, n_struck = SymNode.is_int, []

    def is_int(self):
        if sys._getframe(1).f_code is symbolic._fake.__code__ and not n_struck:
            n_struck.append(1)
            signal.raise_signal(signal.SIGINT)
        return asked(self)

    given = (lambda a: a * 2 + 1), [torch.ones(3, 2)], {0: {0: "n"}}
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(SymNode, "is_int", is_int)
            symbolic.traced(*given)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert n_struck
    assert len(symbolic.traced(*given).tape) == 2


@pytest.mark.parametrize("n_signals", [1, 2])
def test_a_signal_waits_until_a_trace_is_over(simulated, monkeypatch, n_signals):
    """The first one does; the second breaks in."""
    x, whole, look = torch.ones(8, device="cuda"), [], dynamo.look

    def struck(graph):
        for _ in range(n_signals):
            signal.raise_signal(signal.SIGINT)
        whole.append(True)
        return look(graph)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        made = gfxgraph.graphed(lambda a: a * 3)
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(dynamo, "look", struck)
            made(x)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, handler)
    assert bool(whole) is (n_signals == 1)
    assert [made(x).tolist() for _ in range(4)] == [[3.0] * 8] * 4
