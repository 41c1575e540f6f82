"""Every aten op on the "cuda" device: computed on CPU twins, or recorded during a capture.

Enters: calls from torch's dispatcher, below autograd, autocast and all modes, as a GPU's kernels get them.
Stays out: ops that need more than their schema (special_kernels.py); rules of captures (runtime.py).

A captured op is not computed: a dry run on stand-in values of the same shapes determines what it returns (ones and
zeros, because real values are poison by then). Its outputs are allocated as in eager execution, and filled with
poison, so that values read before the first replay are never right by accident.

1,300 operations are registered with the dispatcher once per process, because that takes longer than most tests. The
registered functions call the kernels of the installed simulator, and raise if there is none.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from gfxgraph import torch_names
from gfxgraph.types import NodeKind
from gfxgraph_simulator import op_schema, sparse_kernels
from gfxgraph_simulator.cuda_only_kernels import COMPOSED
from gfxgraph_simulator.device_memory import span_nbytes
from gfxgraph_simulator.graph_nodes import Operand, RecordedNode
from gfxgraph_simulator.op_schema import OpSchema, argument, schema_of, set_argument
from gfxgraph_simulator.random_state import CpuGenerator, ReplayDraw, SimGenerator, get_state, set_state
from gfxgraph_simulator.runtime import CallRefused, Stream

if TYPE_CHECKING:
    from gfxgraph_simulator.card import Simulator

_CPU_KEYS: Final = torch.DispatchKeySet(torch.DispatchKey.CPU)
_TAKES_NUMBERS = frozenset({"add", "sub", "mul", "div", "floor_divide", "true_divide"})
_MIXED: Final = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
_COMPOSED: Final = ("CompositeExplicitAutograd", "CompositeImplicitAutograd")
_DRY_RUNS_KEPT: Final = 8192


@functools.cache
def _on_the_cpu() -> frozenset[str]:
    """The aten operations that CPU kernels can compute."""
    has = torch_names._dispatch_has_kernel_for_dispatch_key
    names = set()
    for full in torch_names._dispatch_get_all_op_names():
        name = full.removeprefix("aten::")
        if name == full:
            continue
        # Without its own CPU kernel an operation may still be composed of such operations.
        composed = has(full, "CUDA") and any(has(full, key) for key in _COMPOSED)
        if name.startswith("_foreach_") or name in op_schema.ALSO or has(full, "CPU") or composed:
            names.add(name)
    return frozenset(names)


Kernel = Callable[..., Any]
Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Values = Iterable[Any]

_installed: Kernels | None = None
_library: torch.library.Library | None = None
"""The registrations at torch's CUDA key; they stay until the process ends."""
_dry_runs: dict[Any, list[Any]] = {}
"""Results of dry runs, for all simulators."""


def _register(names: frozenset[str]) -> None:
    global _library
    if _library is None:
        _library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            # Composite kernels are overridden intentionally.
            warnings.simplefilter("ignore", UserWarning)
            for name in sorted(names):
                _library.impl(name, _entry(name), "CUDA", allow_override=True)
            for name, body in COMPOSED.items():
                for key in ("CUDA", "AutogradCUDA"):
                    _library.impl(name, body, key, allow_override=True)
            for key in sparse_kernels.KEYS:
                for name in sparse_kernels.names(key):
                    _library.impl(name, _entry(f"{name}@{key}"), key, allow_override=True)


def _entry(name: str) -> Kernel:
    def kernel(*args: object, **kwargs: object) -> object:
        kernels = _installed
        if kernels is None:
            raise NotImplementedError(f"aten::{name} on a simulated card that is no longer installed")
        return kernels.kernel(name)(*args, **kwargs)

    return kernel


class Kernels:
    """The kernels of one simulator, and how a call is carried out."""

    def __init__(self, sim: Simulator) -> None:
        self.sim = sim
        self.arena = sim.arena
        self.device = sim.device
        self._built: dict[str, Kernel] = {}
        self._host = torch.library.Library("aten", "IMPL")

    def install(self, special: dict[str, Kernel], host: dict[str, Kernel]) -> None:
        """Install kernels at the CUDA key (``special`` ones before those built by schema), and ``host`` ones as CPU
        kernels.
        """
        global _installed
        self._built.update(special)
        _register(_on_the_cpu() | set(special))
        _installed = self
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            for name, function in host.items():
                self._host.impl(name, function, "CPU", allow_override=True)

    def undo(self) -> None:
        global _installed
        _installed = None
        self._host._destroy()

    def kernel(self, name: str) -> Kernel:
        """The kernel of ``name``, built at its first call."""
        function = self._built.get(name)
        if function is None:
            op, _, key = name.partition("@")
            function = self._built[name] = sparse_kernels.build(self, op, key) if key else self.build(name)
        return function

    def build(self, name: str) -> Kernel:
        """The kernel of ``name``, from its schema."""
        schema = schema_of(name)
        if schema.is_view and not any(where is not None and where in schema.outs for where in schema.returned):
            return self.view_kernel(schema.op)
        return self._compute_kernel(schema)

    def build_from(self, name: str, body: Callable[..., object]) -> Kernel:
        """The kernel of ``name`` that computes ``body`` on twins instead of calling torch's CPU kernel."""
        return self._compute_kernel(replace(schema_of(name), op=body))

    def view_kernel(self, op: Any) -> Kernel:
        # torch's CPU kernel of a view only makes a new tensor over the same storage, whatever its device.
        def kernel(*args: object, **kwargs: object) -> object:
            return op.redispatch(_CPU_KEYS, *args, **kwargs)

        return kernel

    def _compute_kernel(self, schema: OpSchema) -> Kernel:
        device = self.device
        syncs = self._sync_test(schema)
        how = "stream_synchronize" if schema.name in op_schema.BY_THRUST else "memcpy_with_stream"

        def kernel(*args: object, **kwargs: object) -> object:
            if syncs is not None and syncs(args):
                self.sim.host_read(how)
                return self.compute(schema, args, kwargs)
            if not device.busy:
                return self.compute(schema, args, kwargs)
            return self.submit(schema, args, kwargs)

        return kernel

    def _sync_test(self, schema: OpSchema) -> Callable[[tuple[Any, ...]], bool] | None:
        name = schema.name
        if name in op_schema.MASK_INDEXING:
            return _has_mask
        if name in op_schema.SYNCING or (schema.waits and name not in op_schema.NOT_SYNCING):
            return _always
        return _SOMETIMES.get(name)

    # ---- eager --------------------------------------------------------------------------------------

    def compute(self, schema: OpSchema, args: Args, kwargs: Kwargs) -> Any:
        """Carry out the call now, on the device's memory."""
        self.device.threads.has_context = True
        call, keywords = self.twins(schema, args, kwargs)
        fresh = self._replace_outs(schema, keywords)
        generator = None
        if schema.draws:
            state = self._generator(schema, args, kwargs).state
            in_capture = self.device.busy and self.device.current().capture is not None
            generator = state.at(state.take(_drawn(args, kwargs), in_capture))
        result = _called(schema, generator, call, keywords)
        for name in fresh:
            self._write_out(kwargs[name], keywords[name])
        return self._hand_back(schema, args, kwargs, result)

    def twins(self, schema: OpSchema, args: Args, kwargs: Kwargs) -> tuple[list[Any], dict[str, Any]]:
        call = [self._twins_in(value, schema, at in schema.tensors) for at, value in enumerate(args)]
        if not kwargs:
            return call, kwargs
        keywords = {name: self._twins_in(value, schema, False) for name, value in kwargs.items()}
        if schema.has_device:
            keywords["device"] = torch.device("cpu")
            keywords.pop("pin_memory", None)
        return call, keywords

    def _twins_in(self, value: object, schema: OpSchema, is_tensor: bool) -> Any:
        if isinstance(value, Tensor):
            if value.is_cuda:
                return self.arena.twin(value)
            if value.dim() and not schema.mixed_devices:
                raise RuntimeError(_MIXED)
        elif isinstance(value, (list, tuple)):
            return [self._twins_in(item, schema, False) for item in value]
        elif is_tensor and value is not None and schema.name.split(".")[0].rstrip("_") not in _TAKES_NUMBERS:
            # A Python number where the schema has a tensor, as in ``x % 256``: torch converts it itself only
            # for arithmetic.
            return torch.tensor(value)
        return value

    def _replace_outs(self, schema: OpSchema, keywords: dict[str, Any]) -> list[str]:
        # An out tensor of the wrong shape is resized by the CPU kernel, which must not happen to a twin.
        replaced = []
        for name in schema.outs:
            if isinstance(keywords.get(name), Tensor):
                keywords[name] = torch.empty(0, dtype=keywords[name].dtype, device=keywords[name].device)
                replaced.append(name)
        return replaced

    def _write_out(self, out: Tensor, value: Tensor) -> None:
        if out.size() != value.size():
            self.sim.resize_out(out, value)
        self.arena.twin(out).copy_(value)

    def _hand_back(self, schema: OpSchema, args: Args, kwargs: Kwargs, result: Any) -> object:
        returned = schema.returned
        if len(returned) == 1:
            where = returned[0]
            return self.wrap(result, args) if where is None else argument(where, args, kwargs)
        if not returned:
            return None
        return tuple(
            self.wrap(value, args) if where is None else argument(where, args, kwargs)
            for where, value in zip(returned, result)
        )

    def wrap(self, value: object, args: Values) -> Any:
        """The card's tensors for those that a CPU kernel returned."""
        if isinstance(value, Tensor):
            if value.layout is not torch.strided:
                return sparse_kernels.on_device(self, value)
            if value.data_ptr() in self.arena:
                return self._view_of(value, args)
            made = self.sim.allocate(value.size(), value.stride(), value.dtype)
            self.arena.twin(made).copy_(value)
            return made
        if isinstance(value, (list, tuple)):
            return type(value)(self.wrap(item, args) for item in value)
        return value

    def _view_of(self, twin: Tensor, args: Values) -> Tensor:
        """The device tensor for a result that lies in an argument's memory."""
        for owner in _tensors_in(args):
            if not owner.is_cuda:
                continue
            storage = owner.untyped_storage()
            shift = twin.data_ptr() - storage.data_ptr()
            if 0 <= shift < storage.nbytes() and twin.dtype == owner.dtype:
                as_strided = torch.ops.aten.as_strided.default
                at = shift // twin.dtype.itemsize
                view: Tensor = as_strided.redispatch(_CPU_KEYS, owner, list(twin.size()), list(twin.stride()), at)
                return view
        made = self.sim.allocate(twin.size(), twin.stride(), twin.dtype)
        self.arena.twin(made).copy_(twin)
        return made

    def _generator(self, schema: OpSchema, args: Args, kwargs: Kwargs) -> SimGenerator:
        given = argument(schema.generator, args, kwargs) if schema.generator is not None else None
        found = SimGenerator.of(given)
        if found is not None:
            return found
        if given is not None:
            raise RuntimeError(f"Expected a 'cuda' device type for generator but found '{given.device.type}'")
        return self.sim.default_generator

    # ---- captured -----------------------------------------------------------------------------------

    def submit(self, schema: OpSchema, args: Args, kwargs: Kwargs) -> object:
        """Carry out the call while there are captures, stuck streams or planted failures."""
        device = self.device
        stream = device.current()
        try:
            device.check_op(stream)
            capture = stream.capture
            if capture is not None and capture.invalidated:
                raise CallRefused(901)
            if capture is None and stream.stuck is None and not stream.hangs:
                return self.compute(schema, args, kwargs)
            if capture is None and stream.stuck is not None and device.profile.stuck_launch.code:
                raise CallRefused(device.profile.stuck_launch.code)
            return self._record(schema, args, kwargs, stream)
        except CallRefused as refused:
            code = refused.code
        raise self.sim.error(CallRefused(code))  # no local may refer to it: its traceback holds this frame

    def _record(self, schema: OpSchema, args: Args, kwargs: Kwargs, stream: Stream) -> object:
        # CUDA's kernels take a symbolic scalar without asking for its number: a NaN (seen on an H200, torch 2.11).
        args = tuple(math.nan if type(item) is torch.SymFloat else item for item in args)
        call, keywords = self.twins(schema, args, kwargs)
        keywords = dict(keywords)
        kind = NodeKind.MEMSET if schema.name == "zero_" else NodeKind.KERNEL
        node = RecordedNode(kind, f"sim::aten::{schema.name}", _run, call=(call, keywords))
        self._note_inputs(schema, node)
        if schema.draws:
            state = self._generator(schema, args, kwargs).state
            node.draw = ReplayDraw(state)
            node.offset = state.take(_drawn(args, kwargs), True)
        specs = self._dry_run(schema, call, keywords)
        for name in schema.outs:
            if isinstance(kwargs.get(name), Tensor):
                _, size, stride = next(spec for spec in specs if spec[0] == name)
                if tuple(kwargs[name].size()) != size:
                    self.sim.resize_out(kwargs[name], torch.empty_strided(size, stride, dtype=kwargs[name].dtype))
                keywords[name] = self.arena.twin(kwargs[name])
        results: list[object] = []
        for where, spec in zip(schema.returned, specs):
            if where is not None:
                results.append(argument(where, args, kwargs))
            else:
                results.append(self._promise(spec, node, args))
        node.run = functools.partial(_run_again, schema)
        if stream.capture is not None:  # otherwise the stream is stuck or hangs, and the work is lost
            self.device.record(stream, node)
        if len(schema.returned) == 1:
            return results[0]
        return tuple(results) if results else None

    def _note_inputs(self, schema: OpSchema, node: RecordedNode) -> None:
        for top, slot in _places(*node.call):
            if top in schema.outs or top in schema.targets:
                node.target_slots.append(slot)
            if top not in schema.outs:
                node.input_slots.append(slot)
                # A host scalar's value is part of the launch; the tensor may change before the replay.
                if slot.tensor.data_ptr() not in self.arena and slot.tensor.numel():
                    slot.container[slot.key] = slot.tensor.clone()

    def _promise(self, spec: Any, node: RecordedNode, args: tuple[Any, ...]) -> Any:
        """Make the tensor that the op returns according to a dry run; a replay gives it its value."""
        kind = spec[0]
        if kind == "tensor":
            made = self.sim.allocate(*spec[1:])
            twin = self.arena.twin(made)
            block = self.sim.allocator.live.get(made.data_ptr())
            # A device writes nothing during a capture: a later graph may read what a launched graph left.
            if block is None or not block.segment.pool.has_run:
                poison(twin)
            node.outputs.append(twin)
            return made
        if kind == "argument":
            return list(_tensors_in(args))[spec[1]]
        if kind == "many":
            return [self._promise(item, node, args) for item in spec[1]]
        return spec[1]

    def _dry_run(self, schema: OpSchema, call: list[object], keywords: dict[str, object]) -> list[Any]:
        """What each return value looks like: ("tensor", size, stride, dtype), ("argument", n), ("value", v)."""
        key: object = (schema.name, _describe(call), _describe(keywords))
        try:
            known = _dry_runs.get(key)
        except TypeError:  # an unhashable argument
            key, known = None, None
        if known is not None:
            return known
        specs = self._try_out(schema, call, keywords)
        if key is not None:
            if len(_dry_runs) >= _DRY_RUNS_KEPT:
                _dry_runs.clear()
            _dry_runs[key] = specs
        return specs

    def _try_out(self, schema: OpSchema, call: list[Any], keywords: dict[str, Any]) -> list[Any]:
        stand_in_call = [_stand_in(value) for value in call]
        stand_in_keywords = {name: _stand_in(value) for name, value in keywords.items()}
        fresh = self._replace_outs(schema, stand_in_keywords)
        generator = CpuGenerator("cpu") if schema.draws else None
        try:
            result = _called(schema, generator, stand_in_call, stand_in_keywords)
        except RuntimeError:
            # Ones may be invalid input (a singular matrix); shapes alone may be enough.
            stand_in_call = [_on_meta(value) for value in stand_in_call]
            stand_in_keywords = {name: _on_meta(value) for name, value in stand_in_keywords.items()}
            self._replace_outs(schema, stand_in_keywords)
            result = schema.op(*stand_in_call, **stand_in_keywords)
        inputs = [tensor.data_ptr() for tensor in _tensors_in(stand_in_call)]
        results = (result,) if len(schema.returned) == 1 else tuple(result or ())
        specs = [_spec(value, inputs) for value in results]
        for at, where in enumerate(schema.returned):
            if isinstance(where, str) and where in fresh:
                made = stand_in_keywords[where]
                specs[at] = (where, tuple(made.size()), tuple(made.stride()))
        return specs


def _run_again(schema: OpSchema, node: RecordedNode, generator: torch.Generator | None) -> None:
    """Perform a recorded operation on the present contents of its slots."""
    call, keywords = list(node.call[0]), dict(node.call[1])
    outs = {name: keywords[name] for name in schema.outs if isinstance(keywords.get(name), Tensor)}
    keywords |= {name: torch.empty(0, dtype=out.dtype) for name, out in outs.items()}
    result = _called(schema, generator, call, keywords)
    for name, out in outs.items():
        out.copy_(keywords[name])
    if node.outputs:
        results = (result,) if len(schema.returned) == 1 else result
        new = (value for where, value in zip(schema.returned, results) if where is None)
        written = {id(tensor) for tensor in _tensors_in(call)}
        values = (value for value in _tensors_in(new) if id(value) not in written)
        for output, value in zip(node.outputs, values):
            output.copy_(value)


def _run(node: RecordedNode, generator: torch.Generator | None) -> None:
    raise AssertionError(f"{node.name} was never completed")


def poison(twin: Tensor) -> None:
    """Fill with a value that cannot pass for a result: NaN, or the extreme integer."""
    dtype = twin.dtype
    if dtype.is_floating_point or dtype.is_complex:
        if dtype.itemsize == 1:
            twin.view(torch.uint8).fill_(0x7F)
        else:
            twin.fill_(float("nan"))
    elif dtype == torch.bool:
        twin.fill_(True)
    else:
        info = torch.iinfo(dtype)
        twin.fill_(info.min if info.min else info.max)


def _always(args: tuple[object, ...]) -> bool:
    return True


def _fills_by_mask(target: Tensor, indices: Any, value: object) -> bool:
    """Whether torch uses masked_fill, for one mask and one host number, which does not wait."""
    if not isinstance(value, Tensor) or value.is_cuda or value.numel() != 1:
        return False
    given = [index for index in indices if index is not None]
    return len(given) == 1 and given[0].dtype in (torch.bool, torch.uint8)


def _has_no_range(args: tuple[object, ...]) -> bool:
    return len(args) < 4 or args[2] == args[3]


_SOMETIMES: dict[str, Callable[[tuple[Any, ...]], bool]] = {
    "_padded_dense_to_jagged_forward": lambda args: len(args) < 3 or args[2] is None,
    "histc": _has_no_range,
    "histc.out": _has_no_range,
}


def _has_mask(args: tuple[Any, ...]) -> bool:
    if len(args) > 2 and _fills_by_mask(*args[:3]) and not (len(args) > 3 and args[3]):
        return False
    masks = [index for index in args[1] if index is not None and index.dtype in (torch.bool, torch.uint8)]
    return any(mask.is_cuda or args[0].is_cuda for mask in masks)


def _called(schema: OpSchema, generator: torch.Generator | None, call: list[Any], keywords: dict[str, Any]) -> Any:
    """The operation's result; one that draws gets the generator, in place of what the call says."""
    if schema.name == "histc" and not call[0].is_floating_point():  # the CPU has none of integers
        return schema.op(call[0].double(), *call[1:], **keywords).to(call[0].dtype)
    if generator is None:
        return schema.op(*call, **keywords)
    set_argument(schema.generator, call, keywords, generator)
    if schema.generator is not None and (isinstance(schema.generator, str) or schema.generator < len(call)):
        return schema.op(*call, **keywords)
    # The op takes no generator, or none was passed by position: lend it the process's CPU generator.
    default = torch.random.default_generator
    before = get_state(default)
    set_state(default, get_state(generator))
    try:
        return schema.op(*call, **keywords)
    finally:
        set_state(default, before)


def _drawn(args: Args, kwargs: Kwargs) -> int:
    numel = max((tensor.numel() for tensor in _tensors_in((*args, *kwargs.values()))), default=0)
    return max(numel, args[0] if args and type(args[0]) is int else 0)


def _tensors_in(values: Values) -> Iterable[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors_in(value)


def _places(call: list[Any], keywords: dict[str, object]) -> Iterator[tuple[object, Operand]]:
    """Where a call has tensors: the argument's place or name, and the slot."""
    for slot in [*(Operand(call, at) for at in range(len(call))), *(Operand(keywords, name) for name in keywords)]:
        value = slot.container[slot.key]
        if isinstance(value, Tensor):
            yield slot.key, slot
        elif isinstance(value, list):
            yield from ((slot.key, Operand(value, at)) for at, item in enumerate(value) if isinstance(item, Tensor))


def _describe(value: object) -> object:
    if isinstance(value, Tensor):
        return (value.size(), value.stride(), value.dtype)
    if isinstance(value, (list, tuple)):
        return tuple(_describe(item) for item in value)
    if isinstance(value, dict):
        return tuple((name, _describe(item)) for name, item in sorted(value.items()))
    if isinstance(value, torch.Generator):
        return None
    return (type(value), value)


def _stand_in(value: object) -> Any:
    if isinstance(value, Tensor):
        count = span_nbytes(value.size(), value.stride(), value.dtype) // value.dtype.itemsize
        make = torch.ones if value.dtype.is_floating_point or value.dtype.is_complex else torch.zeros
        return make(max(count, 0), dtype=value.dtype).as_strided(value.size(), value.stride())
    if isinstance(value, list):
        return [_stand_in(item) for item in value]
    return value


def _on_meta(value: object) -> Any:
    if isinstance(value, Tensor):
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")
    return [_on_meta(item) for item in value] if isinstance(value, list) else value


def _spec(value: object, inputs: list[int]) -> Any:
    if isinstance(value, Tensor):
        address = 0 if value.device.type == "meta" else value.data_ptr()
        if address and address in inputs:
            return ("argument", inputs.index(address))
        return ("tensor", tuple(value.size()), tuple(value.stride()), value.dtype)
    if isinstance(value, (list, tuple)):
        return ("many", [_spec(item, inputs) for item in value])
    return ("value", value)
