"""Failures: each call of the driver in turn, and real signals at random times.

Run whole, it writes what it counted:  python -m tests.property.faults [--seconds N] [--cuda] [--out FILE]
A part of it is in `make test` (test_faults.py).
"""

from __future__ import annotations

import argparse
import collections
import copy
import gc
import json
import os
import platform
import random
import signal
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.overrides import _get_current_function_mode
from torch.utils._python_dispatch import _get_current_dispatch_mode

import gfxgraph
import gfxgraph_simulator
from gfxgraph.capture import capture_lock
from gfxgraph.capture.undo import repair
from gfxgraph.errors import DriverError
from gfxgraph.process import process

SIMULATOR = os.path.dirname(gfxgraph_simulator.__file__) + os.sep
STOCK = (torch.Tensor.item, torch.cuda.Event.record, torch.set_autocast_enabled, torch.cuda.CUDAGraph)


# -- programs -----------------------------------------------------------------------------------------


def program(x: Any) -> Any:
    y = x * 2 + 1
    return y + y.relu().sum()


def captured(body: Callable[[], Any]) -> tuple[Any, Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = body()
    return graph, out


def capture(x: Any, kept: dict[str, Any]) -> None:
    captured(lambda: program(x))


def replay(x: Any, kept: dict[str, Any]) -> None:
    kept["graph"].replay()


def split(x: Any, kept: dict[str, Any]) -> None:
    def body() -> Any:
        doubled = x * 2
        return doubled + 1 if doubled.sum() > 0 else doubled

    captured(body)[0].replay()


def nested(x: Any, kept: dict[str, Any]) -> None:
    captured(lambda: (program(x), captured(lambda: x + 1), x * 3))


def random_numbers(x: Any, kept: dict[str, Any]) -> None:
    captured(lambda: x + torch.rand_like(x))[0].replay()


def clean_up(x: Any, kept: dict[str, Any]) -> None:
    graph, _ = captured(lambda: program(x))
    graph.replay()
    graph.reset()
    del graph
    gc.collect()


def graphed_first(x: Any, kept: dict[str, Any]) -> None:
    made = gfxgraph.graphed(program, assume_pure=True)
    for _ in range(4):
        made(x)


def graphed_replay(x: Any, kept: dict[str, Any]) -> None:
    kept["graphed"](x)


def graphed_traced(x: Any, kept: dict[str, Any]) -> None:
    made = gfxgraph.graphed(program)
    for _ in range(4):
        made(x)


def training(x: Any, kept: dict[str, Any]) -> None:
    model = kept["model"]
    stepped = torch.cuda.make_graphed_callables(model, (x.clone().requires_grad_(),))
    stepped(x.clone().requires_grad_()).sum().backward()


def host_values(x: Any, kept: dict[str, Any]) -> None:
    def body() -> Any:
        v, rows = x.max().item(), x.tolist()
        return x * v + min(rows) + float(v), f"{v:.2f}", x[: int(v)]

    captured(body)[0].replay()


def host_memory(x: Any, kept: dict[str, Any]) -> None:
    def body() -> Any:
        host = torch.empty(8, pin_memory=True)
        host.copy_(x, non_blocking=True)
        torch.cuda.synchronize()
        host[0] = 2
        return x + host.to("cuda", non_blocking=True) + copy.deepcopy(host).sum().item()

    captured(body)[0].replay()


def moving(x: Any, kept: dict[str, Any]) -> None:
    def body() -> Any:
        chosen = x[x > 0]
        table = torch.zeros(4, 8, device="cuda")
        table[chosen.numel() % 4] = x
        return chosen.sum() + table

    captured(body)[0].replay()


def scaled(x: Any, kept: dict[str, Any]) -> None:
    weight = torch.ones(8, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0)

    def body() -> None:
        optimizer.zero_grad(set_to_none=False)
        scaler.scale((weight * x).sum()).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_([weight], 1.0)
        scaler.step(optimizer)
        scaler.update()

    body()
    captured(body)[0].replay()


VALUES = (host_values, host_memory, moving, scaled)
FAST = (capture, replay, split, nested, random_numbers, clean_up, graphed_first, graphed_replay, *VALUES)
SLOW = (training, graphed_traced)


def before(scenario: Callable[..., None], x: Any) -> dict[str, Any]:
    """What a scenario stands on, made without a failure."""
    kept: dict[str, Any] = {}
    kept["graph"], kept["out"] = captured(lambda: program(x))
    kept["graph"].replay()
    if scenario is graphed_replay:
        kept["graphed"] = gfxgraph.graphed(program, assume_pure=True)
        for _ in range(4):
            kept["graphed"](x)
    if scenario is training:
        kept["model"] = torch.nn.Linear(8, 8).cuda()
    return kept


def faults_left(x: Any, kept: dict[str, Any]) -> list[str]:
    """What is wrong with the process afterwards."""
    bad: list[str] = []
    try:
        if torch.cuda.is_current_stream_capturing():
            bad.append("the current stream is capturing")
        if torch.cuda.current_stream() != torch.cuda.default_stream():
            bad.append("another stream is current")
        if process.sessions():
            bad.append("a capture is open")
        if (torch.Tensor.item, torch.cuda.Event.record, torch.set_autocast_enabled) != STOCK[:3]:
            bad.append("torch's names are replaced")
        if capture_lock.is_owned_here():
            bad.append("other threads' captures would wait")
        if not gc.isenabled():
            bad.append("the collector is off")
        if torch.cuda.get_sync_debug_mode():
            bad.append("waits are refused")
        if not torch.autograd.is_multithreading_enabled() or not torch.is_grad_enabled():
            bad.append("autograd is restricted")
        if not torch._C._is_torch_function_enabled():
            bad.append("functions of tensors are not seen")
        if _get_current_dispatch_mode() is not None or _get_current_function_mode() is not None:
            bad.append("a mode is left on")
        wanted = program(x)
        graph, out = captured(lambda: program(x))
        graph.replay()
        if not torch.equal(out, wanted):
            bad.append("a later capture is wrong")
        x.add_(1)
        wanted = program(x)
        kept["graph"].replay()
        graph.replay()
        if not torch.equal(kept["out"], wanted) or not torch.equal(out, wanted):
            bad.append("a later replay is wrong")
        torch.rand(2, device="cuda")
        if "graphed" in kept and not all(torch.equal(kept["graphed"](x + i), program(x + i)) for i in range(2)):
            bad.append("the callable is wrong")
        x.zero_()
    except BaseException as error:
        bad.append(f"later use raises {type(error).__name__}: {str(error).splitlines()[:1]}")
    return bad


# -- failing driver calls -------------------------------------------------------------------------------

_GIVES_STATUS = frozenset({"launch", "apply", "copy"})


class FailingDriver:
    """A driver whose ``nth`` call fails, those of the calls and objects that it hands out included."""

    def __init__(self, real: Any, nth: int = 0) -> None:
        self._real, self._nth = real, nth
        self.n = 0
        self.struck = ""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        return self._failing(name, found) if callable(found) else found

    def _strikes(self, name: str) -> bool:
        self.n += 1
        if self.n == self._nth:
            self.struck = name
        return self.n == self._nth

    def _failing(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            if self._strikes(name):
                raise DriverError(
                    "driver_call_failed", api=f"hip({name})", status="hipErrorUnknown", number=999, detail=""
                )
            made = call(*(a._real if isinstance(a, _Handed) else a for a in args), **kwargs)
            if name == "frontier_reader":
                return self._failing(f"{name}()", made)
            return _Handed(made, name, self) if name in ("copy_kernel", "joined") else made

        return called


class _Handed:
    """An object that the driver has made."""

    def __init__(self, real: Any, name: str, driver: FailingDriver) -> None:
        self.__dict__.update(_real=real, _name=name, _driver=driver)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if isinstance(found, (types.MethodType, types.FunctionType, types.BuiltinFunctionType)):
            if self._name == "joined" and name == "launch":
                return lambda: 2 if self._driver._strikes("joined.launch") else found()
            return self._driver._failing(f"{self._name}.{name}", found)
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._real, name, value)


def with_failing_driver(scenario: Callable[..., None], nth: int) -> tuple[str, list[str]]:
    """Which call was made to fail ("" where there were fewer), and what is wrong afterwards."""
    x = torch.ones(8, device="cuda")
    kept = before(scenario, x)
    state = process.require()
    real = state.driver
    driver = FailingDriver(real, nth)
    state.driver = driver
    try:
        scenario(x, kept)
    except RuntimeError:
        pass
    finally:
        state.driver = real
        driver._nth = 0
    gc.collect()
    return driver.struck, faults_left(x, kept)


# -- signals ----------------------------------------------------------------------------------------------


_armed = [False]


def _handler(number: int, frame: Any) -> None:
    """Real torch is C++ where the simulator is Python: an interrupt waits until that has returned.

    One that is delivered after the program has ended (on some hosts by another thread) interrupts nothing of ours.
    """
    if not _armed[0]:
        return
    while frame is not None:
        if frame.f_code.co_filename.startswith(SIMULATOR):
            signal.setitimer(signal.ITIMER_REAL, 2e-5)
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def signals(wanted: int, seconds: float, seed: int = 0) -> dict[str, Any]:
    """Interrupt captures and replays at random times until ``wanted`` interrupts have struck."""
    saved = signal.signal(signal.SIGALRM, _handler)
    rng = random.Random(seed)
    x = torch.ones(8, device="cuda")
    kept = before(capture, x)
    jobs = (capture, split, replay, nested)
    took = {job: _seconds(lambda job=job: job(x, kept)) for job in jobs}  # type: ignore[misc]
    struck = n = 0
    end = time.monotonic() + seconds
    try:
        while struck < wanted and time.monotonic() < end:
            n += 1
            job = jobs[n % len(jobs)]
            _armed[0] = True
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.random() * took[job] * 1.2 + 1e-5)
                job(x, kept)
                _armed[0] = False
            except KeyboardInterrupt:
                struck += 1
            _armed[0] = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            repair()
            bad = faults_left(x, kept)
            if bad:
                return {"survived": struck, "runs": n, "then": bad}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, saved)
    return {"survived": struck, "runs": n, "then": []}


def _seconds(call: Callable[[], None]) -> float:
    call()
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


# -- whole --------------------------------------------------------------------------------------------------


def _again(cuda: bool) -> None:
    gfxgraph.disable()
    torch._C._set_multithreading_enabled(True)
    torch._C._set_grad_enabled(True)
    gfxgraph.enable(allow_cuda=True) if cuda else gfxgraph.enable(simulate="hip", validate=False)


def positions(cuda: bool, deadline: float) -> Iterator[tuple[str, str, list[str]]]:
    """(scenario, the call that failed, faults left) for each call of the driver in turn."""
    for scenario in (*FAST, *SLOW):
        for nth in range(1, 100_000):
            struck, bad = with_failing_driver(scenario, nth)
            if not struck or time.monotonic() > deadline:
                break
            yield scenario.__name__, f"driver call {nth}: {struck}", bad
            if bad:
                _again(cuda)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--signals", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=1, help="so many runs of that many signals")
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    _again(asked.cuda)
    if asked.only:
        global FAST, SLOW
        FAST, SLOW = tuple(s for s in (*FAST, *SLOW) if s.__name__ in asked.only.split(",")), ()
    deadline = time.monotonic() + asked.seconds
    counts: collections.Counter[str] = collections.Counter()
    broken = []
    for scenario, position, bad in positions(asked.cuda, deadline):
        counts[scenario] += 1
        if bad:
            broken.append({"scenario": scenario, "position": position, "then": bad})
            print(scenario, position, bad, file=sys.stderr, flush=True)
    ran_out = time.monotonic() > deadline
    survived = []
    for seed in range(asked.seeds):
        survived.append({"seed": seed, **signals(asked.signals, asked.seconds, seed)})
        print(survived[-1], file=sys.stderr, flush=True)
    result = {
        "device": torch.cuda.get_device_name() if asked.cuda else "none (simulator, hip)",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "positions": dict(counts),
        "n_positions": sum(counts.values()),
        "broken": broken,
        "ran_out_of_time": ran_out,
        "signals": survived,
    }
    text = json.dumps(result, indent=1) + "\n"
    print(text)
    if asked.out is not None:
        asked.out.write_text(text, encoding="utf-8")
    return 1 if broken or any(run["then"] for run in survived) else 0


if __name__ == "__main__":
    sys.exit(main())
