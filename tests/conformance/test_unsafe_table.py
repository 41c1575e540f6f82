"""Every row of the unsafe table: the body completes, replay gives eager's values, state is as before."""

from __future__ import annotations

import pytest
import torch

import gfxgraph
from gfxgraph.core.unsafe import TABLE

HAS_GPU = torch.cuda.is_available()


def _spd(x):
    return x @ x.T + 16 * torch.eye(x.shape[0], device=x.device)


def _guarded(flag, value):
    """Use a host outcome as programs do: to decide."""
    return value + 1 if flag else value - 1


def _event_recorded_before():
    event = torch.cuda.Event()
    event.record()
    return event


def _sum(t):
    return t.sum() if t.is_cuda else t.sum().to("cuda")


# name -> body(x): x is an 8x8 positive device tensor; the result depends on x.
CASES = {
    "aten::_local_scalar_dense": lambda x: _guarded(x.sum().item() > -1, x),
    "aten::item": lambda x: _guarded(x.sum().item() > -1, x),
    "aten::is_nonzero": lambda x: _guarded(bool(x.sum()), x),
    "aten::allclose": lambda x: _guarded(torch.allclose(x, x * 2), x),
    "aten::_linalg_check_errors": lambda x: torch.linalg.cholesky(_spd(x)),
    "aten::equal": lambda x: _guarded(torch.equal(x, x + 1), x),
    "aten::nonzero": lambda x: (x > -1).nonzero() + 1,
    "aten::nonzero_numpy": lambda x: torch.stack((x > -1).nonzero(as_tuple=True)),
    "aten::argwhere": lambda x: torch.argwhere(x > -1) * 2,
    "aten::masked_select": lambda x: x.masked_select(x > -1) * 2,
    "aten::_unique": lambda x: torch._unique(x.argsort(1).flatten())[0] + 0 * x.sum().long(),
    "aten::_unique2": lambda x: x.argsort(1).unique() + 0,
    "aten::unique_dim": lambda x: torch.unique(torch.zeros_like(x), dim=0) + x.sum(),
    "aten::unique_consecutive": lambda x: torch.unique_consecutive(torch.zeros_like(x)) + x.sum(),
    "aten::unique_dim_consecutive": lambda x: torch.unique_consecutive(torch.zeros_like(x), dim=0) + x.sum(),
    "aten::bincount": lambda x: torch.bincount(x.argsort(1).flatten()) * 2,
    "aten::_to_sparse": lambda x: x.to_sparse().to_dense() + 1,
    "aten::to_sparse": lambda x: x.to_sparse().to_dense() + 1,
    "aten::_to_sparse_csr": lambda x: x.to_sparse_csr().to_dense() + 1,
    "aten::_to_sparse_csc": lambda x: x.to_sparse_csc().to_dense() + 1,
    "aten::combinations": lambda x: torch.combinations(x[0]) * 2,
    "aten::repeat_interleave": lambda x: x.repeat_interleave(
        torch.ones(8, dtype=torch.long, device="cuda") + 1, dim=0
    ),
    "aten::index": lambda x: x[x > -1] * 2,
    "aten::index_put": lambda x: torch.index_put(x * 1, (x > -1,), x.flatten() * 2),
    "aten::index_put_": lambda x: (x * 1).index_put_((x > -1,), x.flatten() * 2),
    "aten::histc": lambda x: torch.histc(x, bins=4),
    "aten::segment_reduce": lambda x: torch.segment_reduce(x[0], "sum", lengths=torch.full((2,), 4, device="cuda")),
    "aten::_linalg_svd": lambda x: torch.linalg.svdvals(_spd(x)),
    "aten::_linalg_eigh": lambda x: torch.linalg.eigvalsh(_spd(x)),
    "aten::linalg_eig": lambda x: torch.linalg.eig(_spd(x))[0].abs().sort()[0],
    "aten::linalg_lstsq": lambda x: torch.linalg.lstsq(_spd(x), x[:, :1])[0],
    "aten::linalg_pinv": lambda x: torch.linalg.pinv(_spd(x)),
    "aten::linalg_matrix_exp": lambda x: torch.matrix_exp(x / 10),
    "aten::normal": lambda x: torch.normal(x, x.abs() * 0) + 1,
    "aten::copy_": lambda x: x + torch.zeros(8, 8).copy_(x).to("cuda"),
    "aten::_to_copy": lambda x: x.cpu().to("cuda") * 2,
    "torch.cuda.synchronize": lambda x: (x + 1, torch.cuda.synchronize())[0] * 2,
    "torch.cuda.Stream.synchronize": lambda x: (x + 1, torch.cuda.current_stream().synchronize())[0] * 2,
    "torch.cuda.Event.synchronize": lambda x: (x + 1, _event_recorded_before().synchronize())[0] * 2,
    "torch.cuda.Stream.query": lambda x: _guarded(torch.cuda.current_stream().query() or True, x + 1),
    "torch.cuda.Event.query": lambda x: _guarded(_event_recorded_before().query() or True, x + 1),
    "torch.cuda.empty_cache": lambda x: (x + 1, torch.cuda.empty_cache())[0] * 2,
    "torch.Generator": lambda x: x + 0 * torch.rand(8, 8, device="cuda", generator=_GENERATOR[0]),
    "torch.cuda.get_rng_state": lambda x: _same_mask_twice(x),
    "torch.cuda.set_rng_state": lambda x: _same_mask_twice(x),
}
# Rows without a body of their own here, with the test that covers them.
ELSEWHERE = {
    "torch.cuda.Stream.wait_event": "tests/unit/gfxgraph_simulator/test_runtime_streams.py",
    "torch.cuda.Event.elapsed_time": "tests/unit/gfxgraph_simulator/test_runtime_streams.py",
    "torch.cuda.CUDAGraph.replay": "test_basic.py::test_replay_inside_capture",
    "torch.get_rng_state": "test_host_values.py, default_generator_forked",
    "torch.set_rng_state": "test_host_values.py, default_generator_forked",
    "any-operation": "tests/unit/gfxgraph_simulator (peer copies on HIP)",
}
# Rows for overloads and back-ends that reach the same implementation as a case above.
SAME_AS = {
    "aten::_to_sparse_bsr": "aten::_to_sparse_csr",
    "aten::_to_sparse_bsc": "aten::_to_sparse_csc",
    "aten::_coalesce": "aten::_to_sparse",
    "aten::_index_put_impl_": "aten::index_put_",
    "aten::_unsafe_index": "aten::index",
    "aten::_unsafe_index_put": "aten::index_put",
    "aten::_histogramdd_bin_edges": "aten::histc",
    "aten::_histogramdd_from_bin_cts": "aten::histc",
    "aten::histogram": "aten::histc",
    "aten::_linalg_eigvals": "aten::linalg_eig",
    "aten::linalg_eigvals": "aten::linalg_eig",
    "aten::_use_cudnn_ctc_loss": "aten::histc",
    "aten::_ctc_loss": "aten::histc",
    "aten::_cudnn_ctc_loss": "aten::histc",
    "aten::ctc_loss": "aten::histc",
    "aten::linalg_ldl_factor_ex": "aten::_linalg_check_errors",
    "aten::_embedding_bag_per_sample_weights_backward": "aten::histc",
    "aten::_convert_indices_from_coo_to_csr": "aten::_to_sparse_csr",
    "aten::_sparse_coo_tensor_with_dims_and_tensors": "aten::_to_sparse",
    "aten::copy": "aten::copy_",
    "aten::_copy_from": "aten::copy_",
    "aten::_copy_from_and_resize": "aten::copy_",
}
# Rows that newer versions of torch record as they are.
RECORDS_SINCE = {"aten::combinations": (2, 14)}
TORCH = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
_GENERATOR = []


def _same_mask_twice(x):
    """What activation checkpointing does: draw, rewind, draw the same again."""
    state = torch.cuda.get_rng_state()
    first = torch.rand(8, 8, device="cuda")
    torch.cuda.set_rng_state(state)
    second = torch.rand(8, 8, device="cuda")
    return x * (first - second + 1) + first


def test_every_row_has_a_case():
    """No row of the table goes untested."""
    names = {row.name for row in TABLE}
    assert names == set(CASES) | set(ELSEWHERE) | set(SAME_AS)


# Bodies whose split is another row's (composites), or that cannot split on every platform.
@pytest.mark.parametrize("name", sorted(CASES))
def test_row(capture, name):
    """The body completes, replay equals eager on new input, external state and generator are untouched.

    One that makes a sparse tensor is refused.
    """
    body = CASES[name]
    _GENERATOR[:] = [torch.Generator(device="cuda")]
    x = torch.rand(8, 8, device="cuda") + 0.1
    count = torch.zeros((), device="cuda")

    def step():
        count.add_(1)
        y = body(x * 1.5)
        return y * 2 if y.is_floating_point() or y.dtype is torch.long else y

    rng = torch.cuda.get_rng_state()
    if "to_sparse" in name:
        with pytest.raises(gfxgraph.CaptureError, match="refused_in_capture"):
            capture(step, warm=False)
        return
    graph, y = capture(step, warm=False)
    assert count.item() == 0
    assert torch.equal(torch.cuda.get_rng_state(), rng)
    if name in RECORDS_SINCE and TORCH >= RECORDS_SINCE[name]:
        assert gfxgraph.stats()["split_count"] == 0
    else:
        assert gfxgraph.stats()["split_count"] >= 1
    places = [e["where"] for e in gfxgraph.stats()["events"] if e["kind"] == "split"]
    assert all("test_unsafe_table.py" in place for place in places)
    for _ in range(2):
        x.copy_(torch.rand(8, 8) + 0.1)
        before = torch.cuda.get_rng_state()
        graph.replay()
        torch.cuda.synchronize()
        got = y.clone()
        torch.cuda.set_rng_state(before)
        n = count.item()
        want = step()
        assert torch.allclose(got, want, rtol=1e-3, atol=1e-4), name
        assert count.item() == n + 1


def test_a_histogram_of_a_given_range_is_recorded(capture):
    """As transformers counts the tokens of each expert."""
    experts = torch.tensor([0, 3, 3, 1], dtype=torch.int32, device="cuda")
    graph, y = capture(lambda: torch.histc(experts, bins=4, min=0, max=3).cumsum(0))
    experts.fill_(2)
    graph.replay()
    assert y.tolist() == [0, 0, 4, 4] and gfxgraph.stats()["split_count"] == 0


@pytest.mark.parametrize("which", ["default", "unregistered"])
def test_a_host_step_that_draws_first_is_undone(capture, which):
    """Random numbers drawn by the host's part of a split are given back, the first operation's too."""
    generator = torch.Generator(device="cuda") if which == "unregistered" else torch.cuda.default_generators[0]
    mean, std = torch.zeros(8, device="cuda"), torch.ones(8, device="cuda")
    before = generator.get_state()

    def body():
        torch.normal(mean, std, generator=generator)
        return torch.normal(mean, std, generator=generator)

    graph, y = capture(body, warm=False)
    assert torch.equal(generator.get_state(), before)
    graph.replay()
    generator.set_state(before)
    assert torch.equal(y, body())
