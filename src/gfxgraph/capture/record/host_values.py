"""Values that leave the device inside a capture: what the program gets, and what its replays do with them.

Problem: a replay does not run Python, so a value that Python read at capture is a constant in everything computed
from it. Idea: a read splits the graph, each replay reads anew, and what the program made of the value is compared
with what it was. Only ``.item()`` of a floating-point tensor gives more than a constant: a number that carries its
expression. Its arithmetic gives another such number, and a torch call that takes it is repeated by each replay as a
whole, with the fresh number (splits.py). Whatever else Python or C makes of it, the outcome of a comparison, a text,
an int, is a plain value, and a guard. Whole numbers, lists and arrays are pinned as they are read: they decide sizes
and places, which a graph fixes. Host tensors computed from device values are *tainted*: computing with them is a host
step, not a constant.

The number is not a subclass of float: C code reads a float subclass directly, without a call, so
``array("f", [value])`` would go silently wrong. Here every such use calls ``__float__``. ``isinstance(value, float)``
still holds, through ``__class__``.

After the capture it shows the value of the latest replay.
"""

from __future__ import annotations

import builtins
import math
import operator
import sys
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import is_tensor_like

from gfxgraph.capture.patches.torch_functions import STOCK, session_here
from gfxgraph.capture.record.host_memory import lends_memory
from gfxgraph.capture.record.user_lines import is_made_by_dynamo, place, program_place
from gfxgraph.capture.replay.graph_tensors import flat, kept_identity, memory_of, overwrite
from gfxgraph.capture.replay.program import CallStep, HostStep, ReadStep, Step
from gfxgraph.core.expressions import Expressions, Ref, ValueGuard, same_value
from gfxgraph.core.tape import leaves, substitute, where_of
from gfxgraph.core.unsafe import BY_NAME, UnsafeOp
from gfxgraph.errors import CaptureError
from gfxgraph.types import OnUnsafe

_refilled: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()
"""Host tensors that a step of some program makes anew at each replay, by `memory_of`: a backward, or another graph,
that reads one is captured when it holds one call's values."""


def _below_modes(read: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Read a tensor as torch does: what modes and subclasses make of it is done once, with the number."""
    with torch._C.DisableTorchFunction():
        return read(*args, **kwargs)


def _content(session: Any, tensor: Tensor) -> Tensor:
    """A copy that the capture does not see."""
    session.recorder.paused = True
    try:
        with torch._C._InferenceMode(True):
            return tensor.clone()
    finally:
        session.recorder.paused = False


class HostValues:
    """The values that one capture read on the host."""

    def __init__(self, session: Any) -> None:
        # A weak reference: numbers outlive their capture, and a finished session must not wait for the collector.
        self._session = weakref.ref(session)
        self.numbers = Expressions()
        self._reads: dict[int, ReadStep] = {}
        self._given: list[weakref.ref[TrackedNumber]] = []
        self.tainted: dict[int, Any] = {}
        """Host memory that holds device values, by ``memory_of``, so that views of it are found too."""
        self._tensors: list[weakref.ref[Tensor]] = []
        """The tensors of that memory."""
        self._shared: list[tuple[Tensor, Tensor]] = []
        """Those that another thread may use, with their content as it was told of them."""

    # -- host tensors -------------------------------------------------------------------------------

    def taint(self, tensor: Tensor) -> None:
        if not self.tainted:
            STOCK.also("memory")
        memory = memory_of(tensor)
        if memory not in self.tainted:
            self.tainted[memory] = kept_identity(tensor)
        self._tensors.append(weakref.ref(tensor))
        self._capturing().recorder.is_wary = True

    def refills(self, tensor: Tensor) -> None:
        """A host tensor into which a step of this program writes values of the device at each replay."""
        self.taint(tensor)
        _refilled.setdefault(memory_of(tensor), tensor)

    def take_over(self) -> None:
        """Before the first operation: what other programs refill holds values of the device here, too."""
        for tensor in list(_refilled.values()):
            self.taint(tensor)
        self._tensors.clear()  # other threads are told of this program's own

    def is_tainted(self, tensor: Tensor) -> bool:
        return bool(self.tainted) and not tensor.is_cuda and memory_of(tensor) in self.tainted

    def reads_tainted(self, args: Any, kwargs: Any) -> bool:
        return any(map(self.is_tainted, flat(args, kwargs)))

    def comes_from_device(self, tensor: Tensor) -> bool:
        return tensor.is_cuda or self.is_tainted(tensor)

    def come_from_device(self, args: object, kwargs: object) -> bool:
        return any(map(self.comes_from_device, flat(args, kwargs)))

    # -- reads --------------------------------------------------------------------------------------

    def read_scalar(self, tensor: Tensor) -> Any:
        """``tensor.item()`` inside the capture: a number that carries its expression, or a plain one."""
        value, ref, where = self._read("Tensor.item", None, STOCK["item"], tensor)
        if type(value) is float and not is_made_by_dynamo():
            return self._give(value, ref)
        self.pin(ref, value, "Tensor.item", where)
        return value

    def read_plain(self, name: str, read: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What Python or C++ makes of a tensor and keeps (a text, a list, an index, a size): it is pinned."""
        value, ref, where = self._read(name, None, read, *args, **kwargs)
        self.pin(ref, value, name, where)
        return value

    def read_contents(self, tensor: Tensor, use: str, where: Any = None) -> None:
        """A host tensor's contents escape, as a NumPy array: they are pinned."""
        value, ref, where = self._read(use, where, STOCK["tolist"], tensor)
        self.pin(ref, value, use, where)

    def pin_lent(self, written: Iterable[Tensor]) -> None:
        """Host tensors hold values of the device now, and NumPy may read them unseen: they are pinned."""
        for tensor in written:
            if not tensor.is_cuda and self.is_tainted(tensor) and lends_memory(tensor):
                self.read_contents(tensor, "memory shared with NumPy")

    def share(self) -> None:
        """Another thread may use the program's host tensors from now on, which nobody sees: they are pinned."""
        session = self._capturing()
        tensors = {id(tensor): tensor for ref in self._tensors if (tensor := ref()) is not None}
        if not tensors or session.recorder.paused or session.policy is not OnUnsafe.SPLIT:
            return
        for tensor in tensors.values():
            self.read_contents(tensor, "memory that another thread may read", program_place())
        self._shared = [(tensor, _content(session, tensor)) for tensor in tensors.values()]

    def take_back(self) -> None:
        """Another thread may have written to the tensors that were pinned for it: replays repeat what it wrote."""
        session = self._capturing()
        for at, (tensor, content) in enumerate(self._shared):
            now = _content(session, tensor)
            if not same_value(STOCK["tolist"](content), STOCK["tolist"](now)):
                self._shared[at] = tensor, now
                session.add(CallStep("a write of another thread's", program_place(), partial(overwrite, tensor, now)))

    def read_copies(self, save: Callable[[], object], use: str) -> object:
        """Pin the copies made by a call that itself copies device memory to the host and passes it to C code."""
        session = self._capturing()
        n_before = len(session.program.steps)
        made = save()
        for step in session.program.steps[n_before:]:
            for copied in flat(step.out) if isinstance(step, HostStep) else ():
                if self.is_tainted(copied):
                    self.read_contents(copied, use)
        return made

    def decided(self, read: Callable[[], Any], outcome: object, name: str, where: Any) -> ReadStep:
        """Guard an operation that returns no tensor: the program may branch on it (``torch.equal``)."""
        ref, step = self._new_read(read, outcome, name, where)
        self.pin(ref, outcome, name, where)
        return step

    def _read(
        self, name: str, where: Any, read: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> tuple[Any, Ref, Any]:
        where = where or place()
        read = partial(_below_modes, read, *args, **kwargs)
        made: list[Ref] = []

        def make() -> tuple[Any, Step]:
            value = read()
            ref, step = self._new_read(read, value, name, where)
            made.append(ref)
            return value, step

        def again() -> HostStep:
            return HostStep(name, where, read, (), {}, None)

        value = self._capturing().split(BY_NAME["aten::_local_scalar_dense"], name, make, where, again)
        return value, made[0], where

    def _new_read(self, read: Callable[[], Any], value: Any, name: str, where: Any) -> tuple[Ref, ReadStep]:
        ref = self.numbers.add(value)
        step = self._reads[ref.row] = ReadStep(name, where, read, ref.row)
        return ref, step

    def generator_state(self, read: Callable[[], Tensor], name: str) -> Tensor:
        """The generator's state, read again at each replay into the same host tensor."""
        where = place()

        def make() -> tuple[Any, Step]:
            out = read()
            self.taint(out)

            def again() -> None:
                with torch._C._InferenceMode(True):
                    out.copy_(read())

            return out, CallStep(name, where, again)

        row: UnsafeOp = BY_NAME[name]
        return self._capturing().split(row, name, make, where)  # type: ignore[no-any-return]

    def _capturing(self) -> Any:
        session = self._session()
        assert session is not None  # a caller that splits holds the session
        return session

    @property
    def has_given(self) -> bool:
        """Whether the program has been given a number."""
        return bool(self._given)

    def needed_reads(self, steps: list[Step]) -> set[int]:
        """Rows of the reads that replays must make: for guards, for operations, and for numbers that outlive the
        capture.
        """
        wanted = [given._ref for ref in self._given if (given := ref()) is not None]
        for step in steps:
            if isinstance(step, ReadStep):
                wanted += [guard.subject for guard in step.guards]
            elif isinstance(step, HostStep) and step.takes_numbers:
                wanted += leaves((step.args, step.kwargs), Ref)
        return self.numbers.reads_of(wanted)

    def let_go(self) -> None:
        """The capture is over. What a read holds may need nodes of autograd's."""
        self._reads.clear()

    # -- numbers --------------------------------------------------------------------------------------

    def _give(self, value: float, ref: Ref) -> TrackedNumber:
        number = TrackedNumber(self, value, ref)
        self._given.append(weakref.ref(number))
        return number

    def ref_of(self, number: TrackedNumber) -> Ref:
        """The number's row; another capture's number is a read of this one: its value at replay time."""
        if number._keeper is self:
            return number._ref
        ref, step = self._new_read(lambda: number._value, number._value, "a value of another capture", place())
        self._capturing().add(step)
        return ref

    def computed(self, func: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """What ``func`` makes of numbers, some of them tracked: a number that carries the expression if it is a float
        and the capture goes on, else a plain value, which is guarded.
        """
        session = session_here()
        keeper = session.values if session is not None else self
        if keeper._is_over:
            return func(*map(_now, args))  # as it would be in eager code
        try:
            value = func(*map(_now, args))
        except (ArithmeticError, ValueError, TypeError):
            plain(args)  # the program may catch the error
            raise
        ref = keeper.numbers.add(value, func, tuple(substitute(arg, keeper.ref_of, TrackedNumber) for arg in args))
        if type(value) is float and func is not float and session is not None and session.policy is OnUnsafe.SPLIT:
            return keeper._give(value, ref)
        keeper.pin(ref, value, func.__name__)
        return value

    @property
    def _is_over(self) -> bool:
        session = self._session()
        return session is None or session.is_over

    def pin(self, ref: Ref, value: Any, use: str, where: Any = None) -> None:
        """A plain value that the program gets: each replay checks that it is the same.

        Raises:
            CaptureError: `host_value_escaped`, if the policy is "strict" and it is no answer.
        """
        if where is None or (where[0] is not None and where[0].co_filename.startswith("<")):
            where = program_place()
        step = self._reads[max(self.numbers.reads_of((ref,)))]
        session = self._session()
        if session is not None and session.policy is OnUnsafe.STRICT and not isinstance(value, (bool, str)):
            read_at, used_at = step.where, where_of(*where)
            raise session.failed(
                CaptureError("host_value_escaped", op=use, value=value, read_at=read_at, used_at=used_at)
            )
        guard = ValueGuard(ref, value, where_of(*where))
        if guard not in step.guards:
            step.guards.append(guard)


_interpreter = torch._C._functorch.peek_interpreter_stack


def _can_be_made_again(tensors: list[Tensor], kwargs: Any) -> bool:
    """True if the call would mean the same at a replay."""
    return not (
        "out" in kwargs
        # autograd keeps numbers and tensors of its own
        or (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))
        or torch.is_autocast_enabled("cpu")
        or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        or _interpreter() is not None
        or not all(type(tensor) in (Tensor, torch.nn.Parameter) for tensor in tensors)
    )


def passed(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a torch function that has tracked numbers among its arguments: a step with the fresh number, or the value
    is pinned.
    """
    session = session_here()
    if session is None or session.policy is not OnUnsafe.SPLIT or not _can_be_made_again(flat(args, kwargs), kwargs):
        return func(*plain(args), **plain(kwargs))
    return session.call_with_numbers(func, args, kwargs)


# -- what ``.item()`` returns inside a capture ---------------------------------------------------------------


class _TorchFunction:
    """Makes torch's C++ find ``__torch_function__``, but hides it from ``is_tensor_like``: a number is no tensor."""

    def __get__(self, number: Any, owner: Any) -> Any:
        if sys._getframe(1).f_code is is_tensor_like.__code__:
            raise AttributeError
        return _passed_to_torch


def _passed_to_torch(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    return passed(func, args, kwargs or {})


class _EqualToFloat(type):
    """What looks a type up finds float: tables of the program, ``copy``, ``statistics``, NumPy."""

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is float

    def __hash__(cls) -> int:
        return hash(float)

    def __call__(cls, *args: Any) -> Any:
        return super().__call__(*args) if len(args) > 1 else float(*args)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, float)


class TrackedNumber(metaclass=_EqualToFloat):
    """A float computed from values that the host read; see the module's docstring."""

    __torch_function__ = _TorchFunction()
    __class__ = property(lambda self: float)  # type: ignore[assignment]

    def __init__(self, keeper: HostValues, captured: float, ref: Ref) -> None:
        self._keeper = keeper
        """The ``HostValues`` of the capture that it was read in."""
        self._captured = captured
        self._ref = ref

    @property
    def _value(self) -> float:
        """The value in the latest replay; during the capture, its captured value."""
        try:
            return self._keeper.numbers.value(self._ref)  # type: ignore[no-any-return]
        except KeyError:
            return self._captured

    def __hash__(self) -> int:
        return hash(float(self))  # type: ignore[arg-type]

    def __reduce_ex__(self, protocol: object) -> Any:
        return float, (float(self),)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(float(self), name)  # type: ignore[arg-type]


def _one(func: Callable[..., Any]) -> Any:
    return lambda self, *args: self._keeper.computed(func, (self, *args))


def _two(func: Callable[..., Any], is_reflected: bool) -> Any:
    def method(self: TrackedNumber, other: Any) -> Any:
        if hasattr(other, "__torch_function__") and type(other) is not TrackedNumber:
            return NotImplemented  # a tensor's operator calls __torch_function__
        if isinstance(other, (int, float)):
            return self._keeper.computed(func, (other, self) if is_reflected else (self, other))
        mine = float(self)  # type: ignore[arg-type]
        return func(other, mine) if is_reflected else func(mine, other)

    return method


for _name in ("lt", "le", "gt", "ge", "eq", "ne", "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "divmod"):
    _func = getattr(operator, _name, divmod)
    setattr(TrackedNumber, f"__{_name}__", _two(_func, False))
    setattr(TrackedNumber, f"__r{_name}__", _two(_func, True))
for _name in (
    "abs",
    "neg",
    "pos",
    "round",
    "trunc",
    "floor",
    "ceil",
    "float",
    "int",
    "bool",
    "repr",
    "str",
    "format",
):
    _func = next(getattr(room, _name) for room in (builtins, math, operator) if hasattr(room, _name))
    setattr(TrackedNumber, f"__{_name}__", _one(_func))
TrackedNumber.__name__ = "number_read_in_a_capture"  # C code that refuses it names it in its TypeError


def _now(item: Any) -> Any:
    return item._value if type(item) is TrackedNumber else item


def plain(item: Any) -> Any:
    """Replace tracked numbers in the arguments by plain ones, which are pinned."""
    return substitute(item, float, TrackedNumber)


def now(item: Any) -> Any:
    """Arguments with current values."""
    return substitute(item, _now, TrackedNumber)


def holds_numbers(item: Any) -> bool:
    """True if a tracked number is among the arguments."""
    return next(leaves(item, TrackedNumber), None) is not None
