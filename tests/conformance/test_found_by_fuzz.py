"""What random programs (tests/property/test_fuzz.py) broke, each as small as it could be made."""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress

import pytest
import torch

import gfxgraph
from gfxgraph.process import process

pytestmark = pytest.mark.any_platform


def ones(*size, **kw):
    return torch.ones(*size, device="cuda", **kw)


def replays_as_eager(capture, body, *inputs, **kw):
    """Capture ``body``; for two new contents of ``inputs`` compare a replay with eager."""
    graph, out = capture(body, warm=False, **kw)
    for scale in (2, 3):
        for x in inputs:
            x.copy_(torch.arange(x.numel(), device="cuda").view_as(x) * scale)
        graph.replay()
        torch.cuda.synchronize()
        got = out.clone()
        assert torch.equal(got, body())
    assert gfxgraph.stats()["fallback_count"] == 0
    return graph


def test_unsafe_operation_on_a_side_stream(capture):
    """A split may happen while a side stream is current."""
    x, side = ones(4), torch.cuda.Stream()

    def body():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x * 2
            assert y.isnan().sum().item() == 0
            y = y + 1
        torch.cuda.current_stream().wait_stream(side)
        return y * 3

    replays_as_eager(capture, body, x)


def test_error_of_a_host_step_leaves_no_recorder_behind(platform):
    """When the operation of a split itself fails, tensors of the host can be used afterwards."""
    with pytest.raises(RuntimeError):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.linalg.cholesky(-torch.eye(3, device="cuda"))
    assert torch.ones(2).sum() == 2


def test_foreign_generator_is_put_back(capture):
    """A generator that the graph does not know is after the capture where it was before."""
    generator = torch.Generator(device="cuda").manual_seed(3)
    before = generator.get_state()
    capture(lambda: torch.rand(4, device="cuda", generator=generator), warm=False)
    assert torch.equal(generator.get_state(), before)


def test_graph_replayed_inside_is_undone(capture):
    """State and generator that a replay inside the capture advances are put back, with nothing before it too."""
    count = torch.zeros(4, device="cuda")
    inner = torch.cuda.CUDAGraph()
    with torch.cuda.graph(inner):
        count.add_(1)
        out = count + torch.rand(4, device="cuda")
    inner.replay()
    before = [count.clone(), out.clone(), torch.cuda.get_rng_state()]

    def body():
        inner.replay()
        return out * 2

    graph, _ = capture(body, warm=False)
    for was, now in zip(before, (count, out, torch.cuda.get_rng_state())):
        assert torch.equal(was, now)
    graph.replay()
    assert torch.equal(count, torch.full_like(count, 2))


def test_foreign_generator_of_a_graph_replayed_inside_is_put_back(capture):
    """A host step of the inner graph draws from a generator that no graph knows; it is put back as well."""
    generator = torch.Generator(device="cuda").manual_seed(3)
    inner, y = capture(lambda: torch.rand(4, device="cuda", generator=generator) + 1, warm=False)
    before = generator.get_state()

    def body():
        inner.replay()
        return y * 2

    capture(body, warm=False)
    assert torch.equal(generator.get_state(), before)


def test_host_state_is_put_back(capture):
    """A host tensor that the body copies into keeps its content until the first replay."""
    x, kept = ones(4), torch.zeros(4)
    graph, _ = capture(lambda: kept.copy_(x * 2), warm=False)
    assert not kept.any()
    graph.replay()
    assert torch.equal(kept, torch.full((4,), 2.0))


def test_pinned_copy_to_the_host_is_put_back(capture):
    """A recorded copy into pinned memory that a later split had to run is undone."""
    x, kept = ones(4), torch.zeros(4).pin_memory()

    def body():
        kept.copy_(x * 2, non_blocking=True)
        assert x.sum().item() > -1
        return x + 1

    graph, _ = capture(body, warm=False)
    assert not kept.any()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(kept, torch.full((4,), 2.0))


def test_host_work_is_repeated_as_often_as_the_devices(capture):
    """A write on the host is undone after the capture and made by each replay, of which validating is one."""
    x, count, twin = ones(4), torch.zeros(()), torch.zeros((), device="cuda")

    def body():
        count.add_(1)
        twin.add_(1)
        return x + 1

    graph, _ = capture(body, warm=False)
    assert count.item() == twin.item() == 0
    assert graph.validate()
    assert count.item() == twin.item() == 1
    graph.replay()
    assert count.item() == twin.item() == 2


def test_copy_to_the_host_under_inference_mode(capture):
    """Inference mode shows composite operations whole; what is unsafe inside them is seen all the same."""
    x = ones(4)
    with torch.inference_mode():
        replays_as_eager(capture, lambda: x.to("cpu").to("cuda") * 2, x)


def test_two_splits_with_nothing_between(capture):
    """The empty graph between two adjacent splits is not destroyed inside the next capture."""
    x = ones(4)
    replays_as_eager(capture, lambda: x.cpu().to("cuda") + torch.arange(4, device="cuda"), x)


def test_nested_capture_that_ends_with_a_split(capture):
    """A nested capture's empty last graph is not destroyed inside the outer capture."""
    x = ones(4)
    kept = []

    def body():
        inner = torch.cuda.CUDAGraph()
        with torch.cuda.graph(inner):
            y = (x * 2).cpu().cuda()
        kept.append(inner)
        inner.replay()
        return y + 1

    replays_as_eager(capture, body, x)


def test_validation_of_a_write_into_an_earlier_segment(capture):
    """A view taken after a split, of a result from before it, is external state of its segment."""
    x = ones(4)

    def body():
        y = x * 2
        assert x.isnan().sum().item() == 0
        z = y + 1
        y[:2] = z[2:]
        return y

    graph = replays_as_eager(capture, body, x)
    assert graph.validate()


def test_all_work_after_the_first_split(capture):
    """The user's graph object, left empty by a split before any work, is not what a replay launches."""
    x = ones(4)

    def body():
        x.tolist()
        return x * 2

    replays_as_eager(capture, body, x)


def test_host_step_on_tensors_of_inference_mode(capture):
    """What was captured under inference mode is replayed outside of it."""
    x = ones(4)

    def body():
        with torch.inference_mode():
            state = torch.cuda.get_rng_state()
            y = x * 2
            y[[1]] = 5
            torch.cuda.set_rng_state(state)
        return y.clone()

    replays_as_eager(capture, body, x)


def test_composites_under_inference_mode_are_torchs_own(capture):
    """Dropout of nothing draws nothing; Python's decomposition of it would."""
    x, nothing = ones(4), torch.zeros(0, device="cuda")

    def body():
        with torch.inference_mode():
            torch.nn.functional.dropout(nothing, 0.5)
            return x + 1

    graph, _ = capture(body, warm=False)
    before = torch.cuda.get_rng_state()
    graph.replay()
    assert torch.equal(torch.cuda.get_rng_state(), before)


def test_expanded_results_of_a_graph_replayed_inside(capture):
    """A result that is an expanded view is put back after the capture like any other."""
    x = ones(4)
    inner = torch.cuda.CUDAGraph()
    with torch.cuda.graph(inner):
        wide = (x * 2).unsqueeze(0).expand(3, 4)

    def body():
        inner.replay()
        return wide + 1

    replays_as_eager(capture, body, x)


def test_validation_of_a_segment_that_uses_up_its_inputs(capture, platform):
    """A result from before a split whose memory is used again after it: validation puts it back between runs."""
    if platform == "gpu":
        pytest.skip("the opaque launch is the simulator's")
    from gfxgraph_simulator import launch_opaque

    x = ones(4)

    def body():
        y = x * 3
        assert x.isnan().sum().item() == 0
        z = y + 1
        del y
        w = z * 2
        launch_opaque("twice", lambda t: t.mul_(2), w)
        return w.clone()

    graph = replays_as_eager(capture, body, x)
    assert graph.validate()


def test_validation_leaves_out_memory_that_nobody_wrote(capture):
    """A result with elements that were never written validates; what was written is still compared."""
    x = ones(4)

    def body():
        y = torch.empty(8, device="cuda")
        y[:4] = x
        assert x.isnan().sum().item() == 0
        y[4:] = x + 1
        return y

    graph = replays_as_eager(capture, body, x)
    for _ in range(3):
        assert graph.validate()


def test_number_assigned_through_a_mask_is_recorded(capture):
    """torch makes a masked_fill of it, which needs no split; zero-size tensors pass through inference mode."""
    x, nothing = ones(4), torch.zeros(0, device="cuda")

    def body():
        y = x * 2
        y[y == 2] = 7
        with torch.inference_mode():
            z = nothing + 1
        return y + z.sum()

    replays_as_eager(capture, body, x)
    assert gfxgraph.stats()["split_count"] == 0


def test_operation_refused_half_way(capture, platform):
    """What an operation had launched before torch refused it is nobody's: no opaque launch, no false alarm."""
    if platform == "gpu":
        pytest.skip("torch's own multinomial does this on a GPU; here an operation is made that does")
    library = torch.library.Library("found_by_fuzz", "FRAGMENT")
    library.define("draw_after_max(Tensor x, *, Generator? generator) -> Tensor")
    library.impl(
        "draw_after_max",
        lambda x, *, generator: x * x.max() + torch.rand(x.shape, device="cuda", generator=generator),
        "CUDA",
    )
    x, foreign = ones(4), torch.Generator(device="cuda")

    def body():
        foreign.manual_seed(5) if not torch.cuda.is_current_stream_capturing() else None
        y = x * 3
        torch.ops.found_by_fuzz.draw_after_max(y, generator=foreign)
        return y + 1

    graph = replays_as_eager(capture, body, x)
    stats = gfxgraph.stats()
    assert stats["split_count"] == 1 and stats["opaque_launches"] == 0 and stats["effects_not_undone"] == 0
    assert graph.validate() and gfxgraph.stats()["validations_skipped"] == 0
    library._destroy()


@pytest.mark.parametrize("is_outside", [False, True])
def test_parts_of_a_composite_operation_under_autocast(platform, is_outside):
    """In inference mode torch hands ``square`` whole to the recorder; its power is in float32 all the same."""
    x = torch.arange(8, device="cuda", dtype=torch.bfloat16) / 8

    def body():
        if is_outside:
            return x.square(), x.square().to(torch.float16)
        with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
            y = x.square()
            with torch.autocast("cuda", enabled=False):
                return y, x.square()

    with (
        torch.inference_mode(),
        torch.autocast("cuda", enabled=is_outside, dtype=torch.bfloat16, cache_enabled=False),
    ):
        eager = body()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            made = body()
        graph.replay()
        assert eager[0].dtype is torch.float32 and eager[1].dtype is (torch.float16 if is_outside else torch.bfloat16)
        for mine, theirs in zip(made, eager):
            assert mine.dtype is theirs.dtype and torch.equal(mine, theirs)
        assert graph.validate()


def test_a_proof_of_padding_under_autocast(platform):
    """The watched run of a graphed function computes what eager does, in the same dtype."""
    x = torch.arange(8, device="cuda", dtype=torch.bfloat16) / 8
    dtypes = []

    def f(t):
        y = t.square()
        dtypes.append(y.dtype)
        return y + 1

    g = gfxgraph.graphed(f, dynamic={"t": {0: "n"}})
    with torch.inference_mode(), torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
        for n in (5, 6, 7, 8):
            assert torch.equal(g(x[:n]), f(x[:n]))
    assert set(dtypes) == {torch.float32}


def test_a_capture_waits_until_random_states_are_cleared(platform, monkeypatch):
    """torch clears them on the capture's stream, for all graphs, and no replay on another stream comes after that."""
    driver = process.require().driver
    waited = []
    real = driver.synchronize_stream
    monkeypatch.setattr(driver, "synchronize_stream", lambda stream: (waited.append(stream), real(stream)))

    def failing():
        torch.ones(4, device="cuda")
        raise ValueError("planted")

    side = torch.cuda.Stream()
    for body in (lambda: torch.rand(4, device="cuda"), lambda: torch.ones(4, device="cuda"), failing):
        waited.clear()
        with suppress(ValueError), torch.cuda.graph(torch.cuda.CUDAGraph(), stream=side):
            body()
        assert side.cuda_stream in waited


def test_a_capture_that_ends_leaves_another_threads_alone(platform):
    """A plain wait for its stream would end a capture of global mode that another thread has begun without us."""
    x, graphs = torch.ones(4, device="cuda"), {}
    begun, over = threading.Event(), threading.Event()

    def work():
        graph = process.require().base()
        with torch.cuda.stream(torch.cuda.Stream()):
            graph.capture_begin()
            y = x * 2
            begun.set()
            over.wait(30)
            graphs[graph] = y + 1
            graph.capture_end()

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(30)
    try:
        with torch.cuda.stream(torch.cuda.Stream()):
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin()
            graphs[graph] = x + 4
            graph.capture_end()
    finally:
        over.set()
        thread.join()
    for graph in graphs:
        graph.replay()
    torch.cuda.synchronize()
    assert sorted(made[0].item() for made in graphs.values()) == [3.0, 5.0]


def test_another_graph_of_hot_mode_is_captured_over_the_calls_own_data(platform):
    """A capture that is split runs its parts: over what a larger call left in the inputs, an index would be too far."""

    def step(x, i):
        return x.index_select(0, i) + torch.ones(4).cuda()

    g = gfxgraph.graphed(step, mode="hot")
    kept = []
    for n, at in ((5, 4), (5, 4), (2, 1), (2, 1), (5, 4), (2, 0), (2, 1)):
        x, i = torch.randn(n, 4, device="cuda"), torch.tensor([at], device="cuda")
        kept.append(g(x, i))
        assert torch.equal(kept[-1], step(x, i))
    assert g.stats()["replays"] >= 4 and g.stats()["captures"] >= 4


def test_tensors_that_a_capture_has_recorded_exchange_no_contents_in_it(platform):
    """torch itself refuses them, for the references that the tape has; what is captured goes on."""
    x, graph = torch.ones(4, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c, d = x * 2, x * 3
        with pytest.raises(RuntimeError, match="weakref"):
            torch.utils.swap_tensors(c, d)
        y = d - c
    graph.replay()
    assert y.tolist() == [1.0] * 4


def test_captured_tensors_exchange_their_contents_afterwards(platform):
    """A program's own references to its inputs are none for ``torch.utils.swap_tensors``, which refuses those."""
    x, other, graph = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _ = x + 1
    torch.utils.swap_tensors(x, other)
    assert other.tolist() == [1.0] * 4
    held = weakref.ref(x)
    with pytest.raises(RuntimeError, match="weakref"):
        torch.utils.swap_tensors(x, other)
    del held


def test_validation_beside_a_launch_on_what_the_host_made(platform):
    """What a launch outside torch changes there is put back between the two runs."""
    if platform == "gpu":
        pytest.skip("the opaque launch is the simulator's")
    from gfxgraph_simulator import launch_opaque

    x, graph = torch.arange(6.0, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x[x > 2].clone()
        launch_opaque("twice", lambda t: t.mul_(2), y)
        z = y + 1
    assert graph.validate()
    assert y.tolist() == [6, 8, 10] and z.tolist() == [7, 9, 11]
