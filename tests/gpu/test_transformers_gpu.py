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
