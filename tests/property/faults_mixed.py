"""Real signals over mixed programs: training, graphed functions traced anew, threads and loops like a generation's.

What an interrupt leaves behind is looked for directly: ``state`` reads what torch, Dynamo and Python keep of a
thread and of the process, and after one repair it is to be as it was.

Run whole:  python -m tests.property.faults_mixed [--signals N] [--seeds N] [--cuda] [--out FILE]
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import platform
import random
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.fx._symbolic_trace
from torch._C import _functorch
from torch.utils import _python_dispatch as dispatch

import gfxgraph
from gfxgraph.callables.trace import corrections
from gfxgraph.callables.trace.dynamo import local
from gfxgraph.capture.undo import repair
from gfxgraph.process import process
from tests.property import faults

# -- programs -----------------------------------------------------------------------------------------


def gradients(x: Any, kept: dict[str, Any]) -> None:
    """A graphed function inside autograd, traced anew."""
    weight = torch.ones(8, device="cuda", requires_grad=True)
    made = gfxgraph.graphed(lambda a, w: (a * w).relu().sum())
    for _ in range(4):
        weight.grad = None
        made(x, weight).backward()


def training(**options: float) -> Callable[[Any], Any]:
    """A step of SGD, which returns its loss."""
    weight = torch.ones(8, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([weight], **options)

    def one(a: Any) -> Any:
        optimizer.zero_grad()
        loss = (a * weight).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    return one


def step(x: Any, kept: dict[str, Any]) -> None:
    """A whole training step, captured."""
    made = gfxgraph.TrainingStep(training(lr=0.1), warmup=1)
    for _ in range(6):
        made(x)


def generate(x: Any, kept: dict[str, Any]) -> None:
    """A step that writes to a cache, replayed until a value read back says stop."""
    table = torch.arange(64, device="cuda", dtype=torch.float32).view(8, 8)
    cache, at = torch.zeros(8, 8, device="cuda"), torch.zeros(1, dtype=torch.int64, device="cuda")

    def decode(token: Any) -> Any:
        with torch.no_grad():
            cache.index_copy_(0, at, table[token].view(1, 8))
            at.add_(1)
            return (cache.sum(0) + table).sum(1).argmax()

    made = gfxgraph.graphed(decode, assume_pure=True)
    token = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(6):
        token = made(token)
        if int(token) < 0:
            break


def threads(x: Any, kept: dict[str, Any]) -> None:
    """Captures here, while another thread captures, allocates and frees."""

    over = threading.Event()  # Python 3.11 takes a thread whose join was interrupted for one that has ended

    def other() -> None:
        try:
            for _ in range(2):
                graph, _out = faults.captured(lambda: faults.program(x))
                torch.ones(2, device="cuda").add_(1)
                graph.replay()
                graph.reset()
        finally:
            over.set()

    beside = threading.Thread(target=other)
    faults._armed[0] = False  # struck here, nobody knows whether it runs
    beside.start()
    kept["threads"].append(over)
    faults._armed[0] = True
    faults.captured(lambda: faults.program(x))
    graph, _ = faults.captured(lambda: x + torch.rand_like(x))
    graph.replay()
    beside.join()


def compiled(x: Any, kept: dict[str, Any]) -> None:
    """A compiled function captured; what an interrupt in its compilation leaves is torch's."""
    if "compiled" not in kept:
        kept["compiled"] = torch.compile(faults.program, backend="aot_eager")
        kept["compiled"](x)
    faults.captured(lambda: kept["compiled"](x))[0].replay()


def dynamic(x: Any, kept: dict[str, Any]) -> None:
    """Buckets over a size, padding judged."""
    made = gfxgraph.graphed(lambda a: a * 2 + 1, dynamic={"a": {0: "n"}}, buckets={"n": [4, 8]})
    for n in (3, 8, 5, 3):
        made(torch.ones(n, 2, device="cuda"))


MIXED: tuple[Callable[..., None], ...] = (
    faults.capture,
    faults.split,
    faults.nested,
    faults.host_values,
    faults.moving,
    faults.scaled,
    faults.graphed_first,
    faults.graphed_traced,
    faults.training,
    gradients,
    step,
    generate,
    threads,
    dynamic,
    compiled,
)


# -- what is kept of a thread and of the process --------------------------------------------------------


def state() -> dict[str, object]:
    """What a program must find as it was."""
    keys = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    frames = torch._C._dynamo.eval_frame
    found: dict[str, object] = {
        "dispatch keys": tuple(str(each) for each in keys),
        "modes": torch._C._len_torch_dispatch_stack(),
        "function modes": torch._C._len_torch_function_stack(),
        "torch functions": str(torch._C._get_torch_function_state()),
        "functorch": _functorch.get_dynamic_layer_stack_depth(),
        "gradients": (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.autograd.is_multithreading_enabled(),
            torch._C._is_fwd_grad_enabled(),
            torch._C._autograd._saved_tensors_hooks_is_enabled(),
        ),
        "autocast": (
            torch.is_autocast_enabled("cuda"),
            torch.is_autocast_enabled("cpu"),
            torch.is_autocast_cache_enabled(),
        ),
        "frames": frames.get_eval_frame_callback(),
        "tracing": tuple(sorted(k for k, v in vars(torch._guards._TLS).items() if v)),
        "is tracing": (
            torch.fx._symbolic_trace.is_fx_symbolic_tracing(),
            torch.compiler._is_compiling_flag,
            torch.compiler._is_exporting_flag,
        ),
        "host tensors": torch._C._only_lift_cpu_tensors(),
        "flags": tuple(v for k, v in sorted(vars(dispatch).items()) if k.startswith("_is_in_")),
        "node meta": torch.fx.traceback.has_preserved_node_meta(),
        "ours": (local.is_raw, local.told is None),
        "waits": torch.cuda.get_sync_debug_mode(),
        "collector": gc.isenabled(),
        "sessions": len(process.sessions()),
        "current stream": torch.cuda.current_stream() == torch.cuda.default_stream(),
        "names": names(),
        "settings": tuple(sorted((k, repr(v)) for k, v in torch._dynamo.config.get_config_copy().items())),
        "log level": logging.getLogger("torch._dynamo").level,
        "warnings": len(warnings.filters),
    }
    return found


def names() -> tuple[int, ...]:
    """Those of torch's functions that captures and traces of ours replace."""
    dynamo = torch._dynamo
    owners = (
        torch.Tensor,
        torch.cuda,
        torch.cuda.Event,
        torch.cuda.Stream,
        torch,
        dynamo.guards,
        dynamo.symbolic_convert,
        dynamo.symbolic_convert.InstructionTranslatorBase,
        dynamo.variables.builder.VariableBuilder,
        dynamo.variables.functions.WrapperUserFunctionVariable,
        dynamo.convert_frame,
    )
    rules = corrections._stand_ins([], {}, set())
    return *(
        hash(tuple((n, id(v)) for n, v in sorted(vars(o).items()) if callable(v) and not n.startswith("__")))
        for o in owners
    ), *(id(owner[name] if isinstance(owner, dict) else getattr(owner, name)) for owner, name, _ in rules)


def differing(before: dict[str, object], after: dict[str, object]) -> list[str]:
    found = []
    for name, was in before.items():
        now = after[name]
        if now != was:
            if isinstance(was, tuple) and isinstance(now, tuple):
                was, now = (
                    zip(*[pair for pair in zip(was, now) if pair[0] != pair[1]])
                    if len(was) == len(now)
                    else (was, now)
                )
            found.append(f"{name}: {was} became {now}")
    return found


# -- signals --------------------------------------------------------------------------------------------


def signals(wanted: int, seconds: float, seed: int, jobs: tuple[Callable[..., None], ...] = MIXED) -> dict[str, Any]:
    """Interrupt mixed programs at random times, until ``wanted`` interrupts have struck."""
    saved = signal.signal(signal.SIGALRM, faults._handler)
    rng = random.Random(seed)
    x = torch.ones(8, device="cuda")
    kept = faults.before(faults.training, x)
    kept["threads"] = []
    for job in jobs:
        job(x, kept)
    took = {job: faults._seconds(lambda job=job: job(x, kept)) for job in jobs}  # type: ignore[misc]
    print({job.__name__: round(s, 3) for job, s in took.items()}, file=sys.stderr)
    struck = n = 0
    by_job: dict[str, int] = {}
    end = time.monotonic() + seconds
    found: list[str] = []
    text = ""
    try:
        before = state()
        while struck < wanted and time.monotonic() < end and not found:
            n += 1
            job = rng.choice(jobs)
            faults._armed[0] = True
            error = None
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.random() * took[job] * 1.2 + 1e-5)
                job(x, kept)
                faults._armed[0] = False
            except KeyboardInterrupt as struck_by:
                faults._armed[0] = False
                struck += 1
                by_job[job.__name__] = by_job.get(job.__name__, 0) + 1
                text = "".join(traceback.format_exception(struck_by))
            except Exception as other:
                faults._armed[0] = False
                text = "".join(traceback.format_exception(other))
                if isinstance(other, SystemError) and isinstance(other.__cause__, KeyboardInterrupt):
                    # Struck where torch's C++ walks a generator and does not look at its error (increment_version).
                    struck += 1
                    by_job["as SystemError"] = by_job.get("as SystemError", 0) + 1
                else:
                    found.append(f"the program sees {type(other).__name__}: {str(other).splitlines()[:1]}")
                error = other
            faults._armed[0] = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            del error
            if not all(over.wait(60) for over in kept["threads"]):
                found.append("a thread hangs")
            kept["threads"].clear()
            repair()
            found += differing(before, state())
            found += faults.faults_left(x, kept)
            if n % 50 == 0:
                gc.collect()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, saved)
    if found:
        print(text, file=sys.stderr, flush=True)
        found.append(f"in {job.__name__}")
    return {"seed": seed, "survived": struck, "runs": n, "by program": by_job, "then": found}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--signals", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    faults._again(asked.cuda)
    jobs = tuple(job for job in MIXED if not asked.only or job.__name__ in asked.only.split(","))
    runs = []
    for seed in range(asked.first, asked.first + asked.seeds):
        runs.append(signals(asked.signals, asked.seconds, seed, jobs))
        print(runs[-1], file=sys.stderr, flush=True)
        if runs[-1]["then"]:
            break
    result = {
        "device": torch.cuda.get_device_name() if asked.cuda else "none (simulator, hip)",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "signals": runs,
    }
    text = json.dumps(result, indent=1) + "\n"
    print(text)
    if asked.out is not None:
        asked.out.write_text(text, encoding="utf-8")
    return 1 if any(run["then"] or run["survived"] < asked.signals for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
