"""generate() of transformers through graphs, in half precision, against its own loop over the same static cache."""

from __future__ import annotations

import time

import pytest
import torch

import gfxgraph

if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)
pytest.importorskip("transformers", reason="transformers is not installed")
gfx = pytest.importorskip("gfxgraph.adapters.transformers")
if not gfx.ADAPTER.available():
    pytest.skip("transformers is not installed", allow_module_level=True)

from transformers import (  # noqa: E402
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

pytestmark = pytest.mark.gpu
SHAPE = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}


@pytest.fixture(scope="module", autouse=True)
def bridge():
    gfxgraph.enable(allow_cuda=True, validate=False)
    yield
    gfx.restore()
    gfxgraph.disable()


@pytest.fixture(autouse=True)
def fresh():
    gfxgraph.reset_stats()
    yield
    gfx.restore()


def make(model_class, config_class, dtype=torch.float16, **more):
    torch.manual_seed(0)
    return model_class(config_class(**SHAPE | more)).to("cuda", dtype).eval()


def prompt(batch, length):
    torch.manual_seed(batch * 1000 + length)
    ids = torch.randint(3, 32000, (batch, length), device="cuda")
    mask = torch.ones_like(ids)
    if batch > 1:
        mask[0, : length // 2] = 0
        mask[1, :3] = 0
    return {"input_ids": ids, "attention_mask": mask}


def check(model, inputs, seed=0, **asked):
    """Two accelerated calls give the tokens of transformers' loop, compile off, over as long a static cache."""

    def call(**more):
        torch.manual_seed(seed)
        return model.generate(**inputs, **asked | more)

    gfx.accelerate(model)
    ours = [call(), call(), call()]
    report = gfx.report(model)
    cache_len = report["decoders"][-1]["cache_len"]
    gfx.restore(model)
    stock = call(cache_implementation="static", disable_compile=True, max_cache_len=cache_len)
    for each in ours:
        assert torch.equal(each, stock), (each != stock).nonzero()[:3].tolist()
    assert not gfxgraph.stats()["fallbacks"] and not report["left_alone"], (gfxgraph.stats()["events"], report)
    return report


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("batch", [1, 8])
def test_greedy(batch, dtype):
    """Tokens are eager's, exactly, with left padding."""
    report = check(make(LlamaForCausalLM, LlamaConfig, dtype), prompt(batch, 21), max_new_tokens=48, do_sample=False)
    assert report["waits"] == 0 and report["decoders"][0]["forwards"] == 1


@pytest.mark.parametrize("model_class, config_class, more", [
    (MistralForCausalLM, MistralConfig, {"sliding_window": 32}),
    (Gemma2ForCausalLM, Gemma2Config, {"sliding_window": 32}),
    (Qwen3ForCausalLM, Qwen3Config, {}),
])  # fmt: skip
def test_models(model_class, config_class, more):
    """Sliding windows before and after they are full; one sort of layer or two."""
    model = make(model_class, config_class, **more)
    report = check(model, prompt(3, 20), max_new_tokens=32, do_sample=False)
    assert report["decoders"][0]["forwards"] == (2 if more else 1)


@pytest.mark.parametrize("batch", [1, 5])
def test_sampling(batch):
    """The same seeds give the same samples, also in a following call."""
    model = make(LlamaForCausalLM, LlamaConfig)
    shaped = {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "repetition_penalty": 1.2}
    check(model, prompt(batch, 17), seed=11, max_new_tokens=40, do_sample=True, **shaped)


def test_early_end_leaves_the_generator_alone():
    """Steps past the end are not in the tokens, nor in the random numbers that follow."""
    model, inputs = make(LlamaForCausalLM, LlamaConfig), prompt(1, 9)
    # A cache that grows has other attention kernels, and in half precision other tokens.
    asked = {"max_new_tokens": 64, "do_sample": True, "temperature": 0.3, "cache_implementation": "static"}
    asked["disable_compile"] = True

    def two_calls():
        torch.manual_seed(3)
        made = model.generate(**inputs, **asked, eos_token_id=end)
        return made, torch.rand(4, device="cuda")

    torch.manual_seed(3)
    free = model.generate(**inputs, **asked)
    end = int(free[0, 9 + 5])
    stock = two_calls()
    gfx.accelerate(model)
    for _ in range(3):
        ours = two_calls()
        assert torch.equal(ours[0], stock[0]) and torch.equal(ours[1], stock[1])
    report = gfx.report(model)
    assert 0 < report["tokens_past_end"] <= 3 * 8 and report["waits"] < report["tokens"]


def test_it_is_faster():
    """A step of four layers, batch 1: at least three times eager."""
    model, inputs = make(LlamaForCausalLM, LlamaConfig), prompt(1, 16)

    def rate():
        torch.cuda.synchronize()
        begun = time.perf_counter()
        model.generate(**inputs, max_new_tokens=64, do_sample=False)
        torch.cuda.synchronize()
        return 64 / (time.perf_counter() - begun)

    rate()
    eager = max(rate() for _ in range(2))
    gfx.accelerate(model)
    for _ in range(2):
        rate()
    graphed = max(rate() for _ in range(3))
    print(f"eager {eager:.0f}, graphed {graphed:.0f} tokens/s")
    assert graphed > 3 * eager


PIECES = ("norm", "norm_after_sum", "rope", "gate", "cache", "attention", "positions")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("piece", PIECES)
def test_what_is_fused_changes_no_bit(piece, dtype):
    """Each kind of operation of a step, compiled as `compile=True` does, against torch's own kernels."""
    from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb

    from gfxgraph.adapters import _transformers_compile as compiling

    torch._dynamo.reset()
    torch.manual_seed(0)

    def random(*shape):
        return torch.randn(shape, device="cuda").to(dtype)

    norm = LlamaRMSNorm(1024).to("cuda", dtype)
    x, r, q, k, cos, sin = random(4, 1, 1024), random(4, 1, 1024), random(4, 16, 1, 64), random(4, 8, 1, 64), *(
        random(4, 1, 64), random(4, 1, 64))  # fmt: skip
    keys, mask = random(4, 8, 192, 64), torch.arange(192, device="cuda")[None, None, None] < 40
    at = torch.tensor([7], device="cuda")
    rotary = LlamaRotaryEmbedding(LlamaConfig(**SHAPE)).to("cuda")

    def many(held):
        return held[:, :, None].expand(4, 8, 2, 192, 64).reshape(4, 16, 192, 64)

    def cached():
        held = keys.clone()
        held.index_copy_(2, at, k)
        return many(held)

    call = {
        "norm": lambda: norm(x),
        "norm_after_sum": lambda: (x + r, norm(x + r)),
        "rope": lambda: apply_rotary_pos_emb(q, k, cos, sin),
        "gate": lambda: torch.nn.functional.silu(x) * r,
        "cache": cached,
        "attention": lambda: torch.nn.functional.scaled_dot_product_attention(
            q, many(keys), many(keys), attn_mask=mask.expand(4, 1, 1, 192), scale=0.125
        ),
        "positions": lambda: rotary(x, torch.arange(4, device="cuda")[:, None] * 37),
    }[piece]
    with torch.no_grad():
        expected = call()
        compiling._define_ops()
        compiled = torch.compile(lambda: call(), backend=compiling._exact_backend, dynamic=False)()
    if isinstance(expected, torch.Tensor):
        expected, compiled = (expected,), (compiled,)
    for one, other in zip(expected, compiled):
        n_other = int((one.view(torch.int16) != other.view(torch.int16)).sum())
        assert n_other == 0, f"{n_other} of {one.numel()} numbers differ, by {(one - other).abs().max()}"


def test_compiled_step_keeps_the_tokens():
    """compile=True takes over without a token changing, and its step has far fewer kernels."""
    model, inputs = make(LlamaForCausalLM, LlamaConfig, num_hidden_layers=2), prompt(2, 12)

    def call():
        return model.generate(**inputs, max_new_tokens=40, do_sample=False)

    gfx.accelerate(model, compile=True)
    own = [call(), call()]
    wide = gfx.report(model)["decoders"][0]
    gfx.wait(model)
    assert not gfx.report(model)["why_not_compiled"], gfx.report(model)["why_not_compiled"]
    taken_over = [call() for _ in range(3)]
    report = gfx.report(model)
    assert report["decoders"][0]["is_compiled"] and report["decoders"][0]["forwards"] == 1, report
    assert all(torch.equal(each, own[0]) for each in own + taken_over) and not gfxgraph.stats()["fallbacks"]
    print("nodes", wide["nodes"], "->", report["decoders"][0]["nodes"])
    assert sum(report["decoders"][0]["nodes"]) < 0.7 * sum(wide["nodes"])


def attention_case(batch, heads, shared, length, width, dtype, n_seen, seed, size=1.0):
    generator = torch.Generator("cuda").manual_seed(seed)

    def random(*shape):
        return (torch.randn(shape, generator=generator, device="cuda") * size).to(dtype)

    q = random(batch, 1, heads, width).transpose(1, 2)
    k, v = random(batch, shared, length, width), random(batch, shared, length, width)
    mask = torch.zeros(batch, 1, 1, length, device="cuda", dtype=dtype)
    mask[..., n_seen:] = -torch.inf
    mask[batch // 2, ..., : n_seen // 4] = -torch.inf
    return q, k, v, mask, width**-0.5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("cudnn", [True, False])
@pytest.mark.parametrize(
    "shape", [(1, 16, 8, 192, 64), (32, 16, 8, 192, 64), (8, 28, 4, 320, 128), (4, 32, 8, 1024, 128)]
)
def test_attention_over_shared_heads_changes_no_bit(shape, cudnn, dtype, monkeypatch):
    """What trials leave gives repeating's bits for data and lengths that were not tried, where it has any."""
    from gfxgraph.adapters import _transformers_attention as attention

    # Which way is the fastest is for the benchmark to say: other processes use the device here.
    monkeypatch.setattr(attention, "_took", lambda way, given: float(way is attention.WAYS["repeated"]))
    was = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(cudnn)
    try:
        q, k, _, mask, scale = attention_case(*shape, dtype, shape[3], 1)
        way = attention.choose(q, k, mask, scale)
        n_compared = 0
        for seed, n_seen in enumerate((3, 23, 37, 50, 61, 90, 101, 150, 187, shape[3] * 5 // 6, shape[3] - 2), 2):
            given = attention_case(*shape, dtype, n_seen, seed, size=1 + seed % 4)
            wanted, made = (attention.attend(*given, name) for name in ("repeated", way))
            differs = not attention.same_bits(made, wanted)
            if attention.repeats_itself(given, wanted, 50 if differs else 5):
                n_compared += 1
                # cuDNN's kernels do not all repeat themselves on a busy device.
                assert (
                    not differs
                    or cudnn
                    and any(not attention.same_bits(attention.attend(*given, way), made) for _ in range(50))
                ), (way, n_seen)
            else:
                assert torch.allclose(made, wanted, rtol=1e-2, atol=2e-2), (way, n_seen)
        print(shape, dtype, f"cudnn {cudnn}: {way}, {n_compared} lengths compared")
        assert n_compared >= 4 and (cudnn or way != "repeated")
    finally:
        torch.backends.cuda.enable_cudnn_sdp(was)


def test_a_captured_prompt_gives_eagers_bits():
    """Scores of all steps, the prompt's too; without cuDNN, some of whose kernels do not repeat themselves."""
    model = make(LlamaForCausalLM, LlamaConfig)
    ids = torch.randint(3, 32000, (8, 33), device="cuda")
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    was = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:

        def scores(**more):
            asked = {"output_logits": True, "return_dict_in_generate": True}
            made = model.generate(**inputs, max_new_tokens=6, do_sample=False, **asked, **more)
            return torch.stack([each.float() for each in made.logits])

        gfx.accelerate(model)
        ours = [scores() for _ in range(5)]
        report = gfx.report(model)["decoders"][-1]
        gfx.restore(model)
        stock = scores(cache_implementation="static", disable_compile=True, max_cache_len=report["cache_len"])
    finally:
        torch.backends.cuda.enable_cudnn_sdp(was)
    assert report["prompts"] == 1
    assert [torch.equal(each, stock) for each in ours] == [True] * 5
