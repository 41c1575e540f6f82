"""Rules for operations that compute: element by element, along dims, over batches, and by contraction.

Most operations need no rule of their own. Those that torch tags as pointwise share one rule. Others are
rows of a table: which dims are combined (reductions and scans, by the schema's ``dim``), how many
trailing dims an operation combines (``LEADING``), or which labelled dims go where (``SPECS``).
"""

# ruff: noqa: TID253

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from gfxgraph.callables.padding.rows import (
    FREE,
    JudgedOperation,
    Padding,
    RowDependence,
    RowValue,
    Why,
    broadcast,
    merge,
    rule,
    values_in,
    wrap,
)

# -- element by element --------------------------------------------------------------------------

# Elementwise operations that torch does not tag as pointwise.
POINTWISE = (
    "where masked_fill hardswish _prelu_kernel hardswish floor_divide nan_to_num fake_quantize_per_tensor_affine "
    "log_sigmoid_forward isclose _conj conj real imag resolve_conj resolve_neg fill polar complex "
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams rsub softplus square "
    "logical_and logical_or logical_xor logical_not xlogy logit sgn heaviside erfinv "
    "native_dropout_backward frexp __and__ __or__ __xor__ __lshift__ __rshift__ bitwise_not"
).split()
MOVED = "alias detach lift lift_fresh lift_fresh_copy _to_copy clone contiguous _conj view_as_real_copy".split()
_NONNEGATIVE = "abs square relu exp sigmoid eq ne lt le gt ge logical_and logical_or logical_not isnan".split()
_DIVIDES = "floor_divide remainder fmod div".split()
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def pointwise(step: JudgedOperation) -> RowDependence:
    rows = broadcast(step, list(step.tensors()))
    name = step.name.rpartition("::")[2]
    if rows.mixed is None and rows.dims and name in _DIVIDES and not _divides_safely(step):
        return step.mixed(Why.INDEX, "an integer division by zero stops the program on some devices")
    return replace(rows, is_nonnegative=_is_nonnegative(step, name), below=_below(step, name))


def _below(step: JudgedOperation, name: str) -> int | torch.SymInt | None:
    """What all of the result is less than."""
    value, other = step["self"], step["other"]
    if step.out[0] is None or step.out[0].dtype is not torch.int64:
        return None
    if name in ("clamp", "clamp_max"):
        return step["max"] + 1 if isinstance(step["max"], int) else None
    if name == "remainder":
        return other if isinstance(other, int) and other > 0 else None
    if name == "add" and isinstance(value, RowValue) and value.rows.below is not None:
        return value.rows.below + other if isinstance(other, int) and step["alpha"] in (None, 1) else None
    return None


def _divides_safely(step: JudgedOperation) -> bool:
    """Whether an integer division by padding is safe: zero raises on a CPU, so padding must repeat a row."""
    divisor = step["other"]
    if not isinstance(divisor, RowValue) or divisor.dtype not in _INTEGERS or not divisor.rows.dims:
        return True
    if step.name == "aten::div" and step["rounding_mode"] is None:
        return True
    step.needs = Padding.LAST
    return divisor.rows.repeats


def _is_nonnegative(step: JudgedOperation, name: str) -> bool:
    """Whether no element can be negative, whatever the inputs hold."""
    given = [v for v in step.args.values() if isinstance(v, RowValue)]
    if name in _NONNEGATIVE:
        return True
    if name in ("clamp", "clamp_min"):
        least, most = step["min"], step["max"]
        return _at_least_zero(least) and (most is None or _at_least_zero(most))
    if name in ("mul", "add", "maximum", "minimum", "bitwise_and") and all(v.dtype is torch.int64 for v in given):
        numbers = [
            v for key, v in step.args.items() if not isinstance(v, RowValue) and v is not None and key != "alpha"
        ]
        alpha = step["alpha"]
        return (
            all(v.rows.is_nonnegative for v in given)
            and all(_at_least_zero(n) for n in numbers)
            and (alpha is None or _at_least_zero(alpha))
        )
    if name == "remainder":
        other = step["other"]
        return isinstance(other, int) and other > 0
    if name == "where":
        return all(v.rows.is_nonnegative for v in given if v is not step["condition"])
    return False


def _at_least_zero(number: Any) -> bool:
    if isinstance(number, RowValue):
        return number.rows.is_nonnegative
    return isinstance(number, (int, float)) and number >= 0


rule(" ".join(POINTWISE))(pointwise)


@rule(" ".join(MOVED))
def moved(step: JudgedOperation) -> RowDependence:
    value = next(step.tensors())
    integer = value.dtype in _INTEGERS and step.out[0].dtype in _INTEGERS
    below = value.rows.below if integer else None
    return replace(value.rows, is_nonnegative=value.rows.is_nonnegative and integer, below=below)


@rule("copy")
def copy(step: JudgedOperation) -> RowDependence:
    """``src`` broadcast to the shape of ``self``, whose values do not matter."""
    shape, src = RowValue(step["self"].shape, step["self"].dtype, FREE), step["src"]
    rows = broadcast(step, [shape, src])
    for dim, size in enumerate(shape.shape):
        if step.depends(size) and rows.mixed is None and dim not in rows.dims:
            rows = replace(rows, dims={**rows.dims, dim: None})
    return rows


def foreach(step: JudgedOperation) -> list[RowDependence] | RowDependence:
    """An operation over lists of tensors, element by element."""
    lists = [
        v for v in step.args.values() if isinstance(v, (list, tuple)) and any(isinstance(t, RowValue) for t in v)
    ]
    single = [v for v in step.args.values() if isinstance(v, RowValue)]
    return [broadcast(step, [*(each[i] for each in lists if i < len(each)), *single]) for i in range(len(step.out))]


@rule("binary_cross_entropy")
def checked_probability(step: JudgedOperation) -> RowDependence:
    """It asserts that its input lies in 0 to 1, in the padding as well."""
    if step["reduction"] != 0 and step["reduction"] is not None:
        return step.mixed()
    probability: RowValue = step["self"]
    if not step.usable_index(probability, -1):
        return step.mixed(Why.INDEX)
    return broadcast(step, list(step.tensors()))


@rule("mse_loss smooth_l1_loss huber_loss soft_margin_loss binary_cross_entropy_with_logits kl_div")
def loss(step: JudgedOperation) -> RowDependence:
    reduction = step["reduction"]
    return broadcast(step, list(step.tensors())) if reduction == 0 else step.mixed()


@rule("nll_loss_forward nll_loss2d_forward")
def class_loss(step: JudgedOperation) -> list[RowDependence] | RowDependence:
    """It asserts that its classes are in range, in the padding as well."""
    value, target, weight = step["self"], step["target"], step["weight"]
    if step["reduction"] != 0 or (weight is not None and not weight.rows.is_free) or value.ndim < 2:
        return step.mixed()
    if set(value.rows.dims) - {0} or set(target.rows.dims) - {0} or {*value.rows.dims.values(), 1, None} - {1, None}:
        return step.mixed()
    if not step.usable_index(target, -1):
        return step.mixed(Why.INDEX)
    return [RowDependence({0: 1}, value.rows.repeats and target.rows.repeats), FREE]


# -- along dims ------------------------------------------------------------------------------------


def dims_of(value: Any, ndim: int) -> list[int]:
    """The dims that a schema's ``dim`` names; all of them for None."""
    if value is None or (isinstance(value, (list, tuple)) and not value):
        return list(range(ndim))
    return [wrap(d, ndim) for d in (value if isinstance(value, (list, tuple)) else [value])]


@rule(
    "sum mean amax amin prod any all std var std_mean var_mean aminmax logsumexp norm linalg_vector_norm argmax "
    "argmin max min median nanmedian mode nansum kthvalue count_nonzero native_norm"
)
def reduce(step: JudgedOperation) -> list[RowDependence] | RowDependence:
    value: RowValue = step["self"] or step["input"]
    if step["other"] is not None:  # the maximum of two tensors
        return pointwise(step)
    which = dims_of(step["dim"], value.ndim)
    if step.name in ("aten::kthvalue", "aten::mode") and step["dim"] is None:
        which = [value.ndim - 1]
    if any(d in value.rows.dims for d in which):
        if step.name not in _IDEMPOTENT or len(step.out) > 1 or not value.rows.repeats:
            return step.mixed()
        step.needs = Padding.LAST  # repeating a row does not change a maximum
    kept = step["keepdim"]
    dims = {
        d if kept else d - sum(w < d for w in which): outer for d, outer in value.rows.dims.items() if d not in which
    }
    rows = RowDependence(dims, repeats=value.rows.repeats)
    is_place = step.name in ("aten::argmax", "aten::argmin")
    return [replace(rows, is_nonnegative=is_place or (i == 1 and out.dtype is torch.int64))
            for i, out in enumerate(step.out)]  # fmt: skip


_IDEMPOTENT = frozenset(f"aten::{name}" for name in "amax amin max min any all".split())


@rule("_softmax _log_softmax _safe_softmax softmax log_softmax sort topk argsort msort")
def along(step: JudgedOperation) -> list[RowDependence] | RowDependence:
    value: RowValue = step["self"]
    dim = 0 if step.name == "aten::msort" else -1 if step["dim"] is None else step["dim"]
    if value.ndim and wrap(dim, value.ndim) in value.rows.dims:
        return step.mixed()
    rows = RowDependence(value.rows.dims, repeats=value.rows.repeats)
    return [replace(rows, is_nonnegative=i == 1) for i in range(len(step.out))]


@rule("cumsum cumprod cummax cummin logcumsumexp _cummax_helper _cummin_helper")
def scan(step: JudgedOperation) -> list[RowDependence] | RowDependence:
    """Each element depends on those before it, so the front stays the front."""
    value: RowValue = step["self"]
    dim = wrap(step["dim"], value.ndim)
    if value.ndim and value.rows.dims.get(dim, 1) not in (1, None):
        return step.mixed()
    dims = {d: 1 if d == dim else outer for d, outer in value.rows.dims.items()}
    rows = RowDependence(dims, repeats=value.rows.repeats and dim not in dims)
    return [replace(rows, is_nonnegative=i == 1) for i in range(len(step.out))]


@rule("_masked_softmax")
def masked_softmax(step: JudgedOperation) -> RowDependence:
    value: RowValue = step["self"]
    dim = value.ndim - 1 if step["dim"] is None else wrap(step["dim"], value.ndim)
    mask: RowValue = step["mask"]
    if dim in value.rows.dims or (mask.ndim != value.ndim and mask.rows.dims):
        return step.mixed()
    return broadcast(step, [value, mask]) if mask.ndim == value.ndim else replace(value.rows, is_moved=False)


@rule("glu")
def halves(step: JudgedOperation) -> RowDependence:
    value: RowValue = step["self"]
    dim = wrap(-1 if step["dim"] is None else step["dim"], value.ndim)
    return step.mixed() if dim in value.rows.dims else RowDependence(value.rows.dims, value.rows.repeats)


@rule("tril triu", sizes="")
def triangle(step: JudgedOperation) -> RowDependence:
    """What is kept depends on the position, counted from the front."""
    value: RowValue = step["self"]
    last = {d: o for d, o in value.rows.dims.items() if d >= value.ndim - 2}
    if any(outer not in (1, None) for outer in last.values()):
        return step.mixed(Why.GROWS)
    dims = {d: 1 if d in last else outer for d, outer in value.rows.dims.items()}
    return RowDependence(dims, repeats=value.rows.repeats and not last, is_nonnegative=value.rows.is_nonnegative)


@rule("_fft_r2c _fft_c2c _fft_c2r")
def transform(step: JudgedOperation) -> RowDependence:
    value: RowValue = step["self"]
    if any(d in value.rows.dims for d in dims_of(step["dim"], value.ndim)):
        return step.mixed()
    return RowDependence(value.rows.dims, value.rows.repeats)


# -- operations that combine a number of trailing dims of their first argument -----------------------

LEADING = {
    1: "avg_pool1d adaptive_avg_pool1d max_pool1d_with_indices upsample_nearest1d upsample_linear1d "
    "_upsample_nearest_exact1d reflection_pad1d replication_pad1d max_pool1d adaptive_max_pool1d view_as_complex",
    2: "avg_pool2d adaptive_avg_pool2d _adaptive_avg_pool2d max_pool2d_with_indices adaptive_max_pool2d max_pool2d "
    "upsample_nearest2d upsample_bilinear2d upsample_bicubic2d _upsample_nearest_exact2d _upsample_bilinear2d_aa "
    "_upsample_bicubic2d_aa reflection_pad2d replication_pad2d linalg_inv_ex linalg_cholesky_ex "
    "mkldnn_adaptive_avg_pool2d mkldnn_max_pool2d _linalg_det col2im",
    3: "avg_pool3d _adaptive_avg_pool3d adaptive_avg_pool3d max_pool3d_with_indices adaptive_max_pool3d "
    "upsample_nearest3d upsample_trilinear3d reflection_pad3d replication_pad3d pixel_shuffle pixel_unshuffle "
    "channel_shuffle native_channel_shuffle im2col",
}
_LOOKS_ACROSS = {f"aten::{name}": n for n, names in LEADING.items() for name in names.split()}


@rule(" ".join(LEADING.values()))
def leading(step: JudgedOperation) -> RowDependence:
    """All tensors but the first must be the same in both runs."""
    first, *others = step.tensors()
    return _across(step, first, others, _LOOKS_ACROSS[step.name])


def _across(step: JudgedOperation, value: RowValue, others: Sequence[RowValue], n_across: int) -> RowDependence:
    for other in others:
        if not other.rows.is_free:
            return other.rows if other.rows.mixed else step.mixed()
    if any(d >= value.ndim - n_across for d in value.rows.dims):
        return step.mixed()
    return RowDependence(value.rows.dims, value.rows.repeats)


@rule("native_layer_norm _fused_rms_norm rms_norm layer_norm")
def norm(step: JudgedOperation) -> RowDependence:
    first, *others = step.tensors()
    return _across(step, first, others, len(step["normalized_shape"]))


@rule("native_group_norm", sizes="N HxW")
def group_norm(step: JudgedOperation) -> RowDependence:
    first, *others = step.tensors()
    return _across(step, first, others, first.ndim - 1)


@rule(
    "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional "
    "_native_batch_norm_legit_no_training _batch_norm_no_update _batch_norm_with_update "
    "_batch_norm_with_update_functional cudnn_batch_norm miopen_batch_norm batch_norm_elemt"
)
def batch_norm(step: JudgedOperation) -> list[RowDependence] | RowDependence:
    """Pointwise in evaluation. In training it combines the batch, and may write statistics without declaring it."""
    first, *others = step.tensors()
    is_training = step["training"] or "with_update" in step.name or step["running_mean"] is None
    if is_training and step.name != "aten::batch_norm_elemt":
        # Instance norm: rows are merged into the channels, which are normalized independently.
        is_instance = set(first.rows.dims) == {1} and all(set(v.rows.dims) <= {0} for v in others)
        if step["running_mean"] is None and is_instance:
            outer = first.rows.dims[1]
            if any(v.rows.mixed or v.rows.dims.get(0, outer) != outer for v in others):
                return step.mixed()
            repeats = first.rows.repeats and all(v.rows.repeats for v in others)
            return [RowDependence({1 if i == 0 else 0: outer}, repeats) for i in range(len(step.out))]
        raise step.refuse(Why.MIXES, "batch norm is in training mode; call eval()")
    for other in others:
        if not other.rows.is_free:
            return other.rows if other.rows.mixed else step.mixed()
    if 1 in first.rows.dims:
        return step.mixed()
    return [RowDependence(first.rows.dims, first.rows.repeats), *[FREE] * (len(step.out) - 1)]


# -- by labelled dims ---------------------------------------------------------------------------------

# "name:labels": one letter per dim. Rows may lie in dims whose letter is in the result as well. "_": a dim that is
# combined. "*": aligned to the result from the right, size 1 is broadcast. "...": all further dims are combined.
# Tensors that are not named must be the same in both runs. "-": a result that is not followed.
SPECS = {
    "mm _int_mm": "self:ik mat2:kj -> ij",
    "bmm": "self:bik mat2:bkj -> bij",
    "mv": "self:ik vec:k -> i",
    "addmv": "self:*i mat:ik vec:k -> i",
    "addmm _addmm_activation": "self:*ij mat1:ik mat2:kj -> ij",
    "baddbmm": "self:*bij batch1:bik batch2:bkj -> bij",
    "addr": "self:*ij vec1:i vec2:j -> ij",
    "ger outer": "self:i vec2:j -> ij",
    "_scaled_mm": "self:ik mat2:kj scale_a:i_ -> ij",
    "_weight_int8pack_mm _weight_int4pack_mm _weight_int4pack_mm_for_cpu mkldnn_linear": "self:i... -> i...",
    "convolution _convolution convolution_overrideable thnn_conv2d conv_depthwise3d _conv_depthwise2d slow_conv3d "
    "slow_conv_transpose2d slow_conv_transpose3d slow_conv_dilated2d slow_conv_dilated3d _slow_conv2d_forward "
    "cudnn_convolution cudnn_convolution_transpose cudnn_convolution_relu miopen_convolution "
    "miopen_convolution_transpose miopen_depthwise_convolution miopen_convolution_relu mkldnn_convolution "
    "mps_convolution": "input:n... self:n... -> n...",
    "grid_sampler_2d grid_sampler_3d cudnn_grid_sampler": "input:n... grid:n... -> n...",
    "affine_grid_generator": "theta:n... -> n...",
    "_thnn_fused_lstm_cell": "input_gates:b_ hidden_gates:b_ cx:b_ -> b_,b_,b_",
    "_thnn_fused_gru_cell": "input_gates:b_ hidden_gates:b_ hx:b_ -> b_,b_",
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention _scaled_dot_product_attention_math "
    "_scaled_dot_product_fused_attention_overrideable _scaled_dot_product_attention_math_for_mps":
    "query:b_l_ key:b___ value:b___ attn_bias:*b_l_ attn_mask:*b_l_ -> b_l_",
    "_flash_attention_forward _efficient_attention_forward": "query:b___ key:b___ value:b___ bias:b___ -> b___",
    "_native_multi_head_attention": "query:b__ key:b__ value:b__ mask:b... -> b__",
    "_transformer_encoder_layer_fwd": "src:b__ mask:b... -> b__",
}  # fmt: skip
_SPEC_OF = {f"aten::{name}": spec for names, spec in SPECS.items() for name in names.split()}
_WITHOUT = {
    "aten::_flash_attention_forward": ("cum_seq_q", "cum_seq_k", "seqused_k", "block_table"),
    "aten::_efficient_attention_forward": ("cu_seqlens_q", "cu_seqlens_k", "seqlen_k"),
    "aten::_scaled_dot_product_attention_math": ("dropout_mask",),
}


@rule(" ".join(SPECS), sizes="max_q max_k max_seqlen_q max_seqlen_k size")
def labelled(step: JudgedOperation) -> list[RowDependence] | RowDependence:
    if step["dropout_p"]:
        raise step.refuse(Why.DRAWS)
    if any(step[name] is not None for name in _WITHOUT.get(step.name, ())):
        return step.mixed(Why.NO_RULE, "lengths of packed sequences")
    given, _, results = _SPEC_OF[step.name].partition(" -> ")
    query, weight = step["query"], step["weight"]
    if step["is_causal"] and query is not None and any(d != 0 for d in query.rows.dims):
        return step.mixed(Why.NO_RULE, "causal attention over a dynamic length")
    if weight is not None and any(v.ndim != weight.ndim for v in (step["input"], step["self"]) if v is not None):
        return step.mixed(Why.NO_RULE, "without a batch")
    if step["mask_type"] == 0 and isinstance(step["mask"], RowValue) and not step["mask"].rows.is_free:
        return step.mixed()
    return by_labels(step, dict(each.split(":") for each in given.split()), results.split(","))


def by_labels(
    step: JudgedOperation, labels: dict[str, str], results: list[str]
) -> list[RowDependence] | RowDependence:
    carried: dict[str, int | None] = {}
    repeats = True
    for name, value in step.args.items():
        for each in values_in(value):
            rows = each.rows
            repeats = repeats and rows.repeats
            for dim, outer in rows.dims.items():
                label = _label(labels.get(name, "..."), dim, each.ndim)
                if label not in results[0] or not merge(carried, label, outer):  # type: ignore[arg-type]
                    return step.mixed()
    made = []
    for i, _ in enumerate(step.out):
        names = results[i] if i < len(results) else None
        if names is None:
            made.append(step.mixed(Why.NO_RULE, "only the first of its results is followed") if carried else FREE)
        else:
            made.append(RowDependence({names.index(label): outer for label, outer in carried.items()}, repeats))
    return made


def _label(labels: str, dim: int, ndim: int) -> str:
    """The letter of a dim; one that no result has if the dim is combined."""
    if labels.startswith("*"):
        labels = labels[1:]
        dim += len(labels) - ndim
    if dim >= len(labels.rstrip(".")) or labels[dim] in "_.":
        return "?"
    return labels[dim]


@rule("_cdist_forward _euclidean_dist")
def distances(step: JudgedOperation) -> RowDependence:
    """Of each row of the one to each row of the other."""
    left, right = step["x1"], step["x2"]
    if any(v.ndim - 1 in v.rows.dims for v in (left, right)):
        return step.mixed()
    dims = {d + (d == right.ndim - 2): outer for d, outer in right.rows.dims.items()}
    return broadcast(step, [left, replace(right, rows=replace(right.rows, dims=dims, counts=None))])


# -- recurrent layers -------------------------------------------------------------------------------


@rule("mkldnn_rnn_layer _cudnn_rnn miopen_rnn")
def recurrent(step: JudgedOperation) -> list[RowDependence] | RowDependence:
    """Rows may be the batch, but not the time steps, which depend on each other."""
    if step["train"] and step["dropout"]:
        raise step.refuse(Why.DRAWS)
    if step["batch_sizes"]:
        return step.mixed(Why.NO_RULE, "packed sequences")
    batch = 0 if step["batch_first"] else 1
    repeats, is_carried = True, False
    for name, value in step.args.items():
        if not isinstance(value, RowValue):
            if any(not v.rows.is_free for v in values_in(value)):
                return step.mixed()
            continue
        place = {"input": batch, "hx": 1, "cx": 1, "hx_": value.ndim - 2, "cx_": value.ndim - 2}.get(name, -1)
        if any(dim != place or outer not in (1, None) for dim, outer in value.rows.dims.items()):
            return step.mixed()
        repeats = repeats and value.rows.repeats
        is_carried = is_carried or bool(value.rows.dims)
    made = []
    for i, out in enumerate(step.out):
        if i > 2:
            made.append(step.mixed(Why.NO_RULE, "the workspace of a recurrent layer") if is_carried else FREE)
        elif out is None or not out.ndim or not is_carried:
            made.append(FREE)
        else:
            made.append(RowDependence({batch if i == 0 else out.ndim - 2: 1}, repeats))
    return made


# -- made from sizes ----------------------------------------------------------------------------------


@rule("full zeros ones empty empty_strided new_full new_zeros new_ones new_empty new_empty_strided "
      "full_like zeros_like ones_like empty_like empty_permuted",
      sizes="size stride", takes_mixed=True)  # fmt: skip
def constant(step: JudgedOperation) -> RowDependence:
    """One value everywhere. Of a tensor whose shape it copies, only the shape matters."""
    fill = step["fill_value"]
    if isinstance(fill, RowValue) and not fill.rows.is_free:
        return fill.rows if fill.rows.mixed else step.mixed()
    dims = {d: None for d, size in enumerate(step.out[0].shape) if step.depends(size)}
    name = step.name.rpartition("::")[2]
    return RowDependence(dims, is_nonnegative="zeros" in name or "ones" in name or _at_least_zero(fill))


@rule("arange", sizes="end")
def counted(step: JudgedOperation) -> RowDependence:
    start = 0 if step["start"] is None else step["start"]
    stride = 1 if step["step"] is None else step["step"]
    if not isinstance(start, (int, float)) or not isinstance(stride, (int, float)) or stride <= 0:
        return step.mixed(Why.SIZE)
    counts = (0, stride) if start == 0 and isinstance(stride, int) else None
    below = step["end"] if step.out[0].dtype is torch.int64 else None
    return RowDependence({0: 1}, repeats=False, counts=counts, is_nonnegative=start >= 0, below=below)


@rule("iota", sizes="length", namespace="prims")
def iota(step: JudgedOperation) -> RowDependence:
    start, stride = step["start"], step["step"]
    counts = (0, stride) if start == 0 and isinstance(stride, int) else None
    is_rising = start >= 0 and stride >= 0
    below = start + step["length"] * stride if is_rising and step["dtype"] is torch.int64 else None
    return RowDependence({0: 1}, repeats=False, counts=counts, is_nonnegative=is_rising, below=below)


@rule("sym_size sym_numel sym_stride sym_storage_offset _assert_tensor_metadata _fused_sdp_choice is_same_size "
      "_assert_scalar", sizes="size stride self", takes_mixed=True)  # fmt: skip
def looks_at_shape(step: JudgedOperation) -> RowDependence:
    return FREE


@rule("_local_scalar_dense item nonzero masked_select unique_dim _unique2 unique_consecutive nonzero_static equal "
      "is_nonzero _assert_async _functional_assert_async", takes_mixed=True)  # fmt: skip
def read(step: JudgedOperation) -> RowDependence:
    """The host waits for the value, or the result's size depends on it."""
    raise step.refuse(Why.READS)


@rule("native_dropout")
def dropout(step: JudgedOperation) -> RowDependence:
    if step["train"] is False or step["p"] == 0:
        return RowDependence(step["input"].rows.dims, step["input"].rows.repeats)
    raise step.refuse(Why.DRAWS)
