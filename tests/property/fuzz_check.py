"""Running a fuzzed program: captured under gfxgraph and replayed, against eager from the same state.

What is checked, for each program:
  - after the captures, every external tensor, ``.grad``, generator and the current stream are as before;
  - after each replay, results, external state and generators are what eager makes of the same state,
    to the bit (NaN payloads aside);
  - a guard fires exactly when eager takes another branch than the capture took;
  - nothing fell back, nothing split that had no reason to, and validation raised no alarm.

A printed program imports this module and calls ``check`` itself, so that it runs as it stands.
"""

from __future__ import annotations

import contextlib
import gc
import linecache
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import gfxgraph

__all__ = ["F", "check", "checkpoint", "external", "gfxgraph", "q", "torch", "world"]
FILENAME = "fuzzed_program.py"
N_REPLAYS = 3
PROFILE = "cuda"

HEAD = '''"""A program made by tests/property/fuzz_grammar.py: run with PYTHONPATH=src:tests/property."""
import gfxgraph, torch
gfxgraph.enable({settings}, validate=False)
from fuzz_check import *
globals().update(world())
'''


class Boom(Exception):
    """The user's own error, raised inside a capture."""


class Disagreement(AssertionError):
    """Replay and eager differ, or something was left changed."""


# -- what programs use ----------------------------------------------------------------------------------


def q(x: Tensor) -> Tensor:
    """Small whole numbers: their sums and products are exact in any order."""
    if x.is_floating_point():
        return x.nan_to_num(0.0, 1.0, -1.0).clamp(-3, 3).round()
    return x.clamp(-3, 3) if x.dtype is not torch.bool else x


def contents(shape: Any, dtype: torch.dtype, seed: int) -> Tensor:
    """Host values that every dtype holds exactly; every eleventh float is special in some seeds."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.randint(0, 2, tuple(shape), generator=generator).bool()
    if not dtype.is_floating_point:
        return torch.randint(-3, 9, tuple(shape), generator=generator).to(dtype)
    made = torch.randint(-8, 9, tuple(shape), generator=generator).double() / 4
    if seed % 7 == 3 and made.numel() > 4:
        made.view(-1)[seed % made.numel()] = (float("nan"), float("inf"), -0.0)[seed % 3]
    return made.to(dtype)


def external(index: int, shape: Any, dtype: torch.dtype, layout: int, place: str) -> Tensor:
    """A tensor of the world outside the capture; see ``fuzz_grammar.External``."""
    values = contents(shape, dtype, index)
    if place == "cpu":
        return values
    if place == "pinned":
        return values.pin_memory() if values.numel() else values
    made = values.to("cuda")
    if place == "param":
        made.requires_grad_()
        made.grad = torch.zeros_like(made)
        return made
    if layout == 1 and made.dim() >= 2:
        made = made.transpose(0, -1).contiguous().transpose(0, -1)
    elif layout == 2 and made.dim() >= 1:
        room = torch.zeros(*shape[:-1], 2 * shape[-1], dtype=dtype, device="cuda")
        room[..., ::2].copy_(made)
        made = room[..., ::2]
    return made


_streams: list[Any] = []
_opaque_kernel: list[Any] = []


def opaque(x: Tensor) -> None:
    """x = 2 x + 1, in a launch that torch's dispatcher does not see; ``x`` is contiguous float32."""
    if not x.numel():
        return
    import gfxgraph_simulator as simulator

    if simulator.active() is not None:
        simulator.launch_opaque("twice_plus_one", lambda t: t.mul_(2).add_(1), x)
        return
    if not _opaque_kernel:
        import fuzz_triton

        _opaque_kernel.append(fuzz_triton.twice_plus_one)
    _opaque_kernel[0](x)


def world() -> dict[str, Any]:
    """Names that bodies use besides their externals, made anew for each program."""
    while len(_streams) < 4:
        _streams.append(torch.cuda.Stream())
    outside = torch.cuda.Event()
    outside.record()
    made: dict[str, Any] = {f"S{i}": stream for i, stream in enumerate(_streams)}
    made |= {
        "REGISTERED": torch.Generator(device="cuda").manual_seed(11),
        "FOREIGN": torch.Generator(device="cuda").manual_seed(12),
        "OUTSIDE": outside,
        "KEPT": [],
        "NESTED": [],
        "SHOWN": [],
        "RESULTS": {},
        "DIES": [],
        "Boom": Boom,
        "opaque": opaque,
    }
    return made


def add_inner(names: dict[str, Any]) -> None:
    """A graph captured beforehand that changes state of its own."""
    count = torch.zeros(4, device="cuda")
    inner = torch.cuda.CUDAGraph()
    with torch.cuda.graph(inner):
        count.add_(1)
        out = count * 2 + torch.rand(4, device="cuda")
    names |= {"INNER": inner, "INNER_OUT": out, "INNER_COUNT": count}


# -- state ------------------------------------------------------------------------------------------------


class State:
    """Every tensor and generator outside the graphs: read, kept, put back, compared."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.tensors: dict[str, Tensor] = {}
        for name, value in names.items():
            if name[0] == "x" and name[1:].isdigit() or name in ("INNER_COUNT", "INNER_OUT"):
                self.tensors[name] = value.detach()
                if value.requires_grad:
                    self.tensors[f"{name}.grad"] = value.grad
        self.generators = {
            "default": torch.cuda.default_generators[torch.cuda.current_device()],
            "REGISTERED": names["REGISTERED"],
            "FOREIGN": names["FOREIGN"],
        }

    def read(self) -> dict[str, Tensor]:
        torch.cuda.synchronize()
        with torch.no_grad():
            found = {name: tensor.cpu().clone() for name, tensor in self.tensors.items()}
        for name, generator in self.generators.items():
            found[f"generator {name}"] = generator.get_state()
        found["generator of the host"] = torch.get_rng_state()
        return found

    def write(self, saved: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, tensor in self.tensors.items():
                tensor.copy_(saved[name])
        for name, generator in self.generators.items():
            generator.set_state(saved[f"generator {name}"])
        torch.set_rng_state(saved["generator of the host"])
        torch.cuda.synchronize()

    def refill(self, iteration: int) -> None:
        """New contents for every input."""
        with torch.no_grad():
            for number, (name, tensor) in enumerate(self.tensors.items()):
                if not name.endswith(".grad") and (number + iteration) % 3:
                    tensor.copy_(contents(tensor.shape, tensor.dtype, 100 * iteration + number))
        torch.cuda.synchronize()


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal bit by bit; any NaN equals any NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if torch.equal(a, b):
        return not a.is_floating_point() or torch.equal(a.signbit(), b.signbit())
    if not a.is_floating_point():
        return False
    nan = a.isnan()
    rest = ~nan
    return torch.equal(nan, b.isnan()) and torch.equal(a[rest], b[rest])


def differences(got: dict[str, Tensor], want: dict[str, Tensor], leave_out: set[str] = frozenset()) -> list[str]:
    return [
        f"{name}: {got[name].flatten()[:6].tolist()} instead of {want[name].flatten()[:6].tolist()}"
        for name in want
        if name not in leave_out and (name not in got or not same_bits(got[name], want[name]))
    ]


def expect(found: list[str], what: str) -> None:
    if found:
        raise Disagreement(f"{what}:\n  " + "\n  ".join(found[:8]))


# -- the check --------------------------------------------------------------------------------------------


def check(
    names: dict[str, Any],
    bodies: list[Any],
    tags: Any,
    mode: str = "",
    shares_pool: bool = True,
    dies: bool = False,
    n_replays: int = N_REPLAYS,
    validates: bool = True,
) -> dict[str, Any]:
    """Capture, replay and compare; raises Disagreement. Returns gfxgraph's counters for the program."""
    gfxgraph.reset_stats()
    with contextlib.ExitStack() as stack:
        if mode:
            stack.enter_context(getattr(torch, mode)())
        if "inner" in tags:
            add_inner(names)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _check(names, bodies, set(tags), shares_pool, dies, n_replays, validates)


def _check(names, bodies, tags, shares_pool, dies, n_replays, validates):
    state = State(names)
    start = state.read()
    eager(names, bodies)  # warm-up: libraries make their handles, kernels are loaded
    state.write(start)
    if dies:
        _die_in_capture(names, bodies[0], state, start)
    graphs, outs, taken = capture(names, bodies, shares_pool)
    _check_after_capture(state, start)
    for iteration in range(n_replays):
        state.refill(iteration)
        before = state.read()
        is_validated = validates and iteration == 1
        guard = replay(graphs, is_validated)
        got = results_of(outs) if guard is None else {}
        got_state = state.read()
        state.write(before)
        eager_outs, eager_taken = eager(names, bodies)
        if guard is not None:
            if eager_taken == taken:
                raise Disagreement(f"a guard fired although eager takes the same branches: {guard}")
            continue
        if eager_taken != taken:
            raise Disagreement(
                f"eager takes the branches {eager_taken}, the capture took {taken}, and no guard fired"
            )
        expect(differences(got, results_of(eager_outs)), f"results of replay {iteration}")
        expect(differences(got_state, state.read()), f"state after replay {iteration}")
        names["KEPT"][:] = names["KEPT"][: len(graphs)]
    stats = gfxgraph.stats()
    _check_stats(stats, tags)
    return stats


def eager(names: dict[str, Any], bodies: list[Any]) -> tuple[list[dict[str, Any]], list[bool]]:
    trace: list[bool] = []
    outs = []
    names["RESULTS"].clear()
    for body in bodies:
        outs.append(body(trace))
        names["RESULTS"].update(outs[-1])
    torch.cuda.synchronize()
    return outs, trace


def capture(names: dict[str, Any], bodies: list[Any], shares_pool: bool) -> tuple[list[Any], list[Any], list[bool]]:
    graphs: list[Any] = []
    outs: list[Any] = []
    trace: list[bool] = []
    names["RESULTS"].clear()
    stream = torch.cuda.current_stream()
    for body in bodies:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(names["REGISTERED"])
        pool = graphs[0].pool() if graphs and shares_pool else None
        with torch.cuda.graph(graph, pool=pool):
            outs.append(body(trace))
        names["RESULTS"].update(outs[-1])
        graphs.append(graph)
    if torch.cuda.current_stream() != stream:
        raise Disagreement("another stream is current after the capture")
    return graphs, outs, trace


def _die_in_capture(names: dict[str, Any], body: Any, state: State, start: dict[str, Tensor]) -> None:
    stream = torch.cuda.current_stream()
    names["DIES"].append(True)
    try:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(names["REGISTERED"])
        with torch.cuda.graph(graph):
            body([])
    except Boom:
        pass
    finally:
        names["DIES"].clear()
    if torch.cuda.current_stream() != stream:
        raise Disagreement("another stream is current after the user's error")
    _check_after_capture(state, start)
    torch.rand(3, device="cuda")
    state.write(start)


def _check_after_capture(state: State, start: dict[str, Tensor]) -> None:
    found = differences(state.read(), start, leave_out={"generator of the host"})
    expect(found, "state after the capture, which must compute nothing")
    if torch.cuda.is_current_stream_capturing():
        raise Disagreement("the stream is still capturing after the capture")


def replay(graphs: list[Any], is_validated: bool) -> Any:
    """Replay all; returns the GuardMismatch if one was raised."""
    try:
        for graph in graphs:
            if is_validated:
                if not graph.validate():
                    raise Disagreement("validation raised a false alarm")
            else:
                graph.replay()
    except gfxgraph.GuardMismatch as guard:
        torch.cuda.synchronize()
        return guard
    torch.cuda.synchronize()
    return None


def results_of(outs: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    with torch.no_grad():
        return {name: tensor.detach().cpu().clone() for out in outs for name, tensor in out.items()}


def _check_stats(stats: dict[str, Any], tags: set[str]) -> None:
    allowed = {"input_kept", "input_copied"}  # of RESULTS, which the eager twin makes anew
    if "split" in tags:
        allowed.add("split")
    if "opaque" in tags:
        allowed |= {"effects_not_undone", "validation_skipped"}
    unexpected = [event for event in stats["events"] if event["kind"] not in allowed]
    if unexpected or stats["fallback_count"] or stats["validation_failures"]:
        raise Disagreement(f"events without a reason: {unexpected}, counters {stats}")


def run(program: Any, settings: str = 'simulate="cuda"', **options: Any) -> dict[str, Any]:
    """Emit and check a program; its source is added to whatever goes wrong."""
    emitted = program.emit()
    names: dict[str, Any] = {"torch": torch, "F": F, "q": q, "external": external, "checkpoint": checkpoint}
    names.update(world())
    text = "\n".join([emitted.setup, *emitted.bodies])
    linecache.cache[FILENAME] = (len(text), None, text.splitlines(keepends=True), FILENAME)
    try:
        exec(compile(text, FILENAME, "exec"), names)
        bodies = [names[f"body{i}"] for i in range(len(emitted.bodies))]
        return check(
            names, bodies, emitted.tags, program.mode, program.shares_pool, program.dies_after is not None, **options
        )
    except Exception as error:
        error.add_note(f"--- the program, runnable ---\n{program.source(settings)}\n--- end of the program ---")
        raise
    finally:
        names.clear()
        linecache.cache.pop(FILENAME, None)


def forget_device() -> None:
    """Drop what belongs to the device that was, before another is simulated."""
    _streams.clear()
    gc.collect()
