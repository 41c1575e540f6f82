"""Values that leave the device inside a capture: what the program gets, and what its replays do with them.

Problem: a replay does not run Python, so a value that Python read at capture is a constant in everything computed
from it. Idea: a read (``.item()``, ``.tolist()``, an index, a size) splits the graph; the number that it returns
carries its expression: arithmetic gives another such number; a comparison becomes a question that each replay asks
again; a torch call that takes it is repeated by each replay as a whole, with the fresh number (dynamic_shapes.py).
Everything else that Python or C makes of it is a conversion to a plain number or text, and pins it: each replay
compares the value. Host tensors computed from device values are *tainted*: computing with them is a host step, not a
constant.

The number is not a subclass of float: C code reads a float subclass directly, without a call, so
``array("f", [value])`` would go silently wrong. Here every such use calls ``__float__`` or
``__index__``. ``isinstance(value, float)`` still holds, through ``__class__``. An int is one of torch's symbolic ints
besides, which torch's functions take as a size or an index without asking for its value first. Values of dtype bool
and results of comparisons are plain bools, guarded at once: ``flag is True`` cannot be observed.

After the capture it shows the value of the latest replay.
"""

from __future__ import annotations

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

from gfxgraph import torch_names
from gfxgraph.capture.patches.torch_functions import STOCK
from gfxgraph.capture.record.host_memory import lends_memory
from gfxgraph.capture.record.user_lines import place, wants_plain_numbers
from gfxgraph.capture.replay.graph_tensors import flat, kept_identity, memory_of, overwrite
from gfxgraph.capture.replay.program import CallStep, HostStep, ReadStep, Step
from gfxgraph.capture.state import StepSession
from gfxgraph.core.expressions import REFS, Expressions, Ref, ValueGuard, same_value
from gfxgraph.core.tape import Args, Kwargs, Place, leaves, substitute, where_of
from gfxgraph.core.unsafe import BY_NAME
from gfxgraph.errors import CaptureError
from gfxgraph.process import process
from gfxgraph.types import OnUnsafe

_READ = BY_NAME["aten::_local_scalar_dense"]
_MOST_NUMBERS = 4096
"""A longer list is pinned as a whole."""
_refilled: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()
"""Host tensors that a step of some program makes anew at each replay, by `memory_of`: a backward, or another graph,
that reads one is captured when it holds one call's values."""


def _below_modes(read: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Read a tensor as torch does: what modes and subclasses make of it is done once, with the number."""
    with torch.DisableTorchFunction():
        return read(*args, **kwargs)


def _content(session: StepSession, tensor: Tensor) -> Tensor:
    """A copy that the capture does not see."""
    session.recorder.paused = True
    try:
        with torch_names._InferenceMode(True):
            return tensor.clone()
    finally:
        session.recorder.paused = False


def _values_here() -> HostValues | None:
    """The host values of this thread's capture, or None while nothing is recorded."""
    session: Any = process.active_session()
    return session.values if session is not None and not session.recorder.paused else None


class HostValues:
    """The values that one capture read on the host."""

    have_given = False
    """Whether any capture has given a number to its program."""

    def __init__(self, session: StepSession) -> None:
        # A weak reference: numbers outlive their capture, and a finished session must not wait for the collector.
        self._session = weakref.ref(session)
        self.numbers = Expressions()
        self._reads: dict[int, ReadStep] = {}
        self._given: list[weakref.ref[TrackedNumber]] = []
        self.tainted: dict[int, object] = {}
        """Host memory that holds device values, by ``memory_of``, so that views of it are found too."""
        self._tensors: list[weakref.ref[Tensor]] = []
        """The tensors of that memory."""
        self._shared: list[tuple[Tensor, Tensor]] = []
        """Those that another thread may use, with their content as it was told of them."""

    # -- host tensors -------------------------------------------------------------------------------

    def taint(self, tensor: Tensor) -> None:
        if not self.tainted:
            STOCK.install_group("memory")
        memory = memory_of(tensor)
        if memory not in self.tainted:
            self.tainted[memory] = kept_identity(tensor)
        self._tensors.append(weakref.ref(tensor))
        self._capturing().recorder.is_wary = True

    def note_refilled(self, tensor: Tensor) -> None:
        """A host tensor into which a step of this program writes values of the device at each replay."""
        self.taint(tensor)
        _refilled.setdefault(memory_of(tensor), tensor)

    def take_over(self) -> None:
        """Before the first operation: what other programs refill holds values of the device here, too."""
        for tensor in list(_refilled.values()):
            self.taint(tensor)
        self._tensors.clear()  # other threads are told of this program's own

    def is_tainted(self, tensor: Tensor) -> bool:
        if not self.tainted or tensor.is_cuda:
            return False
        with torch.DisableTorchFunction():  # dynamic_shapes.py would take the look at its memory for the program's
            return memory_of(tensor) in self.tainted

    def reads_tainted(self, args: Args, kwargs: Kwargs) -> bool:
        return any(self.is_tainted(t) for t in flat(args, kwargs))

    def comes_from_device(self, tensor: Tensor) -> bool:
        return tensor.is_cuda or self.is_tainted(tensor)

    def come_from_device(self, args: object, kwargs: object) -> bool:
        return any(map(self.comes_from_device, flat(args, kwargs)))

    # -- reads --------------------------------------------------------------------------------------

    def read_scalar(self, tensor: Tensor, name: str) -> Any:
        """``tensor.item()`` inside the capture: a number that carries its expression, or a plain bool."""
        value, ref, where = self._read(partial(_below_modes, STOCK["item"], tensor), name)
        if not isinstance(value, bool):
            return self.give_number(value, ref, where)
        self.escaped(ref, value, name, where)
        return value

    def read_list(self, tensor: Tensor) -> Any:
        """``tensor.tolist()``: one read, and a number for each element."""
        if tensor.dim() == 0:
            return self.read_scalar(tensor, "Tensor.tolist")
        to_list = partial(_below_modes, STOCK["tolist"], tensor)
        value, ref, where = self._read(to_list, "Tensor.tolist")
        if tensor.dtype is torch.bool or tensor.numel() > _MOST_NUMBERS:
            self.escaped(ref, value, "Tensor.tolist()", where)
            return value
        if self._capturing().moving.among((tensor,), {}):
            length = self.numbers.add(len(value), len, (ref,))
            self.escaped(length, len(value), "the length of a list", where)
        return self.elements(value, ref)

    def elements(self, value: Any, ref: Ref) -> Any:
        if not isinstance(value, list):
            return self.give_number(value, ref)
        return [
            self.elements(part, self.numbers.add(part, operator.getitem, (ref, index)))
            for index, part in enumerate(value)
        ]

    def read_contents(self, tensor: Tensor, use: str, where: Place | None = None) -> None:
        """A host tensor's contents escape, as a NumPy array: they are pinned."""
        value, ref, where = self._read(partial(_below_modes, STOCK["tolist"], tensor), use, where)
        self.escaped(ref, value, use, where)

    def pin_lent(self, written: Iterable[Tensor]) -> None:
        """Host tensors hold values of the device now, and NumPy may read them unseen: they are pinned."""
        for tensor in written:
            if not tensor.is_cuda and self.is_tainted(tensor) and lends_memory(tensor):
                self.read_contents(tensor, "memory shared with NumPy")

    def pin_shared(self) -> None:
        """Another thread may use the program's host tensors from now on, which nobody sees: they are pinned."""
        session = self._capturing()
        tensors = {id(tensor): tensor for ref in self._tensors if (tensor := ref()) is not None}
        if not tensors or session.recorder.paused or session.policy is not OnUnsafe.SPLIT:
            return
        for tensor in tensors.values():
            self.read_contents(tensor, "memory that another thread may read", place())
        self._shared = [(tensor, _content(session, tensor)) for tensor in tensors.values()]

    def record_shared_writes(self) -> None:
        """Another thread may have written to the tensors that were pinned for it: replays repeat what it wrote."""
        session = self._capturing()
        for at, (tensor, content) in enumerate(self._shared):
            now = _content(session, tensor)
            if not same_value(_below_modes(Tensor.tolist, content), _below_modes(Tensor.tolist, now)):
                self._shared[at] = tensor, now
                session.add(CallStep("a write of another thread's", place(), partial(overwrite, tensor, now)))

    def read_plain(self, name: str, read: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What Python or C++ makes of a tensor and keeps (a text, an index, a size): it is pinned."""
        value, ref, where = self._read(partial(_below_modes, read, *args, **kwargs), name)
        self.escaped(ref, value, name, where)
        return value

    def read_copies(self, save: Callable[[], object], use: str) -> object:
        """Pin the copies made by a call that itself copies device memory to the host and passes it to C code."""
        session = self._capturing()
        n_before = len(session.program.steps)
        made = save()
        for step in session.program.steps[n_before:]:
            if isinstance(step, HostStep):
                for copied in flat(step.out):
                    if self.is_tainted(copied):
                        self.read_contents(copied, use)
        return made

    def guard_outcome(self, read: Callable[[], Any], outcome: object, name: str, where: Place) -> ReadStep:
        """Guard an operation that returns a bool, on which the program branches (``torch.equal``), or a number."""
        ref, step = self.new_read(read, outcome, name, where)
        self.escaped(ref, outcome, name, where)
        return step

    def _read(self, read: Callable[[], Any], name: str, where: Place | None = None) -> tuple[Any, Ref, Place]:
        where = where or place()
        made: list[Ref] = []

        def make() -> tuple[Any, Step]:
            value = read()
            ref, step = self.new_read(read, value, name, where)
            made.append(ref)
            return value, step

        value = self._capturing().split(_READ, name, make, where)
        return value, made[0], where

    def new_read(self, read: Callable[[], Any], value: Any, name: str, where: Place) -> tuple[Ref, ReadStep]:
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
                with torch_names._InferenceMode(True):
                    out.copy_(read())

            return out, CallStep(name, where, again)

        return self._capturing().split(BY_NAME[name], name, make, where)  # type: ignore[no-any-return]

    def _capturing(self) -> Any:
        session = self._session()
        assert session is not None  # a caller that splits holds the session
        return session

    @property
    def sees_calls(self) -> bool:
        """Whether torch's calls are seen now, in this thread."""
        here = _values_here()
        return here is not None and here._capturing().moving.sees_calls

    @property
    def has_given_numbers(self) -> bool:
        """Whether the program has been given a number."""
        return bool(self._given)

    # -- numbers --------------------------------------------------------------------------------------

    def give_number(self, value: Any, ref: Ref, where: Place | None = None) -> Any:
        """The number that the program gets; pinned, and plain, where torch's calls with it could not be seen."""
        is_int = isinstance(value, int)
        if wants_plain_numbers() or (is_int and not self._capturing().moving.starts()):
            self.escaped(ref, value, "a plain number", where)
            return value
        number = (TrackedInt if is_int else TrackedNumber)(self, value, ref)
        HostValues.have_given = True
        self._given.append(weakref.ref(number))
        return number

    def _ref_of(self, number: TrackedNumber) -> Ref:
        """The number's row; one of another capture is a read of this one: its value at replay time."""
        if number._keeper is self:
            return number._ref
        ref, step = self.new_read(lambda: number._value, number._value, "a value of another capture", place())
        self._capturing().add(step)
        return ref

    def own_refs(self, item: Any) -> Any:
        """Arguments with references in place of tracked numbers, as a step stores them."""
        return substitute(item, self._ref_of, NUMBERS)

    def compute(self, func: Callable[..., Any], args: tuple[Any, ...], kind: str = "") -> Any:
        """What ``func`` makes of numbers, some of them tracked: a number that carries the expression, or a plain
        value, which is guarded.

        Args:
            kind: what it is converted to, if it escapes as that.
        """
        here = _values_here()
        keeper = here or self
        if keeper._is_over:
            return func(*now(args))  # as it would be in eager code
        try:
            value = func(*now(args))
        except (ArithmeticError, ValueError, TypeError):
            plain(args)  # the program may catch the error
            raise
        ref = keeper.numbers.add(value, func, keeper.own_refs(args))
        flows = not kind and here is not None and here._capturing().policy is OnUnsafe.SPLIT
        if flows and isinstance(value, tuple):
            return tuple(keeper.elements([*value], ref))
        if flows and is_number(value) and not isinstance(value, bool):
            return keeper.give_number(value, ref)
        keeper.escaped(ref, value, kind or getattr(func, "__name__", str(func)))
        return value

    def call_torch(self, func: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
        """Call a torch function that has tracked numbers among its arguments."""
        here = _values_here()
        if here is None:
            return func(*plain(args), **plain(kwargs))
        return here._capturing().moving.by_number(func, args, kwargs)

    def host_tensor(self, make: Callable[..., Tensor], data: Any, name: str) -> Tensor:
        """Make a host tensor from numbers, some of them tracked; each replay makes it again."""
        where = place()
        spec, values = self.own_refs(data), now(data)

        def step() -> tuple[Any, Step]:
            out = make(values)
            self.taint(out)
            return out, HostStep(name, where, make, (spec,), {}, out, is_symbolic=True)

        return self._capturing().split(_READ, name, step, where)  # type: ignore[no-any-return]

    def needed_reads(self, steps: list[Step]) -> set[int]:
        """Rows of the reads that replays must make: for guards, for operations, and for numbers that outlive the
        capture.
        """

        wanted = [given._ref for ref in self._given if (given := ref()) is not None]
        for step in steps:
            if isinstance(step, ReadStep):
                wanted += [guard.subject for guard in step.guards]
            elif isinstance(step, HostStep) and step.is_symbolic:
                wanted += leaves((step.args, step.kwargs), REFS)
        return self.numbers.reads_of(wanted)

    def release(self) -> None:
        """The capture is over. Autograd's nodes may hold numbers, and what a read holds may need those nodes."""
        self._reads.clear()
        for given in self._given:
            if type(number := given()) is TrackedInt:
                number.as_number()

    # -- guards -------------------------------------------------------------------------------------

    @property
    def _is_over(self) -> bool:
        session = self._session()
        return session is None or session.is_over

    def escaped(self, ref: Ref, value: Any, use: str, where: Place | None = None) -> None:
        """A plain value that the program gets: each replay checks that it is the same.

        Raises:
            CaptureError: `host_value_escaped`, if the policy is "strict" and it is no answer.
        """
        session = self._session()
        if session is None or session.is_over:
            return  # after the capture it is a plain number, as it would be in eager code
        where = where or place()
        step = self._reads[max(self.numbers.reads_of((ref,)))]
        if session.policy is OnUnsafe.STRICT and not isinstance(value, bool):
            read_at, used_at = step.where, where_of(*where)
            raise session.failed(
                CaptureError("host_value_escaped", op=use, value=value, read_at=read_at, used_at=used_at)
            )
        guard = ValueGuard(ref, value, where_of(*where))
        if guard not in step.guards:
            step.guards.append(guard)


# -- what ``.item()`` returns inside a capture ---------------------------------------------------------------


_MISSING: object = object()
_PLAIN = (bool, int, float, complex)


class _TorchFunction:
    """Makes torch's C++ find ``__torch_function__``, but hides it from ``is_tensor_like``: a number is no tensor."""

    def __get__(self, number: Any, owner: Any) -> Any:
        is_seen = type(number) is TrackedInt and number._keeper.sees_calls
        if is_seen or sys._getframe(1).f_code is is_tensor_like.__code__:
            raise AttributeError  # the first of several sizes is refused if it has one
        return _passed_to_torch


def _passed_to_torch(func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None) -> Any:
    keeper = next(leaves((args, kwargs), NUMBERS))._keeper
    return keeper.call_torch(func, args, kwargs or {})


class _OfNumbers(type):
    """``statistics`` asks which of two types is the wider one: Python's own."""

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, (int, float))


class TrackedNumber(metaclass=_OfNumbers):
    """A number computed from values that the host read; see the module's docstring."""

    _keeper: Any
    """The ``HostValues`` of the capture that it was read in."""
    _captured: object
    _ref: Ref

    def __new__(cls, keeper: Any, captured: Any = _MISSING, ref: Any = None) -> Any:
        if captured is _MISSING:  # called as type(value)(other), as the statistics module does
            return float(keeper)
        return object.__new__(cls)

    def __init__(self, keeper: Any, captured: Any, ref: Ref) -> None:
        self._keeper = keeper
        self._captured = captured
        self._ref = ref

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # type: ignore[override]
        return type(self._captured)

    @property
    def _value(self) -> Any:
        """The value in the latest replay; during the capture, its captured value."""
        try:
            return self._keeper.numbers.value(self._ref)
        except KeyError:
            return self._captured

    # -- conversions: what comes out is guarded, so the value may change as long as that does not ---------------

    def _leave(self, use: str, kind: Any) -> Any:
        return self._keeper.compute(kind, (self,), use)

    def _plain(self, use: str) -> Any:
        return self._leave(use, type(self._captured))

    def __bool__(self) -> bool:
        return self._leave("a truth", bool)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return repr(self._plain("text"))

    def __str__(self) -> str:
        return str(self._plain("text"))

    def __format__(self, spec: str) -> str:
        return format(self._plain("text"), spec)

    def __float__(self) -> float:
        return self._leave("float()", float)  # type: ignore[no-any-return]

    def __int__(self) -> int:
        return self._leave("int()", int)  # type: ignore[no-any-return]

    def __index__(self) -> int:
        return self._leave("an index, a size or C code", operator.index)  # type: ignore[no-any-return]

    def __hash__(self) -> int:
        value = self._plain("a key of a dict or set")
        if type(value) is int and (value < 0 or hash(value) != value):
            # ``random`` seeds itself with the hash of what is no int of Python's, and with the size of what is one.
            raise TypeError("a negative or huge int read in a capture has no hash: write int(value)")
        return hash(value)

    def __copy__(self, memo: object = None) -> TrackedNumber:
        return self

    __deepcopy__ = __copy__

    def __reduce_ex__(self, protocol: Any) -> Any:
        value = self._plain("pickle")
        return type(value), (value,)

    def __conform__(self, protocol: object) -> Any:
        return self._plain("sqlite3")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        import numpy

        return numpy.asarray(self._plain("a NumPy array"), *args)

    # -- arithmetic carries the expression; below -----------------------------------------------------------

    __torch_function__ = _TorchFunction()

    def __round__(self, ndigits: Any = None) -> Any:
        return self._keeper.compute(round, (self,) if ndigits is None else (self, ndigits))

    def __getattr__(self, name: str) -> Any:
        # bit_length, as_integer_ratio, numerator...: any attribute of the plain number.
        if name.startswith("__"):
            raise AttributeError(name)
        if not callable(getattr(self._value, name)):
            return getattr(self._plain(f".{name}"), name)

        def method(*args: object, **kwargs: object) -> object:
            call = operator.methodcaller(name, *plain(args), **plain(kwargs))
            return self._keeper.compute(call, (self,))

        return method


class TrackedInt(TrackedNumber, torch.SymInt):  # type: ignore[misc]
    """An int while its capture runs: the mode that sees torch's calls is on then (dynamic_shapes.py)."""

    @property
    def node(self) -> _Node:
        return _Node(self)

    def as_number(self) -> None:
        """The capture is over: C++ takes a plain number of it from now on."""
        object.__dict__["__class__"].__set__(self, TrackedNumber)


class _Node:
    """What C++ asks of a symbolic int, where no mode saw the call: the value, which is pinned."""

    def __init__(self, number: TrackedNumber) -> None:
        self._number = number

    def guard_int(self, file: object = "", line: object = 0) -> int:
        return operator.index(self._number)

    int_ = guard_int
    is_int = is_symbolic = has_hint = lambda self: True  # noqa: E731
    is_float = is_bool = is_nested_int = is_constant = lambda self: False  # noqa: E731
    nested_int = maybe_as_int = lambda self: None  # noqa: E731


NUMBERS = frozenset({TrackedNumber, TrackedInt})
_SYMBOLS = NUMBERS | {torch.SymInt}


def is_number(item: Any) -> bool:
    """True for plain and tracked numbers: everything an expression can hold."""
    return type(item) in NUMBERS or isinstance(item, _PLAIN)


def now(item: Any) -> Any:
    """Arguments with current values, for computing alongside the expression."""
    return substitute(item, lambda number: number._value, NUMBERS)


def plain(item: Any) -> Any:
    """Replace tracked numbers in the arguments by plain ones, which are pinned."""
    if type(item) is dict:
        return {_plain(name): plain(part) for name, part in item.items()}
    return substitute(item, _plain, _SYMBOLS)


def _plain(item: Any) -> Any:
    if type(item) in NUMBERS:
        return item._plain("a plain number")
    return int(item) if type(item) is torch.SymInt and type(item.node) is _Node else item  # C++ has wrapped it anew


def holds_numbers(item: Any) -> bool:
    """True if a tracked number is among the arguments."""
    return next(leaves(item, NUMBERS), None) is not None


_BINARY = "lt le gt ge eq ne add sub mul truediv floordiv mod pow and or xor lshift rshift divmod".split()
_UNARY = {
    "abs": abs, "neg": operator.neg, "pos": operator.pos, "invert": operator.invert,
    "trunc": math.trunc, "floor": math.floor, "ceil": math.ceil,
}  # fmt: skip


def _binary(name: str, is_reflected: bool) -> Any:
    func = divmod if name == "divmod" else getattr(operator, f"{name}_" if name in ("and", "or") else name)

    def method(self: TrackedNumber, other: Any, *modulus: Any) -> Any:
        if is_number(other):
            args = (other, self) if is_reflected else (self, other)
            return self._keeper.compute(pow if modulus else func, args + modulus)
        if hasattr(other, "__torch_function__"):
            return NotImplemented  # a tensor's operator calls it
        mine = self._plain("an operand of another kind")
        return func(other, mine) if is_reflected else func(mine, other)

    return method


TrackedNumber.__name__ = "number_read_in_a_capture"  # C code that refuses it names it in its TypeError
for _name in _BINARY:
    setattr(TrackedNumber, f"__{_name}__", _binary(_name, False))
    setattr(TrackedNumber, f"__r{_name}__", _binary(_name, True))
for _name, _func in _UNARY.items():
    setattr(TrackedNumber, f"__{_name}__", lambda self, func=_func: self._keeper.compute(func, (self,)))
for _name in ("as_integer_ratio", "bit_length", "conjugate"):  # which torch's class has, too
    setattr(TrackedInt, _name, property(operator.methodcaller("__getattr__", _name)))
