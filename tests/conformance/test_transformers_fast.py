"""``accelerate(model, fast=True)``: generate() through graphs with our kernels in the model."""

from __future__ import annotations

import pytest
import torch

import gfxgraph

pytest.importorskip("transformers", reason="transformers is not installed")
gfx = pytest.importorskip("gfxgraph.adapters.transformers")
if not gfx.ADAPTER.available():
    pytest.skip(f"the adapter supports transformers {gfx.ADAPTER.supported}", allow_module_level=True)

import transformers  # noqa: E402  (its models load as they are asked for)

from gfxgraph_kernels import timed_choice  # noqa: E402

ON = {"allow_cuda": True} if torch.cuda.is_available() else {"simulate": "cuda"}
SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 61, "max_position_embeddings": 256, "bos_token_id": 1,
    "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def platform():
    gfxgraph.enable(validate=False, **ON)
    yield
    gfxgraph.disable()


@pytest.fixture(autouse=True)
def kernels_that_win(monkeypatch):
    """Kernels that answer (on a simulated device composed of torch's own) and win every trial."""
    from gfxgraph_kernels import launching

    if not torch.cuda.is_available() or ON.get("simulate"):
        for name in ("norms", "layers", "attention", "next_token"):
            monkeypatch.setattr(f"gfxgraph_kernels.{name}.why_not", lambda op, *tensors, **reason: "in this test")
        monkeypatch.setattr(launching, "why_not", lambda op, *tensors, **reason: "")
    monkeypatch.setattr(timed_choice, "measured", lambda *args: timed_choice.TrialTimes(1.0, 2.0))
    yield
    gfx.restore()


@pytest.mark.parametrize("make", [lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)),
                                  lambda: transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**SMALL, sliding_window=12))],
                         ids=["llama", "gemma2"])  # fmt: skip
def test_generate_with_kernels(make):
    """The same tokens here, from graphs that hold our operations, past a full window; restored, the classes are back."""
    torch.manual_seed(0)
    model = make().to("cuda").eval()
    classes = [type(module) for module in model.modules()]
    ids = torch.randint(3, 61, (2, 6), device="cuda")
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": 20, "do_sample": False}
    wanted = gfx.accelerate(model).generate(**given)
    assert "kernels" not in gfx.report(model)
    gfx.accelerate(model, fast=True)
    assert torch.equal(model.generate(**given), wanted)
    found = gfx.report(model)
    assert found["kernels"]["swapped"]["head"] == 1 and found["kernels"]["swapped"]["norm"] >= 5
    assert not [reason for reason in found["kernels"]["skipped"] if "more than one token" not in reason]
    assert found["decoders"][0]["forwards"] >= 1 and not found["decoders"][0]["why_eager"]
    gfx.restore(model)
    assert [type(module) for module in model.modules()] == classes


def test_the_kernels_choose_the_tokens(monkeypatch):
    """Greedy and sampled tokens come from `greedy` and `sample`, and are those that torch's own choice gives."""
    import gfxgraph_kernels as kernels

    calls = []
    for name in ("greedy", "sample"):
        real = getattr(kernels, name)
        monkeypatch.setattr(kernels, name, lambda scores, real=real, name=name: calls.append(name) or real(scores))
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)).to("cuda").eval()
    ids = torch.randint(3, 61, (2, 6), device="cuda")
    given = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 12, "top_k": 0}
    tokens = {}
    for fast in (False, True):
        gfx.accelerate(model, fast=fast)
        for sampled in (False, True):
            torch.manual_seed(1)
            tokens[fast, sampled] = model.generate(ids, **given, do_sample=sampled)
        assert bool(calls) == fast
    assert set(calls) == {"greedy", "sample"}
    for sampled in (False, True):
        assert torch.equal(tokens[False, sampled], tokens[True, sampled])
    assert not torch.equal(tokens[True, False], tokens[True, True])


@pytest.mark.parametrize("name", ["Llama", "Qwen3", "Mistral"])
def test_prompts_share_a_bucket(name):
    """Prompts of several lengths, padded on the left or not, are read by one graph each; the tokens are the same."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(
        **SMALL | {"num_hidden_layers": 1} | ({"sliding_window": 24} if name == "Mistral" else {})
    )
    model = getattr(transformers, f"{name}ForCausalLM")(config).to("cuda").eval()
    many = [torch.randint(3, 61, (2, n), device="cuda") for n in (9, 1, 13, 16, 5)]
    for n_padded in (0, 3):
        tokens = {}
        for fast in (False, True):
            gfx.accelerate(model, fast=fast)
            for ids in many:
                mask = torch.ones_like(ids)
                mask[0, : min(n_padded, ids.shape[1] - 1)] = 0
                made = model.generate(ids, attention_mask=mask, max_new_tokens=18, do_sample=False)
                tokens[fast, ids.shape[1]] = made[:, ids.shape[1] :].tolist()
            report = gfx.report(model)
            assert report["eager_prompts"] == 0 and not report["decoders"][0]["why_eager"]
            assert sum(decoder["prompts"] for decoder in report["decoders"]) == fast
        for ids in many:
            assert tokens[True, ids.shape[1]] == tokens[False, ids.shape[1]], ids.shape
        gfx.restore(model)


def test_a_model_that_padding_changes(monkeypatch):
    """Its prompts are read at their length, which is reported."""
    from transformers.models.llama import modeling_llama

    real = modeling_llama.LlamaModel.forward

    def forward(self, input_ids, *args, **kwargs):
        made = real(self, input_ids, *args, **kwargs)
        made.last_hidden_state.add_(input_ids.shape[1])
        return made

    monkeypatch.setattr(modeling_llama.LlamaModel, "forward", forward)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)).to("cuda").eval()
    ids = torch.randint(3, 61, (1, 9), device="cuda")
    given = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 4, "do_sample": False}
    wanted = gfx.accelerate(model).generate(ids, **given)
    gfx.accelerate(model, fast=True)
    gfxgraph.reset_stats()
    for _ in range(3):
        assert torch.equal(model.generate(ids, **given), wanted)
    assert "padding changes a prompt: it is read at its length" in gfxgraph.stats()["fallbacks"]
    assert gfx.report(model)["decoders"][0]["prompts"] == 1


def test_fast_can_be_taken_back():
    """``fast=False`` takes the kernels out and leaves the graphs; leaving it out changes nothing."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)).to("cuda").eval()
    gfx.accelerate(model, fast=True)
    gfx.accelerate(model)
    assert gfx.report(model)["kernels"]["swapped"]
    gfx.accelerate(model, fast=False)
    assert "kernels" not in gfx.report(model) and gfx.is_accelerated(model)
    assert type(model.model.layers[0]).__module__ == "transformers.models.llama.modeling_llama"
