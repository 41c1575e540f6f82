"""Failing calls in what faults.py does not reach: branches, buckets, loops, steps on the host, gradients.

Each call of the driver protocol, and each call that torch makes of the runtime (``Faults.CALLS``), fails once at each
position, with each status that means something of its own, and with MemoryError. Afterwards the result is eager's or
an error that names the status, the process is as before, and other captures and replays are right.

Run whole:  python -m tests.property.faults_driver [--platform hip|cuda] [--seconds N] [--every N] [--out FILE]
"""

from __future__ import annotations

import argparse
import collections
import gc
import json
import platform as machine
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import gfxgraph
from gfxgraph import simulator
from gfxgraph.capture import capture_lock
from gfxgraph.capture.patches import replaced
from gfxgraph.errors import DriverError
from gfxgraph.process import process
from tests.property import faults, faults_mixed

STATUSES = {
    1: "InvalidValue",
    2: "OutOfMemory",
    600: "NotReady",
    801: "NotSupported",
    901: "StreamCaptureInvalidated",
    "memory": "MemoryError",
}
"""What a call may fail with and leave the device usable. An illegal address (700) ends it: see ``STICKY``."""
STICKY = 700
TORCHS = ("begin", "op", "end", "instantiate", "launch", "malloc", "synchronize", "copy_kernel")
IN_TIME_S = 60.0


class Planted(MemoryError):
    """Python's own, which says where it was planted."""


# -- programs: each checks its results against eager ----------------------------------------------------


def same(got: Any, wanted: Any) -> None:
    assert torch.allclose(got, wanted), f"wrong: {got.flatten()[:3].tolist()}, eager {wanted.flatten()[:3].tolist()}"


def branches(x: Any, kept: dict[str, Any]) -> None:
    chosen = gfxgraph.Conditional({True: lambda a: a + 1, False: lambda a: (a * 3).relu()})
    with torch.no_grad():
        for value in (1.0, -1.0, 2.0, -2.0, 3.0, -3.0):
            flag = torch.full((), value, device="cuda") > 0
            same(chosen(flag, x), x + 1 if value > 0 else x * 3)


def loop(x: Any, kept: dict[str, Any]) -> None:
    made = gfxgraph.WhileLoop(lambda a: a.sum() < 100, lambda a: (a * 2,), max_steps=8)
    with torch.no_grad():
        for _ in range(3):
            same(made(x)[0], x * 16)


def buckets(x: Any, kept: dict[str, Any]) -> None:
    made = gfxgraph.graphed(lambda a: a * 2 + 1, dynamic={"a": {0: "n"}}, buckets={"n": [4, 8]})
    for n in (3, 8, 5, 3, 4):
        a = torch.full((n, 2), float(n), device="cuda")
        same(made(a), a * 2 + 1)


def host_steps(x: Any, kept: dict[str, Any]) -> None:
    """A step in Python, a text, a comparison, a copy to the host: split at each."""
    host, seen = torch.zeros(8), []

    def body() -> Any:
        y = x * 2
        host.copy_(y)
        largest = y.max().item()
        seen.append(f"largest {largest:.1f}")
        return y * largest + 1

    graph, out = faults.captured(body)
    for value in (1.0, 3.0):
        x.fill_(value)
        graph.replay()
        same(out, x * 2 * (2 * value) + 1)
    x.fill_(1.0)


def torchs_training(x: Any, kept: dict[str, Any]) -> None:
    """make_graphed_callables: the graphs of the forward and of the backward."""
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8).cuda()
    sample = x.clone().requires_grad_()
    stepped = torch.cuda.make_graphed_callables(
        lambda a: torch.nn.functional.linear(a, model.weight).relu(), (sample,)
    )
    for value in (1.0, 2.0):
        a = torch.full((8,), value, device="cuda", requires_grad=True)
        b = a.detach().clone().requires_grad_()
        stepped(a).sum().backward()
        torch.nn.functional.linear(b, model.weight).relu().sum().backward()
        same(a.grad, b.grad)


def traced(x: Any, kept: dict[str, Any]) -> None:
    made = gfxgraph.graphed(faults.program)
    for value in (1.0, 2.0, 3.0, 4.0):
        a = torch.full((8,), value, device="cuda")
        same(made(a), faults.program(a))


def gradients(x: Any, kept: dict[str, Any]) -> None:
    weight = torch.full((8,), 2.0, device="cuda", requires_grad=True)
    made = gfxgraph.graphed(lambda a, w: (a * w).relu().sum())
    for value in (1.0, 2.0, 3.0, 4.0):
        weight.grad = None
        a = torch.full((8,), value, device="cuda")
        made(a, weight).backward()
        same(weight.grad, a)


def training_step(x: Any, kept: dict[str, Any]) -> None:
    def losses(wrap: Callable[[Any], Any]) -> list[float]:
        call = wrap(faults_mixed.training(lr=0.01, momentum=0.9))
        return [float(call(x * (i + 1)).detach()) for i in range(6)]

    same(
        torch.tensor(losses(lambda one: gfxgraph.TrainingStep(one, warmup=1))), torch.tensor(losses(lambda one: one))
    )


def generate(x: Any, kept: dict[str, Any]) -> None:
    faults_mixed.generate(x, kept)


def collected(x: Any, kept: dict[str, Any]) -> None:
    """Graphs in cycles, freed by the collector between captures, in one and in a replay."""

    class Owner:
        pass

    for _ in range(3):
        owner = Owner()
        owner.me, owner.held = owner, faults.captured(lambda: faults.program(x))  # type: ignore[attr-defined]
    del owner
    graph, out = faults.captured(lambda: (gc.collect(), faults.program(x))[1])
    gc.collect()
    graph.replay()
    same(out, faults.program(x))


def beside(x: Any, kept: dict[str, Any]) -> None:
    """Another thread captures and replays meanwhile; its results are checked, too, where nothing was struck there."""
    errors: list[BaseException] = []

    def other() -> None:
        try:
            for i in range(2):
                a = torch.full((8,), float(i), device="cuda")
                with torch.cuda.stream(torch.cuda.Stream()):
                    graph, out = faults.captured(lambda a=a: faults.program(a))  # type: ignore[misc]
                    graph.replay()
                    torch.cuda.current_stream().synchronize()
                    same(out, faults.program(a))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    try:
        graph, out = faults.captured(lambda: faults.program(x))
        graph.replay()
        same(out, faults.program(x))
    finally:
        thread.join(IN_TIME_S)
        assert not thread.is_alive(), "wrong: the other thread hangs"
    if errors:
        raise errors[0]


def simple(x: Any, kept: dict[str, Any]) -> None:
    graph, out = faults.captured(lambda: faults.program(x))
    for value in (1.0, 2.0):
        x.fill_(value)
        graph.replay()
        same(out, faults.program(x))
    x.fill_(1.0)
    graph.reset()


PROGRAMS = (
    simple,
    host_steps,
    collected,
    branches,
    loop,
    generate,
    beside,
    torchs_training,
    buckets,
    gradients,
    training_step,
    traced,
)


# -- failures -------------------------------------------------------------------------------------------


class FailingDriver(faults.FailingDriver):
    """Fails the ``nth`` call, and the one ``again`` calls later, with ``status``."""

    def __init__(self, real: Any, nth: int, status: Any, again: int = 0) -> None:
        super().__init__(real, nth)
        self.status, self.second = status, nth + again if again else 0

    def _strikes(self, name: str) -> bool:
        self.n += 1
        if self.n not in (self._nth, self.second) or not self._nth:
            return False
        self.struck += f" {name}" if self.struck else name
        return True

    def _failing(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        inner = super()._failing(name, call)

        def called(*args: Any, **kwargs: Any) -> Any:
            try:
                return inner(*args, **kwargs)
            except DriverError as error:
                if "hipErrorUnknown" not in str(error):
                    raise
            raise failure(name, self.status)

        return called


def failure(name: str, status: Any) -> BaseException:
    if status == "memory":
        return Planted(f"planted in {name}")
    said = f"hipError{STATUSES[status]}"
    return DriverError("driver_call_failed", api=f"hip({name})", status=said, number=status, detail="planted")


def says(error: BaseException | None, status: Any) -> bool:
    """Whether the error, or what it came from, names what was planted."""
    seen: set[int] = set()
    known = ("out of memory", "invalid argument", "not supported", "previous error during capture", "unknown error")
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        text = f"{type(error).__name__} {error}"
        if STATUSES[status] in text or isinstance(error, MemoryError) or any(each in text for each in known):
            return True
        error = error.__cause__ or error.__context__
    return False


def left(before: dict[str, object]) -> list[str]:
    """What of gfxgraph, torch and the card is not as it was."""
    bad = faults_mixed.differing(before, faults_mixed.state())
    if capture_lock._turns and capture_lock._all():
        bad.append("a turn is taken")
    if capture_lock.holders or replaced.NAMES:
        bad.append("torch's functions are replaced")
    if capture_lock._graveyard:
        bad.append("dead graphs were not buried")
    if process.require().recording:
        bad.append("a pool counts as in use")
    sim = simulator.active()
    assert sim is not None
    bad += [f"stream {handle:#x} captures" for handle, s in sim.device.streams.items() if s.capture is not None]
    return bad


def run(program: Callable[..., None], plant: Callable[[], Callable[[], str]], status: Any) -> tuple[str, list[str]]:
    """Run with a planted failure; what was struck ("" where nothing was), and what is wrong with the process."""
    x = torch.ones(8, device="cuda")
    kept = faults.before(program, x)
    state = faults_mixed.state()
    bad: list[str] = []
    stderr_hook, sys.unraisablehook = sys.unraisablehook, lambda said: unraised.append(str(said.exc_value))
    unraised: list[str] = []
    threads = set(threading.enumerate())
    begun = time.monotonic()
    took_away = plant()
    try:
        program(x, kept)
        struck = took_away()
    except AssertionError as error:
        struck = took_away()
        bad.append(str(error))
    except (RuntimeError, MemoryError) as error:
        struck = took_away()
        if not says(error, status):
            bad.append(f"the error does not say what happened: {type(error).__name__}: {str(error).splitlines()[:2]}")
        if isinstance(error, DriverError) is False and isinstance(error, MemoryError) and status != "memory":
            bad.append("a status became a MemoryError")
        traceback.clear_frames(error.__traceback__)
    except Exception as error:
        struck = took_away()
        bad.append(f"the program sees {type(error).__name__}: {str(error).splitlines()[:1]}")
        traceback.clear_frames(error.__traceback__)
    finally:
        sys.unraisablehook = stderr_hook
    if time.monotonic() - begun > IN_TIME_S:
        bad.append(f"it took {time.monotonic() - begun:.0f} s")
    gc.collect()
    x.fill_(1.0)
    bad += left(state)
    # A dummy stands for one that C++ made, as autograd's for a device, which logged something.
    new = [t.name for t in set(threading.enumerate()) - threads if not isinstance(t, threading._DummyThread)]
    if new:
        bad.append(f"threads are left: {new}")
    bad += faults.faults_left(x, kept)
    try:
        program(torch.ones(8, device="cuda"), kept)
    except Exception as error:
        bad.append(f"the same again: {type(error).__name__}: {str(error).splitlines()[:1]}")
    return struck, bad


def in_our_driver(nth: int, status: Any, again: int = 0) -> Callable[[], Callable[[], str]]:
    def plant() -> Callable[[], str]:
        state = process.require()
        real = state.driver
        failing = FailingDriver(real, nth, status, again)
        state.driver = failing  # type: ignore[assignment]

        def take_away() -> str:
            failing._nth = 0
            process.require().driver = state.driver = real
            return failing.struck

        return take_away

    return plant


def in_torchs_calls(call: str, nth: int, status: int) -> Callable[[], Callable[[], str]]:
    def plant() -> Callable[[], str]:
        sim = simulator.active()
        assert sim is not None
        plan = simulator.Faults()
        sim.faults = plan
        plan.fail_nth(call, nth, status)

        def take_away() -> str:
            struck = call if not plan.fail.get(call) else ""
            sim.faults = simulator.Faults()
            return struck

        return take_away

    return plant


def positions(
    platform: str, programs: Any, statuses: Any, every: int, deadline: float, pairs: bool = True
) -> Iterator[tuple[str, str, Any, str, list[str]]]:
    """(program, where, status, what was struck, what is wrong) for each position in turn."""

    def again() -> None:
        gfxgraph.enable(simulate=platform, validate=False)

    def one(
        program: Callable[..., None], where: str, status: Any, plant: Any
    ) -> tuple[str, str, Any, str, list[str]]:
        struck, bad = run(program, plant, status)
        if bad:
            gfxgraph.disable()
            again()
        return program.__name__, where, status, struck, bad

    for program in programs:
        for i, status in enumerate(statuses):
            for nth in range(1 + i % every, 100_000, every):
                if time.monotonic() > deadline:
                    return
                row = one(program, f"driver call {nth}", status, in_our_driver(nth, status))
                if not row[3]:
                    break
                yield row
        if pairs:
            for nth in range(1, 100_000, every):
                row = one(program, f"driver calls {nth} and the next", 901, in_our_driver(nth, 901, 1))
                if not row[3] or time.monotonic() > deadline:
                    break
                yield row
        for call in TORCHS:
            for i, status in enumerate(statuses):
                if status == "memory":
                    continue
                for nth in range(1 + i % every, 100_000, every):
                    if time.monotonic() > deadline:
                        return
                    row = one(program, f"torch's {call} {nth}", status, in_torchs_calls(call, nth, status))
                    if not row[3]:
                        break
                    yield row


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--platform", default="hip")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--every", type=int, default=1, help="of the positions, one in so many")
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    gfxgraph.enable(simulate=asked.platform, validate=False)
    chosen = [p for p in PROGRAMS if not asked.only or p.__name__ in asked.only.split(",")]
    for program in chosen:  # once before: it loads what it needs
        run(program, lambda: lambda: "", 1)
    gc.collect()
    gc.freeze()  # what is there now is not looked through at each position
    deadline = time.monotonic() + asked.seconds
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    broken = []
    for name, where, status, struck, bad in positions(asked.platform, chosen, tuple(STATUSES), asked.every, deadline):
        counts[name][f"{where.rstrip('0123456789 ')}, {STATUSES[status]}"] += 1
        if bad:
            broken.append(
                {"program": name, "where": where, "struck": struck, "status": STATUSES[status], "then": bad}
            )
            print(name, where, struck, STATUSES[status], bad, file=sys.stderr, flush=True)
    result = {
        "device": f"none (simulator, {asked.platform})",
        "torch": torch.__version__,
        "python": machine.python_version(),
        "positions": {name: dict(found) for name, found in counts.items()},
        "one in": asked.every,
        "n_positions": sum(sum(found.values()) for found in counts.values()),
        "broken": broken,
        "ran_out_of_time": time.monotonic() > deadline,
    }
    text = json.dumps(result, indent=1) + "\n"
    print(text)
    if asked.out is not None:
        asked.out.write_text(text, encoding="utf-8")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
