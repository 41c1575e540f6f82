"""`apply` on small random models of transformers: what is swapped, near the model's own, undone."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
import gfxgraph_kernels as kernels  # noqa: E402
from gfxgraph_kernels import model_parts, timed_choice  # noqa: E402

SIZES = {
    "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 48, "pad_token_id": 0,
}  # fmt: skip
LAYERS = {"rotary": 1, "layer": 2, "attention": 2, "mlp": 2, "norm": 5, "head": 1}
MODELS = {
    "Llama": LAYERS,
    "Mistral": LAYERS,
    "Qwen2": LAYERS,
    "Qwen3": {**LAYERS, "norm": 9},
    "Gemma": LAYERS,
    "Gemma2": {"rotary": 1, "attention": 2, "mlp": 2, "norm": 9, "head": 1},
    "Gemma3": {"attention": 2, "mlp": 2, "norm": 13, "head": 1},
}


def model_of(name, **sizes):
    sizes = {**SIZES, **sizes}
    if name == "Qwen2":
        sizes["hidden_size"], _ = 32, sizes.pop("head_dim")
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}{'Text' * (name == 'Gemma3')}Config")(**sizes)
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


def steps(model, ids, n):
    """Greedy tokens of each row, and the scores of the first step of one token, over a cache of fixed length."""
    cache = transformers.StaticCache(config=model.config, max_cache_len=ids.shape[1] + n)
    with torch.no_grad():
        model(ids[:, :-1], past_key_values=cache)
        token, scores = ids[:, -1:], []
        for _ in range(n):
            scores.append(model(token, past_key_values=cache).logits[:, -1])
            token = scores[-1].argmax(-1, keepdim=True)
    return torch.stack(scores, 1).argmax(-1), scores[0]


def assert_same_steps(model, ids, n):
    """With the kernels and without, which are taken out: the same tokens, and scores of a rounding's distance."""
    theirs, wanted = steps(model, ids, n)
    with kernels.apply(model) as done:
        ours, scores = steps(model, ids, n)
    assert torch.equal(ours, theirs)
    assert (scores - wanted).abs().max() < 1e-4 * wanted.abs().max()
    return done


@pytest.fixture(autouse=True)
def not_enabled(monkeypatch):
    monkeypatch.setattr("gfxgraph.process.process.current", lambda: None)  # whoever enabled gfxgraph before


@pytest.fixture
def composed(monkeypatch):
    """As if a kernel answered, and fast: composed of torch's own operations, anywhere."""
    from gfxgraph_kernels import launching

    real = launching.why_not
    for name in ("norms", "layers", "attention", "next_token"):
        monkeypatch.setattr(f"gfxgraph_kernels.{name}.why_not", lambda op, *tensors, **reason: "in this test")
    monkeypatch.setattr(launching, "why_not", lambda op, *t: "" if op == "apply" else real(op, *t))
    monkeypatch.setattr(timed_choice, "measured", lambda *args: timed_choice.TrialTimes(1.0, 2.0))


@pytest.mark.parametrize("name", MODELS)
def test_known_by_structure(composed, name):
    """Each kind of module is found in each model, and greedy tokens over twelve steps are the same."""
    done = assert_same_steps(model_of(name), torch.tensor([[5, 9, 2, 30]]), 12)
    assert done.report()["swapped"] == MODELS[name]
    assert not done.left


def test_steps_in_the_interpreter(triton_interpreter, monkeypatch):
    """The same with the kernels themselves, for Llama."""
    monkeypatch.setattr(timed_choice, "measured", lambda *args: timed_choice.TrialTimes(1.0, 2.0))
    model = model_of("Llama", num_hidden_layers=1)
    before = kernels.fallbacks()
    assert_same_steps(model, torch.tensor([[5, 9]]), 2)
    assert kernels.fallbacks() == before


def test_a_cache_that_grows_is_the_models_own(composed):
    """A step over one gives what the model gives: MLPs and norms are ours, attention its own, with the reason."""
    results = []
    for fast in (False, True):
        model = model_of("Llama")
        done = kernels.apply(model) if fast else None
        with torch.no_grad():
            cache = model(torch.tensor([[5, 9, 2]]), use_cache=True).past_key_values
            results.append(model(torch.tensor([[3]]), past_key_values=cache).logits)
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    assert done.skipped["layer: the cache has no fixed slot for the token"] == 2


@pytest.mark.parametrize("name", ["Llama", "Gemma2"])
def test_a_static_cache_is_written_in_place(composed, name):
    """A step writes the slot that the model's own step writes, and leaves the same cache, over several rows."""
    results = []
    for fast in (False, True):
        model = model_of(name)
        done = kernels.apply(model) if fast else None
        cache = transformers.StaticCache(config=model.config, max_cache_len=10)
        ids = torch.tensor([[5, 9, 2], [7, 7, 1]])
        with torch.no_grad():
            model(ids, past_key_values=cache)
            for token in ([[3], [4]], [[8], [1]]):
                scores = model(torch.tensor(token), past_key_values=cache).logits
        results.append((scores, cache.layers[0].keys, cache.layers[1].values, cache.get_seq_length()))
        if done is not None:
            # transformers' own sliding layers move their slots
            own = ("more than one token", *["no fixed slot"] * (name == "Gemma2"))
            assert not [reason for reason in done.skipped if not any(part in reason for part in own)]
    for mine, other in zip(*results):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def test_undo_puts_every_class_back(composed):
    """Classes, state and numbers are what they were; a second undo changes nothing."""
    model = model_of("Llama")
    classes, ids = [type(module) for module in model.modules()], torch.tensor([[1, 2, 3]])
    names, before, own = list(model.state_dict()), model(ids).logits, type(model.model.layers[0])
    done = kernels.apply(model)
    assert [type(module) for module in model.modules()] != classes
    assert list(model.state_dict()) == names
    made = type(model.model.layers[0])
    assert issubclass(made, own) and (made.__name__, made.__module__) == (own.__name__, own.__module__)
    with pytest.raises(ValueError, match="undo"):
        kernels.apply(model)
    done.undo()
    done.undo()
    assert [type(module) for module in model.modules()] == classes
    assert torch.equal(model(ids).logits, before)


def test_training_goes_its_own_way(composed):
    """With gradients every module answers itself, and they are the model's own."""
    ids = torch.tensor([[1, 2, 3]])
    gradients = []
    for fast in (False, True):
        model = model_of("Llama")
        if fast:
            done = kernels.apply(model)
        model(ids, labels=ids).loss.backward()
        gradients.append([p.grad for p in model.parameters()])
    for mine, other in zip(*gradients):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-5)
    assert done.skipped["layer: gradients are needed"] == 2 and done.skipped["norm: gradients are needed"] == 5


def test_other_numbers_are_left(composed):
    """A layer that looks like Llama's and scales its residual is left alone, with the reason."""
    model = model_of("Llama")

    class Scaled(type(model.model.layers[0])):
        def forward(self, hidden_states, **kwargs):
            return super().forward(hidden_states, **kwargs) * 0.5

    model.model.layers[1].__class__ = Scaled
    done = kernels.apply(model)
    assert done.left["model.layers.1"] == "it gives different numbers"
    assert done.swapped["model.layers.0"] == "layer"


def test_hooks_and_quantized_linears_are_left(composed):
    """A linear layer of another class, or with a hook, is not read past."""
    model = model_of("Llama")
    model.model.layers[0].mlp.up_proj.register_forward_hook(lambda *args: None)

    class Other(torch.nn.Linear):
        pass

    model.model.layers[1].self_attn.q_proj.__class__ = Other
    done = kernels.apply(model)
    assert "model.layers.0.mlp" not in done.swapped and "model.layers.0.self_attn" in done.swapped
    assert "model.layers.1.self_attn" not in done.swapped and "model.layers.1.mlp" in done.swapped
    assert not {"model.layers.0", "model.layers.1"} & set(done.swapped)


@pytest.mark.parametrize("theirs_us, is_swapped", [(100.0, True), (10.2, False), (5.0, False)])
def test_only_what_is_faster(composed, monkeypatch, theirs_us, is_swapped):
    """A kind of one size is measured once for all layers, and used where the time is clearly less."""
    calls = []

    def measured(ours, theirs, device):
        calls.append((ours(), theirs()))
        return timed_choice.TrialTimes(10.1, theirs_us)

    monkeypatch.setattr(timed_choice, "measured", measured)
    done = kernels.apply(model_of("Llama"))
    assert bool(done.swapped) == is_swapped
    assert set(done.left.values()) == (set() if is_swapped else {"it is not faster on this device"})
    assert done.is_choosing == is_swapped
    # Rotary, layer, attention, MLP, norm, head; and the choice of a token where anything is ours.
    assert len(calls) == len(done.verdicts) == 6 + is_swapped


def test_where_no_kernel_runs_nothing_is_swapped():
    """On a CPU without the interpreter each module says why."""
    from gfxgraph_kernels import launching

    if launching.is_interpreted():
        pytest.skip("here kernels run")
    done = kernels.apply(model_of("Llama"))
    assert not done.swapped
    assert all("Triton" in reason for reason in done.left.values())


def test_activations_are_known_by_their_values():
    """transformers' own GELU and SiLU classes, and no ReLU."""
    from transformers.activations import ACT2FN

    names = [model_parts.activation_of(ACT2FN[name]) for name in ("silu", "gelu", "gelu_pytorch_tanh", "relu")]
    assert names == ["silu", "gelu", "gelu_tanh", ""]


def test_whatever_the_default_device_is(composed):
    """Trials draw their numbers on the CPU and move them: a program that has set another default is no obstacle."""
    with torch.device("meta"):
        assert model_parts.random(2, 3, like=torch.ones(1, device="cpu")).device.type == "cpu"


def test_a_model_without_parameters_has_nothing_to_swap() -> None:
    done = kernels.apply(torch.nn.Sequential(torch.nn.ReLU()))
    assert not done.swapped and not done.left
