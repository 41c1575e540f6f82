"""Generators that a captured program seeds: each replay's draws begin where the capture's did.

A draw on the host, or from a generator that the graph does not know, is repeated at each replay, and goes on where
the generator stands. If the program makes the generator inside the capture, or seeds it there, that is wrong: eager
begins at the same numbers each time. torch shows no mode ``manual_seed`` or ``set_state``, so a draw looks at the
state that it finds. The program has set it

    if it made the generator in the capture   ``torch.Generator`` notes that while captures run
    if the last draw there left another       to what an earlier draw had found, if it is that: the program saved it
    if no draw has ever moved it              and a function between draw and capture may call its ``manual_seed`` or
                                              ``set_state``; one that was seeded before the capture goes on

The default generator is not among these: its functions are replaced, and other threads draw from it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable
from types import FrameType, ModuleType
from typing import Any

import torch

from gfxgraph.capture.source import definition, tree_of
from gfxgraph.capture.stock import STOCK, session_here
from gfxgraph.capture.uses import looked_up, resolved

_SEEDING = frozenset({"manual_seed", "set_state"})


class _Kind(type):
    def __instancecheck__(cls, item: object) -> bool:
        return isinstance(item, STOCK["generator"])


class Generator(metaclass=_Kind):
    """Replaces ``torch.Generator`` while a capture runs: makes the same, and notes it."""

    def __new__(cls, *args: object, **kwargs: object) -> Any:
        made = STOCK["generator"](*args, **kwargs)
        session = session_here()
        if session is not None:
            session.seeds.made.append(made)
        return made


class FoundState:
    """The state that a draw found, in the capture and, if ``is_wanted``, in the latest replay."""

    __slots__ = ("is_wanted", "state")

    def __init__(self, state: torch.Tensor) -> None:
        self.state = state
        self.is_wanted = False


class Drawn:
    """A generator from which a step draws.

    Args:
        given: the state that the program gives it before, if any.
        found: what the draw then found.
    """

    __slots__ = ("found", "generator", "given")

    def __init__(self, generator: torch.Generator, given: FoundState | None, found: FoundState) -> None:
        self.generator = generator
        self.given = given
        self.found = found

    def again(self) -> None:
        """What a replay does before it draws."""
        if self.given is not None:
            self.generator.set_state(self.given.state)
        if self.found.is_wanted:
            self.found.state = self.generator.get_state()


class Seeds:
    """What one capture knows of the generators that it draws from by itself."""

    def __init__(self, begun_at: tuple[object, int]) -> None:
        self.made: list[torch.Generator] = []
        self._begun_at = begun_at[0]
        self._drawn: dict[int, list[Drawn]] = {}
        self._left: dict[int, torch.Tensor] = {}

    def before(self, generators: Iterable[torch.Generator]) -> tuple[Drawn, ...]:
        """Look at the generators of a draw to come."""
        return tuple(map(self._looked_at, generators))

    def after(self, drawn: Iterable[Drawn]) -> None:
        """Note how a draw has left them."""
        for each in drawn:
            number = each.generator._cdata
            self._drawn.setdefault(number, []).append(each)
            self._left[number] = each.generator.get_state()

    def at_end(self) -> list[Callable[[], None]]:
        """What each replay must do last: give the generators what the program gave them after its draws."""
        last = [self._looked_at(drawn[-1].generator) for drawn in self._drawn.values()]
        return [each.again for each in last if each.given is not None]

    def _looked_at(self, generator: torch.Generator) -> Drawn:
        state = generator.get_state()
        found = FoundState(state)
        left = self._left.get(generator._cdata)
        if left is None:
            return Drawn(generator, found if self._is_seeded(generator, state) else None, found)
        if torch.equal(left, state):
            return Drawn(generator, None, found)
        given = found
        for earlier in self._drawn[generator._cdata]:
            if torch.equal(earlier.found.state, state) and earlier.given is not earlier.found:
                given = earlier.found
                given.is_wanted = True
        return Drawn(generator, given, found)

    def _is_seeded(self, generator: torch.Generator, state: torch.Tensor) -> bool:
        if any(made._cdata == generator._cdata for made in self.made):
            return True
        unmoved = type(generator)(device=generator.device).manual_seed(generator.initial_seed()).get_state()
        return torch.equal(unmoved, state) and self._seeds_here(generator)

    def _seeds_here(self, generator: torch.Generator) -> bool:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not self._begun_at:
            if not _SEEDING.isdisjoint(frame.f_code.co_names) and frame.f_globals.get("__name__") != __name__:
                if _may_seed(frame, generator):
                    return True
            frame = frame.f_back
        return False


def _may_seed(frame: FrameType, generator: torch.Generator) -> bool:
    """Whether a function's source may seed this generator: not if all that it seeds is known, and another."""
    tree = tree_of(frame.f_code.co_filename)
    scope = definition(tree, frame.f_code) if tree is not None else None
    if scope is None:
        return True
    owners = (node.value for node in ast.walk(scope) if isinstance(node, ast.Attribute) and node.attr in _SEEDING)
    return any(_may_be(generator, resolved(owner, scope, looked_up(frame))) for owner in owners)


def _may_be(generator: torch.Generator, found: object) -> bool:
    if isinstance(found, torch._C.Generator):
        return found._cdata == generator._cdata
    # torch.manual_seed is of the default generators.
    return not (isinstance(found, ModuleType) and found.__name__.partition(".")[0] == "torch")
