"""One of several branches, chosen by name, index or a value on the device.

Problem: a graph cannot branch. CUDA has conditional nodes, HIP has none, and the program must behave
alike on both. Idea: each branch is a graphed callable; all of them copy into the same static inputs and use the same
pool, in which each may overwrite what another left, since only one runs at a time. So a conditional needs the memory
of its largest branch. A flag on the device is read, which waits for it.

    Conditional({"prefill": f, "decode": g})     by name:  c("decode", x)
    Conditional([f, g])                          by index: c(1, x)
    Conditional({True: f, False: g})             by flag:  c(x.sum() > 0, x)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from gfxgraph.callables.buffers import Buffers
from gfxgraph.callables.captured import Options
from gfxgraph.callables.graphed import Graphed
from gfxgraph.callables.pieces.graph_numbers import make_piece
from gfxgraph.callables.trace.corrections import shield
from gfxgraph.errors import ReplayError
from gfxgraph.process import calls

Branch = Callable[..., Any]


class Conditional:
    """Branches captured as graphs that share inputs and memory; a call runs one of them.

    Args:
        branches: by name (anything hashable), or in order.
        default: the branch for an unknown flag or name; without it that is an error.
        warmup: eager calls of a branch before it is captured; they count as calls.

    Raises:
        ValueError: there is no branch.
    """

    def __init__(
        self,
        branches: Mapping[Any, Branch] | Sequence[Branch],
        *,
        default: Any = None,
        warmup: int = 1,
    ) -> None:
        if not isinstance(branches, (Mapping, Sequence)):
            raise TypeError(f"a conditional takes its branches as a dict or a list, not {branches!r}")
        named = branches if isinstance(branches, Mapping) else dict(enumerate(branches))
        if not named:
            raise ValueError("a conditional needs at least one branch")
        for branch in named.values():
            if not callable(branch):
                raise TypeError(f"a conditional's branches are functions or modules, not {branch!r}")
        self.branches: dict[Any, Branch] = dict(named)
        self.names = list(self.branches)
        self.default = default
        self.warmup = max(1, warmup)
        self._buffers = Buffers()
        self._graphed: dict[Any, Graphed] = {}

    # -- choosing -------------------------------------------------------------------------------------

    def branch_of(self, which: Any) -> Any:
        """The name of the branch that ``which`` (a name, an index or a flag) selects.

        Raises:
            ReplayError: `no_such_branch`.
        """
        if isinstance(which, Tensor):
            which = which.item()
        if isinstance(which, Hashable) and which in self.branches:
            return next(name for name in self.names if name == which)
        if isinstance(which, (int, float)) and which == int(which) and 0 <= which < len(self.names):
            if not any(isinstance(name, (int, float)) for name in self.names):
                return self.names[int(which)]
        if self.default is not None:
            return self.default
        raise ReplayError("no_such_branch", asked=repr(which), branches=", ".join(map(repr, self.names)))

    # -- running --------------------------------------------------------------------------------------

    def __call__(self, which: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run one branch on the arguments and return its results."""
        if is_compiling() or torch.cuda.is_current_stream_capturing():
            # Part of another graph: the branch taken now is recorded, and the choice is guarded.
            return self.branches[self._choose_inside(which)](*args, **kwargs)
        return self._of(self.branch_of(which))(*args, **kwargs)

    def capture(self, *args: Any, **kwargs: Any) -> None:
        """Capture every branch before the first call. Each runs some times for that, with all that it does.

        Args:
            args: arguments like those of later calls.
            kwargs: likewise.
        """
        for name in self.names:
            for _ in range(self.warmup + 1):
                self._of(name)(*args, **kwargs)

    @property
    def eager_branches(self) -> dict[Any, str]:
        """Branches that ran and have no graph of their own now, and why."""
        return {name: why for name in self.names if name in self._graphed and (why := self._graphed[name].why_eager)}

    @property
    def captured_branches(self) -> list[Any]:
        """Branches that have a graph, for any signature."""
        return [name for name in self.names if name in self._graphed and self._graphed[name].graphs]

    def stats(self) -> dict[str, Any]:
        """``captures``, ``replays``, ``eager`` (calls by reason), ``pieces`` (likewise), ``signatures``: sums."""
        return summed(self._graphed.values())

    # -- inside ---------------------------------------------------------------------------------------

    def _of(self, name: Any) -> Graphed:
        """The graphed branch; a replaced function is traced anew."""
        found, branch = self._graphed.get(name), self.branches[name]
        if found is None or found._fn is not branch:
            options = Options(warmup=self.warmup)
            found = Graphed(branch, options, make_piece=make_piece, buffers=self._buffers, name=f"branch {name!r}")
            self._graphed[name] = found
        return found

    def _choose_inside(self, which: Any) -> Any:
        if not isinstance(which, Tensor):
            return self.branch_of(which)
        value = which.item()
        names = self.names if any(isinstance(n, (bool, int, float)) for n in self.names) else range(len(self.names))
        for name in names:
            if value == name:  # comparing the number adds a guard to the capture
                return self.branch_of(name)
        return self.branch_of(float(value))


def summed(several: Iterable[Graphed]) -> dict[str, Any]:
    """Sums over the ``stats()`` of several callables."""
    found: Counter[str] = Counter()
    reasons: dict[str, Counter[str]] = {key: Counter() for key in ("eager", "pieces", "parts", "slow")}
    tables = []
    for graphed in several:
        stats = graphed.stats()
        tables.append(stats.pop("calls"))
        for key, value in stats.items():
            (reasons[key] if key in reasons else found).update(value if key in reasons else {key: value})
    counts = {"captures": 0, "replays": 0, "signatures": 0, **found}
    return {**counts, **{k: dict(v) for k, v in reasons.items()}, "calls": calls.summed(tables)}


shield(Conditional.__call__)
