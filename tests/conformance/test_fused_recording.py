"""``linear`` in a capture: one row of the tape where nothing depends on its parts, its parts elsewhere."""

from __future__ import annotations

import sys
from contextlib import nullcontext

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from gfxgraph import torch_names

pytestmark = pytest.mark.any_platform


class Own(TorchDispatchMode):
    """A program's own mode, which is to see every part."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


class Named(torch.Tensor):
    """A subclass without a handler of its own."""


@pytest.fixture
def nothing_compiled(monkeypatch):
    """As in a process where Dynamo has compiled nothing yet, whatever other tests did."""
    monkeypatch.setattr("gfxgraph.capture.record.host_values._refilled", {})  # by a replay of another test's
    if "torch._dynamo.convert_frame" in sys.modules:
        monkeypatch.setattr("torch._dynamo.convert_frame.FRAME_COUNTER", 0)


def tensors():
    return [torch.randn(*size, device="cuda") for size in ((2, 3, 8), (4, 8), (4,))]


def names(graph):
    return [entry.name for entry in graph._program.segments[0].tape.entries]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("has_bias", [True, False])
def test_one_row_and_the_same_bits(nothing_compiled, capture, mode, has_bias):
    """The tape has one linear, with its line; the replay and the tape give what eager gives."""
    x, w, b = tensors()
    args = (x, w, b) if has_bias else (x, w)
    with mode():
        graph, y = capture(lambda: F.linear(*args).relu())
        (entry, _), (step,) = graph._program.segments[0].tape.entries, graph._program.segments
        assert names(graph) == ["aten::linear", "aten::relu"]
        assert entry.where.file == __file__
        assert not step.tape.opaque
        x.copy_(torch.randn(2, 3, 8))
        expected = F.linear(*args).relu()
        graph.replay()
        assert torch.equal(y, expected)
        y.zero_()
        step.run_tape(graph._program)
        assert torch.equal(y, expected)


def test_a_module_is_taken_whole_too(nothing_compiled, capture):
    """nn.Linear looks the function up at each call; keywords are taken as well."""
    x, w, _ = tensors()
    layer = torch.nn.Linear(8, 4, device="cuda")
    with torch.no_grad():
        graph, _ = capture(lambda: (layer(x), F.linear(input=x, weight=w)))
    assert names(graph) == ["aten::linear", "aten::linear"]


@pytest.mark.parametrize("case", ["gradients", "autocast", "a mode", "a subclass", "vmap", "forward AD"])
def test_parts_are_recorded_where_they_matter(nothing_compiled, capture, case):
    """Results and what a program's own mode sees are eager's."""
    x, w, _ = tensors()
    own = Own()
    x = x.as_subclass(Named) if case == "a subclass" else x
    around = {
        "gradients": torch.enable_grad,
        "autocast": lambda: torch.autocast("cuda", torch.bfloat16, cache_enabled=False),
        "a mode": lambda: own,
        "forward AD": torch.autograd.forward_ad.dual_level,
    }.get(case, nullcontext)

    def body():
        with around():
            if case == "vmap":
                return torch.func.vmap(F.linear, in_dims=(0, None))(x, w)
            return F.linear(x, w).clone()

    with torch.no_grad():
        expected = body()
        seen = list(own.names)
        graph, y = capture(body, warm=False)
        assert "aten::linear" not in names(graph)
        assert own.names == seen * 2
        graph.replay()
    assert y.dtype == expected.dtype
    assert torch.equal(y.detach(), expected.detach())


def attended(**given):
    q, k, v = (torch.randn(1, 2, 5, 8, device="cuda") for _ in range(3))
    return (q, k, v), lambda: F.scaled_dot_product_attention(q, k, v, **given) + 0


@pytest.mark.parametrize("case", ["plain", "causal", "mask", "named", "gqa"])
def test_attention_is_one_row_too(nothing_compiled, capture, case):
    """With a mask or without one: the replay and the tape give what eager gives."""
    mask = torch.ones(5, 5, device="cuda").tril().bool()
    given = {
        "causal": {"is_causal": True},
        "mask": {"attn_mask": mask},
        "named": {"dropout_p": 0.0, "scale": 0.5, "enable_gqa": False},
        "gqa": {"enable_gqa": True},
    }.get(case, {})
    (q, _, _), body = attended(**given)
    with torch.no_grad():
        graph, y = capture(body)
        assert names(graph) == ["aten::scaled_dot_product_attention", "aten::add"]
        q.copy_(torch.randn(1, 2, 5, 8))
        expected = body()
        graph.replay()
        assert torch.equal(y, expected)
        y.zero_()
        (step,) = graph._program.segments
        assert not step.tape.opaque
        step.run_tape(graph._program)
        assert torch.allclose(y, expected)


def test_attention_with_dropout_is_taken_apart(nothing_compiled, capture):
    """It draws: a replay's numbers are eager's."""
    _, body = attended(dropout_p=0.5)
    with torch.no_grad():
        torch.manual_seed(3)
        graph, y = capture(body, warm=False)
        assert "aten::scaled_dot_product_attention" not in names(graph)
        graph.replay()
        first = y.clone()
        torch.manual_seed(3)
        assert torch.equal(first, body())


def test_an_error_is_the_functions_own(nothing_compiled, capture):
    """Shapes that do not fit: torch's error, and the process goes on."""
    x, w, _ = tensors()
    with torch.no_grad():
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied|must have same reduction dim"):
            capture(lambda: F.linear(x, w.t()), warm=False)
        graph, y = capture(lambda: F.linear(x, w))
        graph.replay()
        assert torch.equal(y, F.linear(x, w))


def test_modes_are_off_for_the_one_product_only(nothing_compiled, capture):
    """What follows a product, or one that failed, is recorded; two products in a row are one row each."""
    x, w, _ = tensors()

    def step():
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied|must have same reduction dim"):
            F.linear(x, w[:, 1:])
        return F.linear(F.linear(x, w) + 1, w.T)

    with torch.no_grad():
        graph, _ = capture(step)
    wanted = ["aten::linear", "aten::add", "aten::linear"]
    assert [name for name in names(graph) if name in wanted] == wanted


def test_the_name_is_put_back(nothing_compiled, capture):
    """Inside the capture it is ours, before and after it torch's."""
    x, w, _ = tensors()
    inside = []
    with torch.no_grad():
        capture(lambda: (inside.append(F.linear), F.linear(x, w))[1], warm=False)
    assert inside != [torch._C._nn.linear]
    assert F.linear is torch._C._nn.linear
    assert F.scaled_dot_product_attention is torch._C._nn.scaled_dot_product_attention
    assert torch.equal(inside[0](x, w), F.linear(x, w))  # kept by somebody, it goes on as torch's


def test_compiled_code_is_not_compiled_anew(capture):
    """Dynamo guards its code on the function: where it has compiled any, the function stays."""
    n_compiled = []

    def backend(module, examples):
        n_compiled.append(module)
        return module.forward

    x, w, _ = tensors()
    body = torch.compile(lambda: F.linear(x, w).sin(), backend=backend, dynamic=False)
    with torch.no_grad():
        body()
        body()
        assert len(n_compiled) == 1
        graph, y = capture(body)
        graph.replay()
        assert torch.equal(y, F.linear(x, w).sin())
        # torch 2.9 once more for captures: its guards compare the thread's dispatch keys
        assert len(n_compiled) == 1 + (torch_names.set_is_in_mode_without_ignore_compile_internals is None)
