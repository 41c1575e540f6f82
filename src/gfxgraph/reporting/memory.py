"""Where a process's graph memory is: what torch counts, and what only the device knows.

torch counts its pools. The runtime keeps its own memory for each graph exec (4 MiB on some versions, 8.4 GiB for
2,142 of them), libraries keep workspaces for captured streams, and some runtimes grow at each replay. The first is
measured around each instantiation. Growth is the increase of device memory outside torch between two samples,
divided among the replays between them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gfxgraph.callables import arena
from gfxgraph.capture import workspaces
from gfxgraph.capture.memory import is_within, pool_of, pool_ranges
from gfxgraph.guard.names import device_tensors
from gfxgraph.process import process
from gfxgraph.reporting.holders import holders_of

MOST_OWNERS = 20


@dataclass(frozen=True, slots=True)
class Look:
    """Device memory at one moment: what torch has reserved, all other use of the device, and its owners.

    Args:
        exec_nbytes: the part of the other use that graph execs took when they were made.
        pools: torch's private pools used by graphs, by id.
        storages: bytes by address, for tensors that have a Python object.
    """

    n_replays: int
    torch_nbytes: int
    other_nbytes: int
    exec_nbytes: int
    pools: dict[tuple[int, int], int]
    storages: dict[int, int]

    @classmethod
    def now(cls, state: process.Process) -> Look:
        free, total = torch.cuda.mem_get_info()
        reserved = int(torch._C._cuda_memoryStats(torch.cuda.current_device())["reserved_bytes"]["all"]["current"])
        graphs = [graph for graph in list(state.graphs) if graph._program is not None]
        n = state.counters.snapshot(lambda: [graph.n_replays for graph in graphs])["replay_count"]
        execs = sum(s.driver_nbytes or 0 for graph in graphs for s in graph._program.segments)
        pools = {pool for graph in graphs if (pool := pool_of(graph)) is not None}
        sizes = {pool: sum(end - start for start, end in pool_ranges(pool)) for pool in pools}
        storages = {key: nbytes for key, nbytes, _ in _storages()}
        return cls(n, reserved, max(0, total - free - reserved), execs, sizes, storages)

    def grown(self, later: Look) -> dict[str, Any]:
        """The changes until ``later``; rates are None if nothing was replayed."""
        n = later.n_replays - self.n_replays
        other, ours = later.other_nbytes - self.other_nbytes, later.torch_nbytes - self.torch_nbytes
        return {
            "replays": n,
            "driver_bytes": other,
            "torch_bytes": ours,
            "driver_bytes_per_1000_replays": round(1000 * other / n) if n > 0 else None,
            "torch_bytes_per_1000_replays": round(1000 * ours / n) if n > 0 else None,
            "owners": self._owners(later, other, ours),
        }

    def _owners(self, later: Look, other: int, ours: int) -> list[dict[str, str | int | None]]:
        """The owners of the growth, largest first: new execs and pools, and tensors by what holds them."""
        execs = max(0, later.exec_nbytes - self.exec_nbytes)
        pools = sum(max(0, nbytes - self.pools.get(pool, 0)) for pool, nbytes in later.pools.items())
        in_pools = [span for pool in later.pools for span in pool_ranges(pool)]
        held: Counter[str] = Counter()
        count: Counter[str] = Counter()
        new = [
            (nbytes, tensor)
            for key, nbytes, tensor in _storages()
            if self.storages.get(key) != nbytes and not is_within(key, in_pools)
        ]
        for (nbytes, _), name in zip(new, holders_of([tensor for _, tensor in new], sys._getframe(1))):
            held[name or "tensors without a name"] += nbytes
            count[name or "tensors without a name"] += 1
        most = [(name, nbytes, count[name]) for name, nbytes in held.most_common(MOST_OWNERS)]
        rest = {
            "graph execs": execs,
            "pools of graphs": pools,
            "torch's cache, and tensors that Python does not hold": ours - pools - sum(held.values()),
            "the runtime, libraries, other processes": other - execs,
        }
        others = [(name, nbytes, None) for name, nbytes in rest.items() if nbytes > 0]
        ranked = sorted([*most, *others], key=lambda row: -row[1])
        return [{"owner": name, "bytes": nbytes, "n": n} for name, nbytes, n in ranked]


def _storages() -> Iterator[tuple[int, int, Tensor]]:
    """(address, bytes, a tensor on it) of every storage on a device."""
    seen: set[int] = set()
    for tensor in device_tensors():
        storage = tensor.untyped_storage()
        if storage.data_ptr() and storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            yield storage.data_ptr(), storage.nbytes(), tensor


def memory_report() -> dict[str, Any]:
    """Memory that graphs take, in bytes: torch's pools, the runtime's own for graph execs, workspaces, growth.

    Returns:
        ``devices``: graphed callables by device, ``{"device", "cap_bytes", "graph_bytes", "captures": [...]}``; each
        capture says ``function``, ``signature``, ``input_bytes``, ``output_bytes``, ``pool_bytes`` (what it added to
        the shared pool), ``n_graphs``, ``n_calls``.
        ``graphs``: every graph of the process, ``{"where", "n_nodes", "n_replays", "pool", "driver_bytes"}``;
        ``driver_bytes`` is the free memory lost around its instantiation. The runtime allocates chunks: sums are
        right, single rows may be 0.
        ``pools``: bytes by pool; ``driver_bytes``: all graph execs together; ``workspaces_held``: of
        libraries, under graphs.
        ``growth``: since the first report of this process (where one is written at its end: since the first graph),
        with ``driver_bytes_per_1000_replays``: device memory that torch does not count, including other processes';
        ``owners``: its owners, ``{"owner", "bytes", "n"}``, largest first: tensors by the variable that holds
        them, graph execs, pools, and memory with no known owner.
        ``prediction``: what one more graph is likely to take, estimated from the existing ones.
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
    look = Look.now(state)
    first = state.first_look = state.first_look or look
    measured = [row for row in rows if row["driver_bytes"] is not None]
    driver = sum(row["driver_bytes"] for row in measured)
    return {
        **report,
        "graphs": rows,
        "pools": {str(pool): nbytes for pool, nbytes in pools.items()},
        "driver_bytes": driver,
        "workspaces_held": workspaces.n_held(),
        "other_bytes": look.other_nbytes,
        "growth": first.grown(look),
        "prediction": {
            "driver_bytes_per_graph": round(driver / len(measured)) if measured else None,
            "pool_bytes_of_the_largest": max(pools.values(), default=0),
        },
    }


_FAMILIES = {
    "gfxgraph_exec_bytes": ("gauge", "Device memory that the present graph execs took when they were instantiated"),
    "gfxgraph_reserved_bytes": ("gauge", "Device memory that torch has reserved, graph pools included"),
    "gfxgraph_graphed_bytes": ("gauge", "Memory of graphed callables' captures"),
    "gfxgraph_graphed_cap_bytes": ("gauge", "Limit for the memory of graphed callables' captures"),
    "gfxgraph_elements_total": ("counter", "Elements requested by calls of bucketed callables"),
    "gfxgraph_elements_run_total": ("counter", "Elements that their buckets ran, padding included"),
}


def memory_families(state: process.Process | None) -> process.Samples:
    """Memory and padding for Prometheus, from known values: no driver is called, so any thread may call this."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {name: [] for name in _FAMILIES}
    try:
        programs = [graph._program for graph in list(state.graphs)] if state is not None else []
        execs = [s.driver_nbytes for program in programs if program is not None for s in program.segments]
        if state is not None:
            found["gfxgraph_exec_bytes"].append(({}, float(sum(nbytes or 0 for nbytes in execs))))
        for each in arena.of_process(state) if state is not None else ():
            device = {"device": f"cuda:{each.device_index}"}
            found["gfxgraph_reserved_bytes"].append((device, float(each.reserved())))
            found["gfxgraph_graphed_bytes"].append((device, float(each.graph_nbytes())))
            found["gfxgraph_graphed_cap_bytes"].append((device, float(each.nominal_cap())))
            for row in each.padding():
                bucket = {**device, "function": row["function"], "bucket": row["bucket"]}
                found["gfxgraph_elements_total"].append((bucket, float(row["elements"])))
                found["gfxgraph_elements_run_total"].append((bucket, float(row["elements_run"])))
    except RuntimeError as error:  # a table grew while it was read
        process.log.debug("memory was not read for metrics: %s", error)
    return [(name, kind, text, found[name]) for name, (kind, text) in _FAMILIES.items()]
