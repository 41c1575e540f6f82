"""Several ranks: with a failure planted on one, all go on, give the right results and end.

Two processes with gloo and a simulated card each; a rank that does something else than the other hangs
in their collective, which the time limit of the run makes a failure. NCCL: tests/gpu/two_gpus.py.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests.conformance.conftest import HAS_GPU
from tests.warm_python import warm_python

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LIMIT_S = 100

pytestmark = pytest.mark.skipif(HAS_GPU, reason="simulated cards; on GPUs tests/gpu/two_gpus.py")


def run_ranks(profile, size=2, program="rank_program.py"):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(size):
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "OMP_NUM_THREADS": "1",
        }
        command = [warm_python(), str(HERE / program), profile]
        ranks.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    found = {}
    try:
        for process in ranks:
            out, err = process.communicate(timeout=LIMIT_S)
            for row in (json.loads(line) for line in out.splitlines() if line.startswith("{")):  # gloo prints, too
                found.setdefault(row["scenario"], {})[row["rank"]] = row
            assert process.returncode == 0, err[-3000:]
    finally:
        for process in ranks:
            process.kill()
    return found


@pytest.fixture(scope="module", params=["hip"])
def scenarios(request):
    """What both ranks found, scenario by scenario; a hang fails here."""
    return run_ranks(request.param)


def both(scenarios, name):
    rows = [scenarios[name][rank] for rank in range(2)]
    assert all(row["right"] for row in rows), rows
    return rows


def test_every_scenario_gives_the_right_results(scenarios):
    """Every call of every scenario, on both ranks, has the sum over ranks in it."""
    assert len(scenarios) == 13
    for name in scenarios:
        both(scenarios, name)


def test_a_collective_is_captured_and_replayed(scenarios):
    """Nothing planted: one graph on each rank, seven replays of eight calls."""
    for row in both(scenarios, "plain"):
        assert row["graphs"] == ["float32[4, 2]"] and row["replays"] == 7


def test_written_arguments_are_the_callers(scenarios):
    """An all-reduce in place: each call writes the caller's tensor, and graphs stay."""
    for row in both(scenarios, "arguments_are_written"):
        assert row["graphs"] == ["float32[4, 2]"]
        assert sum(n for why, n in row["eager"].items() if "share memory" in why) == 3


def test_calls_take_the_fast_path(scenarios):
    """Of 13 calls in one mode 12 replay; another mode is captured for itself."""
    for row in both(scenarios, "calls_go_the_fast_path"):
        assert row["captures"] == 2 and row["replays"] == 12 + 2


def test_ranks_need_not_launch_alike(scenarios):
    """One rank's calls are one launch and the other's three; neither runs its graph to see whether that is right."""
    rows = both(scenarios, "one_rank_joins")
    assert [row["names"] for row in rows] == [["go"], ["in0"]]
    assert [row["launches"] for row in rows] == [7, 7]


def test_graphed_for_ranks(scenarios):
    """``graphed(ranks=True)``: both ranks in the same buckets; a capture that failed on one leaves the other's."""
    rows = both(scenarios, "graphed_by_ranks")
    for row in rows:
        assert row["kept"]["captures"] == 2 and row["kept"]["replays"] == 4 and row["kept"]["eager"] == {"warm-up": 2}
    assert [row["failed"]["replays"] for row in rows] == [5, 0]
    assert "could not be captured" in rows[1]["why"]


def test_a_rank_without_a_graph_meets_the_others_graphs(scenarios):
    """It runs the function, by its reason, the other its graph: the collectives are the same."""
    rows = both(scenarios, "capture_fails_on_one")
    assert rows[1]["graphs"] == [] and rows[0]["graphs"] == ["float32[4, 2]"]
    assert any("could not be captured" in why for why in rows[1]["why"])


def test_a_capture_without_memory_is_tried_again_at_once(scenarios):
    """Other captures are dropped for it, and no collective runs twice."""
    for row in both(scenarios, "out_of_memory_on_one"):
        assert row["graphs"] == ["float32[4, 2]"] and row["why"] == {"warm-up": 1}


def test_one_failed_launch_is_made_good_by_its_rank(scenarios):
    """A graph that two launches fail of is answered by the rank itself, from the nodes; both keep their graphs."""
    rows = both(scenarios, "launch_fails_on_one")
    assert all(row["graphs"] == ["float32[4, 2]"] for row in rows)
    assert len(rows[1]["fallbacks"]) == 1 and rows[0]["fallbacks"] == []


def test_a_rank_whose_graph_fails_for_good_runs_the_function(scenarios):
    """The other goes on with its graph."""
    rows = both(scenarios, "replay_fails_for_good_on_one")
    assert "its replay failed" in rows[1]["why"] and set(rows[0]["why"]) == {"warm-up"}


def test_what_changes_runs_eagerly_by_name(scenarios):
    """A rank that sees it runs the function, the other its graph; nobody captures again."""
    first, second = both(scenarios, "one_rank_changes")
    assert first["captures"] == second["captures"] == 1
    assert first["eager"] == {"warm-up": 1, "fn.factor has changed": 10}
    assert second["eager"] == {"warm-up": 1, "fn.factor has changed": 20}


def test_effects_in_python_on_one_rank_keep_it_from_capturing(scenarios):
    """What a replay would leave out happens at each call; the other rank has its graph."""
    first, second = both(scenarios, "effects_on_one")
    assert first["graphs"] and second["graphs"] == [] and second["n"] == 6
    assert "counted" in str(second["why"])


def test_a_collective_through_the_host_is_not_captured(scenarios):
    """A capture that would have to run a collective is refused, on all ranks."""
    for row in both(scenarios, "collective_on_the_host"):
        assert row["graphs"] == [] and "could not be captured" in str(row["why"])
