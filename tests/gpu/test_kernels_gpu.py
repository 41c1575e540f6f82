"""gfxgraph_kernels on a GPU: the interpreter's tests of numbers by the compiled kernels, and steps in graphs."""

from __future__ import annotations

import pytest
import torch
from tests.gpu.test_guard_gpu import run
from tests.unit.gfxgraph_kernels.test_kernels_numbers import *  # noqa: F403  (each test runs here once more, on the GPU)
from tests.unit.gfxgraph_kernels.test_modules import MODELS, assert_same_steps, model_of

import gfxgraph_kernels as kernels
from gfxgraph_kernels import timed_choice

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]


@pytest.fixture
def triton_interpreter():
    """Of the tests that need kernels: here are some."""
    with torch.device("cuda"):
        yield


@pytest.fixture
def ours_wins(monkeypatch):
    """Whatever the trials would take."""
    monkeypatch.setattr(timed_choice, "measured", lambda *args: timed_choice.TrialTimes(1.0, 2.0))


@pytest.fixture
def way(monkeypatch, tmp_path):
    """Tensors are made on the GPU, and every call is a kernel's."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    before = kernels.fallbacks()
    with torch.device("cuda"):
        yield "kernels"
    assert kernels.fallbacks() == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("rows", [1, 3, 7])
def test_steps_in_a_graph(way, ours_wins, dtype, rows):
    """A captured step with a static cache moves on at each replay, near the model's own eager steps."""
    from transformers import StaticCache

    sizes = {"hidden_size": 256, "intermediate_size": 640, "head_dim": 64, "vocab_size": 1000}
    model = model_of("Llama", **sizes).to("cuda", dtype)
    ids = torch.randint(1, 1000, (rows, 12), generator=torch.Generator("cuda").manual_seed(1))
    scores = []
    for fast in (False, True):
        done = kernels.apply(model) if fast else None
        cache = StaticCache(config=model.config, max_cache_len=40)
        with torch.no_grad():
            model(ids[:, :6], past_key_values=cache)
            token, at = ids[:, 6:7].clone(), torch.tensor([[6]])

            def step(token=token, at=at, cache=cache):
                return model(token, position_ids=at, past_key_values=cache).logits

            if fast:
                stream = torch.cuda.Stream()
                with torch.cuda.stream(stream):
                    step()
                stream.synchronize()
                for layer in cache.layers:
                    layer.cumulative_length.fill_(6)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    made = step()
                for layer in cache.layers:
                    layer.cumulative_length.fill_(6)
            for i in range(6, 12):
                token.copy_(ids[:, i : i + 1])
                at.fill_(i)
                if fast:
                    graph.replay()
                scores.append((made if fast else step()).clone())
            assert {int(layer.cumulative_length) for layer in cache.layers} == {12}
        if done is not None:
            own = [reason for reason in done.skipped if "one token" not in reason and "32 rows" not in reason]
            assert not own, done.skipped  # but for the prompt, of 6 tokens a row
            done.undo()
    theirs, ours = torch.stack(scores[:6]).double(), torch.stack(scores[6:]).double()
    near = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}[dtype]
    assert (ours - theirs).abs().max() <= near * theirs.abs().max()


@pytest.mark.parametrize("name", MODELS)
def test_each_model(way, ours_wins, name):
    """Greedy tokens in float32 are the model's own."""
    with torch.device("cpu"):
        model = model_of(name)
    assert_same_steps(model.cuda(), torch.tensor([[5, 9, 2, 30]], device="cuda"), 12)


def test_only_what_is_faster(way):
    """By measurement: verdicts are there, and what is swapped was faster."""
    with torch.device("cpu"):
        model = model_of("Llama", hidden_size=512, intermediate_size=1024, head_dim=64)
    done = kernels.apply(model.to("cuda", torch.float16))
    assert done.verdicts
    assert any(name.startswith("choice") for name in done.verdicts)  # of a token: no module is swapped for it
    for name, verdict in done.verdicts.items():
        if not name.startswith("choice"):
            assert (name.split()[0] in done.swapped.values()) == verdict.is_ours
    done.undo()
    again = kernels.apply(model)
    assert again.verdicts.keys() == done.verdicts.keys()


def test_overlap_with_what_is_around(way):
    """After a copy, a memset, a join of two streams and torch's own kernels, replays give what eager calls give."""
    from gfxgraph_kernels import launching

    assert launching.overlaps(0) == (torch.cuda.get_device_capability() >= (9, 0))
    x, w = torch.randn(4, 512), torch.randn(512, 512)
    other, source = torch.empty(4, 512), torch.randn(4, 512)
    side = torch.cuda.Stream()

    def work():
        y = kernels.rms_norm(x)
        other.copy_(source)
        y = kernels.linear(y + other, w, residual=y)
        other.zero_()
        y = kernels.layer_norm(y + other)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            z = kernels.layer_norm(kernels.rms_norm(y * 2))
        y = kernels.linear(y, w, activation="silu", up=w)
        torch.cuda.current_stream().wait_stream(side)
        return kernels.rms_norm(kernels.linear(y, w, residual=z))

    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = work()
    for seed in range(50):
        torch.manual_seed(seed)
        x.normal_()
        source.normal_()
        for _ in range(3):
            graph.replay()
        assert torch.equal(made, work())


GUARDED = """
import gfxgraph_kernels as kernels
x, w = torch.randn(2, 256, device="cuda"), torch.randn(256, 256, device="cuda")

def body():
    return kernels.linear(kernels.rms_norm(kernels.linear(kernels.rms_norm(x), w)), w)

graph, made = graph_of(body)
for _ in range(3):
    x.normal_()
    graph.replay()
    assert torch.equal(made, body())
stats = gfxgraph.stats()
assert not stats["events"], stats
(seen,) = gfxgraph.inspect(graph)
assert len(seen.nodes) >= 4, seen
"""


@pytest.mark.parametrize("tier", [0, 1, 2, 3])
def test_guards_take_kernels_that_overlap(tmp_path, tier):
    """The walk over nodes, and what looks between them; results are an eager call's, and nothing is reported."""
    made = run(tmp_path, GUARDED, tier)
    assert made.returncode == 0, made.stdout + made.stderr
