"""Where a process's graph memory is: what torch counts, and what only the device knows.

torch counts its pools. The runtime keeps its own memory for each graph exec (4 MiB on some versions, 8.4 GiB for
2,142 of them), measured around each instantiation, and libraries keep workspaces for captured streams.
"""

from __future__ import annotations

from typing import Any

from gfxgraph.callables import arena
from gfxgraph.capture.replay import runtime_workarounds
from gfxgraph.capture.replay.graph_tensors import pool_of, pool_ranges
from gfxgraph.process import process


def memory_report() -> dict[str, Any]:
    """Memory that graphs take, in bytes: torch's pools, the runtime's own for graph execs, workspaces.

    Returns:
        ``devices``: graphed callables by device, ``{"device", "cap_bytes", "graph_bytes", "captures": [...]}``; each
        capture says ``function``, ``signature``, ``input_bytes``, ``output_bytes``, ``pool_bytes`` (what it added to
        the shared pool), ``n_graphs``, ``n_calls``.
        ``graphs``: every graph of the process, ``{"where", "n_nodes", "n_replays", "pool", "driver_bytes"}``;
        ``driver_bytes`` is the free memory lost around its instantiation. The runtime allocates chunks: sums are
        right, single rows may be 0.
        ``pools``: bytes by pool; ``driver_bytes``: all graph execs together; ``workspaces_held``: of
        libraries, under graphs.
    """
    report = arena.memory_report()
    state = process.current()
    if state is None:
        return report
    rows, pools = [], {}
    for graph in list(state.graphs):
        program = graph._program
        if program is None:
            continue
        known = [s.driver_nbytes for s in program.segments if s.driver_nbytes is not None]
        pool = pool_of(graph)
        if pool is not None and pool not in pools:
            pools[pool] = sum(end - start for start, end in pool_ranges(pool))
        rows.append(
            {
                "where": next((str(s.where) for s in program.segments if str(s.where)), ""),
                "n_nodes": sum(s.n_nodes for s in program.segments),
                "n_replays": graph.n_replays,
                "pool": str(pool) if pool is not None else "",
                "driver_bytes": sum(known) if known else None,
            }
        )
    rows.sort(key=lambda row: -(row["driver_bytes"] or 0))
    return {
        **report,
        "graphs": rows,
        "pools": {str(pool): nbytes for pool, nbytes in pools.items()},
        "driver_bytes": sum(row["driver_bytes"] or 0 for row in rows),
        "workspaces_held": runtime_workarounds.n_workspaces_held(),
    }
