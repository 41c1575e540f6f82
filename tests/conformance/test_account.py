"""One account: however a program's calls end, every view shows the same counts, and each call is in one of them."""

from __future__ import annotations

import gc
import json
import re

import pytest
import torch

import gfxgraph
import gfxgraph_simulator as simulator
from gfxgraph.process import calls
from gfxgraph.reporting import capture_check as check
from gfxgraph.reporting import page, run_line
from gfxgraph.startup import stats_file
from gfxgraph_simulator.codes import INVALID_VALUE

pytestmark = pytest.mark.any_platform
WAYS = re.compile(r"^  ([ \d]{6}\d)  (by a graph|in pieces|eager|raised)\b", re.MULTILINE)


def ones(*size):
    return torch.ones(*size, device="cuda")


class Driver:
    """Drives one program, and counts for itself what it called and what raised."""

    def __init__(self):
        self.n = self.n_raised = 0
        self.callables = []

    def graphed(self, fn, **options):
        self.callables.append(gfxgraph.graphed(fn, **options))
        return self.callables[-1]

    def plain(self, body):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            body()
        return graph.replay

    def __call__(self, fn, *args):
        self.n += 1
        try:
            return fn(*args)
        except (KeyError, gfxgraph.GfxGraphError):
            self.n_raised += 1


def of_way(text, pattern):
    found = re.search(pattern, text)
    return int(found[1].replace(",", "")) if found else 0


def views(drive):
    """Calls by way, as each view has them."""
    stats = gfxgraph.stats()
    line = run_line.summary(0, [stats], False, False)["line"]
    text = re.search(r'<script id="data" type="application/json">(.*?)</script>', page.html([table_of(stats)]), re.S)[
        1
    ]
    left = json.loads(stats_file._line(1))
    explained = dict.fromkeys(calls.WAYS, 0)
    for each in drive.callables:
        for n, way in WAYS.findall(each.explain()):
            explained[{"by a graph": "by_graph", "in pieces": "in_pieces"}.get(way, way)] += int(n)
    for table in stats["calls"]["of"]:
        for way in calls.WAYS if table["name"] == "graph" else ():
            explained[way] += calls.n_of(table, way)
    return {
        "stats": {way: stats["calls"][way] for way in calls.WAYS},
        "explain": explained,
        "line": {
            "by_graph": of_way(line, r"([\d,]+) of [\d,]+ calls by graph"),
            "in_pieces": of_way(line, r", ([\d,]+) in pieces"),
            "eager": of_way(line, r", ([\d,]+) eager: "),
            "raised": sum(int(n) for n in re.findall(r"; (\d+) \w*(?:Error|Mismatch)\b", line)),
        },
        "page": {way: json.loads(text)["processes"][0]["stats"]["calls"][way] for way in calls.WAYS},
        "GFXGRAPH_STATS": {way: left["stats"]["calls"][way] for way in calls.WAYS},
        "callables": {
            way: sum(calls.n_of(table, way) for table in [*(each.stats()["calls"] for each in drive.callables),
                     *(t for t in stats["calls"]["of"] if t["name"] == "graph")]) for way in calls.WAYS
        },
    }  # fmt: skip


def table_of(stats):
    return {"pid": 1, "argv": ["a.py"], "at": 1.0, "stats": json.loads(json.dumps(stats, default=str))}


def agreed(drive):
    """The counts, after comparing the views with each other and with what the driver knows."""
    found = views(drive)
    assert all(each == found["stats"] for each in found.values()), found
    assert sum(found["stats"].values()) == drive.n and found["stats"]["raised"] == drive.n_raised, found
    return found["stats"]


@pytest.fixture
def drive(platform):
    gfxgraph.reset_stats()
    return Driver()


# -- the cases in which counters told different truths ----------------------------------------------------------


def test_a_branch_of_torch_cond_that_changes(drive):
    """Every second call finds another branch: those are eager, the others in pieces; nothing twice."""
    fn = drive.graphed(lambda x: torch.cond(x.sum() > 3, lambda x: x * 2, lambda x: x + 1, (x,)))
    for i in range(20):
        drive(fn, ones(4) * (i % 2))
    found = agreed(drive)
    assert found["eager"] == found["in_pieces"] == 10 and gfxgraph.stats()["replay_count"] == 10


def test_a_reached_memory_cap(drive, monkeypatch):
    """Calls are eager because of the cap, and only the first is a warm-up."""
    monkeypatch.setattr("gfxgraph.callables.arena.Arena.cap", lambda self: 1)
    fn = drive.graphed(lambda x: x * 2 + 1)
    for _ in range(20):
        drive(fn, ones(64))
    assert agreed(drive)["eager"] == 20
    (reason,) = (why for why, n in fn.stats()["eager"].items() if n == 19)
    assert "memory limit" in reason


def test_a_replay_that_raises(drive):
    """Three replays of a split graph, of which one finds another value: two in pieces, one raised, at its line."""
    x = ones(4)

    def body():
        if (x * 2).sum().item() > 3:
            x.mul(3)

    replay = drive.plain(body)
    drive(replay)
    drive(replay)
    x.fill_(-1)
    drive(replay)
    assert agreed(drive) == {"by_graph": 0, "in_pieces": 2, "eager": 0, "raised": 1}
    assert gfxgraph.stats()["replay_count"] == 2
    line = run_line.summary(0, [gfxgraph.stats()], False, False)["line"]
    assert re.search(rf"; 1 GuardMismatch at {re.escape(__file__)}:\d+", line)


def test_a_function_that_appends_to_a_list(drive):
    """Traced again and again: that is the reason, not warm-up."""
    seen = []

    def fn(x):
        seen.append(1)
        return x * 2

    g = drive.graphed(fn)
    for _ in range(12):
        drive(g, ones(4))
    agreed(drive)
    assert any("traced again" in why for why in g.stats()["eager"]) and g.stats()["eager"]["warm-up"] <= 3


def test_pieces_of_which_nothing_is_a_graph(drive):
    """A call whose pieces all run eagerly is eager."""

    def fn(x):
        y = x.cpu()
        torch._dynamo.graph_break()
        return y + 1

    g = drive.graphed(fn)
    for i in range(10):
        drive(g, ones(4) * i)
    assert agreed(drive)["eager"] == 10


# -- one program through every way ------------------------------------------------------------------------------


def test_every_way_in_one_program(drive):
    """By graph, in pieces, eager, raised; callables and plain graphs; and one of the callables goes."""

    def fails(x, n):
        if n == 2:
            raise KeyError(n)
        return x + n

    def broken(x):
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    whole, parts, failing = drive.graphed(lambda x: x * 2), drive.graphed(broken), drive.graphed(fails)
    gone, x = drive.graphed(lambda x: x.sin()), ones(4)
    replay = drive.plain(lambda: x * 2)
    for i in range(9):
        for fn in (whole, parts, gone):
            drive(fn, ones(4) * i)
        drive(failing, ones(4), i)
        drive(replay)
    found = agreed(drive)
    assert min(found.values()) > 0
    drive.callables.remove(gone)
    gone.itself = gone  # so that the collector finds it, and weak references to it are dead before
    del fn, gone
    gc.collect()
    assert {way: gfxgraph.stats()["calls"][way] for way in calls.WAYS} == found
    gfxgraph.reset_stats()
    assert not sum(views(drive)["stats"].values()) and not whole.stats()["calls"]["by_graph"]
    drive(whole, ones(4))
    assert gfxgraph.stats()["calls"]["by_graph"] == whole.stats()["calls"]["by_graph"] == 1


def test_a_failed_launch_is_eager_once(drive):
    """A plain graph's launch that fails runs from the tape: eager. A callable's is tried once more, by graph."""
    sim = simulator.active()
    if sim is None:
        pytest.skip("launches fail in the simulator alone")
    x = ones(4)
    replay, fn = drive.plain(lambda: x * 2), drive.graphed(lambda x: x + 1)
    for _ in range(4):
        drive(replay)
        drive(fn, x)
    before = agreed(drive)
    sim.faults.fail_nth("launch", 1, INVALID_VALUE)
    drive(replay)
    sim.faults.fail_nth("launch", 1, INVALID_VALUE)
    drive(fn, x)
    found = agreed(drive)
    assert found["eager"] == before["eager"] + 1 and found["by_graph"] == before["by_graph"] + 1


def test_check_reads_the_account(platform, tmp_path):
    """What ``check`` says of one replay is how the account counts it."""
    if platform == "gpu":
        pytest.skip("a check runs in the simulator")
    x = ones(4)
    whole = check.check(lambda x: x * 2, [x])
    assert whole.replay == {"by_graph": 1, "in_pieces": 0, "eager": 0, "raised": 0}
    split = check.check(lambda x: x * 2 if (x + 1).sum().item() > 0 else x, [x])
    assert split.replay == {"by_graph": 0, "in_pieces": 1, "eager": 0, "raised": 0}
    assert "another outcome raises GuardMismatch" in split.findings[0].then


def test_nothing_to_do_only_where_that_is_so(drive):
    """Not where calls were eager, in pieces, raised, slow, or none were made."""
    fine = {"by_graph": 3, "eager": {"warm-up": 1}, "raised": {}, "in_pieces": {}, "operations": (0, 0)}
    fine |= {"name": "f", "where": "a.py:1", "places": {}, "seconds": {}, "slow": {}}

    def line(**changes):
        stats = {"calls": calls.summed([fine | changes]), "events": []}
        return run_line.summary(0, [stats], False, False)["line"]

    assert line().endswith("3 of 4 calls by graph (75 %), 1 eager: warm-up (1); nothing to do")
    for changes in ({"eager": {"why": 2}}, {"raised": {"KeyError": 1}}, {"in_pieces": {"why": 1}}, {"slow": {"w": 2}},
                    {"by_graph": 0}):  # fmt: skip
        assert "nothing to do" not in line(**changes)
    assert "2 took the slow way: f, w" in line(slow={"w": 2})
    dear = line(eager={"cheap": 90, "dear": 2, "warm-up": 5}, seconds={"cheap": 0.1, "dear": 4.0})
    assert dear.index("f, dear at a.py:1 (2)") < dear.index("f, cheap at a.py:1 (90)") < dear.index("warm-up (5)")
