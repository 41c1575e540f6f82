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
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import WrapperDescriptorType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import is_tensor_like

from gfxgraph.capture.patches.torch_functions import STOCK
from gfxgraph.capture.record.host_memory import lends_memory
from gfxgraph.capture.record.user_lines import is_made_by_dynamo, place, program_place
from gfxgraph.capture.replay.graph_tensors import flat, kept_identity, memory_of, overwrite
from gfxgraph.capture.replay.program import CallStep, HostStep, ReadStep, Step
from gfxgraph.core.expressions import Expressions, Ref, among, refs_in
from gfxgraph.core.questions import EXACTLY, TRUTH, Question, same_value
from gfxgraph.core.tape import where_of
from gfxgraph.core.unsafe import BY_NAME, UnsafeOp
from gfxgraph.errors import CaptureError
from gfxgraph.process import process
from gfxgraph.types import OnUnsafe

_MOST_NUMBERS = 4096
"""A longer list is pinned as a whole."""
_refilled: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()
"""Host tensors that a step of some program makes anew at each replay, by `memory_of`: a backward, or another graph,
that reads one is captured when it holds one call's values."""


def _below_modes(read: Callable[[Tensor], Any], tensor: Tensor) -> Any:
    """Read a tensor as torch does: what modes and subclasses make of it is done once, with the number."""
    with torch._C.DisableTorchFunction():
        return read(tensor)


def _content(session: Any, tensor: Tensor) -> Tensor:
    """A copy that the capture does not see."""
    session.recorder.paused = True
    try:
        with torch._C._InferenceMode(True):
            return tensor.clone()
    finally:
        session.recorder.paused = False


def _here() -> HostValues | None:
    """The host values of this thread's capture, or None while nothing is recorded."""
    session: Any = process.active_session()
    return session.values if session is not None and not session.recorder.paused else None


class HostValues:
    """The values that one capture read on the host."""

    def __init__(self, session: Any) -> None:
        # A weak reference: numbers outlive their capture, and a finished session must not wait for the collector.
        self._session = weakref.ref(session)
        self.numbers = Expressions()
        self._reads: dict[int, ReadStep] = {}
        self._given: list[weakref.ref[TrackedNumber]] = []
        self._imports: dict[int, tuple[TrackedNumber, TrackedNumber]] = {}
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
        if not self.tainted or tensor.is_cuda:
            return False
        with torch._C.DisableTorchFunction():  # dynamic_shapes.py would take the look at its memory for the program's
            return memory_of(tensor) in self.tainted

    def reads_tainted(self, args: Any, kwargs: Any) -> bool:
        return any(self.is_tainted(t) for t in flat(args, kwargs))

    def comes_from_device(self, tensor: Tensor) -> bool:
        return tensor.is_cuda or self.is_tainted(tensor)

    def come_from_device(self, args: object, kwargs: object) -> bool:
        return any(map(self.comes_from_device, flat(args, kwargs)))

    # -- reads --------------------------------------------------------------------------------------

    def read_scalar(self, tensor: Tensor, name: str) -> Any:
        """``tensor.item()`` inside the capture: a number that carries its expression, or a plain bool."""
        value, ref, where = self._read(partial(_below_modes, STOCK["item"], tensor), name)
        if isinstance(value, bool):
            self.asked(ref, TRUTH, None, value, where)
            return value
        return self.give(value, ref, where)

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
            length = self.numbers.apply("len", len, (ref,), len(value))
            self.escaped(length, len(value), "the length of a list", where)
        return self.elements(value, ref)

    def elements(self, value: Any, ref: Ref) -> Any:
        if not isinstance(value, list):
            return self.give(value, ref)
        return [
            self.elements(part, self.numbers.apply("item", operator.getitem, (ref, index), part))
            for index, part in enumerate(value)
        ]

    def read_contents(self, tensor: Tensor, use: str, where: Any = None) -> None:
        """A host tensor's contents escape, as a NumPy array: they are pinned."""
        value, ref, where = self._read(partial(_below_modes, STOCK["tolist"], tensor), use, where)
        self.escaped(ref, value, use, where)

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
            if not same_value(_below_modes(Tensor.tolist, content), _below_modes(Tensor.tolist, now)):
                self._shared[at] = tensor, now
                session.add(CallStep("a write of another thread's", program_place(), partial(overwrite, tensor, now)))

    def read_text(self, show: Callable[[], str]) -> str:
        """The text of a tensor, by which the program goes: it is pinned."""
        text, ref, where = self._read(show, "Tensor.__repr__")
        self.escaped(ref, text, "text of a tensor", where)
        return text  # type: ignore[no-any-return]

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

    def read_below_python(self, func: Any, args: Any) -> Any:
        """A value that C++ reads (an index, a size), whose use cannot be tracked."""
        tensor = args[0]
        value, ref, where = self._read(partial(func, tensor), "aten::_local_scalar_dense")
        if tensor.dtype is torch.bool:
            self.asked(ref, TRUTH, None, bool(value), where)
        else:
            self.escaped(ref, value, "an index, a size or an operation's argument", where)
        return value

    def decided(self, read: Callable[[], Any], outcome: bool | float, name: str, where: Any) -> ReadStep:
        """Guard an operation that returns a bool, on which the program branches (``torch.equal``), or a number."""
        ref, step = self.new_read(read, outcome, name, where)
        if isinstance(outcome, bool):
            self.asked(ref, TRUTH, None, outcome, where)
        else:
            self.escaped(ref, outcome, name, where)
        return step

    def _read(self, read: Callable[[], Any], name: str, where: Any = None) -> tuple[Any, Ref, Any]:
        where = where or place()
        made: list[Ref] = []

        def make() -> tuple[Any, Step]:
            value = read()
            ref, step = self.new_read(read, value, name, where)
            made.append(ref)
            return value, step

        def again() -> HostStep:
            return HostStep(name, where, read, (), {}, None)

        value = self._capturing().split(BY_NAME["aten::_local_scalar_dense"], name, make, where, again)
        return value, made[0], where

    def new_read(self, read: Callable[[], Any], value: Any, name: str, where: Any) -> tuple[Ref, ReadStep]:
        ref = self.numbers.read()
        self.numbers.values[ref.row] = value
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
    def sees_calls(self) -> bool:
        """Whether torch's calls are seen now, in this thread."""
        here = _here()
        return here is not None and here._capturing().moving.sees_calls

    @property
    def has_given(self) -> bool:
        """Whether the program has been given a number."""
        return bool(self._given)

    @property
    def is_over(self) -> bool:
        session = self._session()
        return session is None or session.is_over

    # -- numbers --------------------------------------------------------------------------------------

    def give(self, value: Any, ref: Ref, where: Any = None) -> Any:
        """The number that the program gets; pinned, and plain, where torch's calls with it could not be seen."""
        is_int = isinstance(value, int)
        if is_made_by_dynamo() or (is_int and not self._capturing().moving.starts()):
            self.escaped(ref, value, "a plain number", where)
            return value
        number = (TrackedInt if is_int else TrackedNumber)(self, value, ref)
        self._given.append(weakref.ref(number))
        return number

    def latest(self, ref: Ref, captured: Any) -> Any:
        """The number's value in the latest replay; during the capture, its captured value."""
        try:
            return self.numbers.value(ref)
        except KeyError:
            return captured

    def _own(self, item: Any) -> Any:
        """Replace other captures' numbers by reads of this capture: their values at replay time."""
        kind = type(item)
        if kind is list or kind is tuple:
            return kind(self._own(part) for part in item)
        if kind is slice:
            return slice(self._own(item.start), self._own(item.stop), self._own(item.step))
        if kind is dict:
            return {name: self._own(part) for name, part in item.items()}
        if kind not in NUMBERS or item._keeper is self:
            return item
        if id(item) not in self._imports:
            value = item._value
            ref, step = self.new_read(lambda: item._value, value, "a value of another capture", place())
            self._capturing().add(step)
            self._imports[id(item)] = item, self.give(value, ref)
        return self._imports[id(item)][1]

    def computed(self, name: str, func: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Call ``func`` on numbers, some of them tracked; return a number that carries the expression."""
        here = _here()
        if here is None:
            return func(*plain(args, name))
        if here._capturing().policy is not OnUnsafe.SPLIT:
            return func(*plain(here._own(args), name))
        args = here._own(args)
        try:
            value = func(*map(now, args))
        except (ArithmeticError, ValueError, TypeError):
            plain(args, name)  # policy forbids computing with it, so the plain value is pinned
            raise
        refs, _ = refs_and_values(args)
        ref = here.numbers.apply(name, func, refs, value)
        if isinstance(value, tuple):
            return tuple(here.elements([*value], ref))
        if isinstance(value, bool) or not is_number(value):
            is_bool = isinstance(value, bool)
            here.asked(ref, TRUTH if is_bool else EXACTLY, value, bool(value) if is_bool else True)
            return value
        return here.give(value, ref)

    def passed(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a torch function that has tracked numbers among its arguments."""
        name = getattr(func, "__name__", str(func))
        here = _here()
        if here is None:
            return func(*plain(args, name), **plain(kwargs, name))
        session = here._capturing()
        return session.moving.by_number(func, here._own(args), here._own(kwargs))

    def resolved_call(self, args: Any, kwargs: Any) -> tuple[Any, Any, Any, Any]:
        """A call's arguments with current values, and as a step stores them, with numbers as references to reads."""
        if not holds_numbers((args, kwargs)):
            return args, kwargs, args, kwargs
        spec_args, args = refs_and_values(self._own(args))
        spec_kwargs, kwargs = refs_and_values(self._own(kwargs))
        return args, kwargs, spec_args, spec_kwargs

    def host_tensor(self, make: Callable[..., Tensor], data: Any, name: str) -> Tensor:
        """Make a host tensor from numbers, some of them tracked; each replay makes it again."""
        where = place()
        data = self._own(data)
        spec, values = refs_and_values(data)

        def step() -> tuple[Any, Step]:
            out = make(values)
            self.taint(out)
            return out, again(out)

        def again(out: Tensor | None = None) -> HostStep:
            return HostStep(name, where, make, (spec,), {}, out, is_symbolic=True)

        row: UnsafeOp = BY_NAME["aten::_local_scalar_dense"]
        return self._capturing().split(row, name, step, where, again)  # type: ignore[no-any-return]

    def needed_reads(self, steps: list[Step]) -> set[int]:
        """Rows of the reads that replays must make: for guards, for operations, and for numbers that outlive the
        capture.
        """

        def wanted() -> Iterator[Ref]:
            for step in steps:
                if isinstance(step, ReadStep):
                    for question in step.questions:
                        yield from question.refs()
                elif isinstance(step, HostStep) and step.is_symbolic:
                    yield from refs_in((step.args, step.kwargs))
            for given in self._given:
                number = given()
                if number is not None:
                    yield number._ref

        return self.numbers.reads_of(wanted())

    def let_go(self) -> None:
        """The capture is over. Autograd's nodes may hold numbers, and what a read holds may need those nodes."""
        self._imports.clear()
        self._reads.clear()
        for given in self._given:
            if type(number := given()) is TrackedInt:
                number.as_number()

    # -- questions ----------------------------------------------------------------------------------

    def compared(self, first: TrackedNumber, test: str, second: Any, answer: bool) -> None:
        """Note that the program branched on a tracked number, compared with another number or on its own."""
        here = _here()
        if here is not None:
            first, second = here._own(first), here._own(second)
            here.asked(first._ref, test, second._ref if type(second) in NUMBERS else second, answer)
        elif not self.is_over:
            self.asked(first._ref, test, plain(second, "a comparison"), answer)

    def asked(self, ref: Ref, test: str, operand: Any, answer: bool, where: Any = None) -> None:
        """Record a question whose answer the program branched on: each replay checks the answer again."""
        step = self._reads[max(self.numbers.reads_of((ref, *refs_in(operand))))]
        if where is None or (where[0] is not None and where[0].co_filename.startswith("<")):
            where = program_place()
        question = Question(ref, test, operand, answer, where_of(*where))
        if question not in step.questions:
            step.questions.append(question)

    def left(self, number: TrackedNumber, value: Any, use: str, kind: Callable[..., Any] | None = None) -> None:
        """Note that a tracked number, or what ``kind`` made of it, escapes tracking."""
        here = _here()
        if here is None:
            if self.is_over:
                return  # it is a plain number, as it would be in eager code
            here = self
        ref = (number if here is self else here._own(number))._ref
        if kind is not None:
            ref = here.numbers.apply(kind.__name__, kind, (ref,), value)
        here.escaped(ref, value, use)

    def escaped(self, ref: Ref, value: Any, use: str, where: Any = None) -> None:
        """Pin a value that escapes tracking.

        Raises:
            CaptureError: `host_value_escaped`, if the policy is "strict".
        """
        session = self._session()
        used = where or program_place()
        if session is None or session.is_over:
            return  # after the capture it is a plain number, as it would be in eager code
        if session.policy is not OnUnsafe.STRICT:
            self.asked(ref, EXACTLY, value, True, used)
            return
        step = self._reads[max(self.numbers.reads_of((ref,)))]
        read_at, used_at = step.where, where_of(*used)
        raise session.failed(
            CaptureError("host_value_escaped", op=use, value=value, read_at=read_at, used_at=used_at)
        )


# -- what ``.item()`` returns inside a capture ---------------------------------------------------------------


_MISSING: Any = object()
_PLAIN = (bool, int, float, complex)


class _TorchFunction:
    """Makes torch's C++ find ``__torch_function__``, but hides it from ``is_tensor_like``: a number is no tensor."""

    def __get__(self, number: Any, owner: Any) -> Any:
        is_seen = type(number) is TrackedInt and number._keeper.sees_calls
        if is_seen or sys._getframe(1).f_code is is_tensor_like.__code__:
            raise AttributeError  # the first of several sizes is refused if it has one
        return _passed_to_torch


def _passed_to_torch(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    keeper = next(item._keeper for item in among(NUMBERS, (args, kwargs)))
    return keeper.passed(func, args, kwargs or {})


class TrackedNumber:
    """A number computed from values that the host read; see the module's docstring."""

    _keeper: Any
    """The ``HostValues`` of the capture that it was read in."""
    _captured: Any
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
        return self._keeper.latest(self._ref, self._captured)

    # -- comparisons: their outcome is guarded ------------------------------------------------------------

    def _compare(self, other: Any, test: str, op: Any) -> Any:
        if not is_number(other):
            return (
                op(self._leave("a comparison"), other)
                if _wants_plain(other, f"__{op.__name__}__")
                else NotImplemented
            )
        answer = bool(op(self._value, now(other)))
        self._keeper.compared(self, test, other, answer)
        return answer

    def __bool__(self) -> bool:
        answer = bool(self._value)
        self._keeper.compared(self, "is true", None, answer)
        return answer

    # -- conversions: the value is guarded ----------------------------------------------------------------

    def _leave(self, use: str, kind: Any = None) -> Any:
        """The plain value, or what ``kind`` makes of it; it is pinned, so the value may change as long as that does
        not.
        """
        value = self._value if kind is None else kind(self._value)
        self._keeper.left(self, value, use, kind)
        return value

    def __repr__(self) -> str:
        return repr(self._leave("text"))

    def __str__(self) -> str:
        return str(self._leave("text"))

    def __format__(self, spec: str) -> str:
        return format(self._leave("text"), spec)

    def __float__(self) -> float:
        return self._leave("float()", float)  # type: ignore[no-any-return]

    def __int__(self) -> int:
        return self._leave("int()", int)  # type: ignore[no-any-return]

    def __index__(self) -> int:
        return self._leave("an index, a size or C code", operator.index)  # type: ignore[no-any-return]

    def __complex__(self) -> complex:
        return complex(self._leave("complex()"))

    def __hash__(self) -> int:
        return hash(self._leave("a key of a dict or set"))

    def __copy__(self) -> TrackedNumber:
        return self

    def __deepcopy__(self, memo: object) -> TrackedNumber:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        value = self._leave("pickle")
        return type(value), (value,)

    def __conform__(self, protocol: object) -> Any:
        return self._leave("sqlite3")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        import numpy

        return numpy.asarray(self._leave("a NumPy array"), *args)

    # -- arithmetic carries the expression; below -----------------------------------------------------------

    __torch_function__ = _TorchFunction()

    def __round__(self, ndigits: Any = None) -> Any:
        return self._keeper.computed("round", round, (self,) if ndigits is None else (self, ndigits))

    def __getattr__(self, name: str) -> Any:
        # bit_length, as_integer_ratio, numerator...: any attribute of the plain number.
        if name.startswith("__"):
            raise AttributeError(name)
        if not callable(getattr(self._value, name)):
            return getattr(self._leave(f".{name}"), name)

        def method(*args: object, **kwargs: object) -> object:
            call = operator.methodcaller(name, *plain(args, name), **plain(kwargs, name))
            return self._keeper.computed(name, call, (self,))

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


def is_number(item: Any) -> bool:
    """True for plain numbers, NumPy's scalars and tracked numbers: everything an expression can hold."""
    if type(item) in NUMBERS or isinstance(item, _PLAIN):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(item, numpy.generic)


def now(item: Any) -> Any:
    """The current value, for computing alongside the expression."""
    return item._value if type(item) in NUMBERS else item


def plain(item: Any, use: str) -> Any:
    """Replace tracked numbers in the arguments by plain ones, which are pinned."""
    kind = type(item)
    if kind in NUMBERS:
        return item._leave(use)
    if kind is list or kind is tuple:
        return kind(plain(part, use) for part in item)
    if kind is slice:
        return slice(plain(item.start, use), plain(item.stop, use), plain(item.step, use))
    if kind is dict:
        return {plain(name, use): plain(part, use) for name, part in item.items()}
    return int(item) if kind is torch.SymInt and type(item.node) is _Node else item  # C++ has wrapped it anew


def refs_and_values(item: Any) -> tuple[Any, Any]:
    """Arguments with references in place of tracked numbers, as a step stores them, and with current values."""
    kind = type(item)
    if kind in NUMBERS:
        return Ref(item._ref.row), item._value
    if kind is list or kind is tuple:
        pairs = [refs_and_values(part) for part in item]
        return kind(ref for ref, _ in pairs), kind(value for _, value in pairs)
    if kind is dict:
        pairs = [refs_and_values(part) for part in item.values()]
        return dict(zip(item, (ref for ref, _ in pairs))), dict(zip(item, (value for _, value in pairs)))
    if kind is slice:
        refs, values = refs_and_values((item.start, item.stop, item.step))
        return slice(*refs), slice(*values)
    return item, item


def _wants_plain(other: Any, method: str) -> bool:
    """True if the operand's class is written in C and is not a number: it can handle plain numbers only."""
    kind = type(other)
    found = getattr(kind, method, None)
    return (
        isinstance(found, WrapperDescriptorType)
        and found is not getattr(object, method, None)
        and kind.__module__ != "builtins"
        and not hasattr(kind, "__torch_function__")
        and not hasattr(kind, "__array_ufunc__")
    )


def holds_numbers(item: Any) -> bool:
    """True if a tracked number is among the arguments."""
    return next(among(NUMBERS, item), None) is not None


_COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift", "divmod")
_UNARY = {
    "abs": abs, "neg": operator.neg, "pos": operator.pos, "invert": operator.invert,
    "trunc": math.trunc, "floor": math.floor, "ceil": math.ceil,
}  # fmt: skip


def _binary(name: str, is_reflected: bool) -> Any:
    func = divmod if name == "divmod" else getattr(operator, f"{name}_" if name in ("and", "or") else name)

    def method(self: TrackedNumber, other: Any, *modulus: Any) -> Any:
        args: tuple[Any, ...] = (other, self) if is_reflected else (self, other)
        if not is_number(other):
            if _wants_plain(other, f"__{name}__" if is_reflected else f"__r{name}__"):
                return func(*plain(args, name))
            return NotImplemented  # for a tensor, whose operator calls __torch_function__
        return self._keeper.computed(func.__name__, pow if modulus else func, args + modulus)

    return method


def _comparison(name: str) -> Any:
    op, test = getattr(operator, name), _COMPARISONS[name]
    return lambda self, other: self._compare(other, test, op)


def _unary(name: str) -> Any:
    func = _UNARY[name]
    return lambda self: self._keeper.computed(name, func, (self,))


TrackedNumber.__name__ = "number_read_in_a_capture"  # C code that refuses it names it in its TypeError
for _name in _COMPARISONS:
    setattr(TrackedNumber, f"__{_name}__", _comparison(_name))
for _name in _BINARY:
    setattr(TrackedNumber, f"__{_name}__", _binary(_name, False))
    setattr(TrackedNumber, f"__r{_name}__", _binary(_name, True))
for _name in _UNARY:
    setattr(TrackedNumber, f"__{_name}__", _unary(_name))
for _name in ("as_integer_ratio", "bit_length", "conjugate"):  # which torch's class has, too
    setattr(TrackedInt, _name, property(operator.methodcaller("__getattr__", _name)))
