"""Measures eager, graph and compiled side by side: what a graph gains for a workload on this machine.

The variants alternate within one run, round by round, so that a disturbance affects all of them; each round gives a
ratio. A speed-up is reported only if the rounds agree on it: if the interval of the median ratio (a bootstrap's 95 %)
does not contain 1, and the ratio is further from 1 than rounds of one and the same variant differ.
"""

from __future__ import annotations

import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import gfxgraph
from gfxgraph import config
from gfxgraph.process import process

Step = Callable[[], Any]
N_RESAMPLED = 1000
LEAST_S = 0.02
"""The least duration of a sample: many calls if one is short."""


@dataclass(frozen=True, slots=True)
class Workload:
    """``make`` builds a function and its arguments on the device."""

    name: str
    about: str
    make: Callable[[], tuple[Callable[..., Any], list[Any]]]


@dataclass(slots=True)
class BenchedWay:
    """One way to run a workload: milliseconds per call, one sample per round; or why it could not run."""

    name: str
    ms: list[float] = field(default_factory=list)
    error: str = ""

    @property
    def median(self) -> float | None:
        return statistics.median(self.ms) if self.ms else None

    @property
    def spread(self) -> float:
        """How much a variant's own rounds differ: the interquartile range, relative to the median."""
        if len(self.ms) < 4:
            return 0.0
        first, _, third = statistics.quantiles(self.ms, n=4)
        return (third - first) / statistics.median(self.ms)


@dataclass(slots=True)
class WorkloadResult:
    workload: str
    ways: list[BenchedWay]

    def speedup(self, way: BenchedWay) -> Speedup | None:
        """The speed-up of ``way`` over eager; None if one of them has no samples."""
        eager = self.ways[0]
        return compare(eager.ms, way.ms) if way is not eager and eager.ms and way.ms else None

    def as_dict(self) -> dict[str, Any]:
        rows = []
        for way in self.ways:
            found = self.speedup(way)
            rows.append(
                {
                    "way": way.name,
                    "ms": way.ms,
                    "median_ms": way.median,
                    "error": way.error,
                    "speedup": found.ratio if found is not None and found.is_clear else None,
                    "interval": list(found.interval) if found is not None else None,
                    "why_none": found.text() if found is not None and not found.is_clear else "",
                }
            )
        return {"workload": self.workload, "ways": rows}


@dataclass(frozen=True, slots=True)
class Speedup:
    """How many times as fast, with the interval that the rounds support."""

    ratio: float
    interval: tuple[float, float]
    spread: float
    is_clear: bool

    def text(self) -> str:
        low, high = self.interval
        return f"{self.ratio:.2f}x" if self.is_clear else f"no difference to tell ({low:.2f} to {high:.2f}x)"


def compare(eager: Sequence[float], other: Sequence[float], seed: int = 0) -> Speedup:
    """The speed-up of ``other``, from pairs of the same round."""
    ratios = [a / b for a, b in zip(eager, other)]
    draw = random.Random(seed)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(N_RESAMPLED))
    low, high = medians[int(0.025 * N_RESAMPLED)], medians[int(0.975 * N_RESAMPLED) - 1]
    ratio = statistics.median(ratios)
    spread = max(BenchedWay("", list(eager)).spread, BenchedWay("", list(other)).spread)
    is_clear = len(ratios) >= 5 and not low <= 1.0 <= high and abs(ratio - 1.0) > spread / 2
    return Speedup(ratio, (low, high), spread, is_clear)


# -- workloads ---------------------------------------------------------------------------------------------


def _decode_like(d: int = 1024, n: int = 24) -> tuple[Callable[..., Any], list[Any]]:
    norm = torch.nn.LayerNorm(d).cuda()

    @torch.no_grad()
    def step(x: Any) -> Any:
        for _ in range(n):
            x = torch.nn.functional.gelu(norm(x))
        return x

    return step, [torch.randn(1, d, device="cuda")]


def _mlp(batch: int, d: int) -> tuple[Callable[..., Any], list[Any]]:
    linear = torch.nn.Linear
    model = torch.nn.Sequential(linear(d, 4 * d), torch.nn.GELU(), linear(4 * d, d)).cuda()
    return torch.no_grad()(model.forward), [torch.randn(batch, d, device="cuda")]


def _layers(d: int = 512, n: int = 8) -> tuple[Callable[..., Any], list[Any]]:
    """Decoder layers at batch 1, with attention over 128 positions: launch-bound."""
    attention = [torch.nn.Linear(d, 3 * d, bias=False).cuda() for _ in range(n)]
    out = [torch.nn.Linear(d, d, bias=False).cuda() for _ in range(n)]
    up, down = [[torch.nn.Linear(a, b).cuda() for _ in range(n)] for a, b in ((d, 4 * d), (4 * d, d))]
    norm = torch.nn.LayerNorm(d).cuda()
    keys, values = torch.randn(8, 128, d // 8, device="cuda"), torch.randn(8, 128, d // 8, device="cuda")

    @torch.no_grad()
    def step(x: Any) -> Any:
        for i in range(n):
            q, k, v = attention[i](norm(x)).view(3, 8, 1, d // 8)
            k, v = torch.cat((keys, k), 1), torch.cat((values, v), 1)
            x = x + out[i](torch.nn.functional.scaled_dot_product_attention(q, k, v).reshape(1, d))
            x = x + down[i](torch.nn.functional.gelu(up[i](norm(x))))
        return x

    return step, [torch.randn(1, d, device="cuda")]


WORKLOADS = (
    Workload("decode_like_layernorm_gelu_chain_bs1_d1024", "24 layer norms and GELUs at batch 1", _decode_like),
    Workload("mlp_bs32_d1024", "two linear layers, batch 32", lambda: _mlp(32, 1024)),
    Workload("mlp_bs128_d2048", "two linear layers, batch 128", lambda: _mlp(128, 2048)),
    Workload("decoder_layers_bs1_d512", "8 decoder layers, one token", _layers),
)


# -- ways --------------------------------------------------------------------------------------------------


def _eager(fn: Callable[..., Any], args: list[Any]) -> Step:
    return lambda: fn(*args)


def _graph(fn: Callable[..., Any], args: list[Any]) -> Step:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            fn(*args)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fn(*args)
    return graph.replay  # type: ignore[no-any-return]


def _graphed(fn: Callable[..., Any], args: list[Any]) -> Step:
    call = gfxgraph.graphed(fn)
    for _ in range(4):
        call(*args)
    return lambda: call(*args)


def _compiled(fn: Callable[..., Any], args: list[Any]) -> Step:
    call = torch.compile(fn)
    for _ in range(3):
        call(*args)
    return lambda: call(*args)


def _reduce_overhead(fn: Callable[..., Any], args: list[Any]) -> Step:
    call = torch.compile(fn, mode="reduce-overhead")

    def step() -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return call(*args)

    for _ in range(4):
        step()
    return step


WAYS: dict[str, Callable[[Callable[..., Any], list[Any]], Step]] = {
    "eager": _eager,
    "graph": _graph,
    "graphed": _graphed,
    "compiled": _compiled,
    "reduce-overhead": _reduce_overhead,
}


def measure(
    name: str, fn: Callable[..., Any], args: list[Any], ways: Sequence[str], rounds: int, least_s: float = LEAST_S
) -> WorkloadResult:
    """Run ``fn(*args)`` in each of ``ways``, alternating; eager always and first.

    A variant that fails is in the result with its reason, and does not affect the others.
    """
    names = ["eager", *(way for way in ways if way != "eager")]
    found = [BenchedWay(way) for way in names]
    steps: list[tuple[BenchedWay, Step, int]] = []
    for way in found:
        try:
            step = WAYS[way.name](fn, args)
            steps.append((way, step, _n_calls(step, least_s)))
        except Exception as error:  # noqa: BLE001  (a compiler that does not know this GPU, a capture that cannot be)
            way.error = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    for _ in range(rounds):
        for way, step, n in steps:
            way.ms.append(1e3 * _seconds(step, n) / n)
    return WorkloadResult(name, found)


def _n_calls(step: Step, least_s: float) -> int:
    step()
    once = max(_seconds(step, 1), 1e-6)
    return max(1, min(10_000, int(least_s / once)))


def _seconds(step: Step, n: int) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(n):
        step()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def provenance() -> dict[str, Any]:
    """What the figures apply to: device, versions, settings."""
    state = process.current()
    driver = state.driver if state is not None else None
    return {
        "device": torch.cuda.get_device_name() if state is None or state.platform != "simulator" else "simulator",
        "is_simulated": state is not None and state.platform == "simulator",
        "torch": torch.__version__,
        "hip": torch.version.hip,
        "cuda": torch.version.cuda,
        "runtime": f"{driver.name} {'.'.join(map(str, driver.version))}" if driver is not None else None,
        "python": platform.python_version(),
        "gfxgraph": gfxgraph.__version__,
        "variables": config.reported(config.gpu_variables()),
        "cpus": os.cpu_count(),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def table(results: Sequence[WorkloadResult]) -> str:
    """The results as a readable table; a speed-up hidden by its spread is not shown as a number."""
    width = max((len(result.workload) for result in results), default=8)
    lines = [f"{'workload':<{width}}  {'way':<16} {'ms a call':>10}  {'spread':>7}  against eager"]
    for result in results:
        for way in result.ways:
            head = f"{result.workload if way is result.ways[0] else '':<{width}}  {way.name:<16}"
            if way.median is None:
                lines.append(f"{head} {'-':>10}  {'':>7}  {way.error}")
                continue
            found = result.speedup(way)
            said = found.text() if found is not None else ""
            lines.append(f"{head} {way.median:>10.4f}  {100 * way.spread:>6.1f}%  {said}".rstrip())
    return "\n".join(lines)
