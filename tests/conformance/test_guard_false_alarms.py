"""The guard accuses nobody: what engines do and random programs run under it as without it, and nothing is reported.

A few of each here; all of them with GFXGRAPH_TEST_ALL=1, which takes some minutes.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
from pathlib import Path

import pytest
import torch

import gfxgraph
from gfxgraph.guard import flight_recorder, tensor_names
from tests.conformance import test_engine_patterns as engines
from tests.conformance.conftest import Surface
from tests.conformance.guarding import PROFILES, guarded

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the simulator stands in for the only card there is"
)
TAKES_ALL = os.environ.get("GFXGRAPH_TEST_ALL") == "1"
TIERS = [1, 2]

_CLIENTS = {
    name: test
    for name, test in vars(engines).items()
    if name.startswith("test_") and set(inspect.signature(test).parameters) <= {"surface", "monkeypatch"}
}
_QUICK = (
    "test_vllm_full_graphs_with_replaced_set_stream",
    "test_graphs_cleared_before_teardown",
    "test_sglang_capture_inside_use_mem_pool",
    "test_replay_on_another_stream_than_captured",
    "test_worker_threads_in_thread_local_mode",
)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("profile", PROFILES if TAKES_ALL else PROFILES[:1])
@pytest.mark.parametrize("client", sorted(_CLIENTS) if TAKES_ALL else _QUICK)
def test_engines(client, profile, tier, tmp_path, monkeypatch):
    """Same results, no event, no refusal."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("GFXGRAPH_GUARD", str(tier))
    monkeypatch.setattr(flight_recorder, "_recorder", None)
    failed_threads = []
    monkeypatch.setattr(threading, "excepthook", failed_threads.append)
    surface = Surface(profile)
    test = _CLIENTS[client]
    with surface.installed():
        assert gfxgraph.guard_level() == tier
        test(*(surface if name == "surface" else monkeypatch for name in inspect.signature(test).parameters))
        assert not surface.unexpected_events() and not failed_threads
        stats = gfxgraph.stats()
        assert stats["guard_refusals"] == stats["guard_faults"] == 0


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("profile", PROFILES if TAKES_ALL else PROFILES[1:])
def test_random_programs(profile, tier, tmp_path, monkeypatch):
    """Replays equal eager, nothing falls back, nothing is refused."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "property"))
    import fuzz_check
    from hypothesis import HealthCheck, Phase, given, seed, settings
    from test_fuzz import programs

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with guarded(profile, tier, tmp_path, monkeypatch):

            @seed(4000 + tier)
            @settings(
                max_examples=300 if TAKES_ALL else 8,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
                phases=(Phase.generate,),
            )
            @given(programs)
            def run(program):
                stats = fuzz_check.run(program, f"simulate={profile!r}, guard={tier}")
                assert stats["guard_refusals"] == stats["guard_faults"] == 0

            run()
    finally:
        fuzz_check.forget_device()
        torch.set_num_threads(threads)


def test_looking_for_tensors_disturbs_no_other_thread():
    """A tuple in the making must not be seen by anybody else: making it would end in a SystemError."""
    kept = [torch.ones(2) for _ in range(3)]
    stop, failures = threading.Event(), []

    def make_tuples():
        while not stop.is_set():
            try:
                tuple(n for n in range(40))
            except SystemError as error:
                failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    workers = [threading.Thread(target=make_tuples) for _ in range(3)]
    try:
        for worker in workers:
            worker.start()
        for _ in range(6):
            found = tensor_names.objects_of([torch.Tensor])
    finally:
        stop.set()
        for worker in workers:
            worker.join()
        sys.setswitchinterval(interval)
    assert not failures
    assert all(any(item is tensor for item in found) for tensor in kept)
