"""A graph's inputs and who holds them: what the program replaces after the capture reaches the graph, or is refused.

Problem: a graph reads addresses. Where a program gives a module another weight, as a reload, a merge or a quantizer
does, the graph goes on with the old one, whose memory it keeps. Idea: at the end of a capture find the places that
hold each input (watching/holders.py), and watch them: dicts tell of a change, of tensors a few words of memory are
compared. At the next replay the new content is copied to where the graph reads it, and the place's tensor is given
that memory, so that nothing is kept twice.

What happens to an input, by what is at its place now:

    a tensor over the captured memory    another graph has followed, or nothing has happened
    one of the same kind                 followed: copied, and given the captured memory; where its own is shared with
                                         other tensors, or the old memory still is, the copy is made for each replay
    anything else                        GuardMismatch
    nothing, its object died             nobody can replace it: only the graph holds it

A module's parameter or buffer is the program's word. An attribute of anything, or an item, may be the last of many
that the program put there: it counts if nothing else refers to the old tensor, else that is said.

Invariant: what the program can reach keeps its content. Old memory that it still refers to is written only while a
replay runs, and restored.
"""

from __future__ import annotations

import functools
import gc
import logging
import sys
import types
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gfxgraph import torch_names
from gfxgraph.capture import capture_lock
from gfxgraph.capture.patches.optimizers import Settings
from gfxgraph.capture.record.user_lines import is_library_code, place, shown
from gfxgraph.capture.replay.graph_tensors import Layout, flat, has_layout, memory_of, overwrite, used_on
from gfxgraph.capture.replay.program import HostStep, Program, point_at
from gfxgraph.core.tape import Entry, TapeValue, leaves
from gfxgraph.process import process
from gfxgraph.watching.holders import GONE, REPLACED, SLOTS, Holder, HolderSearch, read_step, variable_now
from gfxgraph.watching.memory_words import word_of, words_of_address, words_of_list
from gfxgraph.watching.watch import HAS_TAGS, Watchers, compiled, sees_attributes

MOST_ASKED = 4
"""Inputs that variables alone hold: so many are asked for at each replay, the others where a replay is timed."""
_every: weakref.WeakSet[HeldInputs] = weakref.WeakSet()


@dataclass(slots=True, eq=False, weakref_slot=True)
class OwnInput:
    """An input that no place holds: the program's own tensor, one object for all graphs."""

    tensor: Tensor

    def get(self) -> Tensor:
        return self.tensor


_kept: weakref.WeakValueDictionary[int, OwnInput] = weakref.WeakValueDictionary()


@dataclass(slots=True, eq=False)
class Slot:
    """A place that holds an input, or a variable that does."""

    holder: Holder
    memory: Tensor
    """The captured memory, as the place's tensor had it."""
    address: int
    storage: int
    seen: Tensor | OwnInput
    """What was there at the last look."""

    @property
    def was(self) -> Tensor:
        return self.seen.tensor if type(self.seen) is OwnInput else self.seen  # type: ignore[return-value]

    def is_met_by(self, now: Tensor) -> bool:
        """Whether it lies in the captured memory, as the captured one did."""
        return now.data_ptr() == self.address and self.is_like(now) and now.stride() == self.memory.stride()

    @property
    def nbytes(self) -> int:
        """From its first to past its last element."""
        return Layout.of(self.memory).span_nbytes

    def overlaps(self, other: Slot) -> bool:
        return self.address < other.address + other.nbytes and other.address < self.address + self.nbytes

    def is_like(self, now: Tensor) -> bool:
        mine = self.memory
        return has_layout(now) and now.size() == mine.size() and now.dtype is mine.dtype and now.device == mine.device


class HeldInputs:
    """The inputs of one program.

    Args:
        tensors: the program's own tensors, by value.
        is_strict: whether an input that only the graph holds is refused.
        settings: the numbers of optimizers that step in the program.
    """

    def __init__(
        self, program: Program, tensors: dict[TapeValue, Tensor], is_strict: bool, settings: list[Settings]
    ) -> None:
        self._program = weakref.ref(program)
        self.is_plain = not any(isinstance(step, HostStep) for step in program.steps)
        self._is_strict = is_strict
        self._settings = settings
        self.slots: list[Slot] = []
        self.lent: list[tuple[Slot, Tensor, bool]] = []
        """Inputs that are copied for each replay: the place's tensor, and whether the old content is restored."""
        self.lent_before: list[tuple[Slot, Tensor, bool]] = []
        self.alone: list[tuple[str, Any, OwnInput]] = []
        """Inputs that variables alone hold, with their names and scopes."""
        self.numbers: list[tuple[weakref.ref[Any], str, float, str, Entry]] = []
        """Attributes of what holds the inputs: object, attribute, value, name, and the operation that took it."""
        self.n_told = 0
        """Inputs that may be stale: they are counted, the first is named."""
        self.counts: defaultdict[int, int] = defaultdict(int)
        """How many of our own tensors refer to each storage."""
        self.watched = Watchers(place)
        self.has_changed: Callable[[], bool] = bool
        self._find(tensors)
        self._find_numbers(program)
        for value, tensor in tensors.items():
            memory = tensor.data
            self.counts[memory_of(memory)] += 1
            program.externals[value] = memory
        program.source = self.source
        _every.add(self)
        self._watch()

    def __bool__(self) -> bool:
        return bool(self.slots or self._settings)

    # -- finding ------------------------------------------------------------------------------------

    def _find(self, tensors: dict[TapeValue, Tensor]) -> None:
        storages = {memory_of(tensor): tensor for tensor in tensors.values()}
        frame = sys._getframe(1)
        while frame.f_back is not None and is_library_code(frame.f_code):
            frame = frame.f_back
        search = HolderSearch(storages).from_frames(frame)
        for storage, places in search.found.items():
            for holder, tensor in places:
                self._add(holder, tensor, storage, tensor)
            if not places and storage in search.names:
                tensor, (name, scope) = storages[storage], search.names[storage]
                kept = _kept.get(id(tensor))
                if kept is None:
                    kept = _kept[id(tensor)] = OwnInput(tensor)
                self.alone.append((name, scope, kept))
                self._add(Holder(kept.get, (), name, False, None), tensor, storage, kept)

    def _add(self, holder: Holder, tensor: Tensor, storage: int, seen: Tensor | OwnInput) -> None:
        memory = tensor.data
        self.slots.append(Slot(holder, memory, memory.data_ptr(), storage, seen))
        self.counts[storage] += 1

    def _find_numbers(self, program: Program) -> None:
        """Numbers that are constants of the graph, as far as an attribute beside an input still has them."""
        rows = [row for segment in program.segments for row in segment.tape.rows]
        used = {each: row for row in rows for each in (*row[1], *row[2].values()) if type(each) is float}
        owners = [(slot.holder.owner(), slot.holder.name) for slot in self.slots if slot.holder.owner and used]
        for owner, name in {id(owner): (owner, name.rpartition(".")[0]) for owner, name in owners}.values():
            for key, value in getattr(owner, "__dict__", {}).items() if not isinstance(owner, type) else ():
                if type(value) is float and value in used:
                    self.numbers.append((weakref.ref(owner), key, value, f"{name}.{key}", Entry(*used[value])))

    def source(self, held: Tensor) -> tuple[Tensor, str]:
        """The program's own tensor in the memory of an input, and the place that holds it."""
        storage = memory_of(held)
        at = next((each for each in self.slots if each.storage == storage and each.is_met_by(held)), None)
        return (at.was, at.holder.name) if at is not None else (held, "")

    # -- watching -----------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Watch what is there now."""
        names: dict[str, Any] = {"kept": self.watched}
        first: list[int] = []
        behind: list[int] = []
        lines: list[str] = []
        asked: dict[tuple[int, Any], Any] = {}
        for slot in self.slots:
            if not self._watch_way(slot.holder, asked, first, behind):
                names |= {(name := f"slot{len(names)}"): slot}
                lines.append(f"if {name}.holder.now() is not {name}.was: return True")
            found = words_of_address(slot.was)
            if found is None:
                names |= {(name := f"slot{len(names)}"): slot}
                lines.append(f"if {name}.was.data_ptr() != {slot.address}: return True")
            else:
                behind += found
        self._watch_variables(names, lines, first)
        self.watched.keep_only({owner for owner, _ in asked} | self._watch_settings(names, lines))
        phases = (first, [*behind, *self.watched.tags])  # a list's items lie behind what the list points to
        self.has_changed = compiled(phases, lines, names, changed=True)

    def _watch_variables(self, names: dict[str, object], lines: list[str], first: list[int]) -> None:
        """Watch those that hold a dict or list, or an input alone; their words and lines are added."""
        for holder in list({id(slot.holder.container): slot.holder for slot in self.slots}.values())[:MOST_ASKED]:
            name, scope, _ = holder.variable or ("", None, None)
            at = word_of(scope, "cell", holder.container) if isinstance(scope, types.CellType) else None
            first += [at] if at is not None else []
            if isinstance(scope, dict) and holder.container is not None:
                names |= {(of := f"scope{len(names)}"): scope}
                lines.append(f"if id({of}.get({name!r})) != {id(holder.container)}: return True")
        for whose, key, *_ in self.numbers if sees_attributes() else ():
            if (owner := whose()) is not None:
                self.watched.add(vars(owner), {key}, owner)
        for kept in [kept for _, _, kept in self.alone if sys.getrefcount(kept.tensor) > _ALONE][:MOST_ASKED]:
            names |= {(of := f"alone{len(names)}"): kept, "n_references": sys.getrefcount, "alone": _ALONE}
            lines.append(f"if n_references({of}.tensor) <= alone: return True")

    def _watch_settings(self, names: dict[str, object], lines: list[str]) -> set[int]:
        """Watch the numbers of optimizers; the dicts that they are in, by identity."""
        for n, each in enumerate(self._settings):
            names |= {f"settings{n}": each}
            lines.append(f"if settings{n}.are_others(): return True")
            for numbers, name in [(group, name) for group in each.groups() for name in group]:
                self.watched.add(numbers, {name})
        return {id(group) for each in self._settings for group in each.groups()}

    def _watch_way(self, holder: Holder, asked: dict[Any, Any], first: list[int], behind: list[int]) -> bool:
        """Watch the steps to a holder; False if one must be taken at each look.

        Args:
            asked: what was found at each step that is watched already.
        """
        value, is_watched = holder.root(), True
        for kind, key in holder.steps:
            if (at := (id(value), key)) not in asked:
                is_watched &= self._watch_step(value, kind, key, first, behind)
                asked[at] = read_step(value, kind, key)
            value = asked[at]
        return is_watched

    def _watch_step(self, owner: Any, kind: str, key: Any, first: list[int], behind: list[int]) -> bool:
        if isinstance(owner, tuple):
            return True
        if kind == "item" and isinstance(owner, list):
            found = words_of_list(owner)
            if found is not None:
                first += found[0]
                behind += found[1]
                self.watched.held[id(owner)] = owner
            return found is not None
        if kind == "item":
            if isinstance(owner, dict):
                self.watched.add(owner, {key})
            return isinstance(owner, dict)
        own = {} if isinstance(owner, type) else getattr(owner, "__dict__", {})
        tables = [own[slot] for slot in SLOTS if isinstance(own.get(slot), dict) and key in own[slot]]
        if not tables and key in own and not HAS_TAGS and sees_attributes():
            tables = [own]
        for each in tables:
            self.watched.add(each, {key}, owner)
        return bool(tables)

    # -- at a replay --------------------------------------------------------------------------------

    def before_replay(self) -> None:
        if self.lent or self.has_changed():
            self._follow_changes()
        else:
            self.report_inputs_alone()

    def _follow_changes(self) -> None:
        """Follow what has changed since the last look.

        Raises:
            GuardMismatch: `input_replaced`, `input_let_go`.
        """
        watched = self.watched
        is_other, watched.has_changed, watched.may_be_swapped = watched.may_be_swapped, False, False
        self.lent_before, lent = self.lent, {id(row[0]): row for row in self.lent}
        try:
            changed: list[tuple[Slot, object]] = []
            self.lent = []
            for slot in self.slots:
                now, row = GONE if slot.holder.is_dropped else slot.holder.now(), lent.get(id(slot))
                if isinstance(now, Tensor) and now.is_cuda and slot.is_met_by(now):
                    is_other = is_other or now is not slot.was
                    self._note_change(slot, now)
                elif row is not None and now is row[1] and (row[2] or not _is_unshared(now)):
                    self.lent.append(row)
                else:
                    changed.append((slot, now))
            for each in self._settings:
                each.check()
            if changed:
                _Change(self, changed).follow()
            now = row = None  # which would be references
            self.report_inputs_alone()
        except BaseException:
            self.watched.has_changed, self.lent = True, self.lent_before
            raise
        finally:
            self.lent_before = []
        if changed:
            twice = {slot.address: slot.nbytes for each in [*_every] for slot, _, _ in each.lent}
            process.require().counters.set("reload_nbytes", sum(twice.values()))
        if changed or is_other or self.has_changed():  # or an input has been let go
            self._watch()

    def _note_change(self, slot: Slot, now: Tensor) -> None:
        if type(slot.seen) is not OwnInput:
            slot.seen = now

    def report_inputs_alone(self) -> None:
        """Tell of inputs that the program has let go."""
        for row in [*self.alone]:
            name, scope, kept = row
            if sys.getrefcount(kept.tensor) <= _ALONE and n_of_program(kept.tensor, memory_of(kept.tensor)) <= 1:
                self.report_dropped(name, kept.tensor, _is_rebound(scope, name, kept.tensor))
                self.alone.remove(row)
        for number in [*self.numbers]:
            of, key, value, name, entry = number
            now = getattr(of(), "__dict__", {}).get(key, value)
            if now is not value and now != value:
                self.numbers.remove(number)
                reason = f"{name} was {value} at the capture and is {now} now: replays go on with {value}"
                process.require().report("number_kept", reason, where=entry.where)

    def report_dropped(self, name: str, tensor: Tensor, is_rebound: bool = False) -> None:
        """An input that only the graph holds any more.

        Args:
            is_rebound: the variable has another tensor of its kind, so that the graph reads an old one.
        """
        reason = "is held by the graph alone: replays read what it held last; copy into it what is new"
        self.report_stale("input_let_go", name, tensor, reason, is_stale=is_rebound)

    def report_stale(self, code: str, name: str, tensor: Tensor, reason: str, *, is_stale: bool = True) -> None:
        """Tell of an input that may be stale; where that is not allowed, refuse.

        Raises:
            GuardMismatch: the graph was captured with ``check_input_liveness``, or is under guard and the input is
                stale.
        """
        where = self.line_of(memory_of(tensor))
        is_refused = is_stale and code == "input_let_go" and process.require().settings.guard > 0
        if self._is_strict or is_refused:
            process.require().counters.add("reload_refused")
            raise process.mismatch("input_let_go", name=name, kind=kind_of(tensor), where=where)
        if not is_stale:
            process.require().counters.add(code)
            return
        level = logging.INFO if self.n_told else logging.WARNING
        self.n_told += 1
        process.require().report(code, f"{name}, {kind_of(tensor)}, {reason}", where=where, level=level)

    def line_of(self, storage: int) -> str:
        """Where the captured program first uses the memory."""
        program = self._program()
        own: set[TapeValue] = set()
        for value, held in program.externals.items() if program is not None else ():
            if isinstance(held, Tensor) and held.is_cuda and memory_of(held) == storage:
                own.add(value)
        for segment in program.segments if program is not None else ():
            for entry in segment.tape.entries:
                if entry.code is not None and any(
                    value in own or value.root in own for value in leaves((entry.args, entry.kwargs))
                ):
                    return str(entry.where)
        return "the capture"

    def is_written(self, memory: Tensor) -> bool:
        """Whether a replay writes it."""
        program, start = self._program(), memory.untyped_storage().data_ptr()
        end = start + memory.untyped_storage().nbytes()
        places = [place for step in program.steps for place in step.mutated] if program is not None else []
        return any(
            start <= (each.data_ptr() if isinstance(each, Tensor) else each.address) < end for each in places
        ) or bool(program is not None and any(step.tape.opaque for step in program.segments))

    @contextmanager
    def with_copies(self) -> Iterator[None]:
        """Copy for one replay what could not be given the captured memory, which may be another one's new memory."""
        captured = {memory_of(slot.memory) for slot, _, _ in self.lent}
        with torch_names._InferenceMode(True):
            before = [(slot.memory, slot.memory.clone()) for slot, _, is_kept in self.lent if is_kept]
            contents = [now.clone() if memory_of(now) in captured else now for _, now, _ in self.lent]
            for (slot, _, _), content in zip(self.lent, contents):
                overwrite(slot.memory, content)
        try:
            yield
        finally:
            with torch_names._InferenceMode(True):
                written = [(now, slot.memory.clone()) for slot, now, _ in self.lent if self.is_written(slot.memory)]
                for memory, content in [*before, *written]:
                    overwrite(memory, content)


class _Change:
    """What one look has found."""

    def __init__(self, held: HeldInputs, changed: list[tuple[Slot, object]]) -> None:
        self.held = held
        self.changed = changed
        slots = [slot for each in [*_every] for slot in each.slots]
        self.n_was = Counter(id(slot.seen) for slot in slots if type(slot.seen) is not OwnInput)
        self.n_was.update(id(kept.tensor) for kept in [*_kept.values()])
        lent = {id(row): row for each in [*_every] for row in [*each.lent, *each.lent_before]}
        self.n_was.update(id(row[1]) for row in lent.values())
        del lent
        self.dropped: dict[int, set[int]] = {}
        """By storage: tensors that only such dicts and lists refer to."""
        self._count_in_dropped(slots)
        self._free: dict[int, bool] = {}
        self._only_ours: dict[int, set[int]] = {}
        self.by_storage: dict[int, list[tuple[Slot, object]]] = {}
        self.slots_of: dict[int, list[Slot]] = {}
        """Every slot of a storage of which one has changed."""
        self.n_followed = 0

    def _count_in_dropped(self, slots: list[Slot]) -> None:
        """What a dict or list refers to that the program has dropped, and we alone hold, is referred to by us."""
        held = [each for one in [*_every] for each in one.watched.held.values()]
        held += [each for each in (slot.holder.container for slot in slots) if each is not None]
        n_ours, kept = Counter(map(id, held)), list({id(each): each for each in held}.values())
        del held
        n_before = -1
        while len(kept) != n_before:
            n_before = len(kept)
            for at in reversed(range(len(kept))):
                each = kept[at]
                if sys.getrefcount(each) - n_ours[id(each)] > _OF_A_VARIABLE + 1:  # and of the list of them
                    continue
                del kept[at]
                for inner in gc.get_referents(each):
                    (self.n_was if isinstance(inner, Tensor) else n_ours)[id(inner)] += 1
                    if isinstance(inner, Tensor) and inner.is_cuda and has_layout(inner):
                        self.dropped.setdefault(memory_of(inner), set()).add(id(inner))

    def follow(self) -> None:
        by_storage = self.by_storage
        for slot, now in self.changed:
            by_storage.setdefault(slot.storage, []).append((slot, now))
        for slot in self.held.slots:
            if slot.storage in by_storage:
                self.slots_of.setdefault(slot.storage, []).append(slot)
        due = [row for storage, rows in by_storage.items() for row in self._due(storage, rows)]
        if not due:
            return
        with capture_lock.owned_relaxed():
            torch.cuda.synchronize()  # replays on other streams may still read what is about to be written
        with torch_names._disable_current_modes():
            for slot, now in due:
                self._copy_in(slot, now)
        counters = process.require().counters
        counters.add("reload_followed")
        counters.add("reload_tensors", self.n_followed)

    def _due(self, storage: int, rows: list[tuple[Slot, object]]) -> list[tuple[Slot, Tensor]]:
        """What to copy into one storage."""
        changed = [slot for slot, _ in rows]
        same = [slot for slot in self.slots_of[storage] if slot not in changed]
        due: list[tuple[Slot, Tensor]] = []
        for slot, now in rows:
            others = [each for each in same if each.overlaps(slot)]
            if slot.memory.data_ptr() != slot.address:
                self._refuse(slot, f"{kind_of(now)}, in other memory")
            is_item = slot.holder.steps[-1:] and slot.holder.steps[-1][0] == "item"
            if slot.holder.is_dropped and (others or self._is_used(slot)):
                slot.holder.variable = None  # one name for many things in turn
            elif now is GONE and (slot.holder.is_dead or (is_item and not others and not self._is_used(slot))):
                self._drop(slot)
                if not any(each.overlaps(slot) for each in self.held.slots if each.storage == storage):
                    self.held.report_dropped(slot.holder.name, slot.memory, slot.holder.is_rebound)
            elif now is not slot.was and not slot.holder.is_slot and (others or self._is_used(slot)):
                why = "was replaced, but is used elsewhere: replays read the captured one"
                self.held.report_stale("input_kept", slot.holder.name, slot.memory, why)
                self._drop(slot)
            elif not (isinstance(now, Tensor) and now.is_cuda and slot.is_like(now)):
                self._refuse(slot, kind_of(now))
            else:
                due.append((slot, now))
        for at, (slot, now) in enumerate(due):
            others = [each for each in same if each.overlaps(slot) and each in self.held.slots]
            self._settle_with_others(slot, now, others, [row for row in due[:at] if row[0].overlaps(slot)])
        return due

    def _settle_with_others(
        self, slot: Slot, now: Tensor, others: list[Slot], due: list[tuple[Slot, Tensor]]
    ) -> None:
        """All places of one memory that count must agree; what else holds the old tensor keeps it."""
        is_written = bool(others) and self.held.is_written(slot.memory)
        for other in others:
            if other.holder.is_slot or is_written:
                self._agree(slot, now, other, other.holder.now())
            else:
                self._drop(other)
        for other, theirs in due:
            self._agree(slot, now, other, theirs)

    def _agree(self, slot: Slot, now: Tensor, other: Slot, theirs: object) -> None:
        """Two places of one input must hold the same content: the graph has it once."""
        if theirs is now or other is slot:
            return
        if not (isinstance(theirs, Tensor) and slot.is_like(theirs) and torch.equal(now, theirs)):
            self._refuse(
                slot, f"{kind_of(now)} of another content than {other.holder.name}, which was the same tensor"
            )

    def _drop(self, slot: Slot) -> None:
        self.held.slots.remove(slot)
        self.held.counts[slot.storage] -= 1

    def _copy_in(self, slot: Slot, now: Tensor) -> None:
        """Bring the new content to the graph."""
        self.n_followed += 1
        if slot.is_met_by(now):  # it is another place's, too
            self.held._note_change(slot, now)
            return
        if slot.storage not in self._free:
            self._free[slot.storage] = self._make_free(slot)
        is_free = self._free[slot.storage]
        if not is_free or now.stride() != slot.memory.stride() or not _is_unshared(now):
            self.held.lent.append((slot, now, not is_free))
            reason = "other tensors share the memory of a new input, or of the old one: it is copied for each replay"
            process.require().report("input_copied", reason, slot.holder.name, level=logging.INFO)
        else:
            overwrite(slot.memory, now)
            used_on(now, torch.cuda.current_stream())
            point_at(now, slot.memory)
        self.held._note_change(slot, now)

    def _make_free(self, slot: Slot) -> bool:
        """Whether nothing of the program's needs the old content, once what one tensor alone needs is moved away."""
        rows = self.by_storage[slot.storage]
        old = {id(each.was): each for each, _ in rows if memory_of(each.was) == slot.storage}
        if n_of_program(slot.memory, slot.storage) > len({*old} | self._ours(slot.storage)):
            return False
        used = [each for each in old.values() if self._is_referred_to(each)]
        if used and not (len(used) == len(old) == 1 and self.held.is_plain):
            return False
        for each in used:
            with torch_names._InferenceMode(each.was.is_inference()):
                content = each.was.detach().clone()
            point_at(each.was, content)
        return True

    def _is_used(self, slot: Slot) -> bool:
        """Whether the program refers to the old tensor, or to its memory."""
        known = self._ours(slot.storage) | ({id(slot.was)} if memory_of(slot.was) == slot.storage else set())
        return n_of_program(slot.memory, slot.storage) > len(known) or self._is_referred_to(slot)

    def _ours(self, storage: int) -> set[int]:
        """Old tensors over a storage that nothing of the program's refers to, and those that they are views of."""
        if storage not in self._only_ours:
            found = self._only_ours[storage] = self.dropped.get(storage, set())
            for slot, _ in self.by_storage[storage]:
                if memory_of(slot.was) == storage and not self._is_referred_to(slot):
                    found.add(id(slot.was))
                    base = slot.was._base
                    if base is not None and sys.getrefcount(base) <= _OF_A_BASE:
                        found.add(id(base))
        return self._only_ours[storage]

    def _is_referred_to(self, slot: Slot) -> bool:
        """Whether something besides ours refers to the old tensor."""
        was = slot.was
        n_references = sys.getrefcount(was)
        return n_references - self.n_was[id(was)] > _OF_A_VARIABLE

    def _refuse(self, slot: Slot, now: str) -> None:
        held = self.held
        process.require().counters.add("reload_refused")
        at = f" (set by {shown(held.watched.changed_at)})" if held.watched.changed_at is not None else ""
        fields = {"name": slot.holder.name, "was": kind_of(slot.memory), "now": f"{now} now{at}"}
        raise process.mismatch("input_replaced", where=held.line_of(slot.storage), **fields)


def kind_of(value: object) -> str:
    """What it is, as messages say it."""
    if value is GONE or value is REPLACED:
        return "gone" if value is GONE else "gone with its module"
    if not isinstance(value, Tensor):
        return repr(value) if value is None else f"a {type(value).__qualname__}"
    where = "" if value.is_cuda else f" on {value.device.type}"
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.size())}{where}"


def n_of_program(memory: Tensor, storage: int) -> int:
    """How many tensors, besides ours, refer to a storage."""
    ours = sum(each.counts[storage] for each in [*_every])
    return use_count(memory) - ours


def use_count(tensor: Tensor) -> int:
    """How many tensors refer to its storage."""
    return int(torch_names._storage_Use_Count(memory_of(tensor))) - _n_idle()


@functools.cache
def _n_idle() -> int:
    """What is counted of a tensor alone: itself aside, the storage's Python object, once it was asked for."""
    alone = torch.empty(1, device="cpu")
    return int(torch_names._storage_Use_Count(memory_of(alone))) - 1


def _is_unshared(tensor: Tensor) -> bool:
    return use_count(tensor) == 1


def _is_rebound(scope: object, name: str, tensor: Tensor) -> bool:
    """Whether a variable has another tensor of the same kind."""
    found = variable_now(name, scope)
    return isinstance(found, Tensor) and kind_of(found) == kind_of(tensor)


def held_inputs(program: Program, is_strict: bool, settings: list[Settings]) -> HeldInputs | None:
    """The inputs of a program that has just been captured; None if it has none outside graphs' own memory."""
    made = {id(each) for step in program.steps if isinstance(step, HostStep) for each in flat(step.out)}
    tensors = {
        value: held
        for value, held in program.externals.items()
        if isinstance(held, Tensor) and held.is_cuda and id(held) not in made and has_layout(held) and held.numel()
    }
    if not tensors:
        return None
    with torch_names._disable_current_modes():  # an outer capture may go on
        return HeldInputs(program, tensors, is_strict, settings)


def _references() -> tuple[int, int, int]:
    """``sys.getrefcount`` of an attribute, a variable, and one with a view's base, to which nothing else refers."""
    kept = OwnInput(torch.empty(0, device="cpu"))
    of_attribute = sys.getrefcount(kept.tensor)
    variable = kept.tensor
    of_variable = sys.getrefcount(variable) - 1
    with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext():
        view = torch.empty(1, device="cpu").view(1)
    base = view._base
    return of_attribute, of_variable, sys.getrefcount(base)


_ALONE, _OF_A_VARIABLE, _OF_A_BASE = _references()
