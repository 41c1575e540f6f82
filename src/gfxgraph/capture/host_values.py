"""Values that leave the device inside a capture, and what the program asked of them.

A read (``.item()``, an index, a size) is a split; the number that it hands out remembers what was
asked of it (numbers.py). The questions become the guard of the read at each replay. Host tensors that
came out of device work are *tainted*: computing with them is a host step, not a constant.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from gfxgraph.capture import intercept
from gfxgraph.capture.numbers import TrackedNumber
from gfxgraph.capture.places import place
from gfxgraph.capture.steps import CallStep, ReadStep, Step
from gfxgraph.capture.structure import flat
from gfxgraph.core.questions import Question, Reference
from gfxgraph.core.tape import where_of
from gfxgraph.core.unsafe import BY_NAME, UnsafeOp
from gfxgraph.errors import CaptureError
from gfxgraph.process.process import Recording
from gfxgraph.types import OnUnsafe


class Splitting(Protocol):
    """What the host's values ask of the capture that they are read in."""

    policy: OnUnsafe

    @property
    def recorder(self) -> Recording: ...
    @property
    def is_over(self) -> bool: ...
    def split(
        self, row: UnsafeOp, name: str, make: Callable[[], tuple[Any, Step | None]], where: Any = None
    ) -> Any: ...
    def abort(self, error: BaseException | None) -> None: ...


class HostValues:
    """The host's values of one capture."""

    def __init__(self, session: Splitting) -> None:
        # Weakly: numbers outlive their capture, and a session that is over must not wait for the collector.
        self._session = weakref.ref(session)
        self._reads: dict[int, ReadStep] = {}
        self._n_reads = 0
        self.tainted: dict[int, weakref.ref[Tensor]] = {}

    # -- host tensors -------------------------------------------------------------------------------

    def taint(self, tensor: Tensor) -> None:
        self.tainted[id(tensor)] = weakref.ref(tensor)
        self._capturing().recorder.is_wary = True

    def is_tainted(self, tensor: Tensor) -> bool:
        ref = self.tainted.get(id(tensor))
        return ref is not None and ref() is tensor

    def reads_tainted(self, args: Any, kwargs: Any) -> bool:
        return any(self.is_tainted(t) for t in flat(args, kwargs))

    def comes_from_device(self, tensor: Tensor) -> bool:
        return tensor.is_cuda or self.is_tainted(tensor)

    # -- reads --------------------------------------------------------------------------------------

    def read_scalar(self, tensor: Tensor, name: str) -> TrackedNumber:
        """``tensor.item()`` inside the capture."""
        item = intercept.stock("item")
        value, reference, _ = self._read(lambda: item(tensor), name)
        return TrackedNumber(self, value, reference)

    def read_below_python(self, func: Any, args: Any) -> Any:
        """A value that C++ reads for itself: an index, a size. Its use cannot be seen."""
        tensor = args[0]
        value, reference, where = self._read(lambda: func(tensor), "aten::_local_scalar_dense")
        if tensor.dtype is torch.bool:
            self.asked(reference, "is true", None, bool(value), where)
        else:
            self.escaped(reference, value, "an index, a size or an operation's argument", where)
        return value

    def decided(self, read: Callable[[], Any], outcome: bool, name: str, where: Any) -> ReadStep:
        """An operation whose result is a bool that the program goes by (``torch.equal``)."""
        reference, step = self._new_read(read, name, where)
        self.asked(reference, "is true", None, outcome, where)
        return step

    def _read(self, read: Callable[[], Any], name: str) -> tuple[Any, Reference, Any]:
        where = place()
        made: list[Reference] = []

        def make() -> tuple[Any, Step]:
            value = read()
            reference, step = self._new_read(read, name, where)
            made.append(reference)
            return value, step

        value = self._capturing().split(BY_NAME["aten::_local_scalar_dense"], name, make, where)
        return value, made[0], where

    def _new_read(self, read: Callable[[], Any], name: str, where: Any) -> tuple[Reference, ReadStep]:
        index = self._n_reads
        self._n_reads += 1
        step = self._reads[index] = ReadStep(read, index, name, *where)
        return Reference(index), step

    def generator_state(self, read: Callable[[], Tensor]) -> Tensor:
        """The generator's state, read again at each replay into the same host tensor."""
        name = "torch.cuda.get_rng_state"
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

    def _capturing(self) -> Splitting:
        session = self._session()
        assert session is not None  # whoever asks for a split has it in hand
        return session

    # -- questions ----------------------------------------------------------------------------------

    def asked(self, reference: Reference, test: str, operand: Any, answer: bool, where: Any = None) -> None:
        """The program went by the answer to a question: each replay asks it again."""
        latest = max(reference.read, operand.read) if isinstance(operand, Reference) else reference.read
        step = self._reads.get(latest)
        if step is not None:
            question = Question(reference, test, operand, answer, where_of(*(where or place())))
            if question not in step.questions:
                step.questions.append(question)

    def escaped(self, reference: Reference, value: Any, use: str, where: Any = None) -> None:
        """The value itself goes into a computation.

        Raises:
            CaptureError: `host_value_escaped`, unless the policy is "pin".
        """
        session = self._session()
        used = where or place()
        if session is None or session.is_over:
            return  # after the capture it is a plain number, as it would be in eager code
        if session.policy is OnUnsafe.PIN:
            self.asked(reference, "is exactly", value, True, used)
            return
        step = self._reads[reference.read]
        error = CaptureError(
            "host_value_escaped",
            op=use,
            value=value,
            read_at=where_of(step.code, step.lasti),
            used_at=where_of(*used),
        )
        session.abort(error)
        raise error
