"""What is asked of torch's allocator."""

from __future__ import annotations

import ctypes
import sys

import pytest

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("drops", [0, 1])
def test_a_snapshot_costs_the_pools_numbers_no_reference(monkeypatch, drops):
    """torch 2.11 to 2.14 give back a reference that was only lent to them; the number must stay whole."""
    from gfxgraph.capture.replay.graph_tensors import pool_ranges

    def memory_snapshot(pool):
        for number in pool:
            for _ in range(drops):
                ctypes.pythonapi.Py_DecRef(ctypes.py_object(number))
        return [{"address": 4096, "total_size": 512}]

    monkeypatch.setattr(torch.cuda, "memory_snapshot", memory_snapshot)
    pool = int("100003"), int("200003")
    safety = [*pool, *pool]  # a failure of this test must not free them
    before = [sys.getrefcount(number) for number in pool]
    assert pool_ranges(pool) == [(4096, 4608)]
    assert [sys.getrefcount(number) for number in pool] == before, "references were lost"
    assert safety == [100_003, 200_003] * 2
