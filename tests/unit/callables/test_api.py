"""callables.api: what ``graphed`` refuses before anything is captured."""

import pytest
import torch

import gfxgraph
from gfxgraph import ArgumentError, ConfigError, graphed


def step(x, *, scale=1):
    return x * scale


BAD = [
    {"max_graphs": 0},
    {"max_graphs": -4},
    {"max_graphs": "many"},
    {"max_graphs": True},
    {"warmup": -1},
    {"warmup": 1.5},
    {"buckets": "big"},
    {"buckets": -3},
    {"buckets": [0, 8]},
    {"buckets": []},
    {"buckets": [8, "16"]},
    {"dynamic": {"nope": {0: "batch"}}},
    {"dynamic": {"x.nope": {"0": "batch"}}},
    {"dynamic": {0: "batch"}},
    {"dynamic": "no"},
    {"dynamic": ["x"]},
    {"mode": "warm"},
    {"moved": "away"},
    {"ranks": 3},
]


@pytest.mark.parametrize("given", BAD, ids=repr)
def test_what_cannot_be_used_is_refused_at_once(given):
    """An error of four parts that names the argument, before the first call."""
    with pytest.raises(ConfigError) as caught:
        graphed(step, **given)
    assert str(next(iter(given))) in caught.value.text("en")
    assert caught.value.text("zh") != caught.value.text("en")


def test_a_wrong_name_gets_the_right_ones():
    """The parameters are listed, and the near one is named; Python's own ValueError catches it, too."""
    with pytest.raises(ValueError, match=r"x, scale; did you mean scale\?") as caught:
        graphed(step, dynamic={"scal": {0: "batch"}})
    assert isinstance(caught.value, ArgumentError) and isinstance(caught.value, gfxgraph.GfxGraphError)


def test_enable_refuses_likewise():
    """Nothing is patched."""
    with pytest.raises(ArgumentError, match="split, pin, strict, raise"):
        gfxgraph.enable(simulate="hip", on_unsafe="hope")
    assert not gfxgraph.is_enabled()


def test_what_can_be_used_is_not_refused():
    """Modules, open signatures, builtins, paths into trees."""

    def open_one(*args, **kwargs):
        return args[0]

    for fn, dynamic in (
        (torch.nn.Linear(2, 2), {"input": {0: "batch"}}),
        (open_one, {"args[0]": {0: "batch"}, "anything": {0: "b"}}),
        (torch.sin, {"input": {0: "batch"}}),
        (step, {"x[0].y": {0: "batch"}}),
        (step, "infer"),
    ):
        assert callable(graphed(fn, dynamic=dynamic))
