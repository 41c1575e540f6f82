"""Facts about single ops that their schema does not contain.

Enters: op names (without ``aten::``).
Stays out: code; kernels.py and special_kernels.py use it.
"""

from __future__ import annotations

from typing import Final

# Ops whose CUDA kernels wait for the device before they can continue, because the shape of their output or an error
# depends on data: those that torch's tags say it of, and these.
SYNCING: Final = frozenset(
    "histc histc.out _to_sparse _to_sparse.sparse_dim _to_sparse_csr _to_sparse_csc _to_sparse_bsr "
    "_to_sparse_bsc".split()
)
NOT_SYNCING: Final = frozenset({"_ctc_loss", "linalg_lstsq", "linalg_lstsq.out"})
# These wait by thrust's stream synchronization, which torch does not guard on ROCm as it does memcpy_and_sync.
BY_THRUST: Final = frozenset({"unique_dim", "unique_consecutive", "unique_dim_consecutive"})

# With a byte or bool mask among the indices these expand it with nonzero.
MASK_INDEXING: Final = frozenset(
    {
        "index.Tensor",
        "index.Tensor_out",
        "index_put_",
        "index_put",
        "_index_put_impl_",
        "_unsafe_index.Tensor",
    }
)

# These accept CPU tensors with dims: index lists, lengths.
MIXED_DEVICES: Final = frozenset(
    {
        *MASK_INDEXING,
        "_ctc_loss",
        "_ctc_loss.Tensor",
        "_ctc_loss_backward",
        "_ctc_loss_backward.Tensor",
        "_pack_padded_sequence",
        "is_set_to",
        "_foreach_copy_",
    }
)

# CPU kernels that draw without a generator argument.
DRAWS_SILENTLY: Final = frozenset({"native_dropout", "_fused_dropout", "rrelu_with_noise_functional"})

# Registered at CUDA although no CPU kernel exists: composite kernels would require cuDNN, split one GPU kernel into
# many, or (kaiser_window) call a GPU kernel that a CPU build lacks, which ended the process up to torch 2.11.
ALSO: Final = (
    "convolution",
    "convolution_backward",
    "convolution_overrideable",
    "convolution_backward_overrideable",
    "kaiser_window",
    "kaiser_window.periodic",
    "kaiser_window.beta",
)
