"""Torch calls that a replay repeats as a whole: those with tensors whose shape depends on data, or with numbers read
inside the capture.

Problem: ``x[mask]`` has as many rows as the mask has true elements, a different number in each replay. Everything
recorded after it was sized for the captured count. Idea: such a tensor *moves*: a replay points the program's own
tensor at the new result, whatever its shape, and each torch call that takes it is a host step, repeated as a whole,
with results that move in turn. Results without dimensions, and external tensors that the call wrote, stay in place:
graphs can continue from there. A call with a tracked number is such a step, too; its results stay in place if they
have the size of a tensor that it was given.

Calls are seen by a ``TorchFunctionMode``, above C++, which would read a size and use it as a constant.
What Python reads of a moving tensor (its shape, its length) is checked again at each replay.

Views move whatever their dimensions: copying a new view to where the old one lay would overwrite its base.

Invariant: anything that uses a moving tensor in another way (autograd, an operation without a visible call, a
pointer, another graph) fixes it first: from then on its step copies into its memory, and raises if the shape differs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gfxgraph import torch_names
from gfxgraph.capture.patches import patch_table
from gfxgraph.capture.record.host_values import holds_numbers, now, plain
from gfxgraph.capture.record.overloads import has_compiled_nothing, written
from gfxgraph.capture.record.user_lines import place
from gfxgraph.capture.replay.graph_tensors import flat, has_layout, memory_of, storage_address
from gfxgraph.capture.replay.program import HostStep, ReadStep, SegmentStep, Step, share_memory
from gfxgraph.capture.state import StepSession
from gfxgraph.capture.undo import is_reached, push_below, remove_mode
from gfxgraph.core.expressions import Ref
from gfxgraph.core.tape import Args, Kwargs, TapeValue, leaves
from gfxgraph.core.unsafe import Kind, UnsafeOp, When
from gfxgraph.process import process
from gfxgraph.types import OnUnsafe

_MOVING = UnsafeOp(
    "moving tensor", Kind.DYNAMIC_SHAPE, "it computes with a tensor whose shape depends on data", When.ALWAYS
)
# Attributes that reveal nothing about the shape.
_HARMLESS = frozenset(
    "dim ndim dtype device is_cuda is_cpu layout requires_grad is_leaf grad_fn grad is_floating_point is_complex "
    "is_sparse is_quantized is_meta is_nested is_signed element_size itemsize names get_device is_inference "
    "_backward_hooks __hash__ is_tensor is_conj is_neg item tolist __bool__ __float__ __int__ __index__ __repr__ "
    "__format__".split()
)
_COUNTS = frozenset({"numel", "nelement", "size", "_nnz"})
_ANSWERS = frozenset("shape stride __len__ storage_offset nbytes is_contiguous".split()) | _COUNTS
# Calls that hand out the tensor in a form that cannot be followed, or give another tensor its shape or memory.
_FORMS = frozenset(
    "data_ptr untyped_storage storage numpy __array__ __dlpack__ set_ data= resize_ resize_as_ register_hook "
    "backward __iter__ __reduce_ex__ __deepcopy__ __contains__ requires_grad_ retain_grad share_memory_ "
    "pin_memory".split()
)
# Operations that C++ applies to a mask's result before it returns it.
_VIEWS = frozenset(f"aten::{name}" for name in "unbind select squeeze t transpose detach alias".split())


_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.device)
_UNKNOWN: Any = object()
_movers: weakref.WeakSet[HostStep] = weakref.WeakSet()
"""The steps of all programs of the process whose results move."""


class MovingTensors:
    """The moving tensors of one capture."""

    def __init__(self, session: StepSession) -> None:
        self._session: Callable[[], StepSession | None] = weakref.ref(session)
        self._steps: dict[int, tuple[weakref.ref[Tensor], HostStep]] = {}
        self._mode: MovingCalls | None = None

    def _capturing(self) -> StepSession:
        session = self._session()
        assert session is not None
        return session

    @property
    def is_idle(self) -> bool:
        session = self._session()
        return session is None or session.recorder.paused or process.active_session() is not session

    @property
    def sees_calls(self) -> bool:
        """Whether torch's calls in this thread come here."""
        return self._mode is not None and not self.is_idle and is_reached(self._mode)

    def stop(self) -> None:
        """End tracking: the capture is over."""
        if self._mode is not None:
            remove_mode(self._mode)
        self._mode = None
        self._steps = {}

    # -- which tensors move ---------------------------------------------------------------------------

    def among(self, args: Any, kwargs: Any) -> list[Tensor]:
        """The moving tensors among arguments."""
        if not self._steps:
            return []
        return [tensor for tensor in flat(args, kwargs) if self._step_of(tensor) is not None]

    def _step_of(self, tensor: Tensor) -> HostStep | None:
        found = self._steps.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else None

    def fix(self, tensors: list[Tensor]) -> None:
        """Fix these tensors to their captured memory: a replay with another shape raises GuardMismatch."""
        for tensor in tensors:
            step = self._step_of(tensor)
            if step is not None:
                step.moving.discard(id(tensor))
                del self._steps[id(tensor)]

    def note(self, row: UnsafeOp, name: str, step: Step | None, args: Args, kwargs: Kwargs) -> None:
        """Decide whether the results of an unsafe operation that became a step move."""
        session = self._session()
        if not isinstance(step, HostStep) or session is None or session.policy is not OnUnsafe.SPLIT:
            return
        given = flat(args, kwargs)
        if (row is _MOVING or _depends_on_data(row, name, args)) and not _needs_gradients(given) and self.starts():
            self._move(step, given)

    def starts(self) -> bool:
        """Start seeing calls; False if Dynamo would recompile under a mode of ours."""
        if self._mode is None and has_compiled_nothing():
            self._mode = MovingCalls(self)  # stored before it is entered, so that it is removed whatever happens
            push_below(self._mode)
            self._capturing().recorder.is_wary = True
        return self._mode is not None

    def _move(self, step: HostStep, given: list[Tensor], stays: Iterable[object] = ()) -> None:
        others = [tensor for tensor in given if self._is_anothers(tensor)]
        for tensor in flat(step.out):
            if any(tensor is each for each in given):
                continue
            is_part = any(share_memory(tensor, each) for each in given)
            if any(share_memory(tensor, each) for each in others):
                step.views.add(id(tensor))
            if not is_part and (not tensor.dim() or tensor.size() in stays):
                continue
            step.moving.add(id(tensor))
            self._steps[id(tensor)] = weakref.ref(tensor), step
        _movers.add(step)

    def _is_anothers(self, tensor: Tensor) -> bool:
        """Whether its memory belongs to a tensor that stays: not moving itself, or a view of one that stays."""
        step = self._step_of(tensor)
        return step is None or id(tensor) in step.views

    # -- operations on moving tensors -------------------------------------------------------------------------

    def operation(self, name: str, args: Args, kwargs: Kwargs) -> UnsafeOp | None:
        """Handle an operation without a Python call: a view of a moving result stays moving; any other fixes its
        arguments.
        """
        if not self._steps:
            return None
        found = self.among(args, kwargs)
        if found and name in _VIEWS and not any(tensor.requires_grad for tensor in found):
            return _MOVING
        self.fix(found)
        return None

    def call(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        """Handle a torch call inside the capture."""
        session = self._capturing()
        if holds_numbers((args, kwargs)):
            return session.values.call_torch(func, args, kwargs)
        found = self.among(args, kwargs)
        name = func.__name__
        if _is_getter(func):
            attribute = getattr(func.__self__, "__name__", "")
            name = "data=" if (attribute, name) == ("data", "__set__") else attribute
        if not found or name in _HARMLESS:
            return func(*args, **kwargs)
        if name in _FORMS or not _can_be_made_again(flat(args, kwargs), kwargs):
            self.fix(found)
            return func(*args, **kwargs)
        func = patch_table.original_of(func)
        if name in _ANSWERS:
            return self._answered(session, name, func, args, kwargs)
        return self._made(session, name, func, args, kwargs)

    def by_number(self, func: Any, args: Args, kwargs: Kwargs) -> object:
        """Handle a torch call with a tracked number: repeat it with the fresh value, or pin the value."""
        session = self._session()
        tensors = flat(args, kwargs)
        name = func.__name__
        if (
            session is None
            or self.is_idle
            or name in _FORMS
            or session.policy is not OnUnsafe.SPLIT
            or not _can_be_made_again(tensors, kwargs)
        ):
            return func(*plain(args), **plain(kwargs))
        return self._made(session, name, patch_table.original_of(func), args, kwargs)

    def _answered(self, session: StepSession, name: str, func: Any, args: Args, kwargs: Kwargs) -> object:
        """Record a read by Python that depends on the shape."""
        value = func(*args, **kwargs)
        ref, step = self._read(session, name, func, args, kwargs, value)
        session.add(step)
        if name in _COUNTS and type(value) is int:
            return session.values.give_number(value, ref, step.at)
        session.values.escaped(ref, value, name)
        return value

    def _read(
        self, session: StepSession, name: str, func: Any, args: Args, kwargs: Kwargs, value: Any
    ) -> tuple[Ref, ReadStep]:
        return session.values.new_read(partial(func, *args, **kwargs), value, f"torch.Tensor.{name}", place())

    def _made(self, session: StepSession, name: str, func: Any, args: Any, kwargs: Any) -> object:
        where = place()
        takes_numbers = holds_numbers((args, kwargs))
        spec_args, spec_kwargs = session.values.own_refs((args, kwargs)) if takes_numbers else (args, kwargs)
        args, kwargs = now((args, kwargs)) if takes_numbers else (args, kwargs)
        given = flat(args, kwargs)
        wrote: list[Tensor] = []
        states = session.generators.foreign_states(args, kwargs)

        def make() -> tuple[object, Step | None]:
            session.rollback.save_states(states)
            with WriteSaver(session, wrote):
                out = func(*args, **kwargs)
            others = [part for part in _parts(out) if not isinstance(part, Tensor)]
            if not all(isinstance(part, _PLAIN) for part in others) or not all(map(has_layout, flat(out))):
                return _UNKNOWN, None
            if others:
                ref, answer = self._read(session, name, func, args, kwargs, out)
                session.values.escaped(ref, out, name)
                return out, answer
            for tensor in flat(out, wrote):
                if not tensor.is_cuda:
                    session.values.taint(tensor)
            session.recorder.adopt(out)
            step = HostStep(name, where, _as_now(func), spec_args, spec_kwargs, out, tuple(wrote), tuple(states))
            step.is_symbolic = takes_numbers
            if not takes_numbers or self.starts():
                stays = () if self.among(given, {}) else [tensor.size() for tensor in given]
                self._move(step, given, stays)
            return out, step

        out = session.split(_MOVING, name, make, where)
        if out is not _UNKNOWN:
            return out
        self.fix(given)
        return func(*args, **kwargs)


class MovingCalls(TorchFunctionMode):
    """Sees each call of torch's functions and methods while a capture has moving tensors."""

    def __init__(self, moving: MovingTensors) -> None:
        super().__init__()
        self._moving = moving

    def __torch_function__(self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None) -> object:
        kwargs = kwargs or {}
        if self._moving.is_idle:
            return func(*args, **kwargs)
        return self._moving.call(func, args, kwargs)


class WriteSaver(torch_names.TorchDispatchMode):  # type: ignore[misc, valid-type]
    """Saves existing tensors before a call writes to them, and notes them in ``found``."""

    supports_higher_order_operators = True

    def __init__(self, session: StepSession, found: list[Tensor]) -> None:
        super().__init__()
        self._session = session
        self._made: set[int] = set()
        self._found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None) -> object:
        kwargs = kwargs or {}
        if hasattr(func, "_schema"):
            writes = [*written(func, args, kwargs)]
        else:  # nothing says what a higher-order operator writes, as Triton's does
            writes = [leaf for leaf in torch_names.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        targets = [tensor for tensor in writes if memory_of(tensor) not in self._made]
        self._session.rollback.save(targets, self._session.streams.own)
        self._found += targets
        before = {memory_of(tensor) for tensor in flat(args, kwargs)}
        out = func(*args, **kwargs)
        self._made |= {memory_of(tensor) for tensor in flat(out)} - (before - self._made)
        return out


def _needs_gradients(tensors: list[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _can_be_made_again(tensors: list[Tensor], kwargs: Kwargs) -> bool:
    """True if the call would mean the same at a replay."""
    return not (
        "out" in kwargs  # a replay may pass other memory
        or _needs_gradients(tensors)  # autograd keeps sizes, numbers and tensors of its own
        or torch.is_autocast_enabled("cpu")
        or torch_names._top_saved_tensors_default_hooks(True) is not None
        or torch_names.peek_interpreter_stack() is not None
        or not all(type(tensor) in (Tensor, torch.nn.Parameter) for tensor in tensors)
    )


def _as_now(func: Callable[..., Any]) -> Callable[..., object]:
    """Wrap ``func`` so that it runs under the autocast settings of now, wherever it is called."""
    if not torch.is_autocast_enabled("cuda"):
        return func
    dtype = torch.get_autocast_dtype("cuda")

    def called(*args: Any, **kwargs: Any) -> object:
        with torch.autocast("cuda", dtype, cache_enabled=False):
            return func(*args, **kwargs)

    return called


def _depends_on_data(row: UnsafeOp, name: str, args: Any) -> bool:
    if row.kind is not Kind.DYNAMIC_SHAPE or "index_put" in name or name == "aten::combinations":
        return False
    if row.when is When.HOST_OR_MASK_INDEX:
        return any(isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return True


def _is_getter(func: Any) -> bool:
    return getattr(func, "__name__", "") in ("__get__", "__set__", "__delete__")


def _parts(out: Any) -> list[Any]:
    if isinstance(out, (tuple, list)):
        return [leaf for part in out for leaf in _parts(part)]
    return [] if out is None else [out]


# -- other captures that use them ------------------------------------------------------------------------


def fix_for(steps: list[Step], externals: dict[TapeValue, Tensor]) -> None:
    """A program's segments use these tensors where they lie: those that another program moves are fixed there."""
    others = [
        (tensor, step)
        for step in list(_movers)
        if step not in steps
        for tensor in flat(step.out)
        if id(tensor) in step.moving and has_layout(tensor)
    ]
    if not others:
        return
    entries = [entry for step in steps if isinstance(step, SegmentStep) for entry in step.tape.entries]
    values = {value for entry in entries for value in (*leaves(entry.args), *leaves(entry.kwargs))}
    used = [tensor for value, tensor in externals.items() if value in values]
    for tensor, made in others:
        if _is_among(tensor, used):
            made.moving.discard(id(tensor))


def _is_among(tensor: Tensor, used: Iterable[Tensor]) -> bool:
    """True if a segment uses the tensor, or another view of its memory."""
    start = storage_address(tensor)
    return any(each is tensor or (start and each.is_cuda and storage_address(each) == start) for each in used)
