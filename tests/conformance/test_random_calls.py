"""Random steps, called with whatever may come: graphed gives what eager gives, padded, cut, kept or not.

The first calls hide what padding could do: flags are off, gates are zero, masks are on everywhere, indices are not
negative. Later ones show it. Sizes, widths and layouts change from call to call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gfxgraph
from tests.conformance.conftest import PLATFORMS
from tests.conftest import DEPTH

DYNAMIC = {"x": {0: "n"}, "mask": {0: "n"}}
WIDTH = 4


@dataclass
class Rest:
    """What a step is given besides its rows."""

    index: torch.Tensor
    flag: torch.Tensor
    gate: torch.Tensor
    mask: torch.Tensor
    length: torch.Tensor


def weight(x: torch.Tensor) -> torch.Tensor:
    return torch.linspace(-1, 1, x.shape[1] * x.shape[1], device=x.device).reshape(x.shape[1], -1)


def is_counted(x: torch.Tensor, r: Rest) -> torch.Tensor:
    return torch.arange(x.shape[0], device=x.device) < r.length


FRAGMENTS: dict[str, Callable[[torch.Tensor, Rest], torch.Tensor]] = {
    "linear": lambda x, r: x @ weight(x),
    "norm of rows": lambda x, r: F.layer_norm(x, x.shape[1:]),
    "softmax of rows": lambda x, r: x.softmax(1),
    "columns turned": lambda x, r: x.flip(1),
    "cumsum": lambda x, r: x.cumsum(0),
    "positions": lambda x, r: x + torch.arange(x.shape[0], device=x.device)[:, None],
    "mean": lambda x, r: x - x.mean(0),
    "maximum": lambda x, r: x - x.amax(0),
    "size": lambda x, r: x / x.shape[0],
    "turned": lambda x, r: x.flip(0),
    "last row": lambda x, r: x + x[-1],
    "first row": lambda x, r: x + x[:1],
    "shifted": lambda x, r: F.pad(x, (0, 0, 1, 0))[:-1],
    "rows by index": lambda x, r: x + x[r.index].sum(0),
    "rows by index, none from the end": lambda x, r: x + x[r.index.clamp(min=0)].sum(0),
    "flag of rows": lambda x, r: torch.where(r.flag, x * 2, x),
    "flag of a mean": lambda x, r: torch.where(r.flag, x - x.mean(0), x),
    "gate of rows": lambda x, r: x + r.gate * x.flip(1),
    "gate of a sum": lambda x, r: x + r.gate * x.sum(0),
    "mask of rows": lambda x, r: x.masked_fill(r.mask[:, None] == 0, -3.0),
    "mask of a mean": lambda x, r: torch.where(r.mask[:, None] > 0, x, x.mean(0)),
    "mean by mask": lambda x, r: x + (x * r.mask[:, None]).sum(0) / (r.mask.sum() + 1),
    "attention by length": lambda x, r: (x @ x.T).masked_fill(~is_counted(x, r), -1e9).softmax(1) @ x,
    "mean by length": lambda x, r: x + (x * is_counted(x, r)[:, None]).sum(0) / r.length,
}

LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dense": lambda x: x,
    "with gaps": lambda x: x.repeat_interleave(2, dim=1)[:, ::2],
    "transposed": lambda x: x.t().contiguous().t(),
    "in a larger one": lambda x: torch.cat([x, x, x])[: len(x)],
}


@dataclass(frozen=True)
class Arrival:
    """One call."""

    n: int
    width: int
    layout: str
    seed: int


arrivals = st.builds(
    Arrival,
    st.integers(1, 9),
    st.sampled_from([WIDTH, WIDTH, WIDTH, 6]),
    st.sampled_from(list(LAYOUTS)),
    st.integers(0, 99),
)
programs = st.lists(st.tuples(st.sampled_from(list(FRAGMENTS)), st.integers(0, 3)), min_size=1, max_size=4)


def arguments(arrival: Arrival, is_late: bool) -> tuple[torch.Tensor, ...]:
    """A call's tensors, on the device."""
    generator = torch.Generator().manual_seed(arrival.seed)
    n = arrival.n
    x = torch.randn(n, arrival.width, generator=generator)
    index = torch.randint(-n if is_late else 0, n, (2,), generator=generator)
    flag = torch.tensor([is_late])
    gate = torch.randn(1, generator=generator) if is_late else torch.zeros(1)
    mask = torch.randint(0, 2, (n,), generator=generator) if is_late else torch.ones(n, dtype=torch.long)
    length = torch.randint(1, n + 1, (1,), generator=generator) if is_late else torch.tensor([n])
    return (LAYOUTS[arrival.layout](x.cuda()), *[t.cuda() for t in (index, flag, gate, mask, length)])


def step_of(program: list[tuple[str, int]]) -> Callable[..., tuple[torch.Tensor, ...]]:
    def step(
        x: torch.Tensor,
        index: torch.Tensor,
        flag: torch.Tensor,
        gate: torch.Tensor,
        mask: torch.Tensor,
        length: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        rest = Rest(index, flag, gate, mask, length)
        values = [x]
        for name, back in program:
            values.append(FRAGMENTS[name](values[-1 - back % len(values)], rest))
        return values[-1], values[len(values) // 2]

    return step


@pytest.mark.parametrize("platform", PLATFORMS[:1], indirect=True)
@settings(
    max_examples=int(10 * DEPTH),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    program=programs,
    first=st.lists(arrivals, min_size=2, max_size=6),
    later=st.lists(arrivals, min_size=2, max_size=6),
    mode=st.sampled_from(["standard", "hot"]),
    buckets=st.sampled_from([[4, 8], [2, 5, 8], "powers", "auto"]),
)
def test_graphed_gives_what_eager_gives(platform, program, first, later, mode, buckets) -> None:
    """Every call, and every result that was kept, to the end."""
    step = step_of(program)
    g = gfxgraph.graphed(step, dynamic=DYNAMIC, buckets=buckets, mode=mode)
    kept = []
    with torch.no_grad():
        for at, arrival in enumerate((*first, *first, *later, *later)):
            tensors = arguments(arrival, at >= 2 * len(first))
            mine, eager = g(*tensors), step(*tensors)
            kept.append((mine, [t.clone() for t in eager]))
            for results, wanted in kept[-4:]:
                for a, b in zip(results, wanted, strict=True):
                    assert a.shape == b.shape and torch.allclose(a, b, rtol=1e-3, atol=1e-4), (
                        at,
                        arrival,
                        g.explain(),
                    )
