"""``graphed(fn, ranks=True)``: one rank's captures are its own affair, several ranks' are agreed on.

Whether there are several is known when torch.distributed has been initialized, which may be after the
function was made: it is looked at on every call, in a dictionary's time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from gfxgraph.callables.distributed.agreed import Agreed


class GraphedOnRanks:
    """A graphed callable whose ranks decide together where there are several.

    Args:
        fn: the function, its collectives included.
        alone: the callable for one process.
        together: makes the one for several ranks.
    """

    def __init__(self, fn: Callable[..., Any], alone: Any, together: Callable[[], Agreed]) -> None:
        self._alone = alone
        self._together = together
        self._agreed: Agreed | None = None
        if not isinstance(fn, torch.nn.Module):
            functools.update_wrapper(self, fn, updated=())

    @property
    def chosen(self) -> Any:
        """What calls go to now."""
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
