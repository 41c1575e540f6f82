"""``graphed(fn, ranks=True)``: with one rank a plain graphed callable, with several an `Agreed` one.

Whether there are several is known once torch.distributed is initialized, which may be after the
function was made: every call checks, at the cost of a dictionary lookup.
"""

from __future__ import annotations

import functools
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
        if not isinstance(fn, torch.nn.Module):
            functools.update_wrapper(self, fn, updated=())

    @property
    def chosen(self) -> Any:
        """The callable that calls go to now."""
        # lazily: only programs of several processes have it
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
            return self._alone
        if self._agreed is None:
            self._agreed = self._together()
        return self._agreed

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.chosen(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.chosen, name)
