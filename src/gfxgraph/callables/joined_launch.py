"""Joining a call's copies and its graph into one launch, and when that is allowed.

The driver launches a joined graph (driver/joined.py), bypassing torch. So it is made only if torch's
replay does nothing besides the launch: no random numbers, no hooks, no guard to check before each
replay. It serves calls that copy whole arguments and whole results; padded or
written arguments take the other paths.

It is trusted on a device once a test graph of ours has run that way at a dozen addresses, queued without
waiting, and each got its own data. If the runtime refuses an update, joining ends for that signature: this call and
later ones are made without it, which is counted, and reported the first time.

Where it cannot be joined, a call's small copies are one launch of their own (`CopyLaunches`). The kernel
(driver/small_copies.py) is loaded once per device, and trusted once it has correctly copied ranges of odd lengths
and alignments. If it is not available, or a launch is refused, torch copies. Both are counted, and reported once.
"""

from __future__ import annotations

import functools
import logging
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gfxgraph import torch_names
from gfxgraph.callables.arena import Arena, arena_of, draws, kind_and_line
from gfxgraph.callables.buffers import copy_all, is_one_copy
from gfxgraph.capture.undo import is_interrupt
from gfxgraph.driver.graphs import GraphDriver
from gfxgraph.driver.small_copies import MOST, CopyKernel, PreparedCopies
from gfxgraph.errors import DriverError

if TYPE_CHECKING:
    from gfxgraph.callables.captured import Captured, Instance
    from gfxgraph.driver.joined import JoinedExec
    from gfxgraph.process.process import Process


LARGEST_NBYTES = 1 << 20
"""Larger tensors are copied by the driver or by torch: for them only device time matters."""


class CopyLaunches:
    """The prepared launches of one fast path, all on one stream.

    Args:
        stream: the stream of the first calls.
    """

    __slots__ = ("_copies", "_state", "stream")

    def __init__(self, state: Process, stream: int) -> None:
        self._state = state
        self._copies: list[PreparedCopies] = []
        self.stream = stream

    def prepare(self, kernel: CopyKernel, parts: Sequence[tuple[int, int, int]]) -> PreparedCopies:
        made = kernel.prepare(parts, self.stream)
        self._copies.append(made)
        return made

    @property
    def n(self) -> int:
        return len(self._copies)

    def to(self, stream: int) -> None:
        """Launch on ``stream`` from now on."""
        for copies in self._copies:
            copies.on(stream)
        self.stream = stream

    def refused(self, targets: list[Tensor], sources: list[Tensor]) -> None:
        """A launch was refused: let torch copy, which raises if it is refused too."""
        why = "a launch of the copying kernel was refused; torch copied"
        self._state.report("copy_refused", why, level=logging.INFO)
        copy_all(targets, sources)


class FixedCopies:
    """Copies between tensors of a graph, whose addresses are fixed, and a call's, which have their layout.

    Args:
        launches: makes the launches; where there is no kernel, torch copies.
        fixed: the graph's.
        is_into: the graph's are the targets.
    """

    def __init__(
        self, launches: CopyLaunches, kernel: CopyKernel | None, fixed: Sequence[Tensor], *, is_into: bool
    ) -> None:
        self._launches, self._fixed, self._is_into = launches, fixed, is_into
        self.light = light = [i for i, t in enumerate(fixed) if kernel is not None and takes(t, t)]
        self.rest = [i for i in range(len(fixed)) if i not in light]
        self._prepared: list[tuple[Any, PreparedCopies, list[int]]] = []
        for at in range(0, len(light), MOST):
            which = light[at : at + MOST]
            assert kernel is not None
            copies = launches.prepare(kernel, [part(fixed[i], fixed[i]) for i in which])
            self._prepared.append((struct.Struct(f"={len(which)}Q").pack_into, copies, which))
        self._offset = 0 if is_into else 8 * MOST

    def __call__(self, tensors: Sequence[Tensor]) -> None:
        """Copy, on the stream of the launches."""
        for pack, copies, which in self._prepared:
            pack(copies.words, self._offset, *[tensors[i].data_ptr() for i in which])
            if copies.launch():
                self._launches.refused(*self._pairs(tensors, which))
        if self.rest:
            self.by_torch(tensors, self.rest)

    def by_torch(self, tensors: Sequence[Tensor], which: Sequence[int] | None = None) -> None:
        """Copy tensors of any layout, on the current stream."""
        copy_all(*self._pairs(tensors, range(len(self._fixed)) if which is None else which))

    @property
    def pairs(self) -> Pairs:
        """What the kernel copies."""
        return [(self._fixed[i], self._fixed[i]) for i in self.light]

    def _pairs(self, tensors: Sequence[Tensor], which: Sequence[int]) -> tuple[list[Tensor], list[Tensor]]:
        fixed, given = [self._fixed[i] for i in which], [tensors[i] for i in which]
        return (fixed, given) if self._is_into else (given, fixed)


def takes(target: Tensor, source: Tensor) -> bool:
    """True if the kernel may copy ``source`` to ``target``."""
    nbytes = target.numel() * target.element_size()
    return 0 < nbytes <= LARGEST_NBYTES and is_one_copy(target, source)


def part(target: Tensor, source: Tensor) -> tuple[int, int, int]:
    """The kernel's arguments: destination, source, number of bytes."""
    return target.data_ptr(), source.data_ptr(), target.numel() * target.element_size()


def copy_kernel(state: Process, device_index: int) -> CopyKernel | None:
    """The kernel of a device, loaded and tested at the first call; None if it is not available."""
    if device_index not in state.copy_kernels:
        state.copy_kernels[device_index] = _load(state, device_index)
    return state.copy_kernels[device_index]


def _load(state: Process, device_index: int) -> CopyKernel | None:
    driver = state.driver
    if driver is None or "copy_kernel" in driver.missing:
        state.why_not_joined = "the runtime cannot load a kernel"
        return None
    try:
        with torch.cuda.device(device_index):
            arena_of(state, device_index).contexts.give(device_index)
            arch = getattr(torch.cuda.get_device_properties(device_index), "gcnArchName", "")
            kernel = driver.copy_kernel(arch)
            if _copies_right(kernel):
                return kernel
            why = "it did not copy correctly"
    except (DriverError, RuntimeError) as error:
        why = kind_and_line(error)
    state.why_not_joined = f"the copying kernel is not available: {why}"
    state.report("no_copy_kernel", f"small tensors are copied one by one: {why}", level=logging.INFO)
    return None


def _copies_right(kernel: CopyKernel) -> bool:
    """Test lengths and alignments that take every path through the kernel, and the bytes next to the copies."""
    given = torch.arange(251, dtype=torch.uint8, device="cuda").repeat(400)
    spans = [(0, 0, 64), (16, 32, 4096), (4, 8, 20), (1, 3, 7), (5, 5, 70_001)]
    made = [torch.zeros(to + n + 16, dtype=torch.uint8, device="cuda") for _, to, n in spans]
    parts = [(made[i].data_ptr() + to, given.data_ptr() + at, n) for i, (at, to, n) in enumerate(spans)]
    copies = kernel.prepare([(to, 0, n) for to, _, n in parts], torch.cuda.current_stream().cuda_stream)
    for i, (_, source, _) in enumerate(parts):
        copies.words[i] = source
    if copies.launch():
        return False
    wanted = [torch.zeros_like(m) for m in made]
    for want, (at, to, n) in zip(wanted, spans):
        want[to : to + n] = given[at : at + n]
    return all(torch.equal(a, b) for a, b in zip(made, wanted))


MOST_NODES = 1024
"""Larger graphs are not joined: a second exec costs memory, and the saving would not be noticed."""
MOST_NODES_OF_A_BUCKET = 64
"""The limit if other sizes have graphs of their own: a node takes some 5 KiB in each exec (an H100)."""
N_TRIED = 12
Pairs = Sequence[tuple[Tensor, Tensor]]


class JoinedCall:
    """One instance's joined graph, and the addresses set in its exec.

    Args:
        into: (buffer, the call's tensor) of the arguments that it copies.
        back: (result, result) of the results that it copies out.
    """

    __slots__ = ("at", "copied", "launched")

    def __init__(self, entry: Captured, instance: Instance, kernel: CopyKernel, into: Pairs, back: Pairs) -> None:
        state = entry.arena.state
        assert state.driver is not None
        self.copied = copied(into, back)
        """The graph's copies: a call that copies other arguments cannot use it."""
        graph = int(state.base.raw_cuda_graph(instance.graph))
        # Until an address is set, everything is copied onto itself.
        self.launched = state.driver.joined(
            kernel, graph, [part(to, to) for to, _ in into], [part(*pair) for pair in back], entry.arena.last_raw
        )
        self.at: list[Any] = [None, None, entry.arena.last_raw]
        """Addresses of arguments and of results in the exec, None if not yet set; and its stream."""


def copied(into: Pairs, back: Pairs) -> Any:
    """The graph's side of the copies."""
    return [(part(*pair)[0], part(*pair)[2]) for pair in into], [part(*pair) for pair in back]


def change_refused(entry: Captured) -> None:
    """Stop joining for ``entry``: an update of its joined graph was refused."""
    entry.can_join = False
    entry.why_not_joined = "an address could not be changed in the graph exec"
    why = f"{entry.why_not_joined}; copies are launched on their own"
    entry.arena.state.report("join_refused", why, entry.name, level=logging.INFO)


def joined_call(entry: Captured, instance: Instance, into: Pairs, back: Pairs) -> JoinedCall | None:
    """The joined graph of an instance, made at the first call; None if it cannot be joined."""
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
            instance.joined, instance.twin = made, twin
    except RuntimeError as error:
        if is_interrupt(error):
            raise
        entry.can_join = False
        entry.why_not_joined = kind_and_line(error)
        why = f"copies are launched on their own: {entry.why_not_joined}"
        state.report("not_joined", why, entry.name, level=logging.INFO)
    return instance.joined


def _why_not(entry: Captured, instance: Instance, n_copies: int) -> str:
    """Why a graph is not joined; "" if it may be."""
    known = [each.draws for each in (instance, *entry.instances()) if each.draws is not None]  # of the same function
    if known[:1] != [False]:
        return "its graph draws random numbers, which torch's own replay provides"
    most = MOST_NODES_OF_A_BUCKET if entry.bucket else MOST_NODES
    return why_not_graph(entry.arena.state, instance.graph, n_copies, most)


def why_not_graph(state: Process, graph: Any, n_copies: int, most: int) -> str:
    """As above, of a graph that draws no random numbers."""
    driver = state.driver
    if graph._guard is not None:
        return "a guard runs before each replay"
    if state.decisions.join_copies or getattr(graph, "_tracker", None) is not None:
        return "something has to be done before each replay"
    if n_copies > MOST:
        return f"it has {n_copies} small arguments and results, and one launch copies {MOST}"
    try:
        n_nodes = len(driver.nodes(int(state.base.raw_cuda_graph(graph)))) if driver is not None else 0
    except (DriverError, RuntimeError, AttributeError):
        return "torch does not keep its graph"  # before torch 2.8
    return f"its graph has {n_nodes} nodes, more than {most}" if n_nodes > most else ""


class CopiedReplay:
    """A graph's replay with the copies of a call: one launch where the runtime allows it.

    Args:
        run: replays the graph.
        into: the graph's memory that a call's tensors are copied to.
        back: its results, which are copied to what ``allocate`` makes.
    """

    def __init__(
        self,
        arena: Arena,
        graph: Any,
        run: Callable[[], None],
        into: Sequence[Tensor],
        back: Sequence[Tensor],
        allocate: Callable[[], list[Tensor]],
    ) -> None:
        self._arena, self._graph, self._run, self._allocate = arena, graph, run, allocate
        self._device, self._raw_stream = arena.device_index, torch_names._cuda_getCurrentRawStream
        self._stream, self._launches = arena.last_raw, CopyLaunches(arena.state, arena.last_raw)
        kernel = copy_kernel(arena.state, arena.device_index)
        self._into = FixedCopies(self._launches, kernel, into, is_into=True)
        self._back = FixedCopies(self._launches, kernel, back, is_into=False)
        self.draws: bool | None = None if graph.is_plain else draws(graph) or graph.is_opaque
        """Whether a replay draws random numbers, which only torch's own provides; None before the first shows it."""
        self._joined: JoinedExec | None = None
        self._hooks = hooks_of(graph)
        self._sides: list[tuple[Any, Any, list[int], list[Any]]] = []
        """Of arguments and of results: the node, what packs its addresses, which tensors, its present addresses."""

    def __call__(self, given: Sequence[Tensor], are_alike: bool = True) -> list[Tensor]:
        """Copy in, launch on the current stream, copy out; where gradients are off.

        Args:
            are_alike: what is given has the layout of the graph's memory.
        """
        stream = self._raw_stream(self._device)
        if stream != self._stream:
            self._stream = stream
            self._launches.to(stream)
            if self._joined is not None:
                self._joined.on(stream)
        if self._device not in self._arena.contexts.devices:
            self._arena.contexts.give(self._device)
        made = self._allocate()
        if self._joined is not None and are_alike and self._launched(self._joined, given, made):
            return made
        self._into(given) if are_alike else self._into.by_torch(given)
        is_first = self.draws is None
        if is_first:
            self.draws = self._arena.advances(self._graph, self._run)
        else:
            self._run()
        self._back(made)
        if is_first and not self.draws:
            self._join()
        return made

    def _launched(self, joined: JoinedExec, given: Sequence[Tensor], made: Sequence[Tensor]) -> bool:
        """Launch all as one; False if nothing was launched."""
        left = self._graph._left - 1
        if left < 0 or any(self._hooks):
            return False
        for (node, pack, which, at), tensors in zip(self._sides, (given, made)):
            places = [tensors[i].data_ptr() for i in which]
            if places != at[0]:
                at[0] = None
                pack(*places)
                if node.apply():
                    self._joined = None
                    self._arena.state.report("join_refused", "copies are launched on their own", level=logging.INFO)
                    return False
                at[0] = places
        if self._into.rest:
            self._into.by_torch(given, self._into.rest)
        if joined.launch():
            return False
        self._graph._left = left
        if self._back.rest:
            self._back.by_torch(made, self._back.rest)
        return True

    def _join(self) -> None:
        state, device = self._arena.state, self._arena.device_index
        into, back = self._into.pairs, self._back.pairs
        kernel = copy_kernel(state, device)
        if not (into or back) or kernel is None or not joins(state, device):
            return
        if why_not_graph(state, self._graph, len(into) + len(back), MOST_NODES):
            return
        if getattr(getattr(self._graph, "_retained", None), "sync_before_fire", False):
            return
        driver = state.driver
        assert driver is not None
        try:
            raw = int(state.base.raw_cuda_graph(self._graph))
            self._joined = joined = driver.joined(
                kernel, raw, [part(to, to) for to, _ in into], [part(*pair) for pair in back], self._stream
            )
        except RuntimeError as error:
            if is_interrupt(error):
                raise
            why = f"copies are launched on their own: {kind_and_line(error)}"
            state.report("not_joined", why, level=logging.INFO)
            return
        for node, copies, first in ((joined.into, self._into, 0), (joined.back, self._back, 8 * MOST)):
            pack: Any = struct.Struct(f"={len(copies.light)}Q").pack_into
            fill = functools.partial(pack, node and node.words, first)
            self._sides.append((node, fill, copies.light, [[] if node is None else None]))


def hooks_of(graph: Any) -> list[Any]:
    """torch's containers of replay hooks (2.14 and later), which must be empty to bypass torch's replay."""
    graphs = torch.cuda.graphs
    found = [getattr(graphs, f"_global_replay_{when}_hooks", None) for when in ("start", "end")]
    found += [getattr(graph, f"_replay_{when}_hooks", None) for when in ("start", "end")]
    return [hooks for hooks in found if hooks is not None]


def joins(state: Process, device_index: int) -> bool:
    """Whether graphs can be joined on this device; tested at the first call."""
    if device_index not in state.joins:
        state.joins[device_index] = _try(state, device_index)
    return state.joins[device_index]


def _try(state: Process, device_index: int) -> bool:
    driver, kernel = state.driver, copy_kernel(state, device_index)
    needed = {"add_child", "joined", "copy_kernel"}
    if driver is None or kernel is None:
        return False
    if driver.name == "hip" or state.decisions.update_budget is not None or needed & driver.missing:
        # There each node update takes memory, and queued launches may see it.
        state.why_not_joined = "this runtime's graph execs must not be changed from call to call"
        return False
    try:
        with torch.cuda.device(device_index):
            arena_of(state, device_index).contexts.give(device_index)
            if _joins_right(driver, kernel):
                return True
            why = "a joined graph gave different data"
    except (DriverError, RuntimeError) as error:
        why = kind_and_line(error)
    state.why_not_joined = why
    state.report("not_joined", f"copies are launched on their own: {why}", level=logging.INFO)
    return False


def _joins_right(driver: GraphDriver, kernel: CopyKernel) -> bool:
    """Run a graph of two nodes at a dozen addresses without waiting, then once more at the last one."""
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
