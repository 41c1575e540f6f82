"""The recorder: a dispatch mode that writes down every operation of a capture.

Problem: a graph is a list of nodes without names, and a capture that meets an operation which no graph can hold is
lost. Idea: sit at torch's dispatcher while the capture runs. Each operation goes on the tape, with the last graph
node it made and the Python line it came from. Nodes that appear between two operations were launched by other code
(Triton, an extension) and are noted as opaque. Not written down as they come are:

    a higher-order operator    what its implementation calls is recorded; `cond` and `while_loop` are steps, whole
    a composite operation      likewise; inference mode passes it whole
    an unsafe operation        the session splits there, as it does at sparse, nested and symbolic arguments
    a wrapper's operation      its own handler comes first, and what that calls is recorded
    no memory of the device's  fake tensors launch nothing; work on the host is looked at by `host_memory.py`

Invariants: no tensor made inside the capture is kept alive (that would change which memory is
reused, so the graph would differ from a stock capture). A tensor's value is one of the weak references
to it, found through the tensor itself (``__weakref__``, the newest), which lives exactly as long as torch's
tensor does. That of an input, which is held meanwhile, is found by its identity.

Source: dispatch modes under torch.compile, measured on torch 2.11 and 2.13: without
``ignore_compile_internals`` compiled code silently runs eagerly under the mode, and stays eager.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any
from weakref import getweakrefs

import torch
from torch import Tensor
from torch.nn import Parameter

from gfxgraph import torch_names
from gfxgraph.capture import rooms
from gfxgraph.capture.patches.torch_functions import keep_from_dynamo
from gfxgraph.capture.record.host_values import plain
from gfxgraph.capture.record.overloads import NO_NODE, OPS, OpInfo, always, identity
from gfxgraph.capture.record.user_lines import LIBRARIES, SKIP, place, user_frame
from gfxgraph.capture.replay.graph_tensors import Layout, flat, has_layout, is_wrapper, storage_address
from gfxgraph.capture.replay.program import ReadStep, SegmentStep
from gfxgraph.capture.state import StepSession
from gfxgraph.core.tape import Args, Kwargs, Opaque, Tape, TapeValue, new_value
from gfxgraph.core.unsafe import BY_NAME, NO_LAYOUT, Kind, UnsafeOp, When
from gfxgraph.process import process
from gfxgraph.types import OnUnsafe

_getframe = sys._getframe
_numbers = itertools.count(1)  # of recorders
_READS = "its kernel computes with values that it reads on the host"


def _no_reader() -> int:
    return 0


class Recorder(torch_names.TorchDispatchMode):  # type: ignore[misc, valid-type]
    """Records one session; see the module's docstring."""

    supports_higher_order_operators = True

    def __init__(self, session: StepSession) -> None:
        super().__init__()
        self.session = session
        self.paused = self.has_host_operands = False
        self.owner = next(_numbers)
        self.outside: dict[int, TapeValue] = {}
        """By ``identity``: values of external tensors, which ``externals`` holds."""
        self.storages: dict[int, TapeValue] = {}
        self.externals: dict[TapeValue, Tensor] = {}
        self.readers: dict[int, Callable[[], int | tuple[int, ...]]] = {}
        self.device_index = session.device_index
        self.raw_stream = torch_names._cuda_getCurrentRawStream
        self.is_hip_like = session.state.driver.name != "cuda"
        self.holds: list[Tensor] | None = None
        """If set, every result is held until the capture is over, so that no two share memory."""
        self.is_guarded = session.state.settings.guard > 0
        self.is_wary = self.is_guarded
        """Whether to inspect operations that no table lists: for guards, or because host tensors hold device values.
        """
        self.max_nodes = session.state.decisions.max_nodes or sys.maxsize
        self.start_segment(0)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    # -- segments ---------------------------------------------------------------------------------

    def start_segment(self, index: int) -> None:
        """Begin a new tape; values of earlier segments stay known by their memory."""
        self.tape = Tape(index)
        self.rows = self.tape.rows
        self.segment = index
        self.values: list[TapeValue] = []
        """Values made by the current segment's operations."""
        self.mutated: dict[tuple[int, object, object], Tensor] = {}
        self.readers.clear()
        self.reader: Callable[[], int | tuple[int, ...]] = _no_reader
        self.reader_stream = -1
        self.frontiers: set[int | tuple[int, ...]] = {0}

    def release(self) -> None:
        """Release everything that would keep the finished session's graphs and tensors alive."""
        self.session = None  # type: ignore[assignment]  # it is asked nothing any more
        self.readers.clear()
        self.reader = _no_reader
        self.paused = True

    def _find_reader(self) -> Callable[[], int | tuple[int, ...]]:
        stream = self.raw_stream(self.device_index)
        if stream != self.reader_stream:
            self.reader_stream = stream
            reader = self.readers.get(stream)
            if reader is None:
                reader = self.readers[stream] = self.session.frontier_reader(stream)
            self.reader = reader
        return self.reader

    def _new_nodes(self, frontier: int | tuple[int, ...]) -> bool:
        """Remember a frontier; True if it holds a node not seen before."""
        handles = (frontier,) if isinstance(frontier, int) else frontier
        fresh = [handle for handle in handles if handle not in self.frontiers]
        self.frontiers.update(fresh)
        self.frontiers.add(frontier)
        return bool(fresh)

    def note_opaque(self) -> None:
        """Note nodes that appeared since the last operation, if any."""
        frontier = self._find_reader()()
        if frontier not in self.frontiers and self._new_nodes(frontier):
            last = frontier if type(frontier) is int else frontier[-1]  # type: ignore[index]
            self.tape.opaque.append(Opaque(len(self.tape.rows), *place(), last))

    def note_nodes_of_the_dead(self, graph: int, are_opaque: bool) -> None:
        """Note what appeared since the last operation of a dead capture: only its graph still tells.

        Args:
            graph: its handle, taken while it was alive; valid until the stream's capture is ended (seen on CUDA 13.0,
                and on AMD's emulator with HIP 6.4: selftest/native/scenarios.py, read_a_dead_capture).
            are_opaque: else an operation left them that itself ended the capture, and will be repeated as a whole.
        """
        driver = process.require().driver
        followed = {before for before, _ in driver.edges(graph)}
        fresh = [node for node in driver.nodes(graph) if node not in followed and node not in self.frontiers]
        self.frontiers.update(fresh)
        if fresh and are_opaque:
            self.tape.opaque.append(Opaque(len(self.tape.rows), *place(), fresh[-1]))

    def disown_new_nodes(self) -> None:
        """Ignore the nodes of an operation that was refused half-way.

        Such an operation wrote only to temporary memory of its own, which is freed: the nodes that it left
        in the graph affect no later node.
        """
        self._new_nodes(self._find_reader()())

    # -- dispatch ---------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Sequence[object], args: Any = (), kwargs: Any = None) -> object:
        # Every line from here to the end of `_view` and `_launch` runs once for each operation of a capture: see
        # benchmarks/record_cost.py. One call of Python's more costs as much as five of them.
        if self.paused:
            return func(*args, **kwargs) if kwargs else func(*args)
        info = OPS.get(identity(func)) or first_seen(func)
        if info is None:
            return not_recorded(self, func, args, kwargs or {})
        if info.is_watched or self.is_wary or ((applies := info.applies) is not None and applies(args, kwargs or {})):
            answer, args, kwargs = looked_at(self, info, args, kwargs or {})
            if answer is not TO_RECORD:
                return answer
        owner = self.owner
        spec_args = [*args]
        try:
            for position in info.tensors if len(args) >= info.n_tensors else range(len(args)):
                item = args[position]
                kind = type(item)
                if kind is Tensor or kind is Parameter:
                    value = item.__weakref__  # see known
                    if type(value) is not TapeValue or value.owner is not owner:
                        value = self.value_of(item)
                    spec_args[position] = value
                elif kind not in _PLAIN:
                    spec_args[position] = self._spec(item)
            if not kwargs:
                kwargs = spec_kwargs = _NO_KWARGS
            elif info.names_tensors:
                spec_kwargs = {k: self._spec(v) for k, v in kwargs.items()}
            else:
                spec_kwargs = kwargs
        except NoStorage as found:
            return otherwise(self, found, info.func, args, kwargs or {})
        call = info.binding if not kwargs and args and type(args[0]) in _EXACT else info.call
        if info.is_view:
            return self._view(info, call, args, kwargs, spec_args, spec_kwargs)
        return self._launch(info, call, args, kwargs, spec_args, spec_kwargs)

    def _view(self, info: OpInfo, call: Any, args: Any, kwargs: Any, spec_args: list[Any], spec_kwargs: Any) -> Any:
        """Record what launches nothing, so that neither the graph is asked nor the line looked for."""
        out = call(*args, **kwargs) if kwargs else call(*args)
        rows, owner = self.rows, self.owner
        if type(out) is Tensor and out.is_cuda:
            made: Any = out.__weakref__ or self.outside.get(identity(out))
            if made is not None and (type(made) is not TapeValue or made.owner is not owner):
                made = self.known(out)
            if made is None:
                base = spec_args[0] if spec_args else None
                made = TapeValue(out)
                made.owner = owner
                made.made_by = len(rows)
                made.segment = self.segment
                made.address = 0
                made.root = (base.root or base) if type(base) is TapeValue else _EXTERNAL_ROOT
                made.layout = None
                self.values.append(made)
                if self.is_guarded:
                    self._note_layout(out, made)
        elif (made := self._made_of(out, len(rows), info, args, kwargs, spec_args, spec_kwargs)) is _HOST_WORK:
            return out
        rows.append((info.func, spec_args, spec_kwargs, made))
        return out

    def _launch(self, info: OpInfo, call: Any, args: Any, kwargs: Any, spec_args: list[Any], spec_kwargs: Any) -> Any:
        """Record an operation with the graph's last node after it, and the line that it comes from."""
        rows, frontiers = self.rows, self.frontiers
        reader = self.reader if self.raw_stream(self.device_index) == self.reader_stream else self._find_reader()
        if reader() not in frontiers:
            self.note_opaque()
        try:
            out = call(*args, **kwargs) if kwargs else call(*args)
        except RuntimeError as error:
            return self._failed(info, args, kwargs, error)
        if self.rows is not rows:  # its kernel is Python, and the capture was split in there
            return self._made_in_parts(info, args, kwargs, out, rows)
        after = reader()
        if launched := after not in frontiers:
            if type(after) is int:
                frontiers.add(after)
            else:
                launched = self._new_nodes(after)
        owner = self.owner
        if type(out) is Tensor and out.is_cuda:
            made: Any = out.__weakref__ or self.outside.get(identity(out))
            if made is not None and (type(made) is not TapeValue or made.owner is not owner):
                made = self.known(out)
            if made is None:  # an in-place operation returns the same value, changed
                made = TapeValue(out)
                made.owner = owner
                made.made_by = len(rows)
                made.segment = self.segment
                made.layout = None
                made.address = 0
                if info.makes_memory:
                    made.root = None
                    try:
                        made.address = address = out.data_ptr()
                        self.storages[address] = made
                    except RuntimeError:  # it is sparse; asking each result for its layout first costs more
                        pass
                else:
                    base = spec_args[0] if spec_args else None
                    made.root = (base.root or base) if type(base) is TapeValue else _EXTERNAL_ROOT
                self.values.append(made)  # once it is whole: an interrupt may strike at any line
                if self.is_guarded:
                    self._note_layout(out, made)
        elif (made := self._made_of(out, len(rows), info, args, kwargs, spec_args, spec_kwargs)) is _HOST_WORK:
            return out
        process.note_module(self.tape)
        frame: Any = _getframe(2)
        if frame.f_globals.get("__name__") in LIBRARIES or SKIP.get((code := frame.f_code).co_filename) is not False:
            frame = user_frame(frame)
            code = frame.f_code if frame is not None else None
        rows.append((info.func, spec_args, spec_kwargs, made, code, frame.f_lasti if code is not None else -1, after))
        if info.has_effects:
            self.note_effects(info, args, kwargs, spec_args)
        if not launched and self.is_hip_like and info.makes_memory and escaped(out, info):
            rows.pop()
            return self.session.unsafe_op(BY_NAME["any-operation"], info.func, args, kwargs)
        if len(frontiers) > self.max_nodes:
            self.session.continue_in_new_graph()
        return out

    # -- values -----------------------------------------------------------------------------------

    def _spec(self, item: Any) -> object:
        kind = type(item)
        if kind is Tensor:
            value = item.__weakref__  # see known
            return value if type(value) is TapeValue and value.owner is self.owner else self.value_of(item)
        if kind is list or kind is tuple:
            return kind([self._spec(part) for part in item])
        return self.value_of(item) if isinstance(item, Tensor) else item

    def known(self, tensor: Tensor) -> TapeValue | None:
        """The value of a tensor that this recorder has seen, else None."""
        held, newest = self.outside.get(identity(tensor)), tensor.__weakref__
        # A result may have a value from every graph ever captured: search them only if ours may be among them.
        if held is not None or newest is None or (type(newest) is TapeValue and newest.owner < self.owner):
            return held
        return next((ref for ref in getweakrefs(tensor) if type(ref) is TapeValue and ref.owner == self.owner), None)

    def value_of(self, tensor: Tensor) -> TapeValue:
        return self.known(tensor) or self.value_of_unknown(tensor)

    def value_of_unknown(self, tensor: Tensor) -> TapeValue:
        """Give a value to a tensor that no recorded operation made: an input, or another view of captured memory.

        Raises:
            NoStorage: it is sparse, nested, quantized or fake: no address tells where its elements lie.
        """
        if not has_layout(tensor):
            raise NoStorage
        if not tensor.is_cuda:
            return self._external(tensor, 0)
        address = tensor.data_ptr()
        base = self.storages.get(storage_address(tensor) if tensor.storage_offset() or not address else address)
        segment = self.segment
        if base is None or base.segment != segment:
            return self._external(tensor, address)
        return self._alias(tensor, base)

    def _alias(self, tensor: Tensor, base: TapeValue) -> TapeValue:
        value = new_value(tensor, self.owner, len(self.tape.rows), self.segment, 0, base.root or base)
        layout = (tensor.dtype, tuple(tensor.size()), tuple(tensor.stride()), tensor.storage_offset())
        self.tape.aliases.append((len(self.tape.rows), value, base, layout))
        self.values.append(value)
        return value

    def keep_layout(self, name: str, tensor: Tensor) -> None:
        """The next operation gives a tensor another shape in place; runs of this tape, which repeat it, need it as it
        was. Steps of the host's hold the program's own tensor, which has one shape at all of them.
        """
        value = self.value_of(tensor)
        if value.is_external or value.segment != self.segment:
            if self.session.is_held_by_host(tensor):
                self.session.refuse(name, _RELAID)
            if value.is_external:
                self.externals[value] = tensor.detach()
                del self.outside[identity(tensor)]
            self._alias(tensor, value)

    def _external(self, tensor: Tensor, address: int) -> TapeValue:
        if not (address or self.has_host_operands or tensor.is_cuda):
            self.has_host_operands = self.is_wary = True
            raise HostOperand
        # Of no weak reference: ``torch.utils.swap_tensors`` refuses tensors that have one.
        self.outside[identity(tensor)] = value = new_value(set(), self.owner, -1, self.segment, address, None)
        self.externals[value] = tensor
        return value

    def hold(self, inputs: Iterable[object]) -> None:
        """Keep the memory that code compiled by others reads, unless the capture made it itself."""
        for tensor in inputs:
            if isinstance(tensor, Tensor) and tensor.is_cuda and has_layout(tensor):
                made = self.storages.get(storage_address(tensor))
                if (made is None or made.segment != self.segment) and identity(tensor) not in self.outside:
                    self._external(tensor, tensor.data_ptr())

    def adopt(self, out: object) -> None:
        """Make the tensors that a host step produced externals of what follows."""
        for tensor in flat(out):
            if tensor.is_cuda and has_layout(tensor):
                self._external(tensor, tensor.data_ptr())

    def _made_of(
        self, out: Any, position: int, info: OpInfo, args: Any, kwargs: Any, spec_args: list[Any], spec_kwargs: Any
    ) -> object:
        """Value of a result that is not one device tensor; `_HOST_WORK` if it was computed on the host once and for
        all.
        """
        if isinstance(out, Tensor):
            if not out.is_cuda and not self._on_device(spec_args, spec_kwargs):
                self.session.host.note_result(info, args, kwargs, out)
                return _HOST_WORK  # it does not depend on the device
            return self.known(out) or self._made(out, position, info, spec_args)
        if is_host_work(args, kwargs, out):
            self.session.host.note_result(info, args, kwargs, out)
            return _HOST_WORK
        if type(out) in _SEQUENCES:
            return type(out)([self._made(o, position, info, spec_args) if isinstance(o, Tensor) else o for o in out])
        return out

    def _made(self, tensor: Tensor, position: int, info: OpInfo, args: list[object]) -> TapeValue:
        if not tensor.is_cuda:
            return self._made_on_host(tensor, position)
        value = new_value(tensor, self.owner, position, self.segment, 0, None)
        if not info.makes_memory:
            base = args[0] if args else None
            value.root = (base.root or base) if type(base) is TapeValue else _EXTERNAL_ROOT
        elif tensor.layout is _STRIDED:
            value.address = address = tensor.data_ptr()
            self.storages[address] = value
        self.values.append(value)
        if self.is_guarded:
            self._note_layout(tensor, value)
        return value

    def _note_layout(self, tensor: Tensor, value: TapeValue) -> None:
        """Where memory is guarded, store the result's layout."""
        value.layout = Layout.of(tensor) if tensor.layout is _STRIDED else None
        if self.holds is not None:
            self.holds.append(tensor)

    def _made_on_host(self, tensor: Tensor, position: int) -> TapeValue:
        """A result in page-locked memory: each replay writes there, so the program holds it, which a graph does not.

        Host work with it counts as work with a device value.
        """
        value = new_value(tensor, self.owner, position, self.tape.segment, 0, None)
        self.values.append(value)
        self.externals[value] = tensor
        self.session.values.taint(tensor)
        return value

    def _on_device(self, args: Any, kwargs: Any) -> bool:
        """True if a host tensor came from device work (a pinned copy)."""
        return any(
            type(item) is TapeValue and (item.address or item.root is not None) for item in (*args, *kwargs.values())
        )

    def _failed(self, info: OpInfo, args: Args, kwargs: Kwargs, error: RuntimeError) -> object:
        try:
            if self.session is None:  # its kernel is Python, and the capture failed in there
                raise error
            return self.session.op_failed(info, info.func, args, kwargs, error)
        finally:
            del error  # see op_failed

    def _made_in_parts(self, info: OpInfo, args: Args, kwargs: Kwargs, out: object, rows: object) -> object:
        """The operation's parts are in the program already, as launches that no row names and steps on the host.

        If it computes with values that it reads there, as a loop over experts does, later captures repeat it whole.

        Args:
            rows: of the segment in which it began.
        """
        program = self.session.program
        since = itertools.dropwhile(
            lambda step: not isinstance(step, SegmentStep) or step.tape.rows is not rows, program.steps
        )
        if any(isinstance(step, ReadStep) and step.guards for step in since):
            info.unsafe, info.applies, program.is_outdated = UnsafeOp(info.name, Kind.HOST_READ, _READS), always, True
        self.adopt(out)
        self.note_effects(info, args, kwargs)
        return out

    def note_effects(self, info: OpInfo, args: Args, kwargs: Kwargs, spec_args: Sequence[Any] = ()) -> None:
        """Note which external tensors the operation wrote, and that it drew random numbers.

        Args:
            spec_args: values in place of tensors, where they are known.
        """
        for position, name in info.mutates:
            if position < len(spec_args) and type(value := spec_args[position]) is TapeValue:
                if (
                    value.root is not None
                    or value.segment != self.segment
                    or not (value.made_by >= 0 < value.address)
                ):
                    self._note_write(args[position], value)
                continue
            target = args[position] if position < len(args) else kwargs.get(name)
            for tensor in (target,) if isinstance(target, Tensor) else flat(target):
                self._note_write(tensor, self.value_of(tensor))
        if info.draws:
            self.session.note_draw(info.generator, args, kwargs)

    def _note_write(self, tensor: Tensor, value: TapeValue) -> None:
        if not tensor.is_cuda:
            self.session.values.taint(tensor)
            self.session.host.note_write(tensor)
        if value.is_of_external or (value.root or value).segment != self.tape.segment:
            key = (tensor.data_ptr(), tuple(tensor.size()), tuple(tensor.stride()))
            if key not in self.mutated:
                self.mutated[key] = tensor

    def live_values(self) -> list[tuple[TapeValue, Tensor]]:
        """Values of the current segment whose tensors are alive, with the tensors; the newer if a tensor has two."""
        live = {
            identity(tensor): (value, tensor)
            for value in self.values
            if (tensor := value()) is not None and has_layout(tensor)
        }
        return list(live.values())


def _shield_from_dynamo() -> None:
    """Remove the wrapper that torch puts around each mode's ``__torch_dispatch__``.

    It costs 4 us an operation (H200 host) and imports Dynamo, which takes seconds, inside a process's first capture.
    """
    plain = getattr(Recorder.__torch_dispatch__, "__wrapped__", None)
    if plain is not None:
        keep_from_dynamo(plain)
        Recorder.__torch_dispatch__ = plain  # type: ignore[method-assign]


_shield_from_dynamo()


_HOST_WORK = object()
_EXTERNAL_ROOT = new_value(type(None), 0, -1, -1, 0, None)
_STRIDED = torch.strided
_NO_KWARGS: Kwargs = {}
_PLAIN = frozenset({int, float, bool, type(None), str, torch.dtype, torch.device, torch.layout, torch.memory_format})
_SEQUENCES = frozenset({tuple, list})
_EXACT = frozenset({Tensor, Parameter, list})


# -- calls that are not written down as they come ------------------------------------------------------------


TO_RECORD = object()
_TRACED = frozenset({"FakeTensor", "FunctionalTensor"})
_COMPOSITE = torch.DispatchKey.CompositeImplicitAutograd
_EXPLICIT = torch.DispatchKey.CompositeExplicitAutograd
_BRANCHES = UnsafeOp(
    "control flow", Kind.HOST_READ, "a value on the device decides what it runs, and how often", When.ALWAYS
)
_BRANCHING = frozenset({"cond", "while_loop"})
"""Each replay runs them eagerly as a whole: the branch that its own predicate takes."""
_RELAID = "it gives a tensor another shape in place, which a step on the host holds; write `y = x.t()`, not `x.t_()`"
_TAINTED = UnsafeOp(
    "host arithmetic", Kind.HOST_READ, "it computes on the host with values from the device", When.ALWAYS
)


class NoStorage(Exception):
    """The tensor has no strided memory."""


class HostOperand(NoStorage):
    """Nor has it any on the device: the capture's first tensor in host memory."""


def not_recorded(recorder: Recorder, func: Callable[..., object], args: Args, kwargs: Kwargs) -> object:
    """A question of C++'s, or a higher-order operator: what its implementation calls is recorded."""
    if not isinstance(func, torch_names.HigherOrderOperator):
        return func(*args, **kwargs)
    is_traced_now = any(map(is_traced, flat(args, kwargs)))
    if func.name() in _BRANCHING and recorder.session.policy is OnUnsafe.SPLIT and not is_traced_now:
        return recorder.session.unsafe_op(_BRANCHES, func, args, kwargs)
    if not recorder.session.generators.know_all(args, kwargs):
        return recorder.session.unsafe_op(BY_NAME["torch.Generator"], func, args, kwargs)  # a compiled checkpoint
    return seen_inside(recorder, func, args, kwargs)


def seen_inside(mode: Any, func: Callable[..., object], args: Args, kwargs: Kwargs) -> object:
    """Call an operator such that the mode sees what a higher-order one's implementation calls.

    Torch calls that with no mode but those below this one, and some implementations insist on none: what they are
    given to call is then seen alone.
    """
    kernel = func.py_kernels.get(_EXPLICIT) if isinstance(func, torch_names.HigherOrderOperator) else None
    if kernel is None or torch_names._len_torch_dispatch_stack() or any(map(is_traced, flat(args, kwargs))):
        return func(*args, **kwargs)
    code = getattr(getattr(kernel, "func", kernel), "__code__", None)
    if code is None or "_get_current_dispatch_mode" in code.co_names:
        return func(*map(partial(_seen, mode), args), **kwargs)
    with mode:
        return kernel(*args, **kwargs)


def _seen(mode: Any, item: object) -> object:
    if isinstance(item, Tensor) or not callable(item):
        return item

    def seen(*args: object, **kwargs: object) -> object:
        with mode:
            return item(*args, **kwargs)

    seen._boxed_call = getattr(item, "_boxed_call", False)  # type: ignore[attr-defined]
    return seen


def otherwise(
    recorder: Recorder, found: NoStorage, func: Callable[..., object], args: Args, kwargs: Kwargs
) -> object:
    """An operation whose tensors are not all of device memory with strides."""
    if isinstance(found, HostOperand):  # looked at once more, as all that come from now on
        return recorder.__torch_dispatch__(func, (), args, kwargs)
    if any(map(is_traced, flat(args, kwargs))):  # nothing is launched
        return func(*args, **kwargs)
    if any(map(is_wrapper, flat(args, kwargs))):  # its own handler comes first, and what that calls is recorded
        return NotImplemented
    return recorder.session.unsafe_op(NO_LAYOUT, func, args, kwargs)


def looked_at(recorder: Recorder, info: OpInfo, args: Any, kwargs: Kwargs) -> tuple[object, object, object]:
    """Handle a call that may not be one to record.

    Returns:
        Its result or `TO_RECORD`, and the arguments to record it with.
    """
    func = info.func
    given = flat(args, kwargs)
    if any(map(is_wrapper, given)) and not any(map(is_traced, given)):
        return NotImplemented, args, kwargs
    if info.is_composite and all(map(has_layout, given)):
        with recorder, as_outside():  # torch's C++ parts, as in eager; Python's decompositions may differ
            return func._op_dk(_COMPOSITE, *args, **kwargs), args, kwargs
    if recorder.session.values.has_given_numbers:  # called where no mode saw it
        args, kwargs = plain(args), plain(kwargs)
    row = _unsafe(recorder, info, args, kwargs)
    if row is not None:
        return recorder.session.unsafe_op(row, func, args, kwargs), args, kwargs
    if recorder.is_guarded and not info.is_torchs:
        args, kwargs = _repaired(recorder, info, args, kwargs)
    if info.mutates and not info.is_torchs:  # beforehand, in case its kernel is Python and splits the capture
        recorder.note_effects(info, args, kwargs)
    if info.relays and args and args[0].is_cuda and has_layout(args[0]):
        recorder.keep_layout(info.name, args[0])
    return TO_RECORD, args, kwargs


_AUTOCAST = {"cuda": torch.DispatchKey.AutocastCUDA, "cpu": torch.DispatchKey.AutocastCPU}


def as_outside() -> Any:
    """Context manager for the parts of a composite operation, in a mode's handler: autocast as it is outside.

    Inference mode hands such an operation whole to the mode. Torch has switched everything above the mode off in its
    handler, autocast too: the parts of ``square`` would give bfloat16 where eager gives float32.
    """
    with torch_names._RestorePythonTLSSnapshot():  # as it was at the dispatcher's entry
        keys = [key for kind, key in _AUTOCAST.items() if torch.is_autocast_enabled(kind)]
    if not keys:
        return nullcontext()
    excluded = torch_names._dispatch_tls_local_exclude_set()
    for key in keys:
        excluded = excluded.remove(key)
    return torch_names._ForceDispatchKeyGuard(torch_names._dispatch_tls_local_include_set(), excluded)


def _repaired(recorder: Recorder, info: OpInfo, args: Args, kwargs: Kwargs) -> Any:
    """Arguments adjusted to what another library's kernel assumes about them."""
    with recorder:  # the copies belong to the capture
        return rooms.repaired(args, kwargs, info.mutates)


def _unsafe(recorder: Recorder, info: OpInfo, args: Args, kwargs: Kwargs) -> UnsafeOp | None:
    """The row of the unsafe table that applies to this call, if any."""
    if info.unsafe is not None and info.applies(args, kwargs):  # type: ignore[misc]
        recorder.session.moving.operation(info.name, args, kwargs)
        return info.unsafe
    session = recorder.session
    moving = session.moving.operation(info.name, args, kwargs)
    if moving is not None:
        return moving
    if info.name == "aten::is_pinned":  # it reads memory, not values
        return None
    if session.values.tainted and session.values.reads_tainted(args, kwargs):
        return _TAINTED if not _is_pinned_copy(recorder, info, args) else None
    if session.policy is OnUnsafe.RAISE or not (recorder.has_host_operands or info.draws):
        return None
    return session.host.row_of(info, args, kwargs)


def _is_pinned_copy(recorder: Recorder, info: OpInfo, args: Args) -> bool:
    """True for a copy back to the device of data that the graph itself copies to the host."""
    if info.unsafe is None:
        return False
    target, source = (args[0], args[1]) if info.mutates else (None, args[0])
    if isinstance(target, Tensor) and not target.is_cuda:
        return False  # from host memory to host memory: no graph does that
    value = recorder.known(source) if isinstance(source, Tensor) else None  # a collective takes lists
    return value is not None and value in recorder.externals


def first_seen(func: Any) -> OpInfo | None:
    """Note what there is to know of an overload; None for higher-order operators and for what C++ asks a subclass.

    The latter (prim::device, aten::dim) are unknown to the dispatcher; an exception there would end the process.
    """
    if not hasattr(func, "_schema") or not torch_names._dispatch_has_kernel(func.name()):
        return None
    info = OPS[identity(func)] = OpInfo(func)
    return info


def is_traced(tensor: Tensor) -> bool:
    return type(tensor).__name__ in _TRACED


def is_host_work(args: Args, kwargs: Kwargs, out: Any) -> bool:
    """True if an operation has tensors, and all are in host memory."""
    tensors = flat(args, kwargs, out)
    return bool(tensors) and not any(tensor.is_cuda for tensor in tensors)


def escaped(out: object, info: OpInfo) -> bool:
    """HIP only: device work returned success but added no node to the graph."""
    tensors = flat(out)
    if not tensors or not all(t.is_cuda and t.numel() for t in tensors):
        return False
    return info.name not in NO_NODE and not info.name.startswith(("aten::empty", "aten::new_empty"))
