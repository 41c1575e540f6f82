"""Values that leave the device inside a capture, and what the program does with them.

A read (``.item()``, ``.tolist()``, an index, a size) splits the graph; the number that it returns carries its
expression (tracked_numbers.py). A comparison of it becomes a guard of the read; a torch call that takes it becomes a
step that runs with the fresh value (dynamic_shapes.py); a conversion to a plain number pins the value. Host tensors
computed from device values are *tainted*: computing with them is a host step, not a constant.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gfxgraph.capture.patches import replaced
from gfxgraph.capture.patches.torch_functions import STOCK
from gfxgraph.capture.record.host_memory import lends_memory
from gfxgraph.capture.record.tracked_numbers import (
    NUMBERS,
    TrackedInt,
    TrackedNumber,
    holds_numbers,
    is_number,
    now,
    plain,
    refs_and_values,
)
from gfxgraph.capture.record.user_lines import is_made_by_dynamo, place, program_place
from gfxgraph.capture.replay.graph_tensors import flat, kept_identity, memory_of, overwrite
from gfxgraph.capture.replay.program import CallStep, HostStep, ReadStep, Step
from gfxgraph.core.expressions import Expressions, Ref, refs_in
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
            replaced.also("memory")
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
                if step.gate is not None:
                    yield step.gate.ref
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
