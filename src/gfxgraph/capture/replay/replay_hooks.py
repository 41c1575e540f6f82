"""Runs torch's replay hooks (2.14 and later) once per replay, however many segments it has.

torch's ``CUDAGraph.replay`` runs the hooks around the launch of one graph. A program may launch several, or none if
its tape runs, so its steps use the bare launch, and the hooks are run here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


def bare_launch(base: type) -> Callable[[Any], None]:
    """torch's replay of one instantiated graph, without hooks."""
    bound = getattr(torch._C, "_CUDAGraph", None)
    if bound is not None and issubclass(base, bound) and hasattr(bound, "replay"):
        return bound.replay  # type: ignore[no-any-return]
    return base.replay  # type: ignore[no-any-return, attr-defined]


@contextmanager
def one_replay(graph: Any) -> Iterator[None]:
    """Run the hooks that torch runs before and after a replay of ``graph``, as torch does."""
    graphs = torch.cuda.graphs
    retained = getattr(graph, "_retained", None)
    if retained is not None and retained.sync_before_fire:
        retained.replay_streams.add(torch.cuda.current_stream())
    _run(getattr(graphs, "_global_replay_start_hooks", None), getattr(graph, "_replay_start_hooks", None), graph)
    try:
        yield
    finally:
        _run(getattr(graphs, "_global_replay_end_hooks", None), getattr(graph, "_replay_end_hooks", None), graph)


def _run(everywhere: object, own: Any, graph: Any) -> None:
    if everywhere:
        torch.cuda.graphs._run_global_hooks(everywhere, graph)  # type: ignore[attr-defined]
    if own:
        for hook in list(own.values()):
            hook(graph)
