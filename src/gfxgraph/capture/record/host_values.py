"""Values that leave the device inside a capture, and what the program does with them.

A read (``.item()``, ``.tolist()``, an index, a size) splits the graph; the number that it returns carries its
expression (tracked_numbers.py). A comparison of it becomes a guard of the read; an operation that takes it becomes a
step that runs with the fresh value; any other use pins the value. Host tensors computed from device values are
*tainted*: computing with them is a host step, not a constant.
"""

from __future__ import annotations

import operator
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor

from gfxgraph.capture.patches import intercept, numbers_after_capture
from gfxgraph.capture.record import modes, number_symbols
from gfxgraph.capture.record.host_memory import lends_memory
from gfxgraph.capture.record.number_symbols import WantsNumber, numbers_of, refs_and_values, symbolic
from gfxgraph.capture.record.tensor_arguments import flat
from gfxgraph.capture.record.tracked_numbers import TrackedNumber, holds_numbers, is_number, now, plain
from gfxgraph.capture.record.user_lines import is_argument, place, program_place, user_frame
from gfxgraph.capture.replay.captured_program import Splitting
from gfxgraph.capture.replay.graph_tensors import kept_identity, memory_of, overwrite
from gfxgraph.capture.replay.replay_steps import CallStep, Gate, HostStep, ReadStep, Step
from gfxgraph.core.expressions import Expressions, Ref, refs_in
from gfxgraph.core.questions import EXACTLY, Question, same_value
from gfxgraph.core.tape import where_of
from gfxgraph.core.unsafe import BY_NAME, UnsafeOp
from gfxgraph.errors import CaptureError
from gfxgraph.process import process
from gfxgraph.process.process import OngoingRecording
from gfxgraph.types import OnUnsafe

# Rounding keeps one value one value: it is allowed even if computing with values is refused.
_ROUNDING = frozenset({"abs", "neg", "pos", "round", "real", "imag"})
_POWERS = frozenset({"pow", "float_power"})
"""Their derivative by the exponent takes the base's logarithm, which torch has of no symbolic scalar."""
_MOST_NUMBERS = 4096
"""A longer list is pinned as a whole."""
_refilled: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()
"""Host tensors that a step of some program makes anew at each replay, by `memory_of`: a backward, or another graph,
that reads one is captured when it holds one call's values."""


class ReadingCapture(Splitting, Protocol):
    """What `HostValues` needs from its capture."""

    gate: Gate | None

    @property
    def moving(self) -> Any: ...
    @property
    def recorder(self) -> OngoingRecording: ...
    @property
    def is_over(self) -> bool: ...
    def add(self, step: Step) -> None: ...
    def failed(self, error: CaptureError) -> CaptureError: ...


def _below_modes(read: Callable[[Tensor], Any], tensor: Tensor) -> Any:
    """Read a tensor as torch does: what modes and subclasses make of it is done once, with the number."""
    with torch._C.DisableTorchFunction():
        return read(tensor)


def _content(session: ReadingCapture, tensor: Tensor) -> Tensor:
    """A copy that the capture does not see."""
    session.recorder.paused = True
    try:
        with torch.inference_mode():
            return tensor.clone()
    finally:
        session.recorder.paused = False


def _here() -> HostValues | None:
    """The host values of this thread's capture, or None while nothing is recorded."""
    session: Any = process.active_session()
    return session.values if session is not None and not session.recorder.paused else None


class HostValues:
    """The values that one capture read on the host."""

    def __init__(self, session: ReadingCapture) -> None:
        # A weak reference: numbers outlive their capture, and a finished session must not wait for the collector.
        self._session = weakref.ref(session)
        self.numbers = Expressions()
        self._reads: dict[int, ReadStep] = {}
        self._given: list[weakref.ref[TrackedNumber]] = []
        self._imports: dict[int, tuple[TrackedNumber, TrackedNumber]] = {}
        self.has_numbers = False
        """Whether tracked numbers may have been handed out."""
        self.has_symbols = False
        """Whether an operation may have been given a symbolic scalar."""
        self.tainted: dict[int, Any] = {}
        """Host memory that holds device values, by ``memory_of``, so that views of it are found too."""
        self._tensors: list[weakref.ref[Tensor]] = []
        """The tensors of that memory."""
        self._shared: list[tuple[Tensor, Tensor]] = []
        """Those that another thread may use, with their content as it was told of them."""
        self._shared_at = 0

    # -- host tensors -------------------------------------------------------------------------------

    def taint(self, tensor: Tensor) -> None:
        if not self.tainted:
            intercept.watch_host_memory()
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
        """Before the first operation: what other programs refill holds values of the device here, too, and a backward
        may bring its forward's numbers.
        """
        for tensor in list(_refilled.values()):
            self.taint(tensor)
        self._tensors.clear()  # other threads are told of this program's own
        if number_symbols.alive:
            self.has_symbols = self._capturing().recorder.is_wary = True

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
        value, ref, where = self._read(partial(_below_modes, intercept.stock("item"), tensor), name)
        if isinstance(value, bool):
            self.asked(ref, "is true", None, value, where)
            return value
        return self.handed_out(value, ref, where, sys._getframe(1))

    def handed_out(self, value: object, ref: Ref, where: object, frame: FrameType) -> object:
        """The number that a read in ``frame`` gives the program.

        Plain, and pinned, in code that Dynamo made; and if it is the capture's first and a call's argument: of a
        function of sizes, perhaps, that was looked up before any of them accepted such numbers.
        """
        reader = user_frame(frame)
        if reader is not None and not any(name.startswith("__resume_at_") for name in reader.f_code.co_names):
            if self._given or isinstance(value, float) or not is_argument(reader):
                return self.give(value, ref)
        self.expect_numbers()
        self.escaped(ref, value, "a size or a plain number", where)
        return value

    def expect_numbers(self) -> None:
        """Numbers are about to be handed out: functions of sizes must accept them."""
        if not self.has_numbers:
            self.has_numbers = True
            intercept.watch_numbers()

    def read_list(self, tensor: Tensor) -> Any:
        """``tensor.tolist()``: one read, and a number for each element."""
        if tensor.dim() == 0:
            return self.read_scalar(tensor, "Tensor.tolist")
        to_list = partial(_below_modes, intercept.stock("tolist"), tensor)
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
        value, ref, where = self._read(partial(_below_modes, intercept.stock("tolist"), tensor), use, where)
        self.escaped(ref, value, use, where)

    def pin_lent(self, written: Iterable[Tensor]) -> None:
        """Host tensors hold values of the device now, and NumPy may read them unseen: they are pinned."""
        for tensor in written:
            if not tensor.is_cuda and self.is_tainted(tensor) and lends_memory(tensor):
                self.read_contents(tensor, "memory shared with NumPy")

    def share(self) -> None:
        """Another thread may use the program's host tensors from now on, which nobody sees: they are pinned."""
        session = self._capturing()
        if not self._tensors or session.recorder.paused or session.policy is not OnUnsafe.SPLIT:
            return
        steps = session.program.steps
        is_known = all(isinstance(step, (ReadStep, CallStep)) for step in steps[self._shared_at :])
        known = {id(tensor) for tensor, _ in self._shared} if is_known else set()
        tensors = self._held()
        for tensor in tensors:
            if id(tensor) not in known:
                self.read_contents(tensor, "memory that another thread may read", program_place())
        self._shared_at = len(steps)
        self._shared = [(tensor, _content(session, tensor)) for tensor in tensors]

    def take_back(self) -> None:
        """Another thread may have written to the tensors that were pinned for it: replays repeat what it wrote."""
        session = self._capturing()
        if not self._shared or session.recorder.paused:
            return
        for at, (tensor, content) in enumerate(self._shared):
            now = _content(session, tensor)
            if not same_value(_below_modes(Tensor.tolist, content), _below_modes(Tensor.tolist, now)):
                self._shared[at] = tensor, now
                session.add(
                    CallStep(partial(overwrite, tensor, now), "a write of another thread's", *program_place())
                )

    def _held(self) -> list[Tensor]:
        """The tensors that hold device values and that somebody besides this capture's steps holds."""
        session = self._capturing()
        self._tensors = [ref for ref in {id(ref): ref for ref in self._tensors}.values() if ref() is not None]
        tensors = [each for each in (ref() for ref in self._tensors) if each is not None]  # and no other name for one
        n_ours = Counter(map(id, (*tensors, *(tensor for tensor, _ in self._shared))))
        for externals in (session.recorder.externals, session.program.externals):
            n_ours.update(map(id, externals.values()))
        for step in session.program.steps:
            if isinstance(step, HostStep):
                n_ours.update(map(id, flat(step.args, step.kwargs, step.out, step.mutated)))
            elif isinstance(step, ReadStep) and isinstance(step.read, partial):
                n_ours.update(map(id, flat(step.read.args)))
        n_alone, *n_held = map(sys.getrefcount, [object(), *tensors])
        return [tensor for tensor, n in zip(tensors, n_held) if n - n_alone > n_ours[id(tensor)]]

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
            self.asked(ref, "is true", None, bool(value), where)
        else:
            self.escaped(ref, value, "an index, a size or an operation's argument", where)
        return value

    def decided(self, read: Callable[[], Any], outcome: bool | float, name: str, where: Any) -> ReadStep:
        """Guard an operation that returns a bool, on which the program branches (``torch.equal``), or a number."""
        ref, step = self.new_read(read, outcome, name, where)
        if isinstance(outcome, bool):
            self.asked(ref, "is true", None, outcome, where)
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
            return HostStep(read, (), {}, None, name, *where)

        value = self._capturing().split(BY_NAME["aten::_local_scalar_dense"], name, make, where, again)
        return value, made[0], where

    def new_read(self, read: Callable[[], Any], value: Any, name: str, where: Any) -> tuple[Ref, ReadStep]:
        ref = self.numbers.read()
        self.numbers.values[ref.row] = value
        step = self._reads[ref.row] = ReadStep(read, ref.row, name, *where)
        return ref, step

    def generator_state(self, read: Callable[[], Tensor], name: str) -> Tensor:
        """The generator's state, read again at each replay into the same host tensor."""
        where = place()

        def make() -> tuple[Any, Step]:
            out = read()
            self.taint(out)

            def again() -> None:
                with torch.inference_mode():
                    out.copy_(read())

            return out, CallStep(again, name, *where)

        row: UnsafeOp = BY_NAME[name]
        return self._capturing().split(row, name, make, where)  # type: ignore[no-any-return]

    def _capturing(self) -> ReadingCapture:
        session = self._session()
        assert session is not None  # a caller that splits holds the session
        return session

    @property
    def has_given(self) -> bool:
        """Whether the program has been given a number."""
        return bool(self._given)

    @property
    def is_over(self) -> bool:
        session = self._session()
        return session is None or session.is_over

    # -- numbers --------------------------------------------------------------------------------------

    def give(self, value: Any, ref: Ref) -> TrackedNumber:
        self.expect_numbers()
        number = TrackedNumber(self, value, ref)
        self._given.append(weakref.ref(number))
        numbers_after_capture.note(number)
        return number  # type: ignore[no-any-return]

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
        if kind is not TrackedNumber or item._keeper is self:
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
        if here._capturing().policy is not OnUnsafe.SPLIT and name not in _ROUNDING:
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
            here.asked(ref, "is true" if is_bool else EXACTLY, value, bool(value) if is_bool else True)
            return value
        return here.give(value, ref)

    def passed(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a torch function that has tracked numbers among its arguments."""
        name = getattr(func, "__name__", str(func))
        here = _here()
        if here is None or here._capturing().policy is not OnUnsafe.SPLIT:
            if here is not None:
                args, kwargs = here._own(args), here._own(kwargs)
            return func(*plain(args, name), **plain(kwargs, name))
        session = here._capturing()
        here.has_symbols = session.recorder.is_wary = True
        args, kwargs = here._own(args), here._own(kwargs)
        steps, rows = session.program.steps, session.recorder.rows
        before = [(session, steps, rows, len(steps), len(rows))]

        def has_done_nothing() -> bool:
            return any(
                len(steps) == n_steps and session.recorder.rows is rows and len(rows) == n_rows
                for session, steps, rows, n_steps, n_rows in before
            )

        try:
            if not modes.is_on(session.recorder):  # in the kernel of an operation: none would find the symbol there
                raise WantsNumber
            if name == "__rpow__" or name in _POWERS and not isinstance(args[0], Tensor):
                raise WantsNumber
            return func(*symbolic(args, has_done_nothing), **symbolic(kwargs, has_done_nothing))
        except (WantsNumber, TypeError, RuntimeError):  # the function accepts no symbolic scalar
            if not has_done_nothing() or session.is_over:
                raise
            return session.moving.by_number(func, args, kwargs)
        finally:
            before.clear()  # autograd may keep the symbols: they must not keep the capture

    def resolved_call(self, args: Any, kwargs: Any) -> tuple[Any, Any, Any, Any]:
        """As ``resolved``, for a Python call, whose arguments still hold tracked numbers."""
        if not holds_numbers((args, kwargs)):
            return args, kwargs, args, kwargs
        spec_args, args = refs_and_values(self._own(args))
        spec_kwargs, kwargs = refs_and_values(self._own(kwargs))
        return args, kwargs, spec_args, spec_kwargs

    def resolved(self, args: Any, kwargs: Any) -> tuple[Any, Any, Any, Any]:
        """An operation's arguments: with current values, and as a step stores them, with numbers as references to
        reads.
        """
        if not self.has_symbols:
            return args, kwargs, args, kwargs
        spec_args, args = refs_and_values(self._own(numbers_of(args, leave=False)))
        spec_kwargs, kwargs = refs_and_values(self._own(numbers_of(kwargs, leave=False)))
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
            return HostStep(make, (spec,), {}, out, name, *where, is_symbolic=True)

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

    # -- questions ----------------------------------------------------------------------------------

    def compared(self, first: TrackedNumber, test: str, second: Any, answer: bool) -> None:
        """Note that the program branched on a tracked number, compared with another number or on its own."""
        here = _here()
        if here is not None:
            first, second = here._own(first), here._own(second)
            here.asked(first._ref, test, second._ref if type(second) is TrackedNumber else second, answer)
        elif not self.is_over:
            if type(second) is TrackedNumber:
                second = second._leave("a comparison")
            self.asked(first._ref, test, second, answer)

    def asked(self, ref: Ref, test: str, operand: Any, answer: bool, where: Any = None) -> None:
        """Record a question whose answer the program branched on: each replay checks the answer again."""
        step = self._reads[max(self.numbers.reads_of((ref, *refs_in(operand))))]
        if where is None or (where[0] is not None and where[0].co_filename.startswith("<")):
            where = program_place()
        question = Question(ref, test, operand, answer, where_of(*where))
        if question not in step.questions:
            step.questions.append(question)

    def left(self, number: TrackedNumber, value: Any, use: str) -> None:
        """Note that a tracked number escapes tracking."""
        here = _here()
        if here is not None and here is not self:
            here.escaped(here._own(number)._ref, value, use)
        else:
            self.escaped(number._ref, value, use)

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
        read_at, used_at = where_of(step.code, step.lasti), where_of(*used)
        raise session.failed(
            CaptureError("host_value_escaped", op=use, value=value, read_at=read_at, used_at=used_at)
        )
