"""Which operations keep rows apart.

A tensor carries the rows of a dynamic dim along at most one of its dims, whose size is a constant times the number of
rows (``[n, 4, 8]`` viewed as ``[n * 4, 8]``, ``[2, n, 8]`` viewed as ``[2 * n, 8]``). The rows of the call are at its
front, padding is behind them, and no element of a row depends on a later row. So the place of the rows in a result
need not be computed: it is the one dim whose size is another one in the bucket. An operation that combines rows
either removes that dim (a sum, a product over it), which the shape shows, or keeps it (softmax, sort, convolution):
these have a rule. Any other operation is refused by name.

A mask of attention carries rows along two dims: what is computed element by element of rows here and rows there has
its front block from them alone. Attention over rows is allowed where no row sees a later one: it is causal, or its
mask is false there, whatever the arguments hold. That is known of masks which are computed from places
(``k <= q``), also where something else is taken away from them: such content follows from the sizes, and is computed.

Padding used as an index must be a valid one. Zeros are: so an argument's own memory, whatever view of it, is one
as it stands. What is computed from it is valid if padding repeats the last row. What counts positions is looked at.
"""

# ruff: noqa: TID253

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import torch


class Why(Enum):
    """Why an operation prevents the use of a bucket; the text is for the user, ``{dim}`` is the dim's name."""

    MIXES = "takes the rows of {dim} together, so padding would be counted; reduce later, or within each row"
    MOVES = "takes or moves rows of {dim} by their place; keep whole rows, and take some of them outside"
    INDEX = "takes an index that may be out of range in the padding; compute it from arguments alone"
    WRITES = "writes to memory that all rows of {dim} share, so padding would be written too; give each row its place"
    SIZE = "uses the size of {dim} as a value, which is another one in a bucket; pass it as a tensor argument"
    DRAWS = "draws more random numbers for more rows of {dim}, so later ones would differ; draw outside or use eval()"
    READS = "has a result whose value the host needs and that depends on rows of {dim}; compute it outside"
    NO_RULE = "has no rule that says whether rows of {dim} stay apart; move it outside the graphed function"
    FAILS = "is raised where no data is, at one of two sizes of {dim}; do not use it in Python or in constant tensors"
    OUTSIDE = "writes to a tensor that is no argument"
    OTHER = "is another operation in the bucket, or takes something else; do not use the size of {dim} in Python"
    GROWS = "has a size of {dim} that is not followed; keep one dim for each dynamic size, and put it first"
    BACKWARD = "has a backward that counts rows of {dim}, padding among them; use its plain form"
    OWN = "has a backward of its own, which may take the rows of {dim} together; use torch's operations instead"
    RETURNS = "returns the size of {dim} itself, which is another one in a bucket; read it from the argument"


@dataclass(frozen=True, slots=True)
class Cause:
    """The operation that mixes padding in, and why."""

    op: str
    stack_trace: str | None
    why: Why


@dataclass(slots=True)
class Memory:
    """What several tensors share."""

    has_rows: bool
    """Whether the tensor that it was made for carries rows; a view of it may carry what is not one."""
    is_given: bool = False
    """An argument's own, as it was given."""
    is_count: bool = False
    """Each element is the number of its row."""
    has_positions: bool = False
    """What was written to it may depend on the number of the row."""
    is_written: bool = False
    is_torn: bool = False
    """Whether other tensors share it in the bucket than in the call: a contiguous one is copied at one size only."""
    mixed: Cause | None = None
    """Why nothing is known of it any more."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the call, and the same one in the bucket.

    Attributes:
        shape: its sizes in the call.
        place: the dim that carries rows; None if the tensor is the same in a bucket.
        also: another one that does, of a mask.
        each: elements of that dim for each row, one behind the other.
        blocks: how many times that dim has all rows, one after the other.
        unknown: why nothing is known of it. It does no harm until it reaches a result or an effect.
        is_by_place: an element may depend on the number of its row.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    place: int | None = None
    each: int = 1
    unknown: Cause | None = None
    is_by_place: bool = False
    memory: Memory = field(default_factory=lambda: Memory(False))
    also: int | None = None
    blocks: int = 1
    computed: tuple[torch.Tensor, torch.Tensor] | None = None
    """Its content in the call and in the bucket, where that follows from the sizes alone; of bools that are only
    known to be false in places, all others true.
    """
    is_exact: bool = True

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def mixed(self) -> Cause | None:
        return self.unknown or self.memory.mixed

    @property
    def content(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        return None if self.memory.is_written else self.computed

    def counts(self) -> bool:
        """Whether each element is the number of its row."""
        if self.content is None or not self.is_exact:
            return self.memory.is_count
        return all(each.flatten().equal(torch.arange(each.numel(), dtype=each.dtype)) for each in self.content)

    @property
    def is_free(self) -> bool:
        """True if it is the same in both runs."""
        return self.place is None and self.mixed is None


class Unequal(NamedTuple):
    """An argument that is not a tensor, and is another one in the bucket."""

    own: Any
    large: Any


def differs(value: Any) -> bool:
    """Whether the argument, or one in the list, is another one in the bucket."""
    return isinstance(value, Unequal) or (isinstance(value, list) and any(map(differs, value)))


class JudgedOperation:
    """One operation in both runs: its arguments by name and its results, with `Value`s in place of tensors."""

    def __init__(self, op: Any, stack_trace: str | None, args: dict[str, Any], out: Sequence[Any]) -> None:
        self.op = op
        self.name: str = op._schema.name
        self.kind = self.name[:-1] if op._schema.is_mutable and self.name.endswith("_") else self.name
        """The name without the mark of the one that writes its result to an argument."""
        self.stack_trace = stack_trace
        self.args = args
        self.out = out
        self.needs_last = False
        """Padding must repeat the last row: rows are indices that were computed."""
        self.is_sized = False
        """Whether content that follows from the sizes was looked at: of another bucket it is another one."""

    def __getitem__(self, name: str) -> Any:
        return self.args.get(name)

    def cause(self, why: Why) -> Cause:
        return Cause(self.name, self.stack_trace, why)

    def tensors(self) -> Iterator[Value]:
        """All tensors among the arguments."""
        for value in self.args.values():
            for each in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(each, Value):
                    yield each

    def carrying(self) -> list[Value]:
        return [value for value in self.tensors() if value.place is not None]

    def keeps_pairs(self) -> bool:
        """Whether it takes elements of masks one by one, or none."""
        return torch.Tag.pointwise in self.op.tags or self.kind in _ONE_BY_ONE

    def usable_index(self, index: Value, size: int) -> Why | None:
        """Why the padding of an index may be out of range; None if it cannot. Notes what that needs."""
        if index.place is None:
            return None
        if index.content is not None and index.is_exact:
            used, self.is_sized = index.content[1], True
            return None if -size <= int(used.min()) and int(used.max()) < size else Why.INDEX
        if index.is_by_place or index.memory.has_positions:
            return Why.INDEX
        self.needs_last = self.needs_last or not index.memory.is_given
        return None

    def dims(self, ndim: int) -> list[int]:
        """The dims that it works along; all of them if it names none."""
        named = next((self.args[n] for n in ("dim", "dims", "dimension") if self.args.get(n) is not None), None)
        if named is None or named == []:
            return list(range(ndim))
        return [d % ndim for d in (named if isinstance(named, (list, tuple)) else [named])]


_RESHAPES = frozenset(f"aten::{name}" for name in "expand unsqueeze squeeze transpose permute t detach alias".split())
_ONE_BY_ONE = _RESHAPES | {"aten::clone", "aten::_to_copy", "aten::scaled_dot_product_attention"}
_FROM_SIZES = frozenset("aten::arange prims::iota aten::ones aten::zeros aten::full".split())
_MOST_COMPUTED = 1 << 22
"""Most elements of a tensor whose content is computed from the sizes."""

Rule = Callable[[JudgedOperation], "Why | None"]
"""Returns why rows do not stay apart, or None. Whether they are taken together is also seen from the shapes."""
SIZES = frozenset("size shape end length repeats stride N".split())
"""Arguments that are sizes; a size of rows anywhere else is used as a value."""
RULES: dict[str, Rule] = {}
"""By the operation's name, without overload."""


def rule(names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update((f"aten::{name}", function) for name in names.split())
        return function

    return register


def rule_of(step: JudgedOperation) -> Rule | None:
    found = RULES.get(step.kind)
    return by_shape if found is None and torch.Tag.pointwise in step.op.tags else found


@rule(
    "permute transpose t unsqueeze squeeze alias detach lift_fresh lift_fresh_copy clone contiguous expand _to_copy "
    "_conj copy zero masked_fill native_dropout _prelu_kernel hardswish log_sigmoid_forward fill polar complex rsub "
    "mm _int_mm bmm mv addmm addmv baddbmm addbmm dot linear matmul ger outer addr gru_cell lstm_cell floor_divide "
    "sum mean amax amin prod any all std var std_mean var_mean aminmax logsumexp norm linalg_vector_norm argmax "
    "argmin max min median nanmedian mode nansum kthvalue count_nonzero stack "
    "full zeros ones empty empty_strided new_full new_zeros new_ones new_empty new_empty_strided full_like "
    "zeros_like ones_like empty_like empty_permuted view_as_complex view_as_real grid_sampler_2d grid_sampler_3d "
    "sym_size sym_numel sym_stride sym_storage_offset _assert_tensor_metadata _fused_sdp_choice "
    "mse_loss smooth_l1_loss huber_loss binary_cross_entropy_with_logits kl_div affine_grid_generator"
)  # fmt: skip
def by_shape(step: JudgedOperation) -> Why | None:
    return Why.DRAWS if step.name == "aten::native_dropout" and step["train"] is not False else None


@rule("_softmax _log_softmax _safe_softmax softmax log_softmax sort topk argsort cumsum cumprod cummax cummin "
      "logcumsumexp glu _fft_r2c _fft_c2c _fft_c2r cat flip roll unbind split split_with_sizes chunk unsafe_split "
      "unsafe_split_with_sizes unsafe_chunk select")  # fmt: skip
def along(step: JudgedOperation) -> Why | None:
    """Along dims, which must not be that of the rows."""
    ndim = max(v.ndim for v in step.tensors())
    return Why.MOVES if any(v.place in step.dims(ndim) for v in step.carrying() if v.ndim == ndim) else None


def follows_from_sizes(step: JudgedOperation, made: Value, n: int) -> bool:
    """Whether a result's content can be computed.

    Args:
        n: its elements in the bucket.
    """
    if made.dtype not in (torch.bool, torch.int32, torch.int64) or n > _MOST_COMPUTED or step.op._schema.is_mutable:
        return False
    given = [*step.tensors()]
    is_known = all(each.content is not None for each in given) and (bool(given) or step.name in _FROM_SIZES)
    return is_known and (all(each.is_exact for each in given) or (step.name in _RESHAPES and len(given) == 1))


def false_at_least(step: JudgedOperation, sizes: Sequence[torch.Size]) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Where a conjunction is false whatever else is in it, as the content of `Value`; None if unknown.

    Args:
        sizes: of the result in the call and in the bucket.
    """
    known = [each.content for each in step.tensors() if each.content is not None]
    if not known or step.name != "aten::bitwise_and" or step.out[0].dtype is not torch.bool:
        return None
    one, other = (functools.reduce(torch.logical_and, each).expand(size) for each, size in zip(zip(*known), sizes))
    return one, other


# -- sizes and places ----------------------------------------------------------------------------------


@rule("repeat")
def repeat(step: JudgedOperation) -> Why | None:
    value: Value = step["self"]
    if value.place is None:
        return None
    is_repeated = step["repeats"][len(step["repeats"]) - value.ndim + value.place] != 1
    return Why.GROWS if is_repeated or differs(step["repeats"]) else None


@rule("view _unsafe_view reshape _reshape_alias")
def view(step: JudgedOperation) -> Why | None:
    """In row-major order, what is before the rows stays before them."""
    value, out = step["self"], step.out[0]
    if out.place is None or value.place is None or (step["dtype"] is not None and value.place == value.ndim - 1):
        return Why.GROWS
    return None if blocks_of(value, out) else Why.GROWS


def blocks_of(value: Value, out: Value) -> int:
    """How many times the rows lie in the one dim of a view; 0 if they are cut there."""
    blocks, rest = divmod(math.prod(value.shape[: value.place]) * value.blocks, math.prod(out.shape[: out.place]))
    return 0 if rest or out.each * out.blocks % (blocks or 1) else blocks


RULES["prims::iota"] = RULES["aten::arange"] = by_shape


@rule("slice")
def slice_(step: JudgedOperation) -> Why | None:
    value, out = step["self"], step.out[0]
    dim, is_front = (step["dim"] or 0) % value.ndim, step["start"] in (None, 0) and step["step"] == 1
    if value.place == dim:
        is_whole = (out.place, out.each, out.shape[dim]) == (dim, value.each, value.shape[dim])
        return None if is_front and is_whole else Why.MOVES
    return Why.SIZE if differs(step["end"]) and not is_front else None  # else as many as there are rows


@rule("constant_pad_nd")
def pad(step: JudgedOperation) -> Why | None:
    value: Value = step["self"]
    at = 2 * (value.ndim - 1 - (value.place or 0))
    return Why.MOVES if any(n != 0 for n in step["pad"][at : at + 2]) else None


# -- combining trailing dims, or all but the first -----------------------------------------------------


@rule("scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
      "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
      "_scaled_dot_product_attention_math _scaled_dot_product_fused_attention_overrideable tril triu")  # fmt: skip
def attention(step: JudgedOperation) -> Why | None:
    """Rows among the batch and the heads, or those that are attended to, if none sees a later one."""
    if step["dropout_p"]:
        return Why.DRAWS
    if all((v.place or 0) < v.ndim - 2 and v.also is None for v in step.carrying()):
        return None
    given = [step[name] for name in ("query", "key", "value")]
    mask, step.needs_last = step["attn_mask"], True  # zero times a padding that is no number is no number
    if None in given or any(v.place != v.ndim - 2 or v.each * v.blocks != 1 for v in given):
        return Why.MIXES
    if mask is None:
        return None if step["is_causal"] else Why.MIXES
    if mask.content is None or mask.dtype is not torch.bool or mask.also != mask.ndim - 1:
        return Why.MIXES
    step.is_sized = True
    return Why.MIXES if mask.content[1].triu(1).any() else None


@rule("_native_multi_head_attention _transformer_encoder_layer_fwd")
def encoder(step: JudgedOperation) -> Why | None:
    """Rows are the batch; a mask of type 0 has none."""
    named = [step[name] for name in ("src", "query", "key", "value", "mask") if step[name] is not None]
    mask = step["mask"]
    if step["mask_type"] == 0 and mask is not None and not mask.is_free:
        return Why.MIXES
    is_known = all(any(v is each for each in named) and v.place == 0 for v in step.carrying())
    return None if is_known else Why.MIXES


@rule("native_layer_norm _fused_rms_norm rms_norm layer_norm")
def norm(step: JudgedOperation) -> Why | None:
    first = next(step.tensors())
    is_within = first.place is not None and first.place < first.ndim - len(step["normalized_shape"])
    return None if is_within else Why.MIXES


@rule("native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional "
      "_native_batch_norm_legit_no_training _batch_norm_with_update_functional cudnn_batch_norm miopen_batch_norm "
      "_batch_norm_no_update")  # fmt: skip
def batch_norm(step: JudgedOperation) -> Why | None:
    is_training = step["training"] or "with_update" in step.name or step["running_mean"] is None
    return None if not is_training and next(step.tensors()).place != 1 else Why.MIXES


@rule(
    "convolution _convolution cudnn_convolution cudnn_convolution_transpose miopen_convolution "
    "miopen_convolution_transpose mkldnn_convolution native_group_norm avg_pool1d avg_pool2d avg_pool3d "
    "adaptive_avg_pool1d adaptive_avg_pool2d _adaptive_avg_pool2d _adaptive_avg_pool3d max_pool2d_with_indices "
    "max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d upsample_nearest1d upsample_nearest2d "
    "upsample_nearest3d upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d "
    "_upsample_nearest_exact2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa reflection_pad1d reflection_pad2d "
    "replication_pad1d replication_pad2d pixel_shuffle pixel_unshuffle channel_shuffle im2col col2im"
)
def batched(step: JudgedOperation) -> Why | None:
    """All but the first dim is combined."""
    return None if next(step.tensors()).place == 0 else Why.MIXES


@rule("lstm gru rnn_tanh rnn_relu")
def recurrent(step: JudgedOperation) -> Why | None:
    """Rows may be the batch, but not the time steps."""
    if step["batch_sizes"] is not None:
        return Why.NO_RULE
    if step["train"] and step["dropout"]:
        return Why.DRAWS
    value, given = step["input"], step["hx"] or step["hidden"]
    states = given if isinstance(given, list) else [given]
    batch = 0 if step["batch_first"] else 1
    rest = [v for v in step.tensors() if all(v is not each for each in (value, *states))]
    is_batch = value.ndim == 3 and value.place in (None, batch) and all(v.place in (None, 1) for v in states)
    return None if is_batch and all(v.is_free for v in rest) else Why.MIXES


# -- indices along other dims --------------------------------------------------------------------------------


def mixes_backward(step: JudgedOperation) -> bool:
    """Whether rows stay apart in the forward alone: its backward counts rows, or lists those that it touches."""
    return step.name == "aten::embedding" and bool(step["scale_grad_by_freq"] or step["sparse"])


@rule("embedding")
def embedding(step: JudgedOperation) -> Why | None:
    weight: Value = step["weight"]
    return step.usable_index(step["indices"], weight.shape[0]) if weight.is_free else Why.MOVES


@rule("index_select")
def index_select(step: JudgedOperation) -> Why | None:
    value: Value = step["self"]
    dim = step["dim"] % value.ndim
    return Why.MOVES if value.place == dim else step.usable_index(step["index"], value.shape[dim])


@rule("gather")
def gather(step: JudgedOperation) -> Why | None:
    value, each = step["self"], step["index"]
    dim = step["dim"] % value.ndim
    if value.place == dim or (value.place != each.place and (value.place is not None or each.place != dim)):
        return Why.MOVES
    return step.usable_index(each, value.shape[dim])


@rule("scatter scatter_add scatter_reduce")
def scatter(step: JudgedOperation) -> Why | None:
    value, each = step["self"], step["index"]
    source = step["src"] if step["src"] is not None else step["value"]
    if value.place is None:
        return Why.WRITES
    is_beside = isinstance(source, Value) and source.ndim and source.place != value.place
    if value.place == step["dim"] % value.ndim or each.place != value.place or is_beside:
        return Why.MOVES
    return step.usable_index(each, value.shape[step["dim"]])


@rule("index_copy index_add index_fill")
def index_copy(step: JudgedOperation) -> Why | None:
    value, source = step["self"], step["source"] if step["source"] is not None else step["value"]
    if value.place is None:
        return Why.WRITES
    is_beside = value.place != step["dim"] % value.ndim and step["index"].is_free
    return None if is_beside and (not isinstance(source, Value) or source.place in (None, value.place)) else Why.MOVES


@rule("index _unsafe_index")
def index(step: JudgedOperation) -> Why | None:
    """Rows are not indexed, except each row's own: ``x[arange(n), i]``, ``mask[:, arange(n)[:, None]]``."""
    value: Value = step["self"]
    indices: dict[int | None, Value] = {at: each for at, each in enumerate(step["indices"]) if each is not None}
    if any(each.dtype in (torch.bool, torch.uint8) for each in indices.values()):
        return Why.READS
    own = indices.pop(value.place, None)
    carry = any(each.place is not None for each in indices.values())
    if value.place is not None and (carry if own is None else own.place is None or not own.counts()):
        return Why.MOVES
    found = (step.usable_index(each, value.shape[at or 0]) for at, each in indices.items())
    return next((why for why in found if why is not None), None)


@rule("index_put _unsafe_index_put _index_put_impl")
def index_put(step: JudgedOperation) -> Why | None:
    value, given, mask = step["self"], step["values"], step["indices"][0]
    if value.place is None:
        return Why.WRITES
    if mask is not None and mask.dtype is torch.bool and len(step["indices"]) == 1:  # a number where the mask is set
        is_each = not given.ndim and given.is_free and not step["accumulate"]
        return None if is_each and mask.place in (None, value.place) else Why.READS
    return index(step)
