"""The random generators of one capture: the device's own, and those registered with the graph.

A generator's state can be exchanged under it (``graphsafe_set_state``), and a graph keeps the state
that was there when it was registered. So states are held by handles on them, not by generators.
"""

from __future__ import annotations

from typing import Any

import torch

from gfxgraph.capture.undo import Undo


class Generators:
    """Args:
    registered: (generator, handle on its state) for each that the user registered; kept up to date.
    """

    def __init__(self, device_index: int, base: Any, registered: list[tuple[Any, Any]]) -> None:
        self._base = base
        self._registered = registered
        self.default = torch.cuda.default_generators[device_index]
        self._default_state = self.default.graphsafe_get_state()

    def states(self) -> list[Any]:
        """Handles on the states that the capture draws from."""
        return [self._default_state, *(state for _, state in self._registered)]

    def all(self) -> list[Any]:
        return [self.default, *(generator for generator, _ in self._registered)]

    def find(self, generator: Any) -> Any:
        """The generator that the dispatcher handed on, None for one that the graph does not know."""
        # It is wrapped anew each time: only what is inside can be compared.
        for known in self.all():
            if generator._cdata == known._cdata:
                return known
        return None

    def foreign_states(self, args: Any, kwargs: Any) -> list[Any]:
        """Handles on the states of the device's generators among an operation's arguments."""
        given = [g for g in (*args, *kwargs.values()) if isinstance(g, torch._C.Generator)]
        found = [self._base.generator_of(g) if hasattr(self._base, "generator_of") else g for g in given]
        return [g.graphsafe_get_state() for g in found if g.device.type == "cuda"]

    def take_new_states(self, undo: Undo) -> None:
        """The generators have states that no capture has touched: what was saved belongs to those now."""
        old = self.states()
        self._default_state = self.default.graphsafe_get_state()
        self._registered[:] = [(g, g.graphsafe_get_state()) for g, _ in self._registered]
        undo.rename_states(dict(zip(map(id, old), self.states())))
