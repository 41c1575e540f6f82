"""Arguments read in place: new addresses are patched into the graph's kernels, and nothing is copied.

Problem: a call's tensors lie elsewhere each time, and copying a large one into its buffer costs more
than telling a few kernels where it is. But a kernel's arguments are bytes, and nothing says which of them are
addresses in that tensor.

Idea: the function is captured again over other buffers, and the two graphs are compared word by
word. A word that points into the argument in one graph, and to the same offset in its twin in the other, is an
address to patch. Any other difference, except memory of the graphs' own pool, means that
something depends on the address in an unknown way, as does a node that is not a kernel.
Then the first graph is moved to the twins, its old buffers are overwritten, and its results must equal those of the
second graph and of the function itself.

Invariants:
  - an argument whose address could not be patched everywhere has no known address, and is patched again
    before the next launch;
  - kernels may have been chosen for an address's alignment: a tensor with another alignment is
    copied to the buffer instead;
  - the tape would read the buffer, so it never replaces a graph whose arguments move.

On AMD's runtime each update of a node takes memory that is freed only with the graph exec: after as
many updates as the defect table allows, the graph is instantiated again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gfxgraph.callables.inputs import StaticInput, copy_all, span
from gfxgraph.callables.signature import flatten
from gfxgraph.capture.replay.rollback import Rollback
from gfxgraph.capture.replay.runtime_workarounds import has_headroom
from gfxgraph.capture.replay.tolerance import is_near
from gfxgraph.capture.torchs_graph import bare_launch
from gfxgraph.core.tape import Opaque
from gfxgraph.driver.params import KernelParams
from gfxgraph.driver.runtime_calls import GraphDriver, Patcher
from gfxgraph.guard.nodes import SegmentNode, known_params, nodes_of
from gfxgraph.types import NodeKind

if TYPE_CHECKING:
    from gfxgraph.callables.captured import Captured, Instance

LEAST_NBYTES = 1 << 18
"""Smaller arguments are copied: that costs no more than updating two kernels."""
ALIGNMENT = 256


class NotRelocatable(Exception):
    """The graph's arguments cannot be moved; ``args[0]`` says why."""


@dataclass(slots=True)
class KernelSlots:
    """The places in one graph's kernels that hold one argument's address."""

    home: int
    """Its buffer's address at capture."""
    address: int
    """Its present address; -1 if an update failed half-way."""
    words: list[tuple[Patcher, int, int, int]] = field(default_factory=list)
    """For each address: the kernel, its argument, the offset there, and the offset into the tensor."""
    patchers: list[Patcher] = field(default_factory=list)


class RelocatedInputs:
    """The arguments that one graph reads in place."""

    def __init__(self, instance: Instance, driver: GraphDriver, base: Any, homes: dict[int, int]) -> None:
        self.graph = instance.graph
        self.driver = driver
        self.base = base
        self.places = {i: KernelSlots(home, home) for i, home in homes.items()}
        self.budget: int | None = None
        """Node updates that one graph exec may have; None for no limit."""
        self.words: list[tuple[int, int, KernelParams, int, int, int]] = []
        """(argument of the function, node, its launch, argument of the kernel, offset there, offset in the tensor)"""
        self.n_moves = 0
        self.n_changes = 0
        self.n_renewed = 0

    def prepare(self) -> None:
        """Prepare every kernel for the present graph exec, in which all arguments are at their buffers."""
        graph_exec = int(self.base.raw_cuda_graph_exec(self.graph))
        patchers: dict[int, Patcher] = {}
        for place in self.places.values():
            place.address, place.words, place.patchers = place.home, [], []
        for i, node, params, argument, at, beyond in self.words:
            if node not in patchers:
                patchers[node] = self.driver.patcher(graph_exec, node, params)
            place = self.places[i]
            place.words.append((patchers[node], argument, at, beyond))
            if patchers[node] not in place.patchers:
                place.patchers.append(patchers[node])
        self.n_changes = 0

    def __str__(self) -> str:
        kernels = sum(len(place.patchers) for place in self.places.values())
        return f"{len(self.places)} argument(s) read in place by {kernels} kernel(s), changed {self.n_moves} times"

    def is_at(self, i: int, address: int) -> bool:
        place = self.places.get(i)
        return place is not None and place.address == address

    def move(self, i: int, address: int) -> bool:
        """Make the kernels read argument ``i`` at ``address``; False if they cannot."""
        place = self.places[i]
        if place.address == address:
            return True
        if (address - place.home) % ALIGNMENT or not has_headroom():
            return False
        try:
            n = len(place.patchers)
            if self.budget is not None and self.n_changes + n > self.budget:
                if n > self.budget:
                    return False
                self.base.instantiate(self.graph)
                self.n_renewed += 1
                self.prepare()
                if place.address == address:
                    return True
            place.address = -1
            for patcher, argument, at, beyond in place.words:
                patcher.put(argument, at, address + beyond)
            for patcher in place.patchers:
                self.n_changes += 1
                patcher.apply()
        except RuntimeError:  # also the driver's refusal
            return False
        place.address = address
        self.n_moves += 1
        return True


def learn(entry: Captured, instance: Instance, tensors: Sequence[Tensor]) -> RelocatedInputs:
    """Find out how the large arguments of a newly captured graph can be moved, and test it.

    Raises:
        NotRelocatable: they cannot.
    """
    state = entry.arena.state
    driver = state.driver
    if driver is None or "patcher" in driver.missing:
        raise NotRelocatable("the runtime cannot change a kernel of a graph exec")
    budget = state.decisions.update_budget
    if budget == 0:
        raise NotRelocatable("this runtime must not change graph execs (gfxgraph doctor --why)")
    positions = [i for i, t in enumerate(tensors) if _is_large(entry.statics[i], t)]
    if not positions:
        raise NotRelocatable(f"no argument has {LEAST_NBYTES >> 10} KiB or more and lies densely")
    if not instance.graph.is_plain:
        raise NotRelocatable("the capture is not one graph")
    twins = {i: torch.empty_like(entry.statics[i].tensor, requires_grad=False) for i in positions}
    for i in positions:
        twins[i].requires_grad_(entry.statics[i].tensor.requires_grad)
    homes = {i: entry.statics[i].tensor.data_ptr() for i in positions}
    if any((twins[i].data_ptr() - homes[i]) % ALIGNMENT for i in positions):
        raise NotRelocatable("its buffers are not aligned in the same way")
    second = entry.capture_over(twins)
    moving = RelocatedInputs(instance, driver, state.base, homes)
    moving.budget = budget
    moving.words = list(_words(entry, instance, second, twins))
    moving.prepare()
    try:
        _prove(entry, instance, second, moving, twins)
    except BaseException:
        state.base.instantiate(instance.graph)  # back to the buffers, whatever was updated
        raise
    # Its tape reads the buffers. A tape with an opaque launch cannot replace the graph.
    for segment in instance.graph._program.segments:
        segment.tape.opaque.append(Opaque(len(segment.tape.entries)))
    instance.graph._unvalidated = 0  # it has just been compared with the function itself
    instance.graph._choose_path()
    return moving


def _is_large(static: StaticInput, tensor: Tensor) -> bool:
    is_whole = static.span is None and static.tensor.size() == tensor.size() and static.tensor.is_cuda
    return is_whole and static.nbytes >= LEAST_NBYTES


# -- finding the words --------------------------------------------------------------------------------


def _words(
    entry: Captured, first: Instance, second: Instance, twins: dict[int, Tensor]
) -> Iterator[tuple[int, int, KernelParams, int, int, int]]:
    """Every address of a moving argument, as in ``RelocatedInputs.words``.

    Other words that differ are results in the pool, or what a compiler left in the padding of
    a struct. If one mattered, the test would show it, since the buffers are overwritten then.
    """
    mine, theirs = _kernels(first), _kernels(second)
    if [k.kernel for k, _ in mine] != [k.kernel for k, _ in theirs]:
        raise NotRelocatable("it launches different kernels for different addresses")
    buffers = {i: entry.statics[i].tensor.data_ptr() for i in twins}
    homes = [(i, buffers[i], span(t) * t.element_size(), t.data_ptr()) for i, t in twins.items()]
    for (node, a), (_, b) in zip(mine, theirs):
        if (a.grid, a.block, a.shared_nbytes) != (b.grid, b.block, b.shared_nbytes):
            raise NotRelocatable(f"{_shown(node)} is launched differently for another address")
        for argument, (one, other) in enumerate(zip(a.params or (), b.params or ())):
            for at, x, y in _pairs(one, other):
                found = [(i, x - home) for i, home, nbytes, _ in homes if home <= x < home + nbytes]
                moved = [(i, y - twin) for i, _, nbytes, twin in homes if twin <= y < twin + nbytes]
                if found and found == moved:
                    yield found[0][0], node.handle, a, argument, at, found[0][1]
                elif found or moved:
                    what = f"argument {argument} of {_shown(node)}"
                    raise NotRelocatable(f"{what} depends on an address in a way that is not understood")


def _pairs(one: bytes, other: bytes) -> Iterable[tuple[int, int, int]]:
    """(offset, word, word) of every aligned word; remaining bytes must be the same."""
    end = len(one) // 8 * 8
    if len(one) != len(other) or one[end:] != other[end:]:
        yield end, 0, 1
    for at in range(0, end, 8):
        yield at, int.from_bytes(one[at : at + 8], "little"), int.from_bytes(other[at : at + 8], "little")


def _kernels(instance: Instance) -> list[tuple[SegmentNode, KernelParams]]:
    program = instance.graph._program
    found = []
    for node in nodes_of(program.segments[0], program):
        if node.kind is not NodeKind.KERNEL:
            raise NotRelocatable(f"{_shown(node)}: only kernels can be given another address")
        params, why = known_params(node.handle, node.kernel)
        if params is None:
            raise NotRelocatable(f"{_shown(node)}: {why}")
        found.append((node, params))
    return found


def _shown(node: SegmentNode) -> str:
    place = f" ({node.op} at {node.where})" if node.where else ""
    return (f"the kernel {node.kernel}" if node.kernel else f"a {node.kind} node") + place


# -- the test -----------------------------------------------------------------------------------------


def _prove(
    entry: Captured, first: Instance, second: Instance, moving: RelocatedInputs, twins: dict[int, Tensor]
) -> None:
    """Check that the first graph, moved to the twins, gives the results of the second and of the function."""
    launch = bare_launch(entry.arena.state.base)
    homes = [entry.statics[i].tensor.detach() for i in twins]
    data = [twin.detach() for twin in twins.values()]
    with torch.no_grad():
        copy_all(data, homes)
        if not all(bool(t.any()) for t in homes):
            raise NotRelocatable("this call's data is all zeros, which proves nothing")
        kept = [t.clone() for t in homes]
        program = second.graph._program
        before = Rollback((*program.writes(), *data), program.random_states())
        try:
            results: list[list[Tensor]] = []
            for instance in (second, first):
                for home in homes:
                    home.zero_()
                if instance is first and not all(moving.move(i, twin.data_ptr()) for i, twin in twins.items()):
                    raise NotRelocatable("the runtime refuses to change a kernel of the graph exec")
                launch(instance.graph)
                made = [r.made.clone() for r in instance.outputs.results if r.made is not None and not r.is_host]
                results.append([*made, *[t.clone() for t in data]])
                before.put_back()
            eager: list[Tensor] = []
            flatten(entry.fn(*entry.args_over(twins)[0], **entry.args_over(twins)[1]), eager)
            truth = [*eager, *[t.clone() for t in data]] if len(eager) == len(first.outputs.results) else None
            before.put_back()
        finally:
            copy_all(homes, kept)
    is_same = all(is_near(a, b) for a, b in zip(*results))
    if truth is not None and all(r.made is not None and not r.is_host for r in first.outputs.results):
        is_same = is_same and all(is_near(a.detach(), b) for a, b in zip(truth, results[1]))
    if not is_same:
        raise NotRelocatable("the graph gives a different result at another address")
