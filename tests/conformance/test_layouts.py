"""Buckets and the layout of arguments: strides, gaps, transposed and repeated elements, addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

import gfxgraph
from gfxgraph.callables.buffers import dense_strides, dim_order

pytestmark = pytest.mark.any_platform

MODES = ["standard", "hot"]


def dense(n: int) -> torch.Tensor:
    return torch.randn(n, 6, device="cuda")


LAYOUTS: dict[str, Callable[[int], torch.Tensor]] = {
    "dense": dense,
    "every second column": lambda n: torch.randn(n, 12, device="cuda")[:, ::2],
    "every second row": lambda n: torch.randn(2 * n, 6, device="cuda")[::2],
    "transposed": lambda n: torch.randn(6, n, device="cuda").t(),
    "repeated": lambda n: torch.randn(1, 6, device="cuda").expand(n, 6),
    "part of a larger one": lambda n: torch.randn(50, 6, device="cuda")[7 : 7 + n],
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("first", LAYOUTS)
def test_calls_of_one_bucket_may_differ_in_layout(first: str, mode: str, platform: str) -> None:
    """Whichever comes first and fills its bucket exactly: the others' elements reach their own places."""
    g = gfxgraph.graphed(lambda x: x * 2 + 1, dynamic={"x": {0: "n"}}, buckets=[4, 8], mode=mode)
    for n in (4, 4, 4, 3, 8):
        for name in (first, *LAYOUTS, first):
            x = LAYOUTS[name](n)
            assert torch.equal(g(x), x * 2 + 1), (n, name)
    assert g.stats()["replays"] > 0


@pytest.mark.parametrize("first", LAYOUTS)
def test_a_view_of_an_argument_is_a_view_of_the_callers(first: str, platform: str) -> None:
    """Whatever its layout is: the result has its elements, and what is written there is written to the argument."""
    g = gfxgraph.graphed(lambda x: (x[:, 1:4], x * 2), dynamic={"x": {0: "n"}}, buckets=[4, 8])
    for _ in range(3):
        for name in (first, *LAYOUTS, first):
            x = LAYOUTS[name](4)
            view, double = g(x)
            assert torch.equal(view, x[:, 1:4]) and torch.equal(double, x * 2), name
            if name != "repeated":
                view.zero_()
                assert not x[:, 1:4].any(), name
    assert g.stats()["replays"] > 0


@pytest.mark.parametrize("mode", MODES)
def test_channels_last_stays_channels_last(mode: str, platform: str) -> None:
    """A bucket's buffer has the order of dims that the argument has; so has what the function makes of it."""
    g = gfxgraph.graphed(lambda x: x * 2, dynamic={"x": {0: "n"}}, buckets=[4], mode=mode)
    for n in (4, 3, 4, 3, 3, 4):
        x = torch.randn(n, 3, 5, 2, device="cuda")
        for each in (x, x.to(memory_format=torch.channels_last)):
            y = g(each)
            assert torch.equal(y, each * 2) and y.stride() == each.stride()
    assert g.stats()["replays"] >= 6 and g.stats()["captures"] in (2, 4)


@pytest.mark.parametrize("sizes", [(4, 4), (4, 3), (3, 3)])
def test_in_place_in_a_bucket(sizes: Sequence[int], platform: str) -> None:
    """moved="recapture": another address is another capture, and nobody's tensor is written to."""

    def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x * 2 + w

    g = gfxgraph.graphed(step, dynamic={"x": {0: "n"}}, buckets=[4, 8], moved="recapture")
    inputs = [(dense(n), torch.randn(6, device="cuda")) for n in sizes]
    copies = [(x.clone(), w.clone()) for x, w in inputs]
    for _ in range(4):
        for (x, w), (was_x, was_w) in zip(inputs, copies):
            assert torch.equal(g(x, w), step(was_x, was_w))
            assert torch.equal(x, was_x) and torch.equal(w, was_w)
    assert g.stats()["replays"] >= 2


@pytest.mark.parametrize(
    ("size", "strides", "order"),
    [
        ((2, 3, 4), (12, 4, 1), (0, 1, 2)),
        ((2, 3, 4), (1, 2, 6), (2, 1, 0)),
        ((2, 3, 4, 5), (60, 1, 15, 3), (0, 2, 3, 1)),
        ((1, 3, 4, 5), (60, 1, 15, 3), (0, 2, 3, 1)),
        ((2, 3), (6, 2), (0, 1)),
        ((2, 3), (0, 1), (0, 1)),
        ((), (), ()),
    ],
)
def test_the_order_of_dims(size: Sequence[int], strides: Sequence[int], order: tuple[int, ...]) -> None:
    """Outermost first; as numbered where there are gaps or repeats. Dense strides in that order are torch's own."""
    tensor = torch.empty(200).as_strided(size, strides)
    assert dim_order(tensor) == order
    assert dense_strides(size, order) == torch.empty_like(tensor).stride()


@pytest.mark.parametrize("mode", MODES)
def test_sizes_that_are_not_declared_may_vary_too(mode: str, platform: str) -> None:
    """A proof holds for calls that differ in dynamic dims alone: widths, ranks and dtypes have their own."""
    g = gfxgraph.graphed(lambda x, k: x * 2 + k[0, 0], dynamic={"x": {0: "n"}}, buckets=[4, 8], mode=mode)
    shapes = [(3, 6), (3, 10), (3, 4), (3, 2, 5), (3,), (3, 6)]
    for _ in range(3):
        for size in shapes:
            for dtype in (torch.float32, torch.float64):
                for rows in (2, 3):
                    x, k = (
                        torch.randn(*size, device="cuda", dtype=dtype),
                        torch.randn(rows, 2, device="cuda", dtype=dtype),
                    )
                    y = g(x, k)
                    assert y.dtype == dtype and torch.equal(y, x * 2 + k[0, 0]), size
    assert g.stats()["replays"] > 10


def test_another_width_may_look_across_rows(platform: str) -> None:
    """What is proved of narrow calls says nothing of wide ones."""
    g = gfxgraph.graphed(
        lambda x: x - x.mean(0) if x.shape[1] > 8 else x * 2, dynamic={"x": {0: "n"}}, buckets=[4, 8]
    )
    for width in (6, 6, 6, 10, 10, 10, 6):
        x = torch.randn(3, width, device="cuda")
        assert torch.allclose(g(x), g._fn(x), atol=1e-6), width
    assert g.stats()["replays"] >= 2
