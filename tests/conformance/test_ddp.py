"""Training on two cards under DistributedDataParallel: eager's losses each way, by graphs or refused by name.

Each rank is a process of its own (ddp_program.py). On simulated cards gloo is the group's backend, on two GPUs NCCL.
"""

from __future__ import annotations

import pytest
import torch

from tests.conformance.conftest import HAS_GPU
from tests.conformance.test_ranks import run_ranks

pytestmark = pytest.mark.skipif(HAS_GPU and torch.cuda.device_count() < 2, reason="simulated cards, or two GPUs")
GRAPHED = [
    "of graphed",
    "small buckets",
    "bucket view",
    "no_sync",
    "comm hook",
    *["unused", "static graph"] * HAS_GPU,
]


@pytest.fixture(scope="module")
def scenarios():
    return run_ranks("nccl" if HAS_GPU else "cuda", program="ddp_program.py")


def test_losses_are_eagers(scenarios):
    """In every way, on both ranks."""
    for name in [*GRAPHED, "graphed ddp", "graphed ddp, ranks", "training step"]:
        rows = scenarios[name]
        assert len(rows) == 2 and all(row.get("is_right") for row in rows.values()), (name, rows)


def test_ddp_of_a_graphed_module_runs_by_graphs(scenarios):
    """Buckets as views, no_sync and a comm hook among them: all but the two warm-ups, and with fewer frames than eager."""
    for name in GRAPHED:
        for row in scenarios[name].values():
            stats, (mine, eager) = row["stats"], row["frames"]
            assert stats["captures"] == 1 and stats["eager"] == {"warm-up": 2} and not stats["pieces"], row
            assert stats["replays"] >= 23 and mine < eager, row


def test_what_has_no_graph_is_named_and_costs_what_eager_does(scenarios):
    """A graphed DDP, with ranks too, a step that holds one, and a sharded module."""
    limits = {"graphed ddp": 6, "graphed ddp, ranks": 6, "training step": 150}
    for name, more in limits.items():
        for row in scenarios[name].values():
            (why,) = set(row["stats"]["eager"]) - {"warm-up"}
            assert "DistributedDataParallel(graphed(model))" in why or "process_group, a ProcessGroup" in why
            assert row["stats"]["captures"] == 0 and row["frames"][0] <= row["frames"][1] + more, row
    assert all("FSDP" in row["why"] and row.get("is_right", True) for row in scenarios["fsdp2"].values())


def test_a_captured_iteration(scenarios):
    """On the stream that the DDP was made on; elsewhere the simulator would lose what autograd's engine, C++, launches."""
    for rank in range(2):
        assert scenarios["captured"][rank].get("is_right"), scenarios["captured"]
        if HAS_GPU:
            assert scenarios["captured elsewhere"][rank].get("is_right"), scenarios["captured elsewhere"]
            continue
        assert "on another stream than DDP was made on" in scenarios["captured elsewhere"][rank]["error"]


@pytest.mark.skipif(HAS_GPU, reason="a GPU can")
def test_what_the_simulator_cannot_do_is_refused(scenarios):
    """Unused parameters and static graphs are noted in pinned memory by C++: an error, not the end of the process."""
    for name, option in (("unused", "find_unused_parameters"), ("static graph", "static_graph")):
        assert all("SimulatorError: " in row["error"] and option in row["error"] for row in scenarios[name].values())
