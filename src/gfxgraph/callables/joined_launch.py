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

import logging
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gfxgraph import torch_names
from gfxgraph.callables.arena import Arena, Order, arena_of, draws
from gfxgraph.callables.buffers import copy_all, is_one_copy
from gfxgraph.capture import torchs_graph
from gfxgraph.capture.function_capture import kind_and_line
from gfxgraph.capture.undo import is_interrupt
from gfxgraph.driver.graphs import GraphDriver
from gfxgraph.driver.small_copies import MOST, CopyKernel, PreparedCopies
from gfxgraph.errors import DriverError

if TYPE_CHECKING:
    from gfxgraph.callables.captured import Captured, Instance
    from gfxgraph.driver.joined import JoinedExec
    from gfxgraph.process.process import Process


LARGEST_NBYTES = 1 << 20
"""Larger tensors are copied by torch: for them only device time matters."""
_PACK = [struct.Struct(f"={n}Q").pack_into for n in range(MOST + 1)]


class CopyLaunches:
    """The prepared launches of one fast path, all on one stream.

    Args:
        stream: the stream of the first calls.
    """

    def __init__(self, state: Process, stream: int) -> None:
        self._state = state
        self.copies: list[PreparedCopies] = []
        self.stream = stream

    def prepare(self, kernel: CopyKernel, parts: Sequence[tuple[int, int, int]]) -> PreparedCopies:
        made = kernel.prepare(parts, self.stream)
        self.copies.append(made)
        return made

    def to(self, stream: int) -> None:
        """Launch on ``stream`` from now on."""
        for copies in self.copies:
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
        self.parts = [part(fixed[i], fixed[i]) for i in light]
        """What the kernel copies."""
        self._prepared: list[tuple[Any, PreparedCopies, list[int]]] = []
        for at in range(0, len(light), MOST):
            assert kernel is not None
            copies = launches.prepare(kernel, self.parts[at : at + MOST])
            self._prepared.append((_PACK[len(light[at : at + MOST])], copies, light[at : at + MOST]))
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


def addresses(tensors: Sequence[str]) -> str:
    """An expression for the addresses of these tensors; a single address for one tensor."""
    found = ", ".join(f"{tensor}.data_ptr()" for tensor in tensors)
    return found if len(tensors) == 1 else f"({found})"


def launch_lines(
    names: dict[str, object],
    k: str,
    graph: Any,
    launched: JoinedExec,
    at: list[object],
    n_into: int,
    n_back: int,
    refused: Callable[[], None],
) -> list[str]:
    """The source of one launch on ``stream``, after the addresses of arguments (``places``) and results (``outs``)
    are updated in the exec; it returns `MISS` if nothing was launched. ``names`` gets what it names.

    Args:
        at: addresses of arguments and of results in the exec, None if not yet set; and its stream.
        refused: called where an address could not be changed.
    """
    names |= {f"graph{k}": graph, f"at{k}": at, f"go{k}": launched.launch, f"on{k}": launched.on}
    names["change_refused"] = refused
    lines = [
        torchs_graph.decrement(f"graph{k}"),
        "if left < 0: return MISS",
        f"if stream != at{k}[2]:",
        f"    on{k}(stream)",
        f"    at{k}[2] = stream",
    ]
    hooks = hooks_of(graph)
    if hooks:
        names |= {f"hooks{k}_{i}": found for i, found in enumerate(hooks)}
        lines.append(f"if {' or '.join(f'hooks{k}_{i}' for i in range(len(hooks)))}: return MISS")
    if getattr(graph, "_retained", None) is not None:
        names[f"retained{k}"] = graph._retained
        lines.append(f"if retained{k}.sync_before_fire: return MISS")
    for which, node, places, n, first in (
        (0, launched.into, "places", n_into, 0),
        (1, launched.back, "outs", n_back, MOST),
    ):
        if node is None:
            continue
        name = f"{'back' if which else 'into'}{k}"
        names |= {f"{name}_words": node.words, f"{name}_apply": node.apply, f"pack{n}": _PACK[n]}
        lines += [
            f"if {places} != at{k}[{which}]:",
            f"    at{k}[{which}] = None",
            f"    pack{n}({name}_words, {8 * first}, *{places})" if n > 1
            else f"    {name}_words[{first}] = {places}",
            f"    if {name}_apply():",
            "        change_refused()",
            "        return MISS",
            f"    at{k}[{which}] = {places}",
        ]  # fmt: skip
    return [*lines, f"if go{k}(): return MISS", torchs_graph.store_n(f"graph{k}")]


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
        order: of the replays that share its memory.
    """

    def __init__(
        self,
        arena: Arena,
        graph: Any,
        run: Callable[[], None],
        into: Sequence[Tensor],
        back: Sequence[Tensor],
        allocate: Callable[[], list[Tensor]],
        order: Order,
    ) -> None:
        self._arena, self._graph, self._run, self._allocate, self._order = arena, graph, run, allocate, order
        self._device, self._raw_stream = arena.device_index, torch_names._cuda_getCurrentRawStream
        self._stream, self._launches = arena.last_raw, CopyLaunches(arena.state, arena.last_raw)
        kernel = copy_kernel(arena.state, arena.device_index)
        self._into = FixedCopies(self._launches, kernel, into, is_into=True)
        self._back = FixedCopies(self._launches, kernel, back, is_into=False)
        self.draws: bool | None = None if graph.is_plain else draws(graph) or graph.is_opaque
        """Whether a replay draws random numbers, which only torch's own provides; None before the first shows it."""
        self.replay: Callable[..., list[Tensor]] = self._replay
        """Copy in, launch on the current stream, copy out, where gradients are off.

        Args: what is given, and whether that has the layout of the graph's memory.
        """

    def _replay(self, given: Sequence[Tensor], are_alike: bool = True) -> list[Tensor]:
        stream = self._raw_stream(self._device)
        if stream != self._order.last_raw:
            self._order.follow(torch.cuda.current_stream(self._device))
        if stream != self._stream:
            self._stream = stream
            self._launches.to(stream)
        if self._device not in self._arena.contexts.devices:
            self._arena.contexts.give(self._device)
        made = self._allocate()
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

    def _join(self) -> None:
        """Launch all as one from now on, if possible."""
        state, device = self._arena.state, self._device
        into, back = self._into.parts, self._back.parts
        kernel = copy_kernel(state, device)
        if not (into or back) or kernel is None or not joins(state, device):
            return
        if why_not_graph(state, self._graph, len(into) + len(back), MOST_NODES):
            return
        driver = state.driver
        assert driver is not None
        try:
            raw = int(state.base.raw_cuda_graph(self._graph))
            joined = driver.joined(kernel, raw, into, back, self._stream)
        except RuntimeError as error:
            if is_interrupt(error):
                raise
            why = f"copies are launched on their own: {kind_and_line(error)}"
            state.report("not_joined", why, level=logging.INFO)
            return
        names: dict[str, Any] = {"raw_stream": self._raw_stream, "device": device, "order": self._order}
        names |= {"devices": self._arena.contexts.devices, "allocate": self._allocate, "slow": self._replay}
        names |= {"into": self._into, "back": self._back}
        at: list[object] = [None, None, self._stream]
        lines = launch_lines(names, "", self._graph, joined, at, len(into), len(back), self._refused)
        lines = [
            "stream = raw_stream(device)",
            "if not are_alike or stream != order.last_raw or device not in devices: return MISS",
            "made = allocate()",
            f"places = {addresses([f'given[{i}]' for i in self._into.light])}",
            f"outs = {addresses([f'made[{i}]' for i in self._back.light])}",
            *(["into.by_torch(given, into.rest)"] if self._into.rest else []),
            *lines,
            *(["back.by_torch(made, back.rest)"] if self._back.rest else []),
            "return made",
        ]
        text = "\n    ".join(["def replay(given, are_alike=True):", *lines])
        exec(text.replace("MISS", "slow(given, are_alike)"), names)
        self.replay = names.pop("replay")  # left in, it would refer to itself

    def _refused(self) -> None:
        self.replay = self._replay
        self._arena.state.report("join_refused", "copies are launched on their own", level=logging.INFO)


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
