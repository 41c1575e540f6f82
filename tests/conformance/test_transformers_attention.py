"""Attention over shared heads: the ways to ask for it, and which of them is used."""

from __future__ import annotations

import pytest
import torch

import gfxgraph

pytest.importorskip("transformers", reason="transformers is not installed")
gfx = pytest.importorskip("gfxgraph.adapters.transformers")
if not gfx.ADAPTER.available():
    pytest.skip("transformers is not installed", allow_module_level=True)

from transformers import LlamaConfig, LlamaForCausalLM, StaticCache  # noqa: E402

from gfxgraph.adapters import _transformers_attention as attention  # noqa: E402
from gfxgraph.adapters import _transformers_compile as compiling  # noqa: E402

ON = {"allow_cuda": True} if torch.cuda.is_available() else {"simulate": "cuda"}


@pytest.fixture
def platform(monkeypatch):
    monkeypatch.setattr(attention, "_chosen", {})
    gfxgraph.enable(validate=False, **ON)
    yield
    gfxgraph.disable()


def case(batch=3, heads=6, shared=2, length=70, width=8, dtype=torch.float32, device="cpu"):
    torch.manual_seed(batch)
    q = torch.randn(batch, 1, heads, width, device=device).to(dtype).transpose(1, 2)
    k, v = (torch.randn(batch, shared, length, width, device=device).to(dtype) for _ in range(2))
    mask = torch.zeros(batch, 1, 1, length, dtype=dtype, device=device)
    mask[..., length * 2 // 3 :] = -torch.inf
    mask[0, ..., :4] = -torch.inf
    return q, k, v, mask, width**-0.5


@pytest.mark.parametrize("shape", [(1, 2, 1, 9), (3, 6, 2, 70), (2, 12, 3, 33), (4, 5, 5, 17)])
@pytest.mark.parametrize("way", list(attention.WAYS))
def test_ways_are_the_same_function(way, shape):
    """Every head gets its own keys, values and row of the mask."""
    q, k, v, mask, scale = case(*shape, dtype=torch.float64)
    n = q.shape[1] // k.shape[1]
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k.repeat_interleave(n, 1)) * scale + mask
    wanted = torch.softmax(scores, -1) @ v.repeat_interleave(n, 1)
    made = attention.attend(q, k, v, mask, scale, way)
    assert made.shape == q.shape and made.is_contiguous() and torch.allclose(made, wanted, atol=1e-12)


def other_bits(*given):
    return attention._repeated(*given) * (1 + 2**-20)


def no_kernel(*given):
    raise RuntimeError("No available kernel. Aborting execution.")


def chosen(monkeypatch, ways, took, n=1):
    """What is chosen among ``ways``, of which each takes so many milliseconds."""
    monkeypatch.setattr(attention, "WAYS", {"repeated": attention._repeated, **ways})
    monkeypatch.setattr(attention, "_took", lambda way, given: took[way])
    q, k, _, mask, scale = case(device="cuda")
    return [attention.choose(q, k, mask, scale) for _ in range(n)]


def test_the_fastest_of_the_same_bits_is_chosen(platform, monkeypatch):
    """A way with other bits, or without a kernel, is out; repeating stays where it is the fastest."""
    slow, fast = (lambda *given: attention._packed(*given)), (lambda *given: attention._repeated(*given))
    took = {attention._repeated: 3.0, slow: 2.0, fast: 1.0, other_bits: 0.1, no_kernel: 0.1}
    ways = {"other": other_bits, "none": no_kernel, "fast": fast}
    assert chosen(monkeypatch, ways, took) == ["fast"]
    attention._chosen.clear()
    took[fast] = 4.0
    assert chosen(monkeypatch, ways, took) == ["repeated"]


def test_a_way_that_differs_at_one_length_is_out(platform, monkeypatch):
    """One trial that gives another bit is enough."""

    def at_most_lengths(q, k, v, mask, scale):
        made = attention._repeated(q, k, v, mask, scale)
        return made * (1 + 2**-20) if int(torch.isfinite(mask[-1]).sum()) == 65 else made

    took = {attention._repeated: 3.0, at_most_lengths: 1.0}
    assert chosen(monkeypatch, {"most": at_most_lengths}, took) == ["repeated"]


@pytest.mark.parametrize("from_length, expected", [(30, "near"), (1, "repeated")])
def test_where_repeating_does_not_repeat_itself(platform, monkeypatch, from_length, expected):
    """There no bits can be asked for, only nearness; where no length is steady, nothing is replaced."""
    real, n_calls = attention._repeated, iter(range(10_000))

    def unsteady(q, k, v, mask, scale):
        made = real(q, k, v, mask, scale)
        is_long = int(torch.isfinite(mask[-1]).sum()) >= from_length
        return made * (1 + 2**-18 * (next(n_calls) % 3)) if is_long else made

    monkeypatch.setattr(attention, "_repeated", unsteady)
    near, far = (lambda *given: real(*given)), (lambda *given: real(*given) * 1.5)
    took = {unsteady: 3.0, near: 2.0, far: 1.0}
    assert chosen(monkeypatch, {"near": near, "far": far}, took) == [expected]


def test_where_repeating_rarely_differs_from_itself(platform, monkeypatch):
    """A few calls may agree by chance; a way that then differs is out only if many more calls agree, too."""
    real, n_calls = attention._repeated, iter(range(100_000))

    def unsteady(*given):
        return real(*given) * (1 + 2**-18 * (next(n_calls) % 11 == 10))

    near, far = (lambda *given: unsteady(*given)), (lambda *given: real(*given) * 1.5)
    monkeypatch.setattr(attention, "_repeated", unsteady)
    took = {unsteady: 3.0, near: 2.0, far: 1.0}
    assert chosen(monkeypatch, {"near": near, "far": far}, took) == ["near"]


def test_a_capture_elsewhere_is_no_verdict(platform, monkeypatch):
    """A call refused because another thread captures says nothing about a way: all is tried again later."""

    def refused(*given):
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="capturing"):
        chosen(monkeypatch, {"refused": refused}, {attention._repeated: 1.0})
    assert not attention._chosen


def test_trials_need_shapes_alone(monkeypatch):
    """A compiler's tensors have no numbers, and what is made from them has none either."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 40, 1 << 40))
    ways = {"repeated": attention._repeated, "other": other_bits, "same": lambda *given: attention._repeated(*given)}
    monkeypatch.setattr(attention, "WAYS", ways)
    monkeypatch.setattr(attention, "_took", lambda way, given: 2.0 if way is attention._repeated else 1.0)
    q, k, _, mask, scale = case()
    like = FakeTensorMode().from_tensor
    assert attention._try(like(q), like(k), like(mask), scale) == "same"


def test_little_memory_is_left_alone(monkeypatch):
    """Trials hold keys and values once more, and repeated; where memory is short nothing is tried."""
    q, k, _, mask, scale = case()
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (k.numel() * 4 * 8, 1 << 40))
    assert attention._try(q, k, mask, scale) == "repeated"


def test_it_is_tried_once_for_shapes_and_settings(platform, monkeypatch):
    """Again the same answer at once; other settings of attention are another question."""
    tried = []
    monkeypatch.setattr(attention, "_try", lambda q, *_: tried.append(q.shape) or "packed")
    q, k, _, mask, scale = case(device="cuda")
    was = torch.backends.cuda.mem_efficient_sdp_enabled()
    try:
        for is_on in (True, True, False):
            torch.backends.cuda.enable_mem_efficient_sdp(is_on)
            assert attention.choose(q, k, mask, scale) == "packed"
    finally:
        torch.backends.cuda.enable_mem_efficient_sdp(was)
    assert len(tried) == 2


@pytest.mark.parametrize("n_shared, n_replaced", [(2, 3), (4, 0)])
@pytest.mark.parametrize("way", ["grouped", "packed", "folded", "repeated"])
def test_a_step_of_llama(monkeypatch, way, n_shared, n_replaced):
    """Each layer's attention is replaced where heads share keys, and the scores stay."""
    monkeypatch.setattr(attention, "choose", lambda *_: way)
    torch._dynamo.reset()
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, vocab_size=61,
        num_key_value_heads=n_shared, attn_implementation="sdpa",
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    seen = []

    def backend(module, _):
        compiling.keep_own_kernels(module)
        seen.append(sum(node.target is torch.ops.gfxgraph.attention for node in module.graph.nodes))
        return module.forward

    def step():
        cache = StaticCache(config=config, max_cache_len=16)
        mask = torch.zeros(2, 1, 1, 16)
        mask[..., 1:] = -torch.inf
        ids = torch.tensor([[5], [9]])
        return model(input_ids=ids, attention_mask=mask, past_key_values=cache, position_ids=ids * 0).logits

    with torch.no_grad():
        wanted, made = step(), torch.compile(step, backend=backend, dynamic=False)()
    assert sum(seen) == (0 if way == "repeated" else n_replaced)
    assert torch.allclose(made, wanted, atol=1e-5)
