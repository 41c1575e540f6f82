"""Which operations keep rows apart, and where the rows are in a result.

A tensor carries the rows of a dynamic dim along at most one of its dims, whose size is a constant times the dim's
symbol (``[n, 4, 8]`` viewed as ``[4 * n, 8]``). The rows of the call are at its front, padding is behind them, and no
element of a row depends on another row. So the place of the rows in a result need not be computed: it is the one
dim whose size depends on the symbol. An operation that combines rows either removes that dim (a sum, a product over
it), which the shape shows, or keeps it (softmax, sort, convolution), which the tables here know. An operation that
is in no table is refused by name.

Padding used as an index must be a valid one. Zeros are: so an argument's own memory, whatever view of it, is one
as it stands. What is computed from it is valid if padding repeats the last row. What counts positions is neither.
"""

# ruff: noqa: TID253

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

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
    FIXED = "fixes the size of {dim}, so no other can be run; do not combine it with tensors of a constant size"
    GROWS = "has a size of {dim} that is not followed; keep one dim for each dynamic size, and put it first"
    RETURNS = "returns the size of {dim} itself, which is another one in a bucket; read it from the argument"


@dataclass(frozen=True, slots=True)
class Cause:
    """The operation that mixes padding in, and why."""

    op: str
    stack_trace: str | None
    why: Why
    detail: str = ""


class RowsRefused(Exception):
    """No bucket can be used, whatever happens to the operation's result."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause)
        self.cause = cause


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
    """An element may depend on the number of its row."""
    is_written: bool = False
    mixed: Cause | None = None
    """Why nothing is known of it any more."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the graph.

    Attributes:
        place: the dim that carries rows; None if the tensor is the same in a bucket.
        unknown: why nothing is known of it. It does no harm until it reaches a result or an effect.
        blocks: how often the rows lie there one after another. ``[4, n, 8]`` viewed as ``[4 * n, 8]``, as
            ``nn.MultiheadAttention`` does, has the rows in 4 blocks, each with its padding behind it.
    """

    shape: tuple[Any, ...]
    dtype: torch.dtype
    place: int | None = None
    unknown: Cause | None = None
    blocks: Any = 1
    memory: Memory = field(default_factory=lambda: Memory(False))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def mixed(self) -> Cause | None:
        return self.unknown or self.memory.mixed

    @property
    def is_free(self) -> bool:
        """True if it is the same in both runs."""
        return self.place is None and self.mixed is None

    @property
    def has_positions(self) -> bool:
        """Whether its padding may hold what only the number of the row says."""
        memory = self.memory
        return self.place is not None and (memory.is_count or memory.has_positions or not memory.has_rows)


class SymbolicSizes:
    """Sizes as expressions of the dynamic dim's symbol.

    Args:
        symbol: the dynamic dim's.
        simplify: returns an expression without replaced symbols.
    """

    def __init__(self, symbol: Any, simplify: Callable[[Any], Any]) -> None:
        self.symbol = symbol
        self._simplify = simplify

    def plain(self, size: Any) -> Any:
        return self._simplify(size.node.expr) if hasattr(size, "node") else size

    def depends(self, value: Any) -> bool:
        """Whether the size, or one in the list, is another one in a bucket."""
        if isinstance(value, (list, tuple)):
            return any(map(self.depends, value))
        plain = self.plain(value)
        return self.symbol in getattr(plain, "free_symbols", ())

    def times(self, size: Any) -> Any:
        """Elements for each row in a dim of this size; None if the size is no multiple of the number of rows."""
        each = self.plain(size) / self.symbol
        return None if self.symbol in each.free_symbols or not each.is_integer else each

    def product(self, sizes: Sequence[Any]) -> Any:
        product = self.symbol / self.symbol
        for size in sizes:
            product = product * self.plain(size)
        return product


class JudgedOperation:
    """One operation of the judged graph: its arguments by name, with `Value`s in place of tensors."""

    def __init__(
        self, op: Any, stack_trace: str | None, args: dict[str, Any], out: Sequence[Any], sizes: SymbolicSizes
    ) -> None:
        self.op = op
        self.name: str = op._schema.name
        self.kind = self.name[:-1] if op._schema.is_mutable and self.name.endswith("_") else self.name
        """The name without the mark of the one that writes its result to an argument."""
        self.stack_trace = stack_trace
        self.args = args
        self.out = out
        self.sizes = sizes
        self.needs_last = False
        """Padding must repeat the last row: rows are indices that were computed, or written to what rows share."""

    def __getitem__(self, name: str) -> Any:
        return self.args.get(name)

    def cause(self, why: Why, detail: str = "") -> Cause:
        return Cause(self.name, self.stack_trace, why, detail)

    def tensors(self) -> Iterator[Value]:
        """All tensors among the arguments."""
        for value in self.args.values():
            for each in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(each, Value):
                    yield each

    def carrying(self) -> list[Value]:
        return [value for value in self.tensors() if value.place is not None]

    def usable_index(self, index: Value, table: Any = None) -> Why | None:
        """Why the padding of an index may be out of range; None if it cannot. Notes what that needs.

        Args:
            table: size of the indexed dim; None if positions must not be used.
        """
        if index.place is None:
            return None
        if index.memory.is_count and table is not None and index.shape[index.place] <= table:  # a condition
            return None
        if index.has_positions:
            return Why.INDEX
        self.needs_last = self.needs_last or not index.memory.is_given
        return None


Rule = Callable[[JudgedOperation], "Why | None"]
"""Returns why rows do not stay apart, or None. Whether they are taken together is also seen from the shapes."""
SIZES = frozenset("size shape end length repeats stride N".split())
"""Arguments that are sizes; a size of rows anywhere else is used as a value."""
RULES: dict[str, Rule] = {}
"""By the operation's name, without overload."""


def rule(names: str, namespace: str = "aten") -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update((f"{namespace}::{name}", function) for name in names.split())
        return function

    return register


def rule_of(step: JudgedOperation) -> Rule | None:
    found = RULES.get(step.kind)
    return pointwise if found is None and torch.Tag.pointwise in step.op.tags else found


def wrap(dim: int, ndim: int) -> int:
    """A dim as a non-negative number."""
    return dim + ndim if dim < 0 else dim


# -- what the shapes show: element by element, products, reductions, constants ------------------------

_DIVISIONS = frozenset(f"aten::{name}" for name in ("floor_divide", "remainder", "fmod", "div"))


@rule("floor_divide")
def pointwise(step: JudgedOperation) -> Why | None:
    divisor = step["other"]
    if step.kind in _DIVISIONS and isinstance(divisor, Value) and divisor.place is not None:
        if not divisor.dtype.is_floating_point and step.out[0].dtype == divisor.dtype:
            if divisor.has_positions:
                return Why.INDEX
            step.needs_last = True  # some devices stop at an integer division by zero
    return None


@rule(
    "permute transpose t unsqueeze squeeze alias detach lift_fresh lift_fresh_copy clone contiguous expand _to_copy "
    "_conj copy zero masked_fill native_dropout _prelu_kernel hardswish log_sigmoid_forward fill polar complex rsub "
    "mm _int_mm bmm mv addmm addmv baddbmm addbmm dot linear matmul ger outer addr gru_cell lstm_cell "
    "sum mean amax amin prod any all std var std_mean var_mean aminmax logsumexp norm linalg_vector_norm argmax "
    "argmin max min median nanmedian mode nansum kthvalue count_nonzero "
    "full zeros ones empty empty_strided new_full new_zeros new_ones new_empty new_empty_strided full_like "
    "zeros_like ones_like empty_like empty_permuted view_as_complex view_as_real grid_sampler_2d grid_sampler_3d "
    "sym_size sym_numel sym_stride sym_storage_offset _assert_tensor_metadata _fused_sdp_choice "
    "mse_loss smooth_l1_loss huber_loss binary_cross_entropy_with_logits kl_div affine_grid_generator"
)  # fmt: skip
def by_shape(step: JudgedOperation) -> Why | None:
    return Why.DRAWS if step.name == "aten::native_dropout" and step["train"] is not False else None


@rule("repeat")
def repeat(step: JudgedOperation) -> Why | None:
    value: Value = step["self"]
    at = len(step["repeats"]) - value.ndim + (value.place or 0)
    return Why.GROWS if value.place is not None and (step["repeats"][at] != 1 or _size(step, "repeats")) else None


@rule("view _unsafe_view reshape _reshape_alias")
def view(step: JudgedOperation) -> Why | None:
    """In row-major order, what is before the rows must stay before them."""
    value = step["self"]
    if step["dtype"] is not None and value.place == value.ndim - 1:
        return Why.GROWS
    return Why.GROWS if value.place is None or blocks_of(step) is None else None


def blocks_of(step: JudgedOperation) -> Any:
    """In how many blocks a view has rows; None if they are not apart there."""
    value, out = step["self"], step.out[0].shape
    ends = [d for d, size in enumerate(out) if step.sizes.depends(size)]
    if len(ends) != 1 or step.sizes.times(out[ends[0]]) is None:
        return None
    blocks = step.sizes.product(value.shape[: value.place]) * value.blocks / step.sizes.product(out[: ends[0]])
    each = step.sizes.times(out[ends[0]]) / blocks
    return blocks if blocks.is_integer and each.is_integer else None


def _size(step: JudgedOperation, name: str) -> bool:
    return step.sizes.depends(step[name])


@rule("arange")
def arange(step: JudgedOperation) -> Why | None:
    start = step["start"] or 0
    return Why.SIZE if step.sizes.depends([start, step["step"] or 1]) else None


RULES["prims::iota"] = by_shape


# -- along dims, which must not be that of the rows ---------------------------------------------------


def dims_of(step: JudgedOperation, ndim: int) -> list[int]:
    """The dims that an operation works along; all of them if it names none."""
    named = next((step.args[n] for n in ("dim", "dims", "dimension") if step.args.get(n) is not None), None)
    if named is None or named == []:
        return list(range(ndim))
    return [wrap(d, ndim) for d in (named if isinstance(named, (list, tuple)) else [named])]


@rule("_softmax _log_softmax _safe_softmax softmax log_softmax sort topk argsort cumsum cumprod cummax cummin "
      "logcumsumexp glu _fft_r2c _fft_c2c _fft_c2r")  # fmt: skip
def along(step: JudgedOperation) -> Why | None:
    return Why.MIXES if any(v.place in dims_of(step, v.ndim) for v in step.carrying()) else None


@rule("cat flip roll unbind split split_with_sizes chunk unsafe_split unsafe_split_with_sizes unsafe_chunk "
      "select")  # fmt: skip
def beside(step: JudgedOperation) -> Why | None:
    ndim = max(v.ndim for v in step.tensors())
    values = [v for v in step.carrying() if v.ndim == ndim]
    return Why.MOVES if any(v.place in dims_of(step, ndim) for v in values) else None


@rule("stack")
def stack(step: JudgedOperation) -> Why | None:
    return None


@rule("slice")
def slice_(step: JudgedOperation) -> Why | None:
    value: Value = step["self"]
    dim, is_front = wrap(step["dim"] or 0, value.ndim), step["start"] in (None, 0) and step["step"] == 1
    if value.place == dim:
        is_whole = step.sizes.plain(step.out[0].shape[dim]) == step.sizes.plain(value.shape[dim])
        return None if is_front and is_whole else Why.MOVES
    return Why.SIZE if _size(step, "end") and not is_front else None  # else as many elements as there are rows


@rule("constant_pad_nd")
def pad(step: JudgedOperation) -> Why | None:
    value: Value = step["self"]
    at = 2 * (value.ndim - 1 - (value.place or 0))
    return Why.MOVES if any(n != 0 for n in step["pad"][at : at + 2]) else None


# -- combining trailing dims ---------------------------------------------------------------------------

ATTENTION = (
    "scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention _scaled_dot_product_attention_math "
    "_scaled_dot_product_fused_attention_overrideable"
)


@rule(ATTENTION)
def attention(step: JudgedOperation) -> Why | None:
    """Rows among the batch and the heads."""
    if step["dropout_p"]:
        return Why.DRAWS
    return Why.MIXES if any((v.place or 0) >= v.ndim - 2 for v in step.carrying()) else None


@rule("_native_multi_head_attention _transformer_encoder_layer_fwd")
def encoder(step: JudgedOperation) -> Why | None:
    """Rows are the batch; a mask of type 0 has none."""
    named = [step[name] for name in ("src", "query", "key", "value", "mask") if step[name] is not None]
    mask = step["mask"]
    if step["mask_type"] == 0 and mask is not None and not mask.is_free:
        return Why.MIXES
    is_known = all(any(v is each for each in named) and v.place == 0 for v in step.carrying())
    return None if is_known else Why.MIXES


@rule("tril triu")
def triangle(step: JudgedOperation) -> Why | None:
    return Why.MOVES if step["self"].place >= step["self"].ndim - 2 else None


def _only_first(step: JudgedOperation) -> bool:
    first, *others = step.tensors()
    return all(value.is_free for value in others)


@rule("native_layer_norm _fused_rms_norm rms_norm layer_norm")
def norm(step: JudgedOperation) -> Why | None:
    first = next(step.tensors())
    is_within = first.place is not None and first.place < first.ndim - len(step["normalized_shape"])
    return None if is_within and _only_first(step) else Why.MIXES


@rule("native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional "
      "_native_batch_norm_legit_no_training _batch_norm_with_update_functional cudnn_batch_norm miopen_batch_norm "
      "_batch_norm_no_update")  # fmt: skip
def batch_norm(step: JudgedOperation) -> Why | None:
    is_training = step["training"] or "with_update" in step.name or step["running_mean"] is None
    return None if not is_training and _only_first(step) and next(step.tensors()).place != 1 else Why.MIXES


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
    return None if next(step.tensors()).place == 0 and _only_first(step) else Why.MIXES


@rule("bucketize isin")
def look_up(step: JudgedOperation) -> Why | None:
    value = step["self"] or step["elements"]
    others = [v for v in step.tensors() if v is not value]
    return Why.MIXES if value is None or not all(v.is_free for v in others) else None


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


# -- indices -----------------------------------------------------------------------------------------------


@rule("embedding")
def embedding(step: JudgedOperation) -> Why | None:
    weight: Value = step["weight"]
    return step.usable_index(step["indices"], weight.shape[0]) if weight.is_free else Why.MOVES


@rule("index_select")
def index_select(step: JudgedOperation) -> Why | None:
    value: Value = step["self"]
    dim = wrap(step["dim"], value.ndim)
    return Why.MOVES if value.place == dim else step.usable_index(step["index"], value.shape[dim])


@rule("nll_loss_forward nll_loss2d_forward")
def class_loss(step: JudgedOperation) -> Why | None:
    value: Value = step["self"]
    if value.place != 0 or value.ndim < 2 or (step["weight"] is not None and not step["weight"].is_free):
        return Why.MIXES
    return Why.MIXES if step["reduction"] else step.usable_index(step["target"])


@rule("gather")
def gather(step: JudgedOperation) -> Why | None:
    value, each = step["self"], step["index"]
    dim = wrap(step["dim"], value.ndim)
    if value.place == dim or (value.place != each.place and (value.place is not None or each.place != dim)):
        return Why.MOVES
    return step.usable_index(each)


@rule("index _unsafe_index")
def index(step: JudgedOperation) -> Why | None:
    value: Value = step["self"]
    return _indexed(step, value, {p: i for p, i in enumerate(step["indices"]) if i is not None})


def _indexed(step: JudgedOperation, value: Value, indices: dict[int, Value]) -> Why | None:
    """Rows are not indexed, except each row's own: ``x[arange(n), i]``."""
    if any(each.dtype in (torch.bool, torch.uint8) for each in indices.values()):
        return Why.READS
    if value.place is not None and value.place not in indices:
        return Why.MOVES if any(each.place is not None for each in indices.values()) else None
    for place, each in indices.items():
        if place == value.place:
            is_own = each.memory.is_count and each.place is not None and step.sizes.times(value.shape[place]) == 1
            if not is_own or step.sizes.times(each.shape[each.place or 0]) != 1:
                return Why.MOVES
        else:
            why = step.usable_index(each, value.shape[place])
            if why is not None:
                return why
    return None


def _shared(step: JudgedOperation, given: Sequence[Value], adds: bool) -> Why | None:
    """Written to memory that rows share: harmless if padding repeats the write of the last row."""
    if adds or any(each.place is None or each.has_positions for each in given):
        return Why.WRITES
    step.needs_last = True
    return None


@rule("index_put _unsafe_index_put _index_put_impl")
def index_put(step: JudgedOperation) -> Why | None:
    value, given = step["self"], step["values"]
    indices = {p: i for p, i in enumerate(step["indices"]) if i is not None}
    mask = indices.get(0)
    if mask is not None and mask.dtype is torch.bool and len(indices) == 1:  # a number wherever the mask is set
        is_each = not given.ndim and given.is_free and not step["accumulate"]
        return None if is_each and mask.place in (None, value.place) else Why.READS
    why = _indexed(step, value, indices)
    if why is not None or value.place is not None:
        return why
    written = [*indices.values(), *([given] if not given.is_free else [])]
    carrying = [each for each in written if each.place is not None]
    if all(each.is_free for each in indices.values()):
        return Why.WRITES
    return _shared(step, carrying, bool(step["accumulate"]))


@rule("index_copy index_add index_fill")
def index_copy(step: JudgedOperation) -> Why | None:
    value, each = step["self"], step["index"]
    source = step["source"] if step["source"] is not None else step["value"]
    dim = wrap(step["dim"], value.ndim)
    if value.place is not None:
        is_beside = value.place != dim and each.is_free
        is_aligned = not isinstance(source, Value) or source.place in (None, value.place)
        return None if is_beside and is_aligned else Why.MOVES
    if not isinstance(source, Value) or source.place != dim or each.place != 0:
        return Why.WRITES
    return step.usable_index(each) or _shared(step, [each, source], step.kind != "aten::index_copy")


@rule("scatter scatter_add scatter_reduce")
def scatter(step: JudgedOperation) -> Why | None:
    value, each = step["self"], step["index"]
    source = step["src"] if step["src"] is not None else step["value"]
    if value.place is None:
        return Why.WRITES
    if value.place == wrap(step["dim"], value.ndim) or each.place != value.place:
        return Why.MOVES
    if isinstance(source, Value) and source.ndim and source.place != value.place:
        return Why.MOVES
    return step.usable_index(each)


WRITERS = frozenset(f"aten::{name}" for name in "index_put _unsafe_index_put _index_put_impl index_copy".split())
"""Operations that may write rows to a tensor without rows, which remains the same in both runs."""
COPIES = frozenset(("aten::clone", "aten::_to_copy"))
"""Operations that give zeros for zeros and positions for positions, in other memory."""
