"""Whether several ranks decide is asked of the group of all ranks, which may come and go."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from gfxgraph.callables.distributed.agreed import GraphedOnRanks  # noqa: E402


@pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")
def test_calls_follow_the_group_of_all_ranks():
    """Alone without a group and in one of a single rank, together in one of two, again after another."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    made = []
    graphed = GraphedOnRanks(lambda x: x, "alone", lambda: made.append(1) or "together")
    chosen = [graphed.chosen]
    for size in (2, 1, 2):
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
        try:
            chosen += [graphed.chosen, graphed.chosen]
        finally:
            dist.destroy_process_group()
        chosen.append(graphed.chosen)
    together = ["together", "together", "alone"]
    assert chosen == ["alone", *together, "alone", "alone", "alone", *together]
    assert made == [1]
