"""What Dynamo tells of a frame: its FX graph, what that reads, and why it is not the whole call.

    root_of      the frame in which Dynamo meets a function
    backend_of   what Dynamo gives an FX graph to; ``look`` notes what it knows of the frame then

Nothing is decided here: what is found goes to the function's ``Traced``.

Source: decision 0111; torch._dynamo (2.9 to 2.14) for its interfaces.
"""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import functools
import inspect
import itertools
import operator
import re
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol

import torch

from gfxgraph import torch_names
from gfxgraph.callables.trace.guard_walk import reads_state
from gfxgraph.watching.watch import PACKAGES

BROKEN = "Python runs between its graphs"
WAITS = "it is asynchronous, or calls something that is; give graphed() the part without await"
RESTLESS_NUMBER = "changes too often; make it a tensor on the device"
ROOT = "<graphed>"
"""The file of the frames in which Dynamo meets the functions."""
MAX_TRACES = 16
"""Traces of one function; beyond that, calls in new worlds run eagerly."""
CHANGED = (AttributeError, ImportError, LookupError, NameError, TypeError)
"""How code ends that meets another version of what it calls."""


@dataclass
class Found:
    """What Dynamo found for one frame."""

    root: Any
    graph: Any
    sources: list[str]
    """Sources of the graph's inputs, in order; "" for a number that Dynamo computed."""
    names: list[str] = field(default_factory=list)
    """What the program calls them."""
    numbers: list[torch.fx.Node] = field(default_factory=list)
    """What its graph computes of numbers from outside alone."""
    is_empty: bool = False
    """Whether its graph does nothing."""
    why_not_whole: str = ""
    is_broken: bool = False
    """Whether the frame goes on after this graph, in others or in Python."""
    code: list[types.CodeType] = field(default_factory=list)
    """Code of every function that was traced on the way."""
    stores: list[tuple[str, str, Any]] = field(default_factory=list)
    """Constants that the frame's code leaves in objects: source of the object, attribute, value."""
    does_catch: bool = False
    """Whether some of its code may continue after an error."""
    asks_by_name: bool = False
    """Whether it may look for a Python attribute of an argument that does not exist."""
    asks_mappings: bool = False
    """Whether it may look for a missing key in one of Python's own mappings."""
    why_eager: str = ""
    """Why even a capture of the graph would not do what the graph does."""
    outside: list[int] = field(default_factory=list)
    """Positions of the inputs from outside the frame: they are expected to stay in place."""
    stored: set[int] = field(default_factory=set)
    """Positions of inputs in whose place the frame stores something: another tensor, unless it is a result, too."""
    returned: list[str] = field(default_factory=list)
    """Sources of external tensors and changing numbers that the frame returns; its graph need not contain them."""
    replaced: list[tuple[str, object]] = field(default_factory=list)
    """What the frame's code stores: source of an object or a dict, and the attribute or key."""
    has_gradients: bool = False
    """Whether a result of the graph's first run needed gradients."""
    effect: str = ""
    """What that run did, and what a graph cannot do."""


@dataclass
class FrameTrace:
    """One trace of the function's own frame: Dynamo's guards, and the FX graphs up to the first break."""

    guards: Any
    found: list[Found]
    code: types.CodeType
    names: dict[str, object]
    """The globals that the code and the guards were made with."""
    is_watched_later: bool = False
    """Whether what it read is looked at after the call, for it changes nothing of that."""
    has_world: bool = False


class Traced(Protocol):
    """The function that is traced, as far as Dynamo's callbacks need it (dynamo.py)."""

    is_dynamic: bool
    is_too_deep: bool
    traces_gradients: bool
    n_traces: int
    seen: dict[str, set[int]]
    """By source, of what is outside: how long a list was, which number a global one was."""
    remarks: set[str]
    graphs: list[tuple[Found, object]]

    def note_graph(self, found: Found) -> Callable[..., object]:
        """Note an FX graph; return what Dynamo's code calls for it."""

    def note_frame(self, frame: FrameType, guarded: Any, n_before: int) -> None:
        """Note Dynamo's code for a frame, None for one that runs as Python; its graphs are those after the first."""

    def note_left(self, why: str) -> None:
        """Note why one does."""


_lines = itertools.count(1)


def root_of(fn: Callable[..., Any]) -> types.FunctionType:
    """A root frame of this function's own for Dynamo: it keeps its entries by code object."""

    def root(*args: object, **kwargs: Any) -> object:
        # Makes Dynamo guard the keys of these, and their order: it does not guard keys that a function looks for in
        # vain.
        for each in (*args, *kwargs.values(), kwargs):
            if isinstance(each, dict):
                len(each)
                list(each)
        return fn(*args, **kwargs)

    _prepare_dynamo()
    # Dynamo stores what it learns about changing sizes and numbers by file and line: each root has its own.
    code = root.__code__.replace(co_name="call", co_filename=ROOT, co_firstlineno=next(_lines))
    names = {"__builtins__": __builtins__, "__name__": __name__}
    return types.FunctionType(code, names, "call", None, root.__closure__)


@functools.cache
def _prepare_dynamo() -> None:
    """Make Dynamo skip the rooms whose functions replace torch's, and run inside its operations.

    Also register the shapes of what torch's encoder layer calls in inference: without them Dynamo breaks there.
    """
    for module in ("gfxgraph.capture", "gfxgraph_simulator"):
        torch_names.trace_rules.add(module)
    for name in ("_transformer_encoder_layer_fwd",):
        operation = getattr(torch.ops.aten, name, None)
        if operation is not None and not operation.default.has_kernel_for_dispatch_key("Meta"):
            with contextlib.suppress(RuntimeError):  # already registered elsewhere
                torch.library.register_fake(f"aten::{name}", lambda source, *args, **kwargs: torch.empty_like(source))


def is_compiled(fn: Any) -> bool:
    """True for results of ``torch.compile``."""
    return hasattr(fn, "_torchdynamo_orig_callable") or isinstance(fn, torch_names.OptimizedModule)


def under(fn: Any) -> Any:
    """The function inside ``torch.compile``'s wrapper."""
    while is_compiled(fn):
        fn = fn._orig_mod if isinstance(fn, torch_names.OptimizedModule) else fn._torchdynamo_orig_callable
    return fn


# -- an FX graph ---------------------------------------------------------------------------------------------


def backend_of(owner: Traced) -> Callable[[object, Any], object]:
    """Dynamo's backend for one function. It holds that weakly, because Dynamo keeps every backend forever."""
    ref = weakref.ref(owner)

    def graphed(graph: Any, example_inputs: object) -> Any:
        # Otherwise its first run would go through nn.Module's call, and through the hooks for all modules.
        torch_names._LazyGraphModule.force_recompile(graph)
        front = ref()
        if front is None:
            return graph.forward
        try:
            found = look(graph)
            with_random_states(graph)
            return front.note_graph(found)
        except torch_names.SkipFrame as skipped:
            front.note_left(str(skipped))
            raise

    weakref.finalize(owner, torch_names.cached_backends.pop, id(graphed), None).atexit = False
    return graphed


def _is_outside(source: str, given: Mapping[str, object]) -> bool:
    """True for what is not one of the frame's own values: globals, and attributes of objects.

    ``L['x']`` and ``L['args'][0]`` are values that change with each call, and so is a field of a named tuple or a
    dataclass that is one; ``L['self'].weight`` belongs to an object, and is expected to stay the same.
    """
    if source.startswith("G[") or "." not in _IN_BRACKETS.sub("", source):
        return source.startswith("G[")
    found = _FIELD.fullmatch(source)
    held = eval(found.group(1), {"L": given}) if found else None
    return not isinstance(held, tuple) and not dataclasses.is_dataclass(held)


_OF_STREAMS = re.compile(r"\bstreams\.|_stream\b|_event\b|get_external_object_by_index|get_user_object_from_id")
_IN_BRACKETS = re.compile(r"\[[^\[\]]*\]")
_FIELD = re.compile(r"(L\['(?:args|kwargs)'\](?:\[[^\[\]]*\])*)\.\w+(?:\[[^\[\]]*\])*")
_WAITS = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def _drops_between_layers(node: Any) -> bool:
    """An LSTM, GRU or RNN with dropout in training: its arguments hold the probability, then whether it trains."""
    is_recurrent = getattr(node.target, "__name__", "") in ("lstm", "gru", "rnn_tanh", "rnn_relu")
    return is_recurrent and any(type(p) is float and p > 0 and on is True for p, on in zip(node.args, node.args[1:]))


def look(graph: Any) -> Found:
    """Collect what Dynamo knows about the frame whose graph it passes to its backend."""
    tx = torch_names.InstructionTranslator.current_tx()
    output = tx.output
    if any(_OF_STREAMS.search(str(node.target)) for node in graph.graph.nodes):
        # An FX graph records work on another stream only as an annotation, and events as torch.Event.
        raise torch_names.SkipFrame("it works with streams or events; assume_pure=True captures them")
    if any(map(_drops_between_layers, graph.graph.nodes)):
        raise torch_names.SkipFrame("the library of a recurrent layer keeps the random state of its dropout")
    if any(node.target is torch.ops.higher_order.invoke_subgraph for node in graph.graph.nodes):
        raise torch_names.SkipFrame("it calls a nested_compile_region, whose backward needs a compiler")
    if any("set_materialize_grads" in code.co_names for code in output.tracing_context.traced_code):
        raise torch_names.SkipFrame("it calls ctx.set_materialize_grads(), which Dynamo ignores")
    mixed = _mixed_numbers(graph)
    if mixed:
        raise torch_names.SkipFrame(mixed)
    code = list(output.tracing_context.traced_code)
    if any(each.co_flags & _WAITS for each in code):
        raise torch_names.SkipFrame(WAITS)
    inputs = [node.meta.get("grapharg") for node in graph.graph.nodes if node.op == "placeholder"]
    sources = [name_of(each.source) if each is not None else "" for each in inputs]
    found = Found(output.root_tx.f_code, graph, sources, code=code)
    found.is_empty = not any(node.op.startswith("call_") for node in graph.graph.nodes)
    found.replaced = list(_replaced(output.side_effects))
    stored = {text for owner, name in found.replaced for text in (f"{owner}.{name}", f"{owner}[{name!r}]")}
    given = output.root_tx.f_locals
    found.outside = [i for i, source in enumerate(sources) if _is_outside(source, given)]
    found.stored = {i for i, source in enumerate(sources) if source in stored}
    found.numbers = _numbers_in(graph.graph)
    found.why_eager = _why_eager(graph)
    found.asks_by_name, found.asks_mappings = any(map(asks_by_name, code)), any(map(is_of_mappings, code))
    found.does_catch = any(catches(each) for each in code if not is_of_mappings(each))
    may_raise = _arithmetic(graph)
    if may_raise and (found.does_catch or found.asks_mappings):
        found.why_eager = found.why_eager or f"it catches what {may_raise} of a number may raise"
    reason = output.compile_subgraph_reason
    if reason is None or reason.graph_break:
        found.is_broken = True
        found.why_not_whole = f"{BROKEN}: {said(str(reason.reason) if reason else '')}"
        return found
    if output.random_calls:
        found.why_not_whole = "it draws random numbers on the host"
        return found
    found.returned, container = _from_outside(tx)
    if container:
        found.why_not_whole = f"it returns {container} itself, not a copy"
        return found
    found.why_not_whole = _effects(found, output.side_effects) or found.why_not_whole
    return found


def _effects(found: Found, effects: Any) -> str:
    """Note constants that the frame stores; return "" if it changes nothing else, else what a graph cannot repeat."""
    new = torch_names.AttributeMutationNew, torch_names.ValueMutationNew
    for each in list(effects.id_to_variable.values()):
        is_made = isinstance(each, torch_names.TensorVariable) and each.source is None
        if is_made and effects.store_attr_mutations.get(each):
            return "it adds an attribute to a tensor that it makes"
        if isinstance(each.mutation_type, new) or not effects.is_modified(each):
            continue
        stored = effects.store_attr_mutations.get(each)
        is_constant = stored and all(isinstance(value, torch_names.ConstantVariable) for value in stored.values())
        if each.source is None or not is_constant or name_of(each.source).startswith(("L['args']", "L['kwargs']")):
            what = name_of(each.source) if each.source is not None else type(each).__name__
            constant = torch_names.ConstantVariable
            changing = [name for name, value in (stored or {}).items() if not isinstance(value, constant)]
            return f"it changes {what}{f'.{changing[0]}' if changing and changing[0].isidentifier() else ''}"
        for name, value in stored.items():
            found.stores.append((name_of(each.source), name, value.as_python_constant()))
    return "it registers hooks on tensors" if effects.tensor_hooks or effects.save_for_backward else ""


def _replaced(effects: Any) -> Iterator[tuple[str, Any]]:
    """Attributes of objects and entries of dicts that the frame stores, by source and name."""

    def is_made(each: Any) -> bool:
        return isinstance(each.mutation_type, torch_names.AttributeMutationNew | torch_names.ValueMutationNew)

    for each, stored in effects.store_attr_mutations.items():
        if each.source is not None and not is_made(each):
            yield from ((name_of(each.source), name) for name in stored)
    for each in list(effects.id_to_variable.values()):
        if is_made(each):
            continue
        inner = getattr(each, "_base_vt", None) or each
        if isinstance(inner, torch_names.ConstDictVariable) and each.source is not None:
            for key, value in inner.items.items():
                if key.vt.is_python_constant() and inner.is_new_item(inner.original_items.get(key.vt), value):
                    yield name_of(each.source), key.vt.as_python_constant()


def _from_outside(tx: Any) -> tuple[list[str], str]:
    """Of what the frame returns: tensors and changing numbers that it did not make, and a container of that kind."""
    unnamed = (types.NoneType, torch_names.TempLocalSource or types.NoneType)
    existing = torch_names.ValueMutationExisting, torch_names.AttributeMutationExisting
    stored = tx.output.side_effects.store_attr_mutations
    tensors: list[str] = []
    others: list[str] = []
    seen: dict[int, object] = {}

    def look_at(variable: Any) -> None:
        for attribute in stored.get(variable, {}).values():  # of objects that the frame makes
            torch_names.VariableTracker.visit(look_at, attribute, seen)
        if isinstance(variable.source, unnamed) or isinstance(variable, torch_names.UserDefinedClassVariable):
            return
        if isinstance(variable, torch_names.TensorVariable | torch_names.SymNodeVariable):
            tensors.append(name_of(variable.source))
        elif isinstance(variable.mutation_type, existing):
            others.append(name_of(variable.source))

    if tx.stack:
        torch_names.VariableTracker.visit(look_at, tx.stack[-1], seen)
    return tensors, others[0] if others else ""


def _why_eager(graph: Any) -> str:
    """A call in the graph that may behave differently each time, because Dynamo did not look inside it."""
    for node in graph.graph.nodes:
        if _with_random_numbers(graph, node):
            return "it uses checkpointing around a part that draws random numbers"
        function = _unseen(node)
        if function is not None and reads_state(function):
            return f"{function.__qualname__}, which Dynamo does not look into, reads more than its arguments"
        if "flat_apply" in getattr(node.target, "__name__", ""):
            return "it calls a function marked for nonstrict_trace, which Dynamo does not look into"
        if node.target in _BY_STORAGE and (len(node.args) > 3 or "storage_offset" in node.kwargs):
            return "it reads an argument's storage by as_strided, from the storage's start"
    return ""


def _numbers_in(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """What is computed of numbers from outside alone, in order; empty where the graph has no such number."""
    numbers = (*_NUMBERS, torch.SymBool, int, float)
    found: dict[torch.fx.Node, None] = {}
    boxed: set[torch.fx.Node] = set()
    for node in graph.nodes:
        value, needs = node.meta.get("example_value"), node.all_input_nodes
        if node.op == "placeholder":
            argument = node.meta.get("grapharg")  # Dynamo takes it away after the trace
            if argument is None or type(argument.source).__name__ == "TensorPropertySource":
                continue  # a size, which is that of a tensor
            if isinstance(value, numbers):
                found[node] = None
            elif argument.pass_arg_as_tensor and all(each.target == "item" for each in node.users):
                boxed.add(node)  # a float travels as a tensor on the host
        elif node.op.startswith("call_"):
            is_number = isinstance(value, numbers) or node.target is torch.scalar_tensor
            is_unboxed = node.target == "item" and needs[0] in boxed
            if is_unboxed or is_number and needs and all(n in found for n in needs):
                found[node] = None
    return list(found)


def _mixed_numbers(graph: torch.fx.GraphModule) -> str:
    """Where a number that travels as a tensor makes a dtype that the number itself would not; "" for nowhere.

    Dynamo takes NumPy's numbers and random ones for tensors. Beside a tensor of a lower kind (an int tensor times a
    ``numpy.float64``) a tensor brings its own dtype, a number the default one.
    """
    numbers: set[torch.fx.Node] = set()
    for node in graph.graph.nodes:
        value, needs = node.meta.get("example_value"), node.all_input_nodes
        if node.op == "placeholder":
            argument = node.meta.get("grapharg")
            if argument is not None and (argument.pass_arg_as_tensor or "___from_numpy" in name_of(argument.source)):
                numbers.add(node)
        elif isinstance(value, torch.Tensor) and needs and numbers.issuperset(needs):
            numbers.add(node)
        elif isinstance(value, torch.Tensor) and not numbers.isdisjoint(needs):
            dtypes = {each: _dtype_of(each) for each in needs}
            kind = max((_kind(dtype) for each, dtype in dtypes.items() if dtype and each not in numbers), default=3)
            given = [dtype for each, dtype in dtypes.items() if dtype and each in numbers and _kind(dtype) > kind]
            if any(dtype not in (torch.bool, torch.int64) for dtype in given):  # random floats travel as float64
                return (
                    "it mixes a number of NumPy's, or a random one, with a tensor of another kind; take float() of it"
                )
    return ""


def _dtype_of(node: torch.fx.Node) -> torch.dtype | None:
    value = node.meta.get("example_value")
    return value.dtype if isinstance(value, torch.Tensor) else None


def _kind(dtype: torch.dtype) -> int:
    """Which numbers a dtype holds: those that mix with it become the higher kind."""
    return 3 if dtype.is_complex else 2 if dtype.is_floating_point else 0 if dtype is torch.bool else 1


def _arithmetic(graph: Any) -> str:
    """Arithmetic on numbers in the graph that raises for some values; "" if there is none.

    For divisions Dynamo is made to guard that the divisor is not zero: with zero the function raises, or catches.
    """
    may_raise = ""
    for node in graph.graph.nodes:
        if node.op == "call_function" and isinstance(node.meta.get("example_value"), _NUMBERS):
            if node.target in _DIVISIONS:
                _keep_from_zero(node.args[1])
            elif node.target not in _SAFE and node.target.__module__ in ("_operator", "math", "torch"):
                may_raise = str(node.target.__name__)
    return may_raise


def _keep_from_zero(divisor: object) -> None:
    number = divisor.meta.get("example_value") if isinstance(divisor, torch.fx.Node) else None
    if isinstance(number, _NUMBERS):
        bool(number != 0)


_NUMBERS = (torch.SymInt, torch.SymFloat)
_SAFE = (
    operator.add, operator.sub, operator.mul, operator.neg, operator.pos, operator.abs, operator.getitem,
    torch.sym_float, torch.sym_int, torch.sym_max, torch.sym_min, torch.sym_not, torch.sym_ite,
)  # fmt: skip
_DIVISIONS = (operator.truediv, operator.floordiv, operator.mod)


def with_random_states(graph: Any) -> None:
    """Make checkpointed parts draw the same numbers again in the backward, which Dynamo leaves to a compiler."""
    found = [node for node in graph.graph.nodes if _with_random_numbers(graph, node)]
    for node in found:
        node.target = torch.utils.checkpoint.checkpoint
    if found:
        graph.recompile()


def _with_random_numbers(graph: torch.fx.GraphModule, node: Any) -> bool:
    if node.target not in (torch.ops.higher_order.tag_activation_checkpoint, torch.utils.checkpoint.checkpoint):
        return False
    part = getattr(graph, node.args[0].target)
    inner = [each for module in part.modules() if hasattr(module, "graph") for each in module.graph.nodes]
    return any(map(_draws, inner))


def _draws(node: Any) -> bool:
    """Whether it may draw random numbers; not with a probability of zero, nor outside of training."""
    name = str(getattr(node.target, "__name__", node.target))
    given = {**dict(enumerate(node.args)), **node.kwargs}
    if "scaled_dot_product" in name:
        return bool(given.get("dropout_p", given.get(4, 0)) != 0)
    if name == "dropout":  # of torch, and of its functional
        training = given.get("training", given.get("train", given.get(2)))
        return given.get("p", given.get(1)) != 0 and training is not False
    return _DRAWS.search(name) is not None


def may_draw_on_host(graph: torch.fx.GraphModule) -> bool:
    """Whether a run may have drawn the host's random numbers, which went on meanwhile: else another thread did."""
    parts = [each for each in graph.modules() if isinstance(each, torch.fx.GraphModule)]
    return any(_makes_on_host(node) for part in parts for node in part.graph.nodes)


def _makes_on_host(node: torch.fx.Node) -> bool:
    """Whether it makes a tensor on the host, or calls what nobody looks into."""
    if isinstance(node.target, torch_names.OpOverload | torch_names.OpOverloadPacket):
        if str(node.target).partition(".")[0] not in ("aten", "prims", "prim"):
            return True
    made = torch_names.tree_leaves(node.meta.get("example_value"))
    is_called = node.op.startswith("call_")
    return is_called and (_unseen(node) is not None or any(isinstance(t, torch.Tensor) and t.is_cpu for t in made))


_DRAWS = re.compile(
    r"dropout|rand|bernoulli|multinomial|normal_?$|uniform|exponential|cauchy|geometric|poisson|rrelu|gumbel"
)
_BY_STORAGE = ("as_strided", torch.as_strided)


def _unseen(node: Any) -> Any:
    """The Python function that a node calls as a whole, if it is one of the program's."""
    target = node.target
    if isinstance(target, torch_names.OpOverload | torch_names.OpOverloadPacket):
        packet = target if isinstance(target, torch_names.OpOverloadPacket) else target._overloadpacket
        known = torch_names.OPDEFS.get(packet._qualified_op_name)
        return None if known is None else known._init_fn
    if node.op == "call_function" and isinstance(target, types.FunctionType):
        return None if target.__module__.partition(".")[0] == "torch" else target
    return None


def name_of(source: Any) -> str:
    """What Dynamo calls a source."""
    name = source.name
    return str(name() if callable(name) else name)


def said(why: str) -> str:
    """One line about a graph break, from Dynamo's text: the kind of break, and the object concerned."""
    if "'generator':" in why:
        return "it draws from a torch.Generator, which Dynamo does not trace: draw from the default one"
    lines = [line.strip() for line in why.splitlines() if line.strip()]
    at = [line.removeprefix("Developer debug context:").strip() for line in lines if line.startswith("Developer")]
    return f"{lines[0]} ({at[0]})" if at and at[0] else lines[0] if lines else "no reason given"


# -- properties of code ---------------------------------------------------------------------------------------


@functools.cache
def catches(code: types.CodeType) -> bool:
    """Whether the code may continue after an error: by an ``except``, or at the end of a ``with``. False for
    packages.
    """
    if "site-packages" in code.co_filename or "dist-packages" in code.co_filename:
        return False
    return code.co_name == "__exit__" or any(s.opname == "CHECK_EXC_MATCH" for s in dis.get_instructions(code))


def asks_by_name(code: types.CodeType) -> bool:
    """Whether the program's code may look for a Python attribute of a tensor that does not exist."""
    asks = catches(code) or not {"getattr", "hasattr"}.isdisjoint(code.co_names)
    return asks and not PACKAGES.search(code.co_filename)


def is_of_mappings(code: types.CodeType) -> bool:
    """Whether it is ``in`` or ``get`` of ``collections.abc.Mapping``, which catch a missing key's error."""
    return code.co_filename == Mapping.get.__code__.co_filename and catches(code)
