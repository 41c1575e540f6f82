"""Each operation of `gfxgraph.kernels` compared with eager, torch.compile and
Liger-Kernel.

Every variant is captured, since a decode step is a graph, and the replays alternate. A graph uses more copies of its
data than fit in the device's caches: a decode step reads each weight once. A variant's throughput is compared with a
copy's on the same device in the same run.
"""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from measuring import BenchedWay, compare
from torch import Tensor

import gfxgraph_kernels as kernels
from gfxgraph_kernels import eager, timed_choice

PEERS = ("eager", "compiled", "max-autotune", "liger")
OURS = "gfxgraph"
ROWS, WIDTHS = (1, 2, 4, 8, 16, 32), (1024, 2048, 4096, 8192)
CACHE_NBYTES = 256 << 20
"""Larger than any device's last-level cache: MI300X and RDNA2 have 256 and 128 MB of Infinity Cache, an H100 50."""
MOST_COPIES = 64
Made = dict[str, Callable[[int], Any]]


@dataclass(frozen=True, slots=True)
class KernelCase:
    """An operation at one size.

    Attributes:
        nbytes: bytes that one call reads and writes, at least.
        make: makes, from dtype, device and number of copies, a function of a copy's index for each variant.
    """

    name: str
    nbytes: int
    make: Callable[[torch.dtype, torch.device, int], Made]


@dataclass(slots=True)
class KernelResult:
    """The measurements of one case."""

    case: KernelCase
    ways: list[BenchedWay]
    copy_gb_s: float
    n_copies: int
    error: dict[str, float] = field(default_factory=dict)
    """By variant, the largest difference from eager's result, relative to its largest number."""

    def as_dict(self) -> dict[str, Any]:
        peers = {way.name: way for way in self.ways if way.name in PEERS and way.ms}
        ours = next((way for way in self.ways if way.name == OURS and way.ms), None)
        best = min(peers.values(), key=lambda way: statistics.median(way.ms), default=None)
        found = compare(best.ms, ours.ms) if best is not None and ours is not None else None
        share = None
        if ours is not None and self.copy_gb_s:
            share = self.case.nbytes / (statistics.median(ours.ms) * 1e-3) / 1e9 / self.copy_gb_s
        return {
            "case": self.case.name,
            "nbytes": self.case.nbytes,
            "copies": self.n_copies,
            "ways": [{"way": w.name, "ms": w.ms, "median_ms": w.median, "error": w.error} for w in self.ways],
            "best_peer": None if best is None else best.name,
            "speedup": None if found is None else found.ratio,
            "interval": None if found is None else list(found.interval),
            "of_copy": share,
            "difference": self.error,
        }


# -- cases -----------------------------------------------------------------------------------------------


def _sets(shapes: Sequence[tuple[int, ...]], dtype: torch.dtype, device: torch.device, n: int) -> list[list[Tensor]]:
    generator = torch.Generator(device).manual_seed(0)
    return [[torch.randn(s, generator=generator, device=device, dtype=torch.float32).to(dtype) for s in shapes]
            for _ in range(n)]  # fmt: skip


def _ways(
    sets: list[list[Tensor]], theirs: Callable[..., object], ours: Callable[..., object], liger: Any = None, *,
    has_weights: bool = False,
) -> Made:  # fmt: skip
    compiled = torch.compile(theirs, dynamic=False)
    made: Made = {
        "eager": lambda i: theirs(*sets[i]),
        "compiled": lambda i: compiled(*sets[i]),
        OURS: lambda i: ours(*sets[i]),
    }
    if has_weights:
        tuned = torch.compile(theirs, dynamic=False, mode="max-autotune-no-cudagraphs")
        made["max-autotune"] = lambda i: tuned(*sets[i])
    if liger is not None:
        made["liger"] = lambda i: liger(*sets[i])
    return made


def _liger(name: str) -> Any:
    """A function of Liger-Kernel; None if that is not installed."""
    if importlib.util.find_spec("liger_kernel") is None:
        return None
    # lazily: a peer, where it is installed
    from liger_kernel.transformers import functional

    return getattr(functional, name, None)


def _rms(m: int, n: int) -> KernelCase:
    def make(dtype: torch.dtype, device: torch.device, copies: int) -> Made:
        def theirs(x: Tensor, w: Tensor) -> Tensor:
            return F.rms_norm(x, (n,), w, 1e-6)

        theirs_liger = _liger("liger_rms_norm")
        liger = None if theirs_liger is None else lambda x, w: theirs_liger(x, w, 1e-6)
        return _ways(_sets([(m, n), (n,)], dtype, device, copies), theirs, kernels.rms_norm, liger)

    return KernelCase(f"rms norm, {m} x {n}", (2 * m * n + n) * 2, make)


def _layer(m: int, n: int) -> KernelCase:
    def make(dtype: torch.dtype, device: torch.device, copies: int) -> Made:
        def theirs(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
            return F.layer_norm(x, (n,), w, b, 1e-5)

        theirs_liger = _liger("liger_layer_norm")
        liger = None if theirs_liger is None else lambda x, w, b: theirs_liger(x, w, b, 1e-5)
        return _ways(_sets([(m, n), (n,), (n,)], dtype, device, copies), theirs, kernels.layer_norm, liger)

    return KernelCase(f"layer norm, {m} x {n}", (2 * m * n + 2 * n) * 2, make)


def _linear(m: int, k: int, n: int) -> KernelCase:
    """The tiled linear of the seed page, followed by the residual."""

    def make(dtype: torch.dtype, device: torch.device, copies: int) -> Made:
        sets = _sets([(m, k), (n, k), (m, n)], dtype, device, copies)
        return _ways(
            sets,
            lambda x, w, r: r + F.linear(x, w),
            lambda x, w, r: kernels.linear(x, w, residual=r),
            has_weights=True,
        )

    return KernelCase(f"linear and residual, {m} x {k} to {n}", (m * k + n * k + 2 * m * n) * 2, make)


def _norm_gate(m: int, k: int, n: int) -> KernelCase:
    def make(dtype: torch.dtype, device: torch.device, copies: int) -> Made:
        def theirs(x: Tensor, g: Tensor, w: Tensor, u: Tensor) -> Tensor:
            x = F.rms_norm(x, (k,), g, 1e-6)
            return F.silu(F.linear(x, w)) * F.linear(x, u)

        def ours(x: Tensor, g: Tensor, w: Tensor, u: Tensor) -> Tensor:
            return kernels.linear(x, w, activation="silu", up=u, norm_weight=g, norm_eps=1e-6)

        return _ways(_sets([(m, k), (k,), (n, k), (n, k)], dtype, device, copies), theirs, ours, has_weights=True)

    return KernelCase(f"norm and gate, {m} x {k} to {n}", (m * k + 2 * n * k + m * n) * 2, make)


def _three(m: int, k: int, n: int, shared: int) -> KernelCase:
    def make(dtype: torch.dtype, device: torch.device, copies: int) -> Made:
        def theirs(x: Tensor, g: Tensor, *weights: Tensor) -> Any:
            x = F.rms_norm(x, (k,), g, 1e-6)
            return [F.linear(x, w) for w in weights]

        def ours(x: Tensor, g: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Any:
            return kernels.linear_three(x, (a, b, c), norm_weight=g, norm_eps=1e-6)

        shapes = [(m, k), (k,), (n, k), (shared, k), (shared, k)]
        return _ways(_sets(shapes, dtype, device, copies), theirs, ours, has_weights=True)

    return KernelCase(f"norm, q, k and v, {m} x {k}", (m * k + (n + 2 * shared) * (k + m)) * 2, make)


def _attention(m: int, heads: int, shared: int, width: int, length: int) -> KernelCase:
    """With the rotary embedding and the write to the cache before it."""

    def make(dtype: torch.dtype, device: torch.device, copies: int) -> Made:
        at, cache = torch.tensor([length - 1], device=device), (m, shared, length, width)
        shapes = [(m, 1, heads, width), *[(m, 1, shared, width)] * 2, *[(1, 1, width)] * 2, cache, cache]

        def theirs(q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            keys.index_copy_(2, at, eager.rotate(k, cos, sin).transpose(1, 2))
            values.index_copy_(2, at, v.transpose(1, 2))
            return F.scaled_dot_product_attention(
                eager.rotate(q, cos, sin).transpose(1, 2), keys, values, enable_gqa=True
            )

        return _ways(
            _sets(shapes, dtype, device, copies), theirs, lambda *given: kernels.rotary_attention(*given, at)
        )

    nbytes = m * (2 * shared * (length + 1) + 2 * heads) * width * 2
    return KernelCase(
        f"rotary and attention, {m} x {heads} heads on {shared}, {length} keys of {width}", nbytes, make
    )


def _greedy(m: int, n: int) -> KernelCase:
    def make(dtype: torch.dtype, device: torch.device, copies: int) -> Made:
        return _ways(_sets([(m, n)], dtype, device, copies), lambda x: x.argmax(-1), kernels.greedy)

    return KernelCase(f"greedy, {m} x {n}", m * n * 2, make)


def _sample(m: int, n: int) -> KernelCase:
    def make(dtype: torch.dtype, device: torch.device, copies: int) -> Made:
        def theirs(x: Tensor) -> Tensor:
            return torch.multinomial(torch.softmax(x.float() / 0.8, -1), 1)[:, 0]

        return _ways(_sets([(m, n)], dtype, device, copies), theirs, lambda x: kernels.sample(x, 0.8))

    return KernelCase(f"sample, {m} x {n}", m * n * 10, make)


def sized(m: int, n: int) -> Iterator[KernelCase]:
    """The operations that depend on the width of a model, for ``m`` rows of ``n``."""
    yield from (_rms(m, n), _layer(m, n), _linear(m, n, n), _norm_gate(m, n, 4 * n), _three(m, n, n, n // 4))
    yield _attention(m, n // 64, n // 256, 64, 1024)


def ends(m: int) -> Iterator[KernelCase]:
    """The end of a step of ``m`` sequences."""
    yield from (_greedy(m, 128256), _sample(m, 128256))


def cases(rows: Sequence[int] = ROWS, widths: Sequence[int] = WIDTHS) -> Iterator[KernelCase]:
    """Every operation at decode sizes."""
    for m in rows:
        for n in widths:
            yield from sized(m, n)
        yield from ends(m)


# -- measuring -------------------------------------------------------------------------------------------


def copy_gb_s(device: torch.device, nbytes: int = 1 << 30) -> float:
    """GB per second that a copy reads and writes: by the driver or by a kernel, whichever is faster."""
    source = torch.zeros(nbytes // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    ways: list[Callable[[], object]] = [lambda: target.copy_(source), lambda: torch.neg(source, out=target)]
    took = min(timer() for timer in [timed_choice.timer(way, device) for way in ways] for _ in range(3))
    return 2 * nbytes / took / 1e3


def measure(
    case: KernelCase, rounds: int, device: torch.device, dtype: torch.dtype, copy: float, *, autotune: bool = False
) -> KernelResult:
    """Run one case in every variant, alternating. A variant that fails is in the result with its reason."""
    torch._dynamo.reset()  # the functions of all sizes share their code, of which only eight versions are compiled
    n_copies = max(1, min(MOST_COPIES, CACHE_NBYTES // max(case.nbytes, 1))) if device.type == "cuda" else 1
    result = KernelResult(case, [], copy, n_copies)
    timers: list[tuple[BenchedWay, Callable[[], float]]] = []
    wanted: Any = None
    n_calls = max(1, min(timed_choice.N_CALLS, MOST_COPIES // n_copies))
    for name, call in case.make(dtype, device, n_copies).items():
        if name == "max-autotune" and not autotune:
            continue
        way = BenchedWay(name)
        result.ways.append(way)
        try:
            with torch.no_grad():
                made = _first(call(0))
                wanted = made if wanted is None else wanted
                if made.dtype.is_floating_point:
                    distance = (made.double() - wanted.double()).abs().max() / wanted.double().abs().max()
                    result.error[name] = float(distance)
                timers.append((way, timed_choice.timer(partial(_over, call, n_copies), device, n_calls)))
        except Exception as error:  # noqa: BLE001  (a compiler that does not know this GPU, a capture that cannot be)
            way.error = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    with torch.no_grad():
        for _ in range(rounds):
            for way, timer in timers:
                way.ms.append(timer() / n_copies / 1e3)
    return result


def _over(call: Callable[[int], object], n: int) -> None:
    """Call once for each copy of the data."""
    for index in range(n):
        call(index)


def _first(made: Any) -> Tensor:
    found: Tensor = made[0] if isinstance(made, (tuple, list)) else made
    return found


def table(results: Sequence[dict[str, Any]]) -> str:
    """The results as a readable table."""
    width = max((len(row["case"]) for row in results), default=4)
    lines = [f"{'case':<{width}}  {'best peer':<9} {'us':>9}  {'ours us':>9}  {'speed-up':>8}  of copy"]
    for row in results:
        medians = {way["way"]: way["median_ms"] for way in row["ways"]}
        best, ours = medians.get(row["best_peer"]), medians.get(OURS)
        share = f"{100 * row['of_copy']:.0f}%" if row["of_copy"] is not None else "-"
        gain = f"{row['speedup']:.2f}x" if row["speedup"] else "-"
        lines.append(
            f"{row['case']:<{width}}  {row['best_peer'] or '-':<9} {_us(best):>9}  {_us(ours):>9}  {gain:>8}  {share}"
        )
        lines += [f"    {way['way']}: {way['error']}" for way in row["ways"] if way["error"]]
    return "\n".join(lines)


def _us(ms: float | None) -> str:
    return "-" if ms is None else f"{1e3 * ms:.2f}"
