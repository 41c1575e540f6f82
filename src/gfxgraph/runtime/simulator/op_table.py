"""What the simulator must know of single ops beyond their schema.

Enters: op names (without ``aten::``).
Stays out: code; kernels.py and special_kernels.py act on it.
"""

from __future__ import annotations

from typing import Final

# Ops whose CUDA kernels read a value back before they can go on (memcpy_and_sync or a stream
# synchronization inside), so their output shape or their error depends on data.
SYNCING: Final = frozenset(
    {
        "_local_scalar_dense",
        "nonzero",
        "nonzero.out",
        "masked_select",
        "masked_select.out",
        "equal",
        "_unique",
        "_unique2",
        "unique_dim",
        "unique_consecutive",
        "unique_dim_consecutive",
        "repeat_interleave.Tensor",
        "bincount",
        "histc",
        "histc.out",
        "_ctc_loss.Tensor",
    }
)

# With a byte or bool mask among the indices these expand it by nonzero.
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

# CPU tensors with dims are welcome here: index lists, lengths.
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

# CPU kernels that draw without taking a generator.
DRAWS_SILENTLY: Final = frozenset({"native_dropout", "_fused_dropout", "rrelu_with_noise_functional"})

# Registered at CUDA although no CPU kernel exists for them: composite kernels would ask for cuDNN, or
# break one GPU kernel into many.
ALSO: Final = (
    "convolution",
    "convolution_backward",
    "convolution_overrideable",
    "convolution_backward_overrideable",
)
