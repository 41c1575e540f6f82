"""SGLang's own graph backends, unmodified: full, breakable, compiled pieces, glue graphs; and captures that fail."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace

import pytest
import torch

import gfxgraph
from gfxgraph import adapters
from gfxgraph.errors import GuardMismatch
from gfxgraph.types import OnUnsafe
from tests.conformance.conftest import HAS_GPU
from tests.engines import surroundings
from tests.engines.conftest import HIDDEN, SIZES


class Runner:
    """Drives a backend as SGLang's decode runner does: one stream, largest first, eager where it cannot run."""

    def __init__(self, backend, step, model):
        from sglang.srt.model_executor.runner.shape_key import ShapeKey

        self.backend, self.step, self.model, self.key = backend, step, model, ShapeKey
        self.n_eager = 0

    def capture(self):
        from sglang.srt.model_executor.runner_utils.pool import get_or_create_global_graph_capture_stream

        stream = get_or_create_global_graph_capture_stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), self.backend.capture_session(stream):
            for n in SIZES:
                self.capture_one(n)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        return self

    def capture_one(self, n):
        self.backend.capture_one(self.key(n), lambda: self.step(self.model.x[:n]))

    def __call__(self, n):
        if not self.backend.can_run(None, self.key(n)):
            self.n_eager += 1
            return self.step(self.model.x[:n])
        with self.backend.replay_session():
            return self.backend.replay(self.key(n), None)


def owner():
    """What a backend asks its runner for."""
    return SimpleNamespace(
        device_module=torch.cuda,
        model_runner=SimpleNamespace(server_args=None),
        cuda_graph_output_capacity_rows=lambda output: None,
        cuda_graph_output_rows=lambda output: None,
    )


def full(model):
    from sglang.srt.model_executor.runner_backend.full_cuda_graph_backend import FullCudaGraphBackend

    return Runner(FullCudaGraphBackend(owner()), model.step, model)


def full_shared_output(model):
    from sglang.srt.model_executor.runner_backend.full_cuda_graph_backend import FullCudaGraphBackend

    return Runner(FullCudaGraphBackend(owner(), reuse_output_buffer=True), model.step, model)


def breakable(model):
    from sglang.srt.model_executor.runner_backend.breakable_cuda_graph_backend import BreakableCudaGraphBackend
    from sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph import eager_on_graph

    attention = eager_on_graph(lambda h, out: model.attention(h, out))
    side, scratch = torch.cuda.Stream(), torch.zeros(4, device="cuda")

    def step(x):
        h = model.before(x)
        out = model.hidden[: x.shape[0]]
        attention(h, out)
        side.wait_stream(torch.cuda.current_stream())  # joined by nobody: SGLang does it where a segment ends
        with torch.cuda.stream(side):
            scratch.add_(1)
        return model.after(out)

    return Runner(BreakableCudaGraphBackend(owner()), step, model)


@pytest.mark.skipif(not HAS_GPU, reason="needs a GPU: it updates executable graphs through cuda-python")
def test_deduped_graphs(sglang, monkeypatch):
    """SGLang's own sharing of executable graphs, which takes the driver's graph out of ours."""
    pytest.importorskip("cuda.bindings", reason="needs cuda-python")
    mixin = import_module("sglang.srt.model_executor.runner_backend.cuda_graph_dedup_mixin")
    is_on = SimpleNamespace(get=lambda: True)
    monkeypatch.setattr(mixin, "envs", SimpleNamespace(SGLANG_ENABLE_CUDA_GRAPH_DEDUP=is_on))
    run = breakable(sglang).capture()
    n_runs = sglang.n_runs
    for seed, n in enumerate((1, 8, 2, 4, 8, 1), 1):
        sglang.check(run, n, seed)
    assert sglang.n_runs == n_runs + 6 and gfxgraph.stats()["fallback_count"] == 0
    run.backend.cleanup()


class Pieces:
    """SGLang's compiled pieces round an eager attention, in a runner's phases: compile, warm up, capture, replay."""

    def __init__(self, model):
        from sglang.srt.compilation.compilation_config import CompilationConfig
        from sglang.srt.compilation.cuda_piecewise_backend import CUDAPiecewiseBackend

        saving = SimpleNamespace(compiler_manager=SimpleNamespace(save_to_file=lambda: None))
        config, pool = CompilationConfig(list(SIZES)), torch.cuda.graph_pool_handle()
        self.model = model
        self.before, self.after = (
            CUDAPiecewiseBackend(None, config, {}, pool, at, 2, [1], fn, saving)
            for at, fn in enumerate((lambda x, n: model.before(x), lambda h, n: model.after(h)))
        )

    def capture(self):
        from sglang.srt.compilation.compile_phase import enable_torch_compile_warmup, set_pcg_capture_stream

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            with enable_torch_compile_warmup():
                self(SIZES[0])
            with set_pcg_capture_stream(stream):
                for n in SIZES:
                    self.capture_one(n)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        return self

    def capture_one(self, n):
        self(n)
        self(n)

    def __call__(self, n):
        h = self.before(self.model.x[:n], n)
        self.model.attention(h, h)
        return self.after(h, n)


KINDS = {"full": full, "full_shared_output": full_shared_output, "breakable": breakable, "pieces": Pieces}
N_GRAPHS = {"full": 1, "full_shared_output": 1, "breakable": 2, "pieces": 2}


@pytest.mark.parametrize("with_adapter", [False, True], ids=["bridge", "adapter"])
@pytest.mark.parametrize("kind", KINDS)
def test_backends(sglang, kind, with_adapter):
    """Every size captured and replayed through SGLang's own backend gives what eager execution gives."""
    if with_adapter:
        adapters.install("sglang")
    run = KINDS[kind](sglang).capture()
    n_runs = sglang.n_runs
    for seed, n in enumerate((1, 8, 2, 4, 8, 1), 1):
        sglang.check(run, n, seed)
    assert sglang.n_runs == n_runs + 6  # the eager runs of the check, none of the backend's
    stats = gfxgraph.stats()
    assert (stats["capture_count"], stats["fallback_count"], stats["split_count"]) == (
        N_GRAPHS[kind] * len(SIZES),
        0,
        0,
    )
    if hasattr(run, "backend"):
        run.backend.cleanup()


@pytest.mark.parametrize("part", ["before", "after"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_capture_that_fails_ends_the_server_without_the_adapter(sglang, kind, part):
    """What the adapter is for: SGLang itself lets the error of a capture out of its start."""
    sglang.fail_in = part
    with pytest.raises(gfxgraph.CaptureError):
        KINDS[kind](sglang).capture()


@pytest.mark.parametrize("part", ["before", "after"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_capture_that_fails_becomes_eager(sglang, kind, part):
    """With the adapter those shapes run eagerly, right each time, and what follows them reads the right memory."""
    adapters.install("sglang")
    sglang.fail_in = part
    run = KINDS[kind](sglang).capture()
    sglang.fail_in = ""
    for seed, n in enumerate((1, 8, 2, 4, 8, 1, 2), 1):
        sglang.check(run, n, seed)
    stats = gfxgraph.stats()
    assert stats["fallback_count"] == len(SIZES)
    assert all("SGLang" in event["reason"] for event in stats["events"] if event["kind"] == "fallback")


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_shape_that_failed_becomes_eager(sglang, kind):
    """One size fails; the others have their graphs, captured before and after it."""
    adapters.install("sglang")
    runner = KINDS[kind](sglang)
    capture_one = runner.capture_one

    def failing(n):
        sglang.fail_in = "after" if n == 4 else ""
        capture_one(n)

    runner.capture_one = failing
    runner.capture()
    sglang.fail_in = ""
    n_runs = sglang.n_runs
    for seed, n in enumerate((8, 2, 1, 8), 1):
        sglang.check(runner, n, seed)
    assert sglang.n_runs == n_runs + 4
    sglang.check(runner, 4, 9)
    assert sglang.n_runs == n_runs + 6
    assert gfxgraph.stats()["fallback_count"] == 1


@pytest.mark.parametrize("kind", ["full", "breakable"])
def test_a_model_that_fails_by_itself_is_not_swallowed(sglang, kind):
    """An error in the runs before the capture is the model's, not a graph's."""
    adapters.install("sglang")
    runner = KINDS[kind](sglang)

    def broken(x):
        raise RuntimeError("the model's own")

    runner.step = broken
    with pytest.raises(RuntimeError, match="the model's own"):
        runner.capture()


def test_breakable_begins_again_after_a_begin_that_failed(sglang):
    """A first segment that cannot be begun leaves neither a current capture nor SGLang's hook behind."""
    from sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph import breakable_cuda_graph as module

    adapters.install("sglang")
    runner = breakable(sglang)
    wait_stream = torch.cuda.Stream.wait_stream
    begin = module.BreakableCUDAGraphCapture._begin_new_segment
    failures = [RuntimeError("cannot begin")]

    def failing(self):
        if failures:
            raise failures.pop()
        begin(self)

    module.BreakableCUDAGraphCapture._begin_new_segment = failing
    runner.capture()
    assert module._current_capture_var.get() is None
    assert torch.cuda.Stream.wait_stream is wait_stream
    for seed, n in enumerate(SIZES, 1):
        sglang.check(runner, n, seed)
    assert runner.n_eager == 1 and gfxgraph.stats()["fallback_count"] == 1


class Attention:
    """An attention backend whose metadata are prepared on the device before each replay."""

    attn_backend_list = None

    def __init__(self, lengths):
        self.lengths = lengths
        self.forward_metadata = None
        self.starts = torch.zeros(HIDDEN, dtype=torch.long, device="cuda")
        self.reads_host = False

    def init_forward_metadata_out_graph(self, batch):
        self.starts.copy_(torch.cumsum(self.lengths, 0))
        if self.reads_host:
            self.starts.add_(int(self.lengths.max().item()))
        self.forward_metadata = self.starts * 2


@pytest.mark.parametrize("with_adapter", [False, True], ids=["bridge", "adapter"])
def test_glue_graph(sglang, with_adapter):
    """SGLang's glue graph captures while serving, every step right."""
    if with_adapter:
        adapters.install("sglang")
    glue = steps_of_glue(reads_host=False)
    assert not glue.disabled
    assert glue.replays == 3


def test_a_glue_graph_that_reads_values_disables_itself(sglang):
    """One whose backend reads a value on the host fails in the capture, as SGLang expects."""
    adapters.install("sglang")
    glue = steps_of_glue(reads_host=True)
    assert glue.disabled
    assert glue.replays == 0
    assert torch.cuda.CUDAGraph()._policy is OnUnsafe.SPLIT


def test_a_glue_graph_without_the_adapter_names_what_changed(sglang):
    """Without the adapter its value is pinned, and a replay with another one is refused by line and both values."""
    with pytest.raises(GuardMismatch, match=r"test_sglang.py:\d+ was 3 when captured and is 4 now"):
        steps_of_glue(reads_host=True)


def steps_of_glue(reads_host):
    from sglang.srt.model_executor.runner.metadata_glue_graph import MetadataGlueGraph

    lengths = torch.arange(HIDDEN, device="cuda")
    backend, glue = Attention(lengths), MetadataGlueGraph("cuda")
    backend.reads_host = reads_host
    for step in range(6):
        lengths.fill_(step + 1)
        glue.run(backend, None, "bs1")
        want = (torch.arange(1, HIDDEN + 1, device="cuda") * (step + 1) + (step + 1 if reads_host else 0)) * 2
        assert torch.equal(backend.forward_metadata, want), step
    return glue


def test_the_files_are_the_published_ones(sglang):
    """Every file that ran here has the hash that SGLang's package states for it."""
    assert surroundings.changed("sglang") == []
