"""Watching one eager run: what it writes outside, which operations it ran, which index would fault.

A proof runs a function several times and must leave the process as if it had run once. So each
external tensor is copied before the first operation that writes to it; what was written can be
compared with another run's and undone.

A run on padded input may compute an index that no real input would give. On a GPU such an index is
not an exception: it asserts on the device, and every later call in the process fails. So indices and
probabilities are looked at before the operations that assert on them, on the host, and the run is
stopped in Python.

To name the operation that mixes padding into results, one run keeps what each operation gave and
the other is compared with it as it goes (``Comparison``).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gfxgraph.callables.padding.nearness import is_near
from gfxgraph.capture import autocasting
from gfxgraph.capture.memory import overwrite, storage_address
from gfxgraph.capture.overloads import OpInfo
from gfxgraph.capture.places import place
from gfxgraph.core.tape import where_of
from gfxgraph.core.unsafe import Kind, When
from gfxgraph.types import Where

T = TypeVar("T")
_LOOK_AHEAD = 8
"""Operations that one run may have more than the other, at one place."""
_OPS: dict[Any, OpInfo] = {}
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of a run."""

    name: str
    code: Any
    lasti: int
    passes_on: bool = False
    """It works element by element, or is a view that keeps to the front of each dim."""

    @property
    def where(self) -> Where:
        return where_of(self.code, self.lasti)


UNSEEN = Op("a kernel outside torch's dispatcher", None, -1)

Each = Callable[[int, Op, Any, Any], None]


class WouldFault(Exception):
    """An operation was about to be given a value that it asserts on; ``args[0]`` says which."""


@dataclass(slots=True, eq=False)
class Write:
    """An external tensor that a run wrote to."""

    tensor: Tensor
    before: Tensor
    op: Op
    after: Tensor | None = None


class Watch(TorchDispatchMode):
    """Stands at torch's dispatcher during one run.

    Args:
        checks_values: stop before an operation that would assert on the device.
        each: called after each operation that is not a view, with its number, its arguments and result.
    """

    supports_higher_order_operators = True

    def __init__(self, *, checks_values: bool = False, each: Each | None = None) -> None:
        super().__init__()
        self.checks_values = checks_values
        self.each = each
        self._depth = 0
        self.ops: list[Op] = []
        self.writes: dict[tuple[Any, ...], Write] = {}
        self.first_draw: Op | None = None
        self.read: list[tuple[Op, Any]] = []
        """Values that the host asked for, in order."""
        self.sized_by_data: Op | None = None
        """An operation whose result's size depends on values."""
        # Where this run put what it made. External memory lives all the while, so it lies elsewhere.
        self._own: set[int] = set()
        self.own: dict[int, Write] = {}
        """Writes left out, by the storage's address; held, so that no later run gets the same memory."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __enter__(self) -> Watch:
        if not self._depth:  # else from the handler
            autocasting.follow()
        self._depth += 1
        return super().__enter__()  # type: ignore[no-any-return]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._depth -= 1
        if not self._depth:
            autocasting.leave()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not hasattr(func, "_schema"):  # higher-order operators call back into this mode
            return func(*args, **kwargs)
        info = _OPS.get(func)
        if info is None:
            info = _OPS[func] = OpInfo(func)
        if info.is_composite:
            with self, autocasting.as_outside():
                return func._op_dk(_COMPOSITE, *args, **kwargs)
        op = Op(info.name, *place(), torch.Tag.pointwise in func.tags or (info.is_view and info.name not in PICKS))
        self.ops.append(op)
        if info.draws and self.first_draw is None:
            self.first_draw = op
        row = info.unsafe
        if row is not None and row.kind is Kind.DYNAMIC_SHAPE and self.sized_by_data is None and "put" not in op.name:
            if row.when is When.ALWAYS or info.applies(args, kwargs):  # type: ignore[misc]
                self.sized_by_data = op
        if self.checks_values and info.name in VALUE_RULES:
            problem = VALUE_RULES[info.name](args, kwargs)
            if problem:
                raise WouldFault(problem)
        for position, name in info.mutates or UNDECLARED.get(info.name, ()):
            target = args[position] if position < len(args) else kwargs.get(name)
            for tensor in target if isinstance(target, (list, tuple)) else (target,):
                if isinstance(tensor, Tensor):
                    self._note_write(tensor, op)
        out = func(*args, **kwargs)
        if isinstance(out, (bool, int, float, complex)):
            self.read.append((op, out))
        if info.makes_memory:
            for tensor in _tensors(out):
                if tensor.layout is torch.strided:
                    self._own.add(storage_address(tensor))
        if self.each is not None:
            self.each(len(self.ops) - 1, op, (args, kwargs), out)
        return out

    def _note_write(self, tensor: Tensor, op: Op) -> None:
        if tensor.layout is not torch.strided or storage_address(tensor) in self._own:
            return
        key = (tensor.data_ptr(), tuple(tensor.size()), tuple(tensor.stride()), tensor.dtype)
        if key not in self.writes:
            self.writes[key] = Write(tensor.detach(), tensor.detach().clone(), op)

    def expect(self, tensors: Sequence[Tensor]) -> None:
        """Before the run: copy what it is known to write unseen."""
        for tensor in tensors:
            self._note_write(tensor, UNSEEN)

    # -- after the run ----------------------------------------------------------------------------

    def leave_out_own(self, results: Sequence[Tensor], known: Collection[int]) -> None:
        """Forget writes to memory that the run itself made without torch's dispatcher, as compiled code does.

        Nobody has it but the results and the notes made here; what was there before has another holder,
        unless that holds the very tensor that is a result.

        Args:
            known: addresses of storages that were there before the run.
        """
        if not self.writes:
            return
        held: dict[int, set[int]] = {}
        for tensor in (*[write.tensor for write in self.writes.values()], *results):
            if tensor.layout is torch.strided:
                held.setdefault(storage_address(tensor), set()).add(id(tensor))
        for key, write in list(self.writes.items()):
            address = storage_address(write.tensor)
            if address not in known and n_holders(write.tensor) <= len(held[address]):
                self.own[address] = self.writes.pop(key)

    def take(self) -> None:
        """Copy what the run wrote, so that it can be compared after it is undone."""
        with torch.inference_mode():
            for write in self.writes.values():
                write.after = write.tensor.clone()

    def undo(self) -> None:
        """Make every external tensor what it was before the run."""
        with torch.inference_mode():
            for write in reversed(self.writes.values()):
                overwrite(write.tensor, write.before)

    def redo(self) -> None:
        """Make every external tensor what it was after the run (``take`` came before)."""
        with torch.inference_mode():
            for write in self.writes.values():
                if write.after is not None:
                    overwrite(write.tensor, write.after)


class ChecksValues(Watch):
    """Stops a run before an operation would assert on the device, and keeps nothing of what it writes."""

    def __init__(self) -> None:
        super().__init__(checks_values=True)

    def _note_write(self, tensor: Tensor, op: Op) -> None:
        pass


def n_holders(tensor: Tensor) -> int:
    """How many tensors lie over this one's storage, itself included."""
    return _counted(tensor) - _beyond()


@functools.cache
def _beyond() -> int:
    """What torch counts beyond the tensors themselves."""
    with torch._C._DisableTorchDispatch():
        return _counted(torch.empty(1, device="cpu")) - 1


def _counted(tensor: Tensor) -> int:
    storage = tensor.untyped_storage()  # held: its handle is valid no longer than it
    count: int = torch._C._storage_Use_Count(storage._cdata)
    return count


class Paired(Generic[T]):
    """What another run noted of its operations, found again by name in the order of this run's."""

    def __init__(self) -> None:
        self._noted: list[tuple[str, T]] = []
        self._at = 0

    def add(self, name: str, noted: T) -> None:
        self._noted.append((name, noted))

    def partner(self, name: str) -> T | None:
        """What was noted of the next operation of that name; None where none of the next few has it."""
        for at in range(self._at, min(self._at + _LOOK_AHEAD, len(self._noted))):
            if self._noted[at][0] == name:
                self._at = at + 1
                return self._noted[at][1]
        return None


class Comparison:
    """Finds the first operation that mixes padding into real values, side by side with another run.

    Where the real part of an intermediate lies is known by its size in the run that is not padded: the
    front of each dim. Operations that move elements about (a reshape of a transposed tensor, a flip)
    may put real values elsewhere though nothing is wrong, so they, and what works element by element
    on what they gave, are only suspects. The one to blame differs while what it was given does not,
    and is none of these; where there is no such operation, the first suspect is named.

    The runs need not be the same program: torch pads an attention mask to eight columns where it has five.
    Operations are paired by name, in order; one without a partner is a suspect, too.
    """

    def __init__(self, exact: bool) -> None:
        self.exact = exact
        self.kept = Paired[list[Tensor]]()
        self.sizes = Paired[list[tuple[int, ...]]]()
        self._moved: list[Tensor] = []
        self._culprit: Op | None = None
        self._suspect: Op | None = None

    @property
    def culprit(self) -> Op | None:
        return self._culprit or self._suspect

    def keep(self, position: int, op: Op, given: Any, out: Any) -> None:
        """For the run compared with."""
        self.kept.add(op.name, [t.detach().clone() for t in _tensors(out) if t.layout is torch.strided])

    def measure(self, position: int, op: Op, given: Any, out: Any) -> None:
        """For the un-padded run: where the real part of each result ends."""
        self.sizes.add(op.name, [tuple(t.size()) for t in _tensors(out) if t.layout is torch.strided])

    def compare(self, position: int, op: Op, given: Any, out: Any) -> None:
        """For the padded run."""
        if self._culprit is not None:
            return
        tensors = [t for t in _tensors(out) if t.layout is torch.strided]
        reference, sizes = self.kept.partner(op.name), self.sizes.partner(op.name)
        if reference is None or sizes is None:
            self._suspect = self._suspect or op
            return
        if self._is_clean(tensors, reference, sizes):
            return
        given_moved = any(t is u for t in _tensors(given) for u in self._moved)
        is_suspect = op.name in MOVES or (op.passes_on and given_moved)
        if self._suspect is None and is_suspect:
            self._suspect = op
        if is_suspect:
            self._moved.extend(tensors)
        else:
            self._culprit = op

    def _is_clean(self, tensors: list[Tensor], reference: list[Tensor], sizes: list[tuple[int, ...]]) -> bool:
        for tensor, other, size in zip(tensors, reference, sizes):
            mine, real = front(tensor.detach(), size), front(other, size)
            if mine is None or real is None or not is_near(mine, real, self.exact):
                return False
        return True


def front(tensor: Tensor, size: Sequence[int]) -> Tensor | None:
    """The part of ``tensor`` that an un-padded run of that ``size`` has; None where it has none."""
    if tensor.dim() != len(size):
        return None
    for dim, n in enumerate(size):
        if tensor.size(dim) < n:
            return None
        if tensor.size(dim) > n:
            tensor = tensor.narrow(dim, 0, n)
    return tensor


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)


@contextmanager
def one_thread_for_autograd() -> Iterator[None]:
    """A mode is not active in autograd's own threads."""
    before = torch.autograd.is_multithreading_enabled()
    torch._C._set_multithreading_enabled(False)
    try:
        yield
    finally:
        torch._C._set_multithreading_enabled(before)


# Operations that move whole elements and may change which dims they lie in or where in a dim.
MOVES = frozenset(
    f"aten::{name}"
    for name in (
        "view reshape _unsafe_view _reshape_alias cat stack flip roll repeat clone _to_copy copy_ unfold as_strided "
        "tile repeat_interleave contiguous pixel_shuffle rot90"
    ).split()
)


# Operations that write to arguments without saying so in their schema.
_STATISTICS = ((3, "running_mean"), (4, "running_var"))
UNDECLARED: dict[str, tuple[tuple[int, str], ...]] = {
    "aten::native_batch_norm": _STATISTICS,
    "aten::cudnn_batch_norm": _STATISTICS,
    "aten::miopen_batch_norm": _STATISTICS,
    "aten::_batch_norm_impl_index": _STATISTICS,
}

# Views that pick some of the elements.
PICKS = frozenset(f"aten::{name}" for name in "select slice narrow diagonal split unbind split_with_sizes".split())


# -- values that operations assert on ------------------------------------------------------------------


def _argument(args: Any, kwargs: Any, position: int, name: str) -> Any:
    return args[position] if position < len(args) else kwargs.get(name)


def _outside(index: Any, least: int, most: int, ignored: int | None = None) -> str:
    """What is wrong with an index tensor that must lie in ``least <= i < most``."""
    if not isinstance(index, Tensor) or index.numel() == 0 or index.dtype is torch.bool:
        return ""
    values = index.detach()
    bad = (values < least) | (values >= most)
    if ignored is not None:
        bad &= values != ignored
    if not bool(bad.any()):
        return ""
    return f"an index is {int(values[bad].flatten()[0])}, and {least} to {most - 1} are allowed"


def _along_dim(args: Any, kwargs: Any) -> str:
    source, dim, index = args[0], _argument(args, kwargs, 1, "dim"), _argument(args, kwargs, 2, "index")
    if not isinstance(dim, int):
        return ""
    return _outside(index, 0, source.size(dim) if source.dim() else 1)


def _advanced(args: Any, kwargs: Any) -> str:
    source, indices = args[0], _argument(args, kwargs, 1, "indices")
    dim = 0
    for index in indices:
        if isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8):
            dim += index.dim()
            continue
        if index is not None and dim < source.dim():
            problem = _outside(index, -source.size(dim), source.size(dim))
            if problem:
                return problem
        dim += 1
    return ""


def _embedding(args: Any, kwargs: Any) -> str:
    return _outside(_argument(args, kwargs, 1, "indices"), 0, args[0].size(0))


def _flat(args: Any, kwargs: Any) -> str:
    return _outside(_argument(args, kwargs, 1, "index"), -args[0].numel(), args[0].numel())


def _classes(args: Any, kwargs: Any) -> str:
    source = args[0]
    n_classes = source.size(1 if source.dim() > 1 else 0)
    ignored = _argument(args, kwargs, 4, "ignore_index")
    return _outside(_argument(args, kwargs, 1, "target"), 0, n_classes, ignored)


def _margin_classes(args: Any, kwargs: Any) -> str:
    return _outside(_argument(args, kwargs, 1, "target"), 0, args[0].size(-1))


def _masked_source(args: Any, kwargs: Any) -> str:
    mask, source = _argument(args, kwargs, 1, "mask"), _argument(args, kwargs, 2, "source")
    n_wanted = int(mask.detach().expand_as(args[0]).sum())
    return f"a mask asks for {n_wanted} elements of {source.numel()}" if n_wanted > source.numel() else ""


def _unpooled(args: Any, kwargs: Any) -> str:
    size = _argument(args, kwargs, 2, "output_size")
    return _outside(_argument(args, kwargs, 1, "indices"), 0, math.prod(size))


def _probability(args: Any, kwargs: Any) -> str:
    if not args or not isinstance(args[0], Tensor):
        return ""
    values = args[0].detach()
    if values.numel() and bool(((values < 0) | (values > 1) | values.isnan()).any()):
        return "a probability is outside 0 to 1"
    return ""


def _weights(args: Any, kwargs: Any) -> str:
    values = args[0].detach()
    bad = (values < 0) | ~values.isfinite()
    if bool(bad.any()) or bool((values.sum(-1) <= 0).any()):
        return "weights to draw from are negative, not finite or all zero"
    return ""


def _assertion(args: Any, kwargs: Any) -> str:
    return "" if bool(args[0].detach().all()) else "an assertion of the function is false"


VALUE_RULES: dict[str, Callable[[Any, Any], str]] = {
    "aten::embedding": _embedding,
    "aten::_embedding_bag": _embedding,
    "aten::_embedding_bag_forward_only": _embedding,
    "aten::index": _advanced,
    "aten::_unsafe_index": _advanced,
    "aten::index_put": _advanced,
    "aten::index_put_": _advanced,
    "aten::_index_put_impl_": _advanced,
    "aten::_unsafe_index_put": _advanced,
    "aten::take": _flat,
    "aten::put": _flat,
    "aten::put_": _flat,
    "aten::nll_loss_forward": _classes,
    "aten::nll_loss2d_forward": _classes,
    "aten::multi_margin_loss": _margin_classes,
    "aten::masked_scatter": _masked_source,
    "aten::masked_scatter_": _masked_source,
    "aten::max_unpool2d": _unpooled,
    "aten::max_unpool3d": _unpooled,
    "aten::binary_cross_entropy": _probability,
    "aten::bernoulli": _probability,
    "aten::bernoulli_": lambda args, kwargs: _probability(args[1:], kwargs),
    "aten::multinomial": _weights,
    "aten::_assert_async": _assertion,
}
VALUE_RULES |= dict.fromkeys(
    (
        f"aten::{name}{end}"
        for name in (
            "index_select gather scatter scatter_add scatter_reduce index_add index_copy index_fill index_reduce"
        ).split()
        for end in ("", "_")
    ),
    _along_dim,
)

# Operations that take a number below zero for one that counts from the end, and the argument that holds such.
FROM_THE_END = {
    f"aten::{name}": (1, "indices")
    for name in "index _unsafe_index index_put index_put_ _index_put_impl_ _unsafe_index_put".split()
}
FROM_THE_END |= {f"aten::{name}": (1, "index") for name in ("take", "put", "put_")} | {"aten::remainder": (0, "self")}


def counted_from_the_end(op: Op, given: Any) -> Iterator[Tensor]:
    """The whole numbers that the operation was given for such, where some of them are below zero."""
    if op.name in FROM_THE_END:
        args, kwargs = given
        for tensor in _tensors(_argument(args, kwargs, *FROM_THE_END[op.name])):
            numbers = tensor.detach()
            if numbers.dtype.is_signed and not numbers.is_floating_point() and bool((numbers < 0).any()):
                yield numbers
