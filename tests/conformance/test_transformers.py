"""generate() through graphs against transformers' own loop, on tiny models."""

from __future__ import annotations

import contextlib
import gc
import queue
import threading
import weakref

import pytest
import torch

import gfxgraph
from gfxgraph import adapters
from gfxgraph.adapters import adapter

pytest.importorskip("transformers", reason="transformers is not installed")
gfx = pytest.importorskip("gfxgraph.adapters.transformers")
if not gfx.ADAPTER.available():
    pytest.skip("transformers is not installed", allow_module_level=True)

import transformers  # noqa: E402  (its models and their mixin load as they are asked for: five seconds of CPU)
from transformers import LogitsProcessor, StoppingCriteria, StoppingCriteriaList  # noqa: E402
from transformers.generation.streamers import BaseStreamer  # noqa: E402

from gfxgraph_kernels.generation import decode  # noqa: E402
from gfxgraph_kernels.generation import version_check as trial  # noqa: E402

ON = {"allow_cuda": True} if torch.cuda.is_available() else {"simulate": "cuda"}
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 61,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}


@pytest.fixture(scope="module", autouse=True)
def platform():
    gfxgraph.enable(validate=False, **ON)
    yield
    gfxgraph.disable()


@pytest.fixture(autouse=True)
def nothing_left():
    gfxgraph.reset_stats()
    yield
    gfx.restore()


@pytest.fixture(scope="module")
def llama(platform):
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)).to("cuda").eval()


def prompt(batch=2, length=5):
    """Token ids and a mask that pads the first row on the left."""
    torch.manual_seed(batch * 100 + length)
    ids = torch.randint(3, 61, (batch, length), device="cuda")
    mask = torch.ones_like(ids)
    if batch > 1:
        mask[0, :2] = 0
    return {"input_ids": ids, "attention_mask": mask}


def both(model, inputs, n=2, seed=None, **asked):
    """What transformers gives over the same static cache, and what n accelerated calls give."""

    def call(**more):
        if seed is not None:
            torch.manual_seed(seed)
        made = asked | more
        return model.generate(
            **inputs, **{k: v() if k in ("streamer", "past_key_values") else v for k, v in made.items()}
        )

    gfx.restore(model)
    stock = call(cache_implementation="static", disable_compile=True, max_cache_len=64)
    gfx.accelerate(model)
    return stock, [call() for _ in range(n)]


def fallbacks():
    return gfxgraph.stats()["fallbacks"]


def first_stop(model, inputs, n_tokens, at):
    """An end-of-sequence token that greedy decoding meets in row 0 at the given step at the latest."""
    tokens = model.generate(**inputs, max_new_tokens=n_tokens, do_sample=False)
    return int(tokens[0, inputs["input_ids"].shape[1] + at])


def test_greedy_tokens_are_eagers(llama):
    """With left padding; and the prompt and all steps but the first ones run as graphs."""
    inputs = prompt()
    growing = llama.generate(**inputs, max_new_tokens=12, do_sample=False)
    stock, ours = both(llama, inputs, max_new_tokens=12, do_sample=False)
    assert all(torch.equal(stock, each) for each in ours) and torch.equal(stock, growing)
    report = gfx.report(llama)
    assert report["tokens"] == 24 and report["waits"] == 0 and not fallbacks()
    assert gfxgraph.stats()["replay_count"] == (11 + 10) + (1 + 12 + 11)
    assert report["decoders"][0]["prompts"] == 1 and report["eager_prompts"] == 0
    other = prompt() | {"input_ids": inputs["input_ids"].flip(0)}
    llama.generate(**other, max_new_tokens=12, do_sample=False)
    assert torch.equal(ours[1], stock)  # results are the caller's own


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.7, "top_k": 9, "top_p": 0.9},
        {"repetition_penalty": 1.7, "min_p": 0.02, "typical_p": 0.9},
    ],
)
def test_seeds_give_the_same_samples(llama, sampling):
    """Whatever of transformers' own processors shapes the distribution."""
    stock, ours = both(llama, prompt(3), seed=5, max_new_tokens=10, do_sample=True, **sampling)
    assert all(torch.equal(stock, each) for each in ours)
    assert gfx.report(llama)["decoders"][0]["choices"] == 1


def test_a_mask_of_ones_may_be_left_out(llama, monkeypatch):
    """transformers drops a mask of ones before its loop from 5.18 on; a missing one is graphed, too."""
    inputs = prompt(2, 6)
    inputs["attention_mask"].fill_(1)
    stock, _ = both(llama, inputs, n=1, max_new_tokens=8, do_sample=False)
    prepare = transformers.GenerationMixin._prepare_cache_for_generation

    def dropping(self, generation_config, model_kwargs, *args, **kwargs):
        prepare(self, generation_config, model_kwargs, *args, **kwargs)
        model_kwargs["attention_mask"] = None

    monkeypatch.setattr(transformers.GenerationMixin, "_prepare_cache_for_generation", dropping)
    ours = [llama.generate(**inputs, max_new_tokens=8, do_sample=False) for _ in range(2)]
    assert all(torch.equal(stock, each) for each in ours)
    assert not fallbacks() and gfx.report(llama)["left_alone"] == {} and gfx.report(llama)["calls"] == 3


def test_penalty_ignores_padding_as_eager_does(llama):
    """Where transformers leaves padding out of the repetition penalty, rows padded otherwise share one capture."""
    for padded in (0, 1, 3):
        inputs = prompt(2, 6)
        inputs["attention_mask"].fill_(1)
        inputs["attention_mask"][0, :padded] = 0
        stock, ours = both(llama, inputs, n=3, seed=2, max_new_tokens=8, do_sample=True, repetition_penalty=1.9)
        assert all(torch.equal(stock, each) for each in ours), padded
    many = [prompt(2, 6) for _ in range(3)]
    for padded, inputs in enumerate(many, 1):
        inputs["attention_mask"][0, :2] = 1
        inputs["attention_mask"][0, :padded] = 0
        llama.generate(**inputs, max_new_tokens=4, do_sample=True, repetition_penalty=1.9)
    assert gfx.report(llama)["decoders"][0]["choices"] == 1 and not fallbacks()


def test_generator_is_left_where_eager_leaves_it(llama):
    """A call that ended early leaves the next one's samples as they would have been."""
    inputs = prompt(1)
    end = first_stop(llama, inputs, 4, 1)

    def two_calls():
        torch.manual_seed(3)
        first = llama.generate(**inputs, max_new_tokens=20, do_sample=True, temperature=0.01, eos_token_id=end)
        return first, torch.rand(3, device="cuda")

    stock = two_calls()
    gfx.accelerate(llama)
    for _ in range(2):
        ours = two_calls()
        assert torch.equal(stock[0], ours[0]) and torch.equal(stock[1], ours[1])
    assert ours[0].shape[1] < 25 and gfx.report(llama)["tokens_past_end"] > 0


def test_stops_at_the_end_token(llama):
    """Rows that end early are padded, the result is as long as eager's, and the host seldom waits."""
    inputs = prompt(3, 6)
    end = first_stop(llama, inputs, 8, 3)
    stock, ours = both(llama, inputs, max_new_tokens=16, do_sample=False, eos_token_id=[end, 60], pad_token_id=0)
    assert all(torch.equal(stock, each) for each in ours)
    report = gfx.report(llama)
    one = prompt(1, 6)
    end = first_stop(llama, one, 4, 2)
    for limit in (4, 6):  # the end comes when all steps are queued already
        stock, ours = both(llama, one, n=1, max_new_tokens=limit, do_sample=False, eos_token_id=end)
        assert torch.equal(stock, ours[0]) and stock.shape[1] < 6 + limit
    assert report["waits"] <= report["tokens"] / 4 + 4 and report["tokens_past_end"] <= 2 * 8


@pytest.mark.parametrize("name", ["Mistral", "Gemma2"])
def test_sliding_windows(name):
    """Before a window is full and after, with padding inside it; every layer, or every other one."""
    torch.manual_seed(1)
    more = {"head_dim": 8, "num_hidden_layers": 2} if name == "Gemma2" else {}
    model_class, config_class = (getattr(transformers, name + kind) for kind in ("ForCausalLM", "Config"))
    model = model_class(config_class(**SMALL | more, sliding_window=9)).to("cuda").eval()
    inputs = prompt(2, 6)
    stock, ours = both(model, inputs, max_new_tokens=14, do_sample=False)
    assert all(torch.equal(stock, each) for each in ours)
    assert gfx.report(model)["decoders"][0]["forwards"] == 2
    longer = prompt(2, 11)  # the prompt alone fills the window
    stock, ours = both(model, longer, max_new_tokens=5, do_sample=False)
    assert all(torch.equal(stock, each) for each in ours) and not fallbacks()


class Collects(BaseStreamer):
    last = None

    def __init__(self):
        self.got, self.is_over = [], False
        Collects.last = self

    def put(self, value):
        assert value.device.type == "cpu"
        self.got.append(value.tolist())

    def end(self):
        self.is_over = True


def test_streamers_get_every_token_in_order(llama):
    """Prompt and tokens, none past the end."""
    inputs = prompt(1)
    end = first_stop(llama, inputs, 12, 5)
    seen = []
    stock, ours = both(llama, inputs, n=0, max_new_tokens=20, do_sample=False, eos_token_id=end, streamer=Collects)
    seen.append(Collects.last)
    for _ in range(2):
        tokens = llama.generate(**inputs, max_new_tokens=20, do_sample=False, eos_token_id=end, streamer=Collects())
        seen.append(Collects.last)
        assert torch.equal(tokens, stock)
    assert seen[0].got == seen[1].got == seen[2].got and all(s.is_over for s in seen)


class EveryThird(StoppingCriteria):
    """The caller's own: stops rows one by one, and remembers what it was shown."""

    def __init__(self):
        self.lengths = []

    def __call__(self, input_ids, scores, **kwargs):
        self.lengths.append(input_ids.shape[1])
        return input_ids[:, -1] % 3 == 0


def test_criteria_of_the_callers_own(llama):
    """They are asked after every token and for none past the end."""
    inputs = prompt(3)
    asked = []
    for turn in range(3):
        if turn == 1:
            gfx.accelerate(llama)
        mine = EveryThird()
        tokens = llama.generate(
            **inputs, max_new_tokens=20, do_sample=False, stopping_criteria=StoppingCriteriaList([mine])
        )
        asked.append((mine.lengths, tokens.tolist()))
    assert asked[0] == asked[1] == asked[2] and gfx.report(llama)["tokens_past_end"] == 0


class Shift(LogitsProcessor):
    def __call__(self, input_ids, scores):
        return scores.roll(int(input_ids[0, -1]) % 5, dims=-1)


def test_processors_that_no_graph_can_hold(llama):
    """They run between the graphs, which is said."""
    stock, ours = both(
        llama, prompt(), max_new_tokens=8, do_sample=False, no_repeat_ngram_size=2, logits_processor=[Shift()]
    )
    assert all(torch.equal(stock, each) for each in ours)
    events = gfxgraph.stats()["events"]
    assert [e["reason"] for e in events] == [
        "tokens are chosen between graphs: Shift, NoRepeatNGramLogitsProcessor"
    ] or [e["reason"] for e in events] == ["tokens are chosen between graphs: NoRepeatNGramLogitsProcessor, Shift"]
    assert gfx.report(llama)["decoders"][0]["forwards"] == 1


def test_least_lengths(llama):
    """A processor that changes with the length is captured for before and after."""
    inputs = prompt()
    end = first_stop(llama, inputs, 8, 1)
    stock, ours = both(llama, inputs, max_new_tokens=12, do_sample=False, eos_token_id=end, min_new_tokens=5)
    assert all(torch.equal(stock, each) for each in ours)
    assert gfx.report(llama)["decoders"][0]["choices"] == 2 and not fallbacks()


LEFT_ALONE = {
    "beam search is left to transformers": {"num_beams": 2},
    "the cache was passed by the caller": {
        "past_key_values": lambda model: transformers.DynamicCache(config=model.config)
    },
    "more than the tokens was requested": {"return_dict_in_generate": True, "output_scores": True},
    "the requested cache is 'dynamic'": {"cache_implementation": "dynamic"},
    "assisted generation is left to transformers": {"prompt_lookup_num_tokens": 2},
}


@pytest.mark.parametrize("reason", LEFT_ALONE)
def test_what_is_left_alone_is_counted(llama, reason):
    """And gives what it gives without us."""
    asked = dict(LEFT_ALONE[reason])
    if "past_key_values" in asked:
        asked["past_key_values"] = asked["past_key_values"](llama)
    inputs = prompt(1)
    gfx.accelerate(llama)
    tokens = llama.generate(**inputs, max_new_tokens=4, do_sample=False, **asked)
    assert reason in gfx.report(llama)["left_alone"]
    assert f"generate runs without graphs: {reason}" in fallbacks()
    gfx.restore(llama)
    again = dict(LEFT_ALONE[reason])
    if "past_key_values" in again:
        again["past_key_values"] = again["past_key_values"](llama)
    stock = llama.generate(**inputs, max_new_tokens=4, do_sample=False, **again)
    pick = lambda made: made if isinstance(made, torch.Tensor) else made.sequences  # noqa: E731
    assert torch.equal(pick(tokens), pick(stock))


def test_weights_that_moved_are_noticed(llama):
    """A graph holds addresses; a model whose weights were replaced is captured anew."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)).to("cuda").eval()
    gfx.accelerate(model)
    inputs = prompt()

    def call():
        return model.generate(**inputs, max_new_tokens=6, do_sample=False)

    before = [call() for _ in range(2)][-1]
    model.lm_head.weight = torch.nn.Parameter(-model.lm_head.weight.detach())
    ours = [call() for _ in range(2)]
    gfx.restore(model)
    stock = call()
    assert not torch.equal(stock, before) and all(torch.equal(stock, each) for each in ours)


@pytest.mark.parametrize("change", [
    lambda is_on: torch.backends.cuda.enable_cudnn_sdp(is_on),
    lambda is_on: torch.use_deterministic_algorithms(not is_on),
    lambda is_on: torch.set_float32_matmul_precision("highest" if is_on else "high"),
])  # fmt: skip
def test_settings_that_choose_kernels_are_noticed(llama, change):
    """A graph has the kernels of its capture: under other settings everything is captured anew."""
    change(True)  # a build without cuDNN may begin with its attention off (seen with torch 2.9.1 and no GPU)
    gfx.accelerate(llama)

    def forwards():
        llama.generate(**prompt(), max_new_tokens=6, do_sample=False)
        return gfx.report(llama)["decoders"][0]["forwards"]

    assert [forwards() for _ in range(4)] == [1] * 4  # the prompt's graph, too, is there by then
    captures = gfxgraph.stats()["capture_count"]
    forwards()
    assert gfxgraph.stats()["capture_count"] == captures
    change(False)
    try:
        forwards()
        assert gfxgraph.stats()["capture_count"] > captures
    finally:
        change(True)


def test_hooks_are_called(llama):
    """A model with a forward hook is left alone: a graph would not call it."""
    gfx.accelerate(llama)
    llama.generate(**prompt(), max_new_tokens=4, do_sample=False)
    seen = []
    handle = llama.model.norm.register_forward_hook(lambda module, args, output: seen.append(1))
    try:
        llama.generate(**prompt(), max_new_tokens=4, do_sample=False)
    finally:
        handle.remove()
    assert (
        len(seen) == 4
        and "a module has forward hooks, which a graph would not call" in gfx.report(llama)["left_alone"]
    )


def test_a_capture_that_fails_is_only_slower(llama, monkeypatch):
    """The step then runs eagerly, into the same places, and that is counted."""
    from gfxgraph.callables import arena
    from gfxgraph.capture.function_capture import CaptureDied

    def dies(*args, **kwargs):
        raise CaptureDied("no graphs today")

    monkeypatch.setattr(arena, "captured_function", dies)
    stock, ours = both(llama, prompt(), max_new_tokens=6, do_sample=False)
    assert all(torch.equal(stock, each) for each in ours)
    assert any("no graphs today" in reason for reason in fallbacks())
    assert gfx.report(llama)["decoders"][0]["why_eager"]


def test_two_threads(llama):
    """A second call while the first runs is left to transformers, and both are right."""
    inputs, results = prompt(), queue.Queue()
    stock, _ = both(llama, inputs, max_new_tokens=8, do_sample=False)
    begun, go_on = threading.Event(), threading.Event()

    class Waits(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            begun.set()
            assert go_on.wait(20)
            return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)

    def first():
        results.put(llama.generate(**inputs, max_new_tokens=8, do_sample=False, stopping_criteria=[Waits()]))

    thread = threading.Thread(target=first)
    thread.start()
    assert begun.wait(20)
    second = llama.generate(**inputs, max_new_tokens=8, do_sample=False)
    go_on.set()
    thread.join(30)
    assert torch.equal(results.get(timeout=20), stock) and torch.equal(second, stock)
    assert "the model is generating in another thread" in gfx.report(llama)["left_alone"]


def test_inference_mode(llama):
    """Called under inference_mode and outside, in turn."""
    inputs = prompt()
    stock, _ = both(llama, inputs, n=0, max_new_tokens=5, do_sample=False)
    for mode in (torch.inference_mode(), contextlib.nullcontext(), torch.inference_mode()):
        with mode:
            tokens = llama.generate(**prompt(), max_new_tokens=5, do_sample=False)
        assert torch.equal(tokens.clone(), stock)


def test_install_and_restore(llama):
    """Twice is once; the last model restored leaves transformers as it was; a dropped model is let go."""

    names = ("_sample", "_beam_search", "_assisted_decoding")
    before = [vars(transformers.GenerationMixin)[name] for name in names]
    assert gfx.accelerate(gfx.accelerate(llama)) is llama and gfx.is_accelerated(llama)
    other = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)).to("cuda").eval()
    gfx.accelerate(other)
    other.generate(**prompt(), max_new_tokens=4)
    gfx.restore(llama)
    assert not gfx.is_accelerated(llama) and gfx.is_accelerated(other)
    assert vars(transformers.GenerationMixin)["_sample"] is not before[0]
    gone = weakref.ref(other)
    del other
    gc.collect()
    assert gone() is None
    adapters.install("transformers")
    llama.generate(**prompt(), max_new_tokens=4)
    assert gfx.is_accelerated(llama)
    adapters.uninstall("transformers")
    assert not gfx.is_accelerated(llama)
    assert [vars(transformers.GenerationMixin)[name] for name in names] == before


def test_refuses_what_it_cannot_work_on(llama, monkeypatch):
    """Names that are not there, no transformers, something that does not generate: said in the catalogue's words."""
    with pytest.raises(gfxgraph.ActivationError, match="generate") as wrong:
        gfx.accelerate(torch.nn.Linear(2, 2))
    assert wrong.value.code == "engine_object"
    with monkeypatch.context() as without:
        without.delattr(transformers.GenerationMixin, "_assisted_decoding")
        with pytest.raises(gfxgraph.ActivationError, match="_assisted_decoding") as wrong:
            gfx.accelerate(llama)
        assert wrong.value.code == "engine_layout" and gfx.ADAPTER.tested in str(wrong.value)

    monkeypatch.setattr(adapter, "installed_version", lambda module: "")
    with pytest.raises(gfxgraph.ActivationError, match="transformers") as wrong:
        gfx.accelerate(llama)
    assert wrong.value.code == "engine_missing" and not gfx.is_accelerated(llama) and not gfx.ADAPTER.is_installed


def test_an_unknown_version_is_tried_on_tiny_models(llama, monkeypatch):
    """One that decodes alike is used; one that does not, or lacks a name, runs as it is, with the reason counted."""
    inputs = prompt(2, 6)
    stock, _ = both(llama, inputs, n=0, max_new_tokens=6, do_sample=False)

    def tokens():
        monkeypatch.setattr(trial, "_answers", {})
        gfx.restore()
        gfx.accelerate(llama)
        assert torch.equal(llama.generate(**inputs, max_new_tokens=6, do_sample=False), stock)
        return gfx.report(llama)["calls"], " ".join(gfx.report(llama)["left_alone"])

    monkeypatch.setattr(adapter, "installed_version", lambda module: "99.0")
    assert tokens() == (1, "")
    before = torch.get_rng_state()
    tokens()
    assert torch.equal(before, torch.get_rng_state())
    step = decode.Decoder.choose
    with monkeypatch.context() as other:
        other.setattr(decode.Decoder, "choose", lambda self, choice, scores: step(self, choice, -scores))
        assert tokens()[0] == 0 and "transformers 99.0" in tokens()[1] and "generates different tokens" in tokens()[1]
    monkeypatch.setattr(decode, "FixedCache", None)
    assert tokens()[0] == 0 and "TypeError" in tokens()[1]
    assert sum("transformers 99.0" in reason for reason in fallbacks()) == 2


@pytest.mark.parametrize("on", [ON] if "allow_cuda" in ON else [ON, {"simulate": "hip"}])
def test_by_setting(on, monkeypatch):
    """GFXGRAPH_TRANSFORMERS has enable() do it for every model, and disable() undo it."""
    gfxgraph.disable()
    monkeypatch.setenv("GFXGRAPH_TRANSFORMERS", "1")
    try:
        gfxgraph.enable(**on)  # validating, where it is HIP
        torch.manual_seed(0)  # the simulated device is another one now: so must the model be
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)).to("cuda").eval()
        stock = model.generate(**prompt(), max_new_tokens=4, do_sample=False, cache_implementation="dynamic")
        for _ in range(3):
            assert torch.equal(model.generate(**prompt(), max_new_tokens=4, do_sample=False), stock)
        assert gfx.report(model)["calls"] == 3 and not gfxgraph.stats()["validation_failures"]
        assert bool(gfxgraph.stats()["validations"]) == (on.get("simulate") == "hip")
        assert gfx.is_accelerated(model)
    finally:
        gfxgraph.disable()
        monkeypatch.undo()
        gfxgraph.enable(validate=False, **ON)
    assert not gfx.is_accelerated(model) and not gfx.ADAPTER.is_installed
