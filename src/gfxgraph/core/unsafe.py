"""The one table of operations that no GPU graph can record.

CUDA refuses most of them inside a capture, which ends it. HIP, depending on the version, refuses some, runs some
at once and records nothing. The recorder asks this table before an operation runs, so both
platforms behave alike. Operations missing here are still caught: by torch's own check for hidden
synchronization, and afterwards because the capture has ended.

Source: each ``aten`` row was run inside a stock capture on an H200 (torch 2.11.0+cu130) and either
raised or ended it; the rows marked HIP come from the runtime's behaviour by version as recorded
in tests/unit/test_unsafe_table.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Why a graph cannot hold the operation."""

    HOST_READ = "a value read by the host"
    DYNAMIC_SHAPE = "a shape that depends on data"
    HOST_COPY = "a copy from or to pageable host memory"
    SYNC = "a wait for the device"
    GENERATOR = "a random generator not registered with the graph"
    NOT_RECORDED = "work that the runtime runs at once instead of recording"


class When(StrEnum):
    """Which calls of the operation are unsafe."""

    ALWAYS = "always"
    CROSSES_DEVICE = "host and device tensors meet, unless pinned and non-blocking"
    HOST_OR_MASK_INDEX = "an index is a mask or lives on the host"
    NO_OUTPUT_SIZE = "output_size is not given"
    DIFFERENT_TENSORS = "the operands are not the same tensor"
    FOREIGN_GENERATOR = "the generator is not registered with the graph"
    TENSOR_STD = "the standard deviation is a tensor"
    RECORDED_NOTHING = "the capture gained no node from it"


@dataclass(frozen=True, slots=True)
class UnsafeOp:
    """One row: an operation, why a graph cannot hold it, and which calls are unsafe."""

    name: str
    kind: Kind
    reason: str
    when: When = When.ALWAYS


def _rows(kind: Kind, reason: str, names: str, when: When = When.ALWAYS) -> list[UnsafeOp]:
    return [UnsafeOp(name, kind, reason, when) for name in names.split()]


TABLE: tuple[UnsafeOp, ...] = (
    *_rows(
        Kind.HOST_READ,
        "it hands a device value to Python, which a replay does not run",
        "aten::_local_scalar_dense aten::item aten::is_nonzero aten::allclose aten::_linalg_check_errors",
    ),
    *_rows(
        Kind.HOST_READ,
        "it hands the outcome of a comparison to Python, which a replay does not run",
        "aten::equal",
        When.DIFFERENT_TENSORS,
    ),
    *_rows(
        Kind.DYNAMIC_SHAPE,
        "the size of its result depends on values, so the host must wait for them",
        "aten::nonzero aten::nonzero_numpy aten::argwhere aten::masked_select aten::_unique aten::_unique2 "
        "aten::unique_dim aten::unique_consecutive aten::unique_dim_consecutive aten::bincount "
        "aten::_to_sparse aten::to_sparse aten::_to_sparse_csr aten::_to_sparse_csc aten::_to_sparse_bsr "
        "aten::_to_sparse_bsc aten::_coalesce aten::combinations",
    ),
    *_rows(
        Kind.DYNAMIC_SHAPE,
        "the size of its result depends on values, so the host must wait for them",
        "aten::repeat_interleave",
        When.NO_OUTPUT_SIZE,
    ),
    *_rows(
        Kind.DYNAMIC_SHAPE,
        "a mask is turned into indices on the host, or the index itself comes from the host",
        "aten::index aten::index_put aten::index_put_ aten::_index_put_impl_ aten::_unsafe_index "
        "aten::_unsafe_index_put",
        When.HOST_OR_MASK_INDEX,
    ),
    *_rows(
        Kind.SYNC,
        "its implementation waits for the device to check arguments or results on the host",
        "aten::histc aten::_histogramdd_bin_edges aten::_histogramdd_from_bin_cts aten::histogram "
        "aten::segment_reduce aten::_linalg_svd aten::_linalg_eigh aten::_linalg_eigvals "
        "aten::linalg_eig aten::linalg_eigvals aten::linalg_lstsq aten::linalg_pinv aten::linalg_matrix_exp "
        "aten::_use_cudnn_ctc_loss aten::_ctc_loss aten::_cudnn_ctc_loss aten::ctc_loss "
        "aten::linalg_ldl_factor_ex aten::_embedding_bag_per_sample_weights_backward "
        "aten::_convert_indices_from_coo_to_csr aten::_sparse_coo_tensor_with_dims_and_tensors",
    ),
    *_rows(
        Kind.SYNC,
        "the host checks that the standard deviations are not negative",
        "aten::normal",
        When.TENSOR_STD,
    ),
    *_rows(
        Kind.HOST_COPY,
        "the copy would be recorded with a host address that is not kept, or has to wait for the device",
        "aten::copy_ aten::_to_copy aten::_copy_from aten::copy aten::_copy_from_and_resize",
        When.CROSSES_DEVICE,
    ),
    *_rows(
        Kind.SYNC,
        "it waits for the device, and nothing recorded has run yet",
        "torch.cuda.synchronize torch.cuda.Stream.synchronize torch.cuda.Event.synchronize "
        "torch.cuda.Stream.query torch.cuda.Event.query torch.cuda.Event.elapsed_time "
        "torch.cuda.empty_cache",
    ),
    *_rows(
        Kind.NOT_RECORDED,
        "the event was recorded outside the capture: CUDA refuses the wait, HIP records no edge for it",
        "torch.cuda.Stream.wait_event",
    ),
    *_rows(
        Kind.NOT_RECORDED,
        "a graph launched on a capturing stream is refused by CUDA and run at once by HIP",
        "torch.cuda.CUDAGraph.replay",
    ),
    *_rows(
        Kind.GENERATOR,
        "its random numbers would be the same at every replay",
        "torch.Generator",
        When.FOREIGN_GENERATOR,
    ),
    *_rows(
        Kind.GENERATOR,
        "it sets or reads the generator's state, which a replay would not do again",
        "torch.cuda.set_rng_state torch.cuda.get_rng_state torch.get_rng_state torch.set_rng_state",
    ),
    *_rows(
        Kind.NOT_RECORDED,
        "HIP has runtime calls that return success in a capture and record nothing (peer copies, "
        "cooperative launches before 7.2, stream memory operations before 10.0)",
        "any-operation",
        When.RECORDED_NOTHING,
    ),
)

BY_NAME: dict[str, UnsafeOp] = {row.name: row for row in TABLE}

NO_LAYOUT = UnsafeOp(
    "a sparse, nested or quantized tensor",
    Kind.DYNAMIC_SHAPE,
    "torch's code for such tensors reads sizes on the host, and keeps some of their content there",
)
