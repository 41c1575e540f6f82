"""``gfxgraph.inspect``, ``graph.explain()`` and ``gfxgraph.memory_report``: captured graphs as plain data.

Each is read through the tape that recorded it and the loaded runtime.

So it works wherever a capture does, on ROCm as on CUDA: no profiler, no debugger's bindings, no struct layouts
beyond those with which kernels are launched.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache

from torch import Tensor

from gfxgraph import torch_names
from gfxgraph.callables import arena
from gfxgraph.callables.explain_calls import regions
from gfxgraph.callables.graphed import Graphed
from gfxgraph.callables.pieces.region import Region
from gfxgraph.capture import rooms
from gfxgraph.capture.graph import BridgedGraph
from gfxgraph.capture.replay import runtime_workarounds
from gfxgraph.capture.replay.graph_tensors import Layout, pool_of, pool_ranges
from gfxgraph.capture.replay.node_walk import raw_graph
from gfxgraph.capture.replay.program import CallStep, HostStep, Program, ReadStep, ReplayStep, SegmentStep
from gfxgraph.capture.replay.program import Step as ProgramStep
from gfxgraph.core.fault_report import TensorUse
from gfxgraph.errors import DriverError
from gfxgraph.guard.nodes import SegmentNode, known_params, nodes_of
from gfxgraph.guard.tensor_names import TensorNames, describe, layout_text, objects_of
from gfxgraph.process import process
from gfxgraph.reporting.inspection import InspectedCapture, InspectedNode, InspectedStep, Inspection
from gfxgraph.reporting.origins import Sources
from gfxgraph.reporting.rewrites import rewrite, why_unsafe
from gfxgraph.types import NodeKind

_NOT_CAPTURED = (
    "gfxgraph.inspect({kind}): it holds no captured graph that gfxgraph made. Give it a torch.cuda.CUDAGraph "
    "captured after gfxgraph.enable(), a gfxgraph.graphed function, a compiled region; or nothing, for every graph"
)


def graphs_of(obj: object) -> tuple[list[tuple[str, BridgedGraph]], list[str]]:
    """(label, graph) of every graph that ``obj`` holds, and notes on missing ones.

    Raises:
        TypeError: it never holds any.
    """
    obj = _behind(obj)
    if isinstance(obj, BridgedGraph):
        return [("", obj)], []
    if isinstance(obj, Region):
        inner = list(obj._variants.values())
        return _of_many(inner, [f"{obj.name}: {obj.why_eager}"] if obj.why_eager else [])
    if isinstance(obj, Graphed):
        made = [(name, graph) for entry in obj._entries.values() for graph, name in entry.named_graphs()]
        notes = [
            f"{entry.name} {entry.label}: eager: {entry.why_eager}"
            for entry in obj._entries.values()
            if entry.why_eager
        ]
        inner_made, inner_notes = _of_many(regions(obj), [])
        return made + inner_made, notes + inner_notes
    held = [
        item
        for item in map(_behind, getattr(obj, "__dict__", {}).values())
        if isinstance(item, (BridgedGraph, Graphed, Region))
    ]
    if not held:
        raise TypeError(_NOT_CAPTURED.format(kind=type(obj).__name__))
    return _of_many(held, [])


def _behind(item: object) -> object:
    """The graphed callable of a graphed module; anything else as it is."""
    with contextlib.suppress(TypeError):
        return Graphed.of(item)
    return item


def _of_many(objects: Iterable[object], notes: list[str]) -> tuple[list[tuple[str, BridgedGraph]], list[str]]:
    made: list[tuple[str, BridgedGraph]] = []
    for each in objects:
        found, said = graphs_of(each)
        made += found
        notes = notes + said
    return made, notes


def read_capture(graph: BridgedGraph, label: str = "", names: TensorNames | None = None) -> InspectedCapture:
    """One captured graph as plain data."""
    program: Program = graph._program  # type: ignore[assignment]  # it was captured
    steps = tuple(_step(step, program, names) for step in program.steps)
    where = next((step.where for step in steps if step.where), "")
    where = where or next((node.where for step in steps for node in step.nodes if node.where), "")
    pool, numbers = pool_of(graph), graph._held.numbers if graph._held is not None else []
    return InspectedCapture(
        name=label or (f"graph captured at {where}" if where else "a graph"),
        where=where,
        steps=steps,
        externals=tuple(_externals(program, names)),
        outputs=tuple(_outputs(program, names)),
        pool=pool,
        pool_nbytes=_nbytes_of(pool),
        n_replays=graph.n_replays,
        numbers=tuple(f"{name} = {value} ({entry.where})" for _, _, value, name, entry in numbers),
        is_recorded=any(segment.tape.rows for segment in program.segments) or not program.segments,
    )


def _step(step: ProgramStep, program: Program, names: TensorNames | None) -> InspectedStep:
    if isinstance(step, SegmentStep):
        nodes = tuple(_nodes(step, program, names)) if step.graph is not None else ()
        why, _, where = step.why_not or ("", "", "")
        return InspectedStep(
            kind="graph" if step.graph is not None else "tape",
            where=Sources().of(str(where or step.where)),
            why=why,
            n_operations=len(step.tape.rows),
            nodes=nodes,
            n_nodes=step.n_nodes or len(nodes),
            driver_nbytes=step.driver_nbytes,
        )
    kind = next((name for cls, name in _KINDS.items() if isinstance(step, cls)), "call")
    op = getattr(step, "name", type(step).__name__)
    where = Sources().of(str(getattr(step, "where", "")))
    asked = step.guards if isinstance(step, ReadStep) else ()
    guards = tuple(program.numbers.text(guard.subject) for guard in asked)
    known = op if why_unsafe(op) or kind != "read" else _READ  # a read has the name of the call that caused it
    return InspectedStep(kind, op, where, why_unsafe(known), rewrite(known), guards)


_READ = "aten::_local_scalar_dense"
_KINDS: dict[type, str] = {HostStep: "operation", ReadStep: "read", CallStep: "call", ReplayStep: "replay"}


def _nodes(segment: SegmentStep, program: Program, names: TensorNames | None) -> Iterator[InspectedNode]:
    sources = Sources()
    found = nodes_of(segment, program, names)
    index_of = {node.handle: at for at, node in enumerate(found)}
    parents = _parents(process.require().driver.edges(raw_graph(segment.graph)), index_of)
    for at, node in enumerate(found):
        yield _node(at, node, parents.get(at, ()), sources, with_tensors=names is not None)


def _node(at: int, node: SegmentNode, after: tuple[int, ...], sources: Sources, with_tensors: bool) -> InspectedNode:
    kernel = demangled(node.kernel)
    grid = block = None
    shared = 0
    if node.kind is NodeKind.KERNEL:
        try:
            params, _ = known_params(node.handle, node.kernel)
            driver = process.require().driver
            params = params or driver.node_params(node.handle)
            grid, block, shared = params.grid, params.block, params.shared_nbytes
        except DriverError:
            pass  # this runtime does not report how its kernels are launched
    defined = _triton_functions().get(node.kernel, "") if node.kind is NodeKind.KERNEL else ""
    return InspectedNode(
        index=at,
        kind=str(node.kind),
        kernel=kernel,
        name=short(kernel),
        op=node.op,
        where=sources.of(node.where),
        grid=grid,
        block=block,
        shared_nbytes=shared,
        nbytes=sum(use.nbytes for use in node.uses),
        is_triton=bool(defined) or node.kernel.startswith("triton_"),
        defined_at=defined,
        after=after,
        tensors=tuple(node.uses) if with_tensors else (),
    )


def _parents(edges: Iterable[tuple[int, int]], index_of: dict[int, int]) -> dict[int, tuple[int, ...]]:
    """For each working node, the ones it waits for, skipping nodes that only order."""
    before: dict[int, list[int]] = {}
    for parent, child in edges:
        before.setdefault(child, []).append(parent)
    found: dict[int, tuple[int, ...]] = {}
    for handle, at in index_of.items():
        seen: set[int] = set()
        working: set[int] = set()
        pending = list(before.get(handle, ()))
        while pending:
            parent = pending.pop()
            if parent in seen:
                continue
            seen.add(parent)
            if parent in index_of:
                working.add(index_of[parent])
            else:
                pending += before.get(parent, ())
        found[at] = tuple(sorted(working))
    return found


_triton_at: tuple[int, dict[str, str]] = (0, {})


def _triton_functions() -> dict[str, str]:
    """The source line of every Triton kernel's function, by name; empty if Triton is not loaded."""
    global _triton_at
    jit = sys.modules.get("triton.runtime.jit")
    kind = getattr(jit, "JITFunction", None)
    if kind is None:
        return {}
    functions = objects_of({kind})
    if len(functions) != _triton_at[0]:
        made = {}
        for function in functions:
            code = getattr(getattr(function, "fn", None), "__code__", None)
            if code is not None:
                made[function.fn.__name__] = f"{code.co_filename}:{code.co_firstlineno}"
        _triton_at = len(functions), made
    return _triton_at[1]


def _externals(program: Program, names: TensorNames | None) -> Iterator[TensorUse]:
    for held in program.externals.values():
        if isinstance(held, Layout | Tensor):
            tensor, place = program.source(held) if isinstance(held, Tensor) else (None, "")
            yield _info((names.of(tensor) if names is not None and tensor is not None else "") or place, held)


def _outputs(program: Program, names: TensorNames | None) -> Iterator[TensorUse]:
    for segment in program.segments:
        for value, place in segment.live:
            alive = value()
            yield _info(names.of(alive) if names is not None and alive is not None else "", place)


def _info(name: str, held: Layout | Tensor) -> TensorUse:
    if isinstance(held, Layout):
        text = layout_text(held.size, held.stride, held.dtype)
        return TensorUse("", name, text, held.address, held.span_nbytes, "pool")
    nbytes = held.numel() * held.element_size()
    return TensorUse("", name, describe(held), held.data_ptr(), nbytes, "device" if held.is_cuda else "host")


# -- readable C++ names of kernels ------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def demangled(name: str) -> str:
    """The full name; unchanged if it is not mangled."""
    plain = torch_names._demangle
    return str(plain(name)) if name.startswith("_Z") and plain is not None else name


@lru_cache(maxsize=4096)
def short(name: str) -> str:
    """A demangled kernel name without return type, namespaces and arguments, one level of template arguments kept.

    ``void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, ...>(int, ...)`` is
    ``vectorized_elementwise_kernel<CUDAFunctor_add>``.
    """
    name = re.sub(r"\((anonymous namespace|lambda[^()]*(\([^()]*\))?[^()]*)\)", "", name)
    head, _, rest = name.partition("<")
    plain = _last(head.split("(")[0])
    inner = [word for word in re.findall(r"[\w:~]+", rest.split("(")[0]) if "::" in word and not word.endswith("::")]
    telling = [word for word in map(_last, inner) if word not in _DULL and len(word) > 2]
    return f"{plain}<{telling[0]}>" if rest and telling else plain


def _last(qualified: str) -> str:
    words = qualified.strip().split(" ")[-1]
    return words.rsplit("::", 1)[-1] or words


_DULL = frozenset({"array", "detail", "Array", "type", "value", "native", "opmath_t", "arg1_t", "arg2_t"})


# -- every graph of an object, or of the process ---------------------------------------------------------------


def inspect(obj: object = None, *, tensors: bool = True) -> Inspection:
    """What a captured graph does, node by node, with the source line that made each node.

    Args:
        obj: a graph, a ``graphed`` function, a compiled region, an object that holds such, or several in a list; by
        default every graph of this process.
        tensors: also list each node's tensors; without them a graph of thousands of nodes is read faster.

    Raises:
        TypeError: ``obj`` holds no graph.
    """
    state = process.current()
    names = TensorNames(sys._getframe(1)) if tensors else None
    of_process = [] if obj is not None or state is None else list(state.graphs)
    given = of_process if obj is None else obj if isinstance(obj, (list, tuple)) else (obj,)
    found, notes = _of_many(given, [])
    captured = [(label, graph) for label, graph in found if getattr(graph, "_program", None) is not None]
    captures = [read_capture(graph, label, names) for label, graph in captured]
    if obj is None:  # a set has no order
        captures.sort(key=lambda capture: (capture.where, capture.name))
    driver = state.driver if state is not None else None
    runtime = f"{driver.name} {'.'.join(map(str, driver.version))}" if driver is not None else ""
    pools = {str(capture.pool): capture.pool_nbytes for capture in captures if capture.pool is not None}
    return Inspection(tuple(captures), tuple(notes), runtime, pools)


def fill() -> None:
    """Install the implementation of ``graph.explain()``."""
    rooms.inspect = inspect


# -- memory ----------------------------------------------------------------------------------------------------
#
# torch counts its pools. The runtime keeps its own memory for each graph exec (4 MiB on some versions, 8.4 GiB for
# 2,142 of them), measured around each instantiation, and libraries keep workspaces for captured streams.


def _nbytes_of(pool: tuple[int, int] | None) -> int:
    """The memory of a pool of torch's."""
    return sum(end - start for start, end in pool_ranges(pool)) if pool is not None else 0


def memory_report() -> dict[str, object]:
    """Memory that graphs take, in bytes: torch's pools, the runtime's own for graph execs, workspaces.

    Returns:
        ``devices``: graphed callables by device, ``{"device", "cap_bytes", "graph_bytes", "captures": [...]}``; each
        capture says ``function``, ``signature``, ``input_bytes``, ``output_bytes``, ``pool_bytes`` (what it added to
        the shared pool), ``n_graphs``, ``n_calls``.
        ``graphs``: every graph of the process, ``{"where", "n_nodes", "n_replays", "pool", "driver_bytes"}``;
        ``driver_bytes`` is the free memory lost around its instantiation. The runtime allocates chunks: sums are
        right, single rows may be 0.
        ``pools``: bytes by pool; ``driver_bytes``: all graph execs together; ``workspaces_held``: of
        libraries, under graphs.
    """
    report = arena.memory_report()
    state = process.current()
    if state is None:
        return report
    rows, pools = [], {}
    for graph in list(state.graphs):
        program = graph._program
        if program is None:
            continue
        known = [s.driver_nbytes for s in program.segments if s.driver_nbytes is not None]
        pool = pool_of(graph)
        if pool is not None and pool not in pools:
            pools[pool] = _nbytes_of(pool)
        rows.append(
            {
                "where": next((str(s.where) for s in program.segments if str(s.where)), ""),
                "n_nodes": sum(s.n_nodes for s in program.segments),
                "n_replays": graph.n_replays,
                "pool": str(pool) if pool is not None else "",
                "driver_bytes": sum(known) if known else None,
            }
        )
    rows.sort(key=lambda row: -(row["driver_bytes"] or 0))
    return {
        **report,
        "graphs": rows,
        "pools": {str(pool): nbytes for pool, nbytes in pools.items()},
        "driver_bytes": sum(row["driver_bytes"] or 0 for row in rows),
        "workspaces_held": runtime_workarounds.n_workspaces_held(),
    }
