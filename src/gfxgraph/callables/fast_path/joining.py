"""Whether a call may be one launch, and that launch: the graph with its copies before and after it.

A joined graph (driver/joined.py) is launched by the driver, past torch. So it is made only where torch's
replay does nothing beside the launch: no random numbers, no hooks, no guard that looks before each
replay. It stands in for a call that copies whole arguments and whole results; what is padded, moved or
written to goes the other ways.

It is trusted on a device once a graph of our own has run that way at a dozen addresses, queued without
waiting, and every one got its own data. Where running a graph once more has no effect that anybody could
see, its results are compared once with those of torch's own launch, too. A change that the runtime refuses
ends it for that signature: the call and those to come are made as without it, counted, and told the first
time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gfxgraph.callables.fast_path.copying import copy_kernel, part, what_said
from gfxgraph.capture.hooks import bare_launch
from gfxgraph.capture.tolerance import is_near
from gfxgraph.driver.base import CopyKernel, GraphDriver
from gfxgraph.driver.copies import MOST
from gfxgraph.errors import DriverError

if TYPE_CHECKING:
    from gfxgraph.callables.entry import Captures, Instance
    from gfxgraph.process.process import Process

MOST_NODES = 1024
"""Larger graphs are not joined: a second exec of them costs memory, and what is saved nobody sees."""
MOST_NODES_OF_A_BUCKET = 64
"""The same, where other sizes have graphs of their own: a node takes some 5 KiB in each exec (an H100)."""
N_TRIED = 12
MOST_COMPARED_NBYTES = 64 << 20
"""Larger results are not compared: the copies would take the memory that a call needs."""
Pairs = Sequence[tuple[Tensor, Tensor]]


class JoinedCall:
    """One instance's joined graph, and what its exec was told last.

    Args:
        into: (buffer, the call's tensor) of the arguments that it copies.
        back: (result, result) of those that it copies out.
    """

    __slots__ = ("at", "copied", "launched")

    def __init__(self, entry: Captures, instance: Instance, kernel: CopyKernel, into: Pairs, back: Pairs) -> None:
        state = entry.arena.state
        assert state.driver is not None
        self.copied = copied(into, back)
        """What it copies to and from the graph: another call that copies other arguments is not for it."""
        graph = int(state.base.raw_cuda_graph(instance.graph))
        # Until it is told an address, everything is copied to where it is.
        self.launched = state.driver.joined(
            kernel, graph, [part(to, to) for to, _ in into], [part(*pair) for pair in back], entry.arena.last_raw
        )
        self.at: list[Any] = [None, None, entry.arena.last_raw]
        """Where the arguments and the results are in the exec, None where it has to be told; its stream."""


def copied(into: Pairs, back: Pairs) -> Any:
    """The graph's side of the copies."""
    return [(part(*pair)[0], part(*pair)[2]) for pair in into], [part(*pair) for pair in back]


def change_refused(entry: Captures) -> None:
    """A change of a joined graph was refused: nothing is joined for ``entry`` any more."""
    entry.can_join = False
    entry.why_not_joined = "an address in the graph exec could not be changed"
    why = f"{entry.why_not_joined}; copies are launched on their own"
    entry.arena.state.report("join_refused", why, entry.function, level=logging.INFO)


def joined_call(
    entry: Captures, instance: Instance, tensors: Sequence[Tensor], into: Pairs, back: Pairs
) -> JoinedCall | None:
    """The joined graph of an instance; made at the first call, None where there cannot be one.

    Args:
        tensors: all arguments of this call.
    """
    if not entry.can_join:
        instance.joined = instance.twin = None
        return None
    if instance.joined is not None:
        return instance.joined if instance.joined.copied == copied(into, back) else None
    state, device = entry.arena.state, entry.arena.device_index
    if not into and not back:
        return None
    kernel = copy_kernel(state, device)
    if kernel is None or not joins(state, device):
        entry.why_not_joined = state.why_not_joined
        return None
    entry.why_not_joined = _why_not(entry, instance, len(into) + len(back))
    if entry.why_not_joined:
        return None
    try:
        with torch.cuda.device(device):
            entry.arena.follow(torch.cuda.current_stream())
            made = JoinedCall(entry, instance, kernel, into, back)
            twin = JoinedCall(entry, instance, kernel, into, back) if back else None
            if twin is not None and _may_run_again(entry, instance):
                if not all(_gives_the_same(entry, instance, each, tensors, into, back) for each in (made, twin)):
                    raise RuntimeError("joined to its copies, the graph gave another result")
            instance.joined, instance.twin = made, twin
    except (DriverError, RuntimeError) as error:
        entry.can_join = False
        entry.why_not_joined = what_said(error)
        why = f"copies are launched on their own: {entry.why_not_joined}"
        state.report("not_joined", why, entry.function, level=logging.INFO)
    return instance.joined


def _may_run_again(entry: Captures, instance: Instance) -> bool:
    """True where a replay writes nothing but its results, as far as a recorded capture tells: to all there is."""
    segments = instance.graph._program.segments if instance.is_recorded else []
    is_known = all(not segment.mutated and not segment.tape.opaque for segment in segments)
    nbytes = sum(made.numel() * made.element_size() for made in instance.outputs.made)
    return bool(segments) and is_known and not entry.mutates and nbytes <= MOST_COMPARED_NBYTES


def _gives_the_same(
    entry: Captures, instance: Instance, joined: JoinedCall, tensors: Sequence[Tensor], into: Pairs, back: Pairs
) -> bool:
    """Launch the graph as torch does, spoil its buffers, launch it joined, and compare."""
    sources = [made.detach() for made in instance.outputs.made]
    launched = joined.launched
    with torch.no_grad():
        entry.fill(tensors)
        bare_launch(entry.arena.state.base)(instance.graph)
        wanted, results = [source.clone() for source in sources], [source.clone() for source, _ in back]
        given = [tensor.detach().clone() for _, tensor in into]
        taken = [torch.empty_like(source) for source, _ in back]
        for target, _ in into:
            target.zero_()
        for spoiled, want in zip((*sources, *taken), (*wanted, *results)):
            spoiled.fill_(0 if bool(want.any()) else 1)  # memory just freed may hold the right answer
        for i, tensor in enumerate(given):
            assert launched.into is not None
            launched.into.words[i] = tensor.data_ptr()
        for i, tensor in enumerate(taken):
            assert launched.back is not None
            launched.back.words[MOST + i] = tensor.data_ptr()
        for node in (launched.into, launched.back):
            if node is not None and node.apply():
                return False
        if launched.launch():
            return False
        return all(is_near(a, b) for a, b in zip((*sources, *taken), (*wanted, *results)))


def _why_not(entry: Captures, instance: Instance, n_copies: int) -> str:
    """Why a graph is not joined; "" where it may be."""
    state, graph = entry.arena.state, instance.graph
    driver, most = state.driver, MOST_NODES_OF_A_BUCKET if entry.bucket else MOST_NODES
    known = [each.draws for each in (instance, *entry.instances()) if each.draws is not None]  # of the same function
    if known[:1] != [False]:
        return "its graph draws random numbers, which torch's own replay provides"
    if graph._guard is not None:
        return "a guard looks before each replay"
    if state.decisions.join_copies or state.is_watched or getattr(graph, "_tracker", None) is not None:
        return "something has to be done before each replay"
    if n_copies > MOST:
        return f"it has {n_copies} small arguments and results, and one launch copies {MOST}"
    try:
        n_nodes = len(driver.nodes(int(state.base.raw_cuda_graph(graph)))) if driver is not None else 0
    except (DriverError, RuntimeError, AttributeError):
        return "torch does not keep its graph"  # before 2.8
    return f"its graph has {n_nodes} nodes, more than {most}" if n_nodes > most else ""


def hooks_of(graph: Any) -> list[Any]:
    """What torch 2.14 and later may run around a replay: containers that must be empty for it to be passed over."""
    graphs = torch.cuda.graphs
    found = [getattr(graphs, f"_global_replay_{when}_hooks", None) for when in ("start", "end")]
    found += [getattr(graph, f"_replay_{when}_hooks", None) for when in ("start", "end")]
    return [hooks for hooks in found if hooks is not None]


def joins(state: Process, device_index: int) -> bool:
    """Whether graphs are joined on this device; tried at the first call."""
    if device_index not in state.joins:
        state.joins[device_index] = _try(state, device_index)
    return state.joins[device_index]


def _try(state: Process, device_index: int) -> bool:
    driver, kernel = state.driver, copy_kernel(state, device_index)
    needed = {"add_child", "set_kernel_params", "copy_kernel"}
    if driver is None or kernel is None:
        return False
    if driver.name == "hip" or state.decisions.update_budget is not None or needed & driver.missing:
        # Each change of a node takes memory there, and what is enqueued may see it.
        state.why_not_joined = "this runtime's graph execs are not to be changed from call to call"
        return False
    try:
        with torch.cuda.device(device_index):
            state.contexts.give(device_index)
            if _joins_right(driver, kernel):
                return True
            why = "a joined graph gave other data"
    except (DriverError, RuntimeError) as error:
        why = what_said(error)
    state.why_not_joined = why
    state.report("not_joined", f"copies are launched on their own: {why}", level=logging.INFO)
    return False


def _joins_right(driver: GraphDriver, kernel: CopyKernel) -> bool:
    """Let a graph of two nodes run at a dozen addresses without waiting, then once more at the last one."""
    nbytes, stream = 5000, torch.cuda.current_stream().cuda_stream
    given = torch.arange(N_TRIED, dtype=torch.uint8, device="cuda")[:, None].repeat(1, nbytes)
    given += torch.arange(nbytes, device="cuda").to(torch.uint8)
    made = torch.zeros_like(given)
    a, b, c = (torch.zeros(nbytes, dtype=torch.uint8, device="cuda") for _ in range(3))
    graph = driver.create_graph()
    try:
        first = driver.add_copies(kernel, graph, [(b.data_ptr(), a.data_ptr(), nbytes)], [])
        driver.add_copies(kernel, graph, [(c.data_ptr(), b.data_ptr(), nbytes)], [first])
        joined = driver.joined(
            kernel, graph, [(a.data_ptr(), c.data_ptr(), nbytes)], [(b.data_ptr(), c.data_ptr(), nbytes)], stream
        )
    finally:
        driver.destroy_graph(graph)
    assert joined.into is not None and joined.back is not None
    for i in range(N_TRIED):
        joined.into.words[0], joined.back.words[MOST] = given[i].data_ptr(), made[i].data_ptr()
        if joined.into.apply() or joined.back.apply() or joined.launch():
            return False
    is_right = torch.equal(made, given)
    given[-1].fill_(77)
    return is_right and not joined.launch() and torch.equal(made, given)
