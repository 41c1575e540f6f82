"""What the self-test's cases are written with: a case, its bench, and comparison with eager execution."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor

from gfxgraph.callables.buffers import tensors_of
from gfxgraph.driver import library
from gfxgraph.process import process

Body = Callable[[], Any]
SEED = 20
MIB = 1 << 20
# As far as two algorithms of one library lie apart, relative to the largest magnitude.
RTOL = {torch.float32: 2e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}


class CaseSkipped(Exception):
    """The case does not apply here; the text says why."""


class Differs(AssertionError):
    """What the case states does not hold here; the text says what was seen."""


@dataclass(frozen=True, slots=True)
class Case:
    """One fact to prove, in a process of its own.

    ``settings`` are arguments of ``gfxgraph.enable``. A fallback makes every replay right, and so would hide
    that graphs do not work: it fails the case unless ``may_fall_back``.
    """

    run: Callable[[Bench], None]
    limit_s: float = 90
    may_fall_back: bool = False
    settings: dict[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.run.__name__

    @property
    def fact(self) -> str:
        """The first line of the docstring."""
        return (self.run.__doc__ or "").strip().split("\n")[0]


def case(
    *,
    limit_s: float = 90,
    may_fall_back: bool = False,
    **settings: object,
) -> Callable[[Callable[[Bench], None]], Case]:
    """Make a function a case."""

    def make(run: Callable[[Bench], None]) -> Case:
        return Case(run, limit_s, may_fall_back, {"validate": False} | settings)

    return make


@dataclass(slots=True)
class Bench:
    """Where a case works: what it may ask, and what it may report beside its outcome."""

    figures: dict[str, object] = field(default_factory=dict)
    _random: torch.Generator = field(default_factory=torch.Generator)

    def __post_init__(self) -> None:
        self._random.manual_seed(SEED)

    @property
    def is_simulated(self) -> bool:
        return process.require().platform == "simulator"

    # -- tensors ---------------------------------------------------------------------------------------

    def host(self, *size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Normal numbers on the host, the same in every process."""
        return torch.randn(size, generator=self._random).to(dtype)

    def randn(self, *size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.host(*size, dtype=dtype).to("cuda")

    def refill(self, tensor: Tensor) -> None:
        tensor.copy_(self.host(*tensor.size(), dtype=tensor.dtype))

    # -- captures --------------------------------------------------------------------------------------

    def warm_up(self, body: Body) -> None:
        """Run ``body`` once on a side stream, as torch's documentation tells programs to."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            body()
        torch.cuda.current_stream().wait_stream(side)

    def capture(self, body: Body, graph: object = None, **kw: object) -> tuple[Any, Any]:
        """(graph, what ``body`` returned), without a warm-up."""
        graph = torch.cuda.CUDAGraph() if graph is None else graph
        with torch.cuda.graph(graph, **kw):
            made = body()
        return graph, made

    def follows_eager(
        self,
        body: Body,
        inputs: Sequence[Tensor],
        state: Sequence[Tensor] = (),
        *,
        refill: Callable[[], None] | None = None,
        times: int = 3,
        rtol: float = 0.0,
        graph: Any = None,
        **kw: object,
    ) -> tuple[Any, Any]:
        """Capture ``body``; show that capturing changed nothing and that each replay does what eager does.

        Args:
            inputs: tensors that get new values before each replay.
            state: tensors that ``body`` changes; compared as well, like the random generator.
            refill: gives the inputs new values, where normal numbers will not do.
            times: how many replays.
            rtol: allowed difference relative to the largest magnitude; 0 compares bits.
        """
        held = (*inputs, *state)
        saved, rng = copies(held), torch.cuda.get_rng_state()
        self.warm_up(body)
        put_back(held, saved, rng)
        graph, made = self.capture(body, graph, **kw)
        same(held, saved, "tensors that the capture must not touch")
        same([torch.cuda.get_rng_state()], [rng], "the generator's state, which the capture must not touch")
        for n in range(1, times + 1):
            for tensor in inputs if refill is None else ():
                self.refill(tensor)
            if refill is not None:
                refill()
            saved, rng = copies(held), torch.cuda.get_rng_state()
            wanted = copies([*tensors_of(body()), *held])
            wanted_rng = torch.cuda.get_rng_state()
            put_back(held, saved, rng)
            graph.replay()
            torch.cuda.synchronize()
            same([*tensors_of(made), *held], wanted, f"replay {n} and eager execution", rtol)
            same([torch.cuda.get_rng_state()], [wanted_rng], f"the generator's state after replay {n}")
        return graph, made

    def still_usable(self, pool: object = None) -> None:
        """The process is as before a failure: streams, random numbers, a capture into the same pool, a replay."""
        expect(torch.cuda.current_stream() == torch.cuda.default_stream(), "the capture's stream was left current")
        expect(not torch.cuda.is_current_stream_capturing(), "the stream is still capturing")
        torch.rand(4, device="cuda")
        x = self.randn(64)
        self.follows_eager(lambda: torch.rand(64, device="cuda") + x, [x], times=1, pool=pool)

    def unseen_wait(self) -> None:
        """Wait for the device through the runtime library, below everything that torch or gfxgraph watches."""
        if self.is_simulated:
            # lazily: a GPU is tested without it
            from gfxgraph_simulator import active
            from gfxgraph_simulator.runtime import CallRefused

            simulation = active()
            assert simulation is not None
            with suppress(CallRefused):
                simulation.device.unsafe_call("device_synchronize")
            return

        backend, symbol = ("hip", "hipDeviceSynchronize") if torch.version.hip else ("cuda", "cuCtxSynchronize")
        # A status is returned, which is what such a caller would ignore.
        self.figures["unseen_wait_status"] = int(library.find(backend).handle[symbol]())


# -- comparing ---------------------------------------------------------------------------------------------


def expect(holds: object, otherwise: str) -> None:
    """Raises Differs where ``holds`` is false."""
    if not holds:
        raise Differs(otherwise)


def skip(why: str) -> NoReturn:
    raise CaseSkipped(why)


def copies(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


def put_back(tensors: Sequence[Tensor], saved: Sequence[Tensor], rng: Tensor) -> None:
    with torch.no_grad():
        for tensor, old in zip(tensors, saved):
            tensor.copy_(old)
    torch.cuda.set_rng_state(rng)


def same(got: Sequence[Tensor], wanted: Sequence[Tensor], what: str, rtol: float = 0.0) -> None:
    """Raises AssertionError where two lists of tensors differ by more than ``rtol`` of the largest magnitude."""
    expect(len(got) == len(wanted), f"{what}: {len(got)} tensors against {len(wanted)}")
    for position, (one, other) in enumerate(zip(got, wanted)):
        a, b = one.detach().cpu(), other.detach().cpu()
        allowed = rtol * float(b.double().nan_to_num().abs().max()) if rtol and b.numel() else 0.0
        torch.testing.assert_close(
            a,
            b,
            rtol=0,
            atol=allowed,
            equal_nan=True,
            check_dtype=False,
            msg=f"{what} differ: tensor {position}, {{}}".format,
        )


def raises(kind: type[BaseException], call: Callable[[], object]) -> Any:
    """The exception of that kind which ``call`` raises. Raises Differs where it raises none."""
    try:
        call()
    except kind as error:
        return error
    raise Differs(f"no {kind.__name__} was raised")
