"""``graphed(fn, ranks=True)``: with one rank a plain graphed callable, with several an `Agreed` one.

Whether there are several is known once torch.distributed is initialized, which may be after the
function was made: every call checks whether the group of all ranks is still the same.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from gfxgraph.callables.distributed.agreed import Agreed


class GraphedOnRanks:
    """A graphed callable whose ranks decide together if there are several.

    Args:
        fn: the function, its collectives included.
        alone: the callable for one process.
        together: makes the callable for several ranks.
    """

    def __init__(self, fn: Callable[..., Any], alone: Any, together: Callable[[], Agreed]) -> None:
        self._alone = alone
        self._together = together
        self._agreed: Agreed | None = None
        self._world: Callable[[], object] = lambda: None
        """The group of all ranks that `_agreed` is for, where it lives."""
        if not isinstance(fn, torch.nn.Module):
            functools.update_wrapper(self, fn, updated=())

    @property
    def chosen(self) -> Any:
        """The callable that calls go to now."""
        dist = torch.distributed
        if not dist.is_available():
            return self._alone
        world = dist.GroupMember.WORLD
        if world is None:
            return self._alone
        if self._world() is not world:  # the size of a group never changes
            if dist.get_world_size() <= 1:
                return self._alone
            if self._agreed is None:
                self._agreed = self._together()
            self._world = weakref.ref(world)
        return self._agreed

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.chosen(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.chosen, name)
