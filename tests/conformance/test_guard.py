"""Guard tier 1: stale pointers are refused before the launch, odd layouts repaired; off costs nothing."""

from __future__ import annotations

import gc
import sys
import types
from typing import ClassVar

import pytest
import torch

import gfxgraph
import gfxgraph_simulator as simulator
from gfxgraph.core.strides import Oddity
from tests.conformance.guarding import PROFILES, graph_of, guarded, line_of, triton

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the simulator stands in for the only card there is"
)


@pytest.fixture(params=PROFILES)
def safe(request, tmp_path, monkeypatch):
    """Tier 1."""
    with guarded(request.param, 1, tmp_path, monkeypatch) as sim:
        yield sim


def capture_with_kv():
    x = torch.arange(8.0, device="cuda")
    kv = torch.ones(2, 2, device="cuda")

    def body():
        a = x * 2
        triton(lambda k, o: o.add_(k.sum()), kv, a)
        return a + 1

    return *graph_of(body), kv, body.__code__  # the function itself would hold kv


STALE = """\
stale_pointer: the graph points at memory that has been freed
  what: node 1 (triton_kernel), launched by a call outside torch at {between}, uses `kv` [2, 2] float32 at {address}, \
which is no longer allocated
  why:  it was allocated at {allocated}; replaying would read or overwrite whatever lives there now
  do:   keep the captured tensors alive as long as the graph, or copy new data into them: static.copy_(x); \
then capture again
  more: gfxgraph explain stale_pointer"""


def test_a_freed_input_of_a_foreign_kernel_is_refused_by_name(safe):
    """Node, kernel, lines, the freed tensor's name, shape and where it was made; before anything is launched."""
    graph, result, kv, body = capture_with_kv()
    graph.replay()
    expected = result.tolist()
    address = f"{kv.data_ptr():#x}"
    del kv
    result.zero_()
    with pytest.raises(gfxgraph.ReplayError) as caught:
        graph.replay()
    between = f"{line_of(body, 1)} to {line_of(body, 3)}"
    allocated = line_of(capture_with_kv.__code__, 2)
    assert caught.value.text("en") == STALE.format(between=between, address=address, allocated=allocated)
    assert result.tolist() == [0.0] * 8 and expected[0] == 5.0
    assert gfxgraph.stats()["guard_refusals"] == 1
    with pytest.raises(gfxgraph.ReplayError, match="stale_pointer"):
        graph.replay()  # and again: it does not heal


def test_memory_given_to_somebody_else_is_still_refused(safe):
    """The address is live again, and belongs to another tensor."""
    graph, _, kv, _ = capture_with_kv()
    address = kv.data_ptr()
    del kv
    other = torch.zeros(2, 2, device="cuda")
    assert other.data_ptr() == address
    with pytest.raises(gfxgraph.ReplayError, match="stale_pointer"):
        graph.replay()


def test_a_tensor_freed_within_the_capture_is_refused_at_the_first_replay(safe):
    """A raw pointer into the caller's pool, dead before the capture ended."""
    outside = torch.ones(4, device="cuda")
    alias = simulator.tensor_at(outside.data_ptr(), (4,), (1,), torch.float32)
    held = [outside]
    del outside

    def body():
        a = torch.zeros(4, device="cuda")
        triton(lambda k, o: o.add_(k), alias, a)
        held.clear()
        return a

    graph, _ = graph_of(body)
    del alias
    with pytest.raises(gfxgraph.ReplayError, match="stale_pointer"):
        graph.replay()


def test_what_the_program_holds_replays_without_a_look(safe):
    """Externals of operations are pinned, a kept tensor is live: the fast path is granted and nothing is said."""
    graph, result, _kv, _ = capture_with_kv()
    for _ in range(600):
        graph.replay()
    assert result.tolist() == [5.0 + 2 * n for n in range(8)]
    assert gfxgraph.stats()["replay_count"] == 600
    assert not gfxgraph.stats()["events"]
    x = torch.ones(4, device="cuda")
    pinned, y = graph_of(lambda: x * 3)
    x = None  # the graph holds it
    gc.collect()
    pinned.replay()
    assert y.tolist() == [3.0] * 4


def test_a_view_that_outlives_its_tensor_keeps_the_memory_live(safe):
    """Storages are watched, not tensors."""
    graph, result, kv, _ = capture_with_kv()
    view = kv[0]
    del kv
    graph.replay()
    assert result[0].item() == 5.0
    del view
    with pytest.raises(gfxgraph.ReplayError, match="stale_pointer"):
        graph.replay()


def test_memory_of_a_graph_that_was_reset_is_refused_once_it_left_the_pool(safe):
    """A pool's memory is reused by design; only when its segments are gone is a pointer into it stale."""
    x = torch.ones(4, device="cuda")
    first, a = graph_of(lambda: x * 2)
    second, b = graph_of(lambda: (triton(lambda k, o: o.copy_(k), a, out := torch.empty(4, device="cuda")), out)[1])
    first.replay()
    second.replay()
    assert b.tolist() == [2.0] * 4
    first.reset()
    del a
    second.replay()  # the segments are still mapped: as torch allows
    torch.cuda.empty_cache()
    with pytest.raises(gfxgraph.ReplayError, match="stale_pointer"):
        second.replay()


@pytest.mark.parametrize("is_known", [False, True])
def test_memory_without_an_owner_in_python_is_looked_for_when_memory_is_given_back(safe, is_known):
    """Taken from the allocator without a tensor, as cuBLAS does, or with one that only stands for it."""
    address = torch.cuda.caching_allocator_alloc(64)
    held = [simulator.tensor_at(address, (16,), (1,), torch.float32)]

    def body():
        out = torch.empty(16, device="cuda")
        triton(lambda k, o: o.copy_(k), held[0], out)
        if not is_known:
            held.clear()
        return out

    graph, _ = graph_of(body)
    graph.replay()
    torch.cuda.caching_allocator_delete(address)
    torch.cuda.empty_cache()
    with pytest.raises(gfxgraph.ReplayError, match=r"held\[0\]" if is_known else "no Python object refers to"):
        graph.replay()


def test_a_tensor_that_stands_for_anothers_memory_may_go_first(safe):
    """Nothing is stale while the owner lives."""
    owner = torch.ones(4, device="cuda")
    alias = simulator.tensor_at(owner.data_ptr(), (4,), (1,), torch.float32)
    out = torch.zeros(4, device="cuda")
    graph, _ = graph_of(lambda: (out.add_(1), triton(lambda k, o: o.add_(k), alias, out)))
    del alias
    graph.replay()
    assert out.tolist() == [2.0] * 4
    del owner
    with pytest.raises(gfxgraph.ReplayError, match="stale_pointer"):
        graph.replay()


def test_a_new_capture_after_the_refusal_works(safe):
    """reset() forgets the guard with the graph."""
    graph, _, kv, _ = capture_with_kv()
    del kv
    with pytest.raises(gfxgraph.ReplayError, match="stale_pointer"):
        graph.replay()
    graph.reset()
    x = torch.ones(2, device="cuda")
    with torch.cuda.graph(graph):
        y = x + 1
    graph.replay()
    assert y.tolist() == [2.0, 2.0]


def test_split_captures_are_watched_in_every_segment(safe):
    """The pointer stands behind a host step."""
    x = torch.arange(4.0, device="cuda")
    kv = torch.ones(4, device="cuda")

    def body():
        a = x * 2
        if a.sum().item() > 1:
            a = a + 1
        triton(lambda k, o: o.add_(k), kv, a)
        return a

    graph, result = graph_of(body)
    graph.replay()
    assert result.tolist() == [2.0, 4.0, 6.0, 8.0]
    del kv, body
    with pytest.raises(gfxgraph.ReplayError, match="stale_pointer"):
        graph.replay()


def test_a_kernel_whose_arguments_are_not_known_is_counted(safe, monkeypatch):
    """HIP before 7.11 and no code object: listed as unchecked, never passed as checked."""
    from gfxgraph.driver.params import KernelParams
    from gfxgraph_simulator.driver import SimDriver

    silent = KernelParams((1, 1, 1), (1, 1, 1), 0, 1, None, why_unknown="the library has no hipKernelGetParamInfo")
    monkeypatch.setattr(SimDriver, "node_params", lambda self, node, layout=None: silent)
    graph, _, _kv, _ = capture_with_kv()
    assert gfxgraph.stats()["guard_unchecked_nodes"] == 3
    (_, node), *_ = graph._guard.pointers.unchecked
    assert node.why_unchecked == "the library has no hipKernelGetParamInfo"


TABLE = """
	.amdgpu_metadata
---
amdhsa.kernels:
  - .args:
      - .address_space:  global
        .offset:         0
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         8
        .size:           8
        .value_kind:     global_buffer
      - .offset:         16
        .size:           4
        .value_kind:     hidden_block_count_x
    .group_segment_fixed_size: 0
    .name:           triton_kernel
    .symbol:         triton_kernel.kd
amdhsa.target:   amdgcn-amd-amdhsa--gfx1030
amdhsa.version:
  - 1
  - 2
...
	.end_amdgpu_metadata
"""  # the form of Triton 3.6's, compiled for gfx1030


def test_a_layout_from_tritons_assembly_makes_the_arguments_known(safe, monkeypatch):
    """Where the runtime does not tell, the kernel's text does, and the pointer is watched."""
    from gfxgraph.driver.params import KernelParams
    from gfxgraph_simulator.driver import SimDriver

    class CompiledKernel:
        asm: ClassVar[dict[str, str]] = {"amdgcn": TABLE.replace("triton_kernel", "another") + TABLE}

    real = SimDriver.node_params

    def only_with_layout(self, node, layout=None):
        if layout is None:
            return KernelParams((1, 1, 1), (1, 1, 1), 0, 1, None, why_unknown="no")
        assert layout == [(0, 8), (8, 8)]
        return real(self, node)

    monkeypatch.setattr(SimDriver, "node_params", only_with_layout)
    monkeypatch.setitem(sys.modules, "triton.compiler.compiler", types.SimpleNamespace(CompiledKernel=CompiledKernel))
    compiled = CompiledKernel()
    graph, _, kv, _ = capture_with_kv()
    del kv, compiled
    with pytest.raises(gfxgraph.ReplayError, match="stale_pointer"):
        graph.replay()


def test_off_is_the_very_call_it_was(tmp_path, monkeypatch):
    """At tier 0 a graph has no guard and its replay is the class's own."""
    with guarded("cuda", 0, tmp_path, monkeypatch):
        graph, _, kv, _ = capture_with_kv()
        del kv
        graph.replay()  # what torch alone does: reads what was freed
        assert graph._guard is None
        assert not isinstance(graph, torch.cuda.CUDAGraph._guarded_class)
        assert not list(tmp_path.rglob("*"))


def test_levels_by_number_and_by_name(tmp_path, monkeypatch):
    """guard_level answers, sets, and refuses what is no tier."""
    with guarded("cuda", "safe", tmp_path, monkeypatch):
        assert gfxgraph.guard_level() is gfxgraph.GuardTier.SAFE
        assert gfxgraph.guard_level("tier2") is gfxgraph.GuardTier.LOCALIZE
        assert gfxgraph.guard_level() == 2
        with pytest.raises(gfxgraph.ConfigError, match="bad_setting"):
            gfxgraph.guard_level("loud")
        assert gfxgraph.guard_level(0) is gfxgraph.GuardTier.OFF
        graph, _, _kv, _ = capture_with_kv()
        assert graph._guard is None
    monkeypatch.setenv("GFXGRAPH_GUARD", "deep")
    assert gfxgraph.guard_level() in (0, 3)  # a process that has enabled keeps its own


# -- layouts --------------------------------------------------------------------------------------------


def test_validate_layout_names_what_is_odd(safe):
    """One report, true where the tensor is plain."""
    x = torch.arange(12.0, device="cuda").view(3, 4)
    assert gfxgraph.validate_layout(x)
    report = gfxgraph.validate_layout(x[:, :2].t(), "mask")
    assert set(report.oddities) == {Oddity.PERMUTED, Oddity.GAPS, Oddity.SHARED}
    assert str(report).startswith(
        "mask: gaps between its elements, not in row-major order, a part of a larger storage ("
    )
    assert gfxgraph.validate_layout(x[:1].expand(5, 4)).oddities[0] is Oddity.BROADCAST
    with pytest.raises(gfxgraph.CaptureError, match="unsafe_layout"):
        gfxgraph.validate_layout(x[1:], strict=True)


def test_make_safe_copies_what_is_odd_and_counts_it(safe):
    """Nested containers; plain tensors are handed back as they are."""
    x = torch.arange(12.0, device="cuda").view(3, 4)
    odd = {"rows": x[1:], "wide": x[:1].expand(5, 4), "turned": x.t(), "conj": torch.ones(2, device="cuda")}
    made = gfxgraph.make_safe({**odd, "same": x, "n": 3})
    assert made["same"] is x and made["n"] == 3 and made["conj"] is odd["conj"]
    for name in ("rows", "wide", "turned"):
        assert gfxgraph.validate_layout(made[name]) and torch.equal(made[name], odd[name])
    assert gfxgraph.stats()["guard_repairs"] == 3


def test_make_capture_safe_takes_any_nesting(safe):
    """Tensors in containers are made safe, too."""
    x = torch.arange(6.0, device="cuda").view(2, 3)
    one, rest = gfxgraph.make_capture_safe((x.t(), {"mask": x.t(), "n": 3}))
    assert one.is_contiguous() and rest["mask"].is_contiguous() and rest["n"] == 3


def test_inputs_of_foreign_operations_are_repaired_inside_the_capture(safe):
    """The kernel gets plain memory; a replay copies what the input holds then; what it writes is left alone."""
    seen = types.SimpleNamespace(plain=[])

    @torch.library.custom_op("guardtest::scale", mutates_args=("out",))
    def scale(x: torch.Tensor, out: torch.Tensor) -> None:
        seen.plain.append((x.is_contiguous(), out.is_contiguous()))
        out.copy_(x * 2)

    big = torch.arange(12.0, device="cuda").view(3, 4)
    out = torch.zeros(2, 3, device="cuda")
    graph, _ = graph_of(lambda: scale(big[:, :2].t(), out))
    assert seen.plain == [(True, True)]
    assert gfxgraph.stats()["guard_repairs"] == 1
    graph.replay()
    assert out.tolist() == [[0.0, 8.0, 16.0], [2.0, 10.0, 18.0]]
    big.add_(1)
    graph.replay()
    assert out.tolist() == [[2.0, 10.0, 18.0], [4.0, 12.0, 20.0]]


@pytest.mark.parametrize("tier", [1, 2, 3])
def test_torch_is_asked_nothing_before_it_has_a_device(tier, tmp_path, monkeypatch):
    """Its allocator reads through a null pointer then; what the tier needs is switched as the device comes."""
    calls = []
    with guarded("cuda", 0, tmp_path, monkeypatch):
        for name in ("_cuda_isHistoryEnabled", "_cuda_record_memory_history", "_cuda_cudaCachingAllocator_enable"):
            stock = getattr(torch._C, name)
            monkeypatch.setattr(
                torch._C, name, lambda *a, n=name, call=stock, **k: (calls.append((n, *a[:1])), call(*a, **k))[1]
            )
        queued = []
        monkeypatch.setattr(torch.cuda, "_queued_calls", queued)
        with monkeypatch.context() as uninitialized:
            uninitialized.setattr(torch.cuda, "is_initialized", lambda: False)
            gfxgraph.guard_level(tier)
        assert calls == [] and queued
        for call, _ in queued:
            call()
        history, cache = "_cuda_record_memory_history", "_cuda_cudaCachingAllocator_enable"
        asked = [("_cuda_isHistoryEnabled",)]
        assert calls == (asked + [(history, "all"), (cache, False)] if tier == 3 else asked + [(history, "state")])
        calls.clear()
    assert calls == ([(cache, True), (history, None)] if tier == 3 else [(history, None)])


def test_the_guard_takes_no_reference_to_zero(safe, monkeypatch):
    """``torch.cuda.memory_snapshot()`` gives some away with each call; before Python 3.12 the integer 0 goes, one day."""

    def refused(*_):
        raise AssertionError("asked by a tuple")

    stock = torch._C._cuda_memorySnapshot
    monkeypatch.setattr(
        torch._C, "_cuda_memorySnapshot", lambda asked=None: stock(asked) if asked is None else refused()
    )
    x = torch.ones(4, device="cuda")
    graph, y = graph_of(lambda: triton(lambda a: a.add_(1), x) or x * 2)
    torch.cuda.empty_cache()
    graph.replay()
    assert y.tolist() == [4.0] * 4
