"""Generators that a captured program seeds: each replay's draws begin where the capture's did.

A draw on the host, or from a generator that the graph does not know, is repeated at each replay, and goes on where
the generator stands. If the program seeds it inside the capture, that is a step of its own (waits.py). If it makes
the generator there (``torch.Generator`` notes that while captures run), or seeds it by a method that it looked up
before, a draw sets the state that it has found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from gfxgraph.capture.patches.torch_functions import STOCK, put_state, session_here, state_of


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


class Drawn:
    """A generator from which a step draws.

    Args:
        given: the state that it is given before; None if it goes on where it stands.
    """

    __slots__ = ("generator", "given")

    def __init__(self, generator: torch.Generator, given: torch.Tensor | None) -> None:
        self.generator = generator
        self.given = given

    def again(self) -> None:
        """What a replay does before it draws."""
        if self.given is not None:
            put_state(self.generator, self.given)


class Seeds:
    """What one capture knows of the generators that it draws from by itself."""

    def __init__(self) -> None:
        self.made: list[torch.Generator] = []
        self._left: dict[int, tuple[torch.Generator, torch.Tensor]] = {}
        self._told: set[int] = set()

    def before(self, generators: Iterable[torch.Generator]) -> tuple[Drawn, ...]:
        """Look at the generators of a draw to come."""
        return tuple(map(self._looked_at, generators))

    def after(self, drawn: Iterable[Drawn]) -> None:
        """Note how a draw has left them."""
        for each in drawn:
            self._left[each.generator._cdata] = each.generator, state_of(each.generator)

    def at_end(self) -> list[Callable[[], None]]:
        """What each replay must do last: give the generators what the program gave them after its draws."""
        last = [self._looked_at(generator) for generator, _ in self._left.values()]
        return [each.again for each in last if each.given is not None]

    def has_made(self, generator: torch.Generator) -> bool:
        """Whether the program has made it in this capture, and no step sets its state."""
        number = generator._cdata
        return number not in self._told and any(made._cdata == number for made in self.made)

    def told(self, generator: torch.Generator) -> None:
        """A step sets its state, at each replay anew: what the next draw finds is no news."""
        self._told.add(generator._cdata)
        if generator._cdata in self._left:
            self._left[generator._cdata] = generator, state_of(generator)

    def _looked_at(self, generator: torch.Generator) -> Drawn:
        state, left = state_of(generator), self._left.get(generator._cdata)
        is_as_left = torch.equal(left[1], state) if left is not None else not self.has_made(generator)
        return Drawn(generator, None if is_as_left else state)
