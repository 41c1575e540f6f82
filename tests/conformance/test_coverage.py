"""Coverage: what runs in graphs is counted, and what does not is named with line and reason."""

import pytest
import torch

import gfxgraph
from gfxgraph.reporting import launch_counts
from gfxgraph.reporting.coverage import Coverage


@pytest.fixture
def step(capture):
    """A step of three nodes in a graph and two launches outside."""
    x, w = torch.randn(4, 8, device="cuda"), torch.randn(8, 8, device="cuda")
    graph, y = capture(lambda: torch.relu(x @ w) + 1)

    def run(n=1):
        for _ in range(n):
            graph.replay()
            y.sum() * 2

    return run


def test_launches_are_counted_exactly(step):
    """In a block every launch counts: nodes of replays, and eager operations; views and CPU work do not."""
    with gfxgraph.coverage() as seen:
        step(10)
        torch.ones(3).sum()
        torch.empty(4, device="cuda").view(2, 2)
    assert (seen.graph_launches, seen.eager_launches, seen.n_replays) == (30, 20, 10)
    assert seen.share == 0.6


def test_eager_lines_are_named_with_their_reason(step):
    """Each eager operation comes with its line; what no capture covers says so, what the host reads says why."""
    with gfxgraph.coverage() as seen:
        step(4)
        torch.ones(2, device="cuda").max().item()
    lines = {line.op: line for line in seen.lines}
    read = lines["aten::_local_scalar_dense"]
    assert lines["aten::sum"].n == 4 and lines["aten::sum"].where.startswith(__file__)
    assert lines["aten::sum"].why == "no capture covers this line"
    assert "value" in read.why and "torch.where" in read.rewrite
    assert __file__ in seen.seen.table()


def test_host_steps_of_a_split_capture_are_eager(capture):
    """What a split replay does between its segments counts as eager, with the split as reason."""
    x = torch.ones(4, device="cuda")

    def body():
        y = x * 2
        return y[y > 0] + 1

    graph, _ = capture(body)
    with gfxgraph.coverage() as seen:
        graph.replay()
    assert seen.graph_launches >= 2
    assert any(line.op == "aten::index" and "split" in line.why for line in seen.lines)


def test_a_capture_launches_nothing(platform):
    """Operations that a capture records are not counted; those of the warm-up are."""
    x = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with gfxgraph.coverage() as seen:
        with torch.cuda.graph(graph):
            x * 2 + 1
        graph.replay()
    assert (seen.graph_launches, seen.eager_launches) == (2, 0)


def test_graphed_calls_count_as_graphs(platform):
    """The fast path of a graphed function is left while somebody counts, and taken again afterwards."""
    w = torch.randn(8, 8, device="cuda")
    call = gfxgraph.graphed(lambda x: torch.relu(x @ w))
    x = torch.randn(4, 8, device="cuda")
    for _ in range(4):
        call(x)
    with gfxgraph.coverage() as seen:
        for _ in range(5):
            call(x)
    assert seen.n_replays == 5 and seen.graph_launches == 10
    before = call.stats()["replays"]
    call(x)
    assert call.stats()["replays"] == before + 1


def test_counting_changes_no_verdict_on_padding(platform):
    """What a compiler traces meanwhile is not counted, and does not fail: a bucket serves what it serves otherwise."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()).cuda()
    call = gfxgraph.graphed(model, dynamic={"input": {0: "batch"}}, buckets=[4])
    with gfxgraph.coverage() as seen, torch.no_grad():
        for _ in range(4):
            call(torch.ones(3, 8, device="cuda"))
    assert "refused" not in call.why() and call.stats()["replays"] > 0
    assert not any(line.where.startswith("<") for line in seen.lines), seen.lines
    assert all("pageable" not in line.why for line in seen.lines if line.op == "aten::copy_")


def test_lines_of_destroyed_graphs_are_known_to_be_in_one(capture):
    """A warm-up is named as one also after its graph is gone, and nobody is told of graphs after the block."""
    x = torch.ones(4, device="cuda")

    def body():
        return x * 2

    with gfxgraph.coverage() as seen:
        graph, _ = capture(body)
        graph.replay()
        del graph
    (line,) = (line for line in seen.lines if line.op == "aten::mul")
    assert line.why.startswith("this line is in a graph")


def test_off_means_nothing_is_there(step):
    """Without coverage there is no mode and no hook; after a block neither."""
    step()
    with gfxgraph.coverage():
        step()

    assert torch.utils._python_dispatch._len_torch_dispatch_stack() == 0


@torch.library.custom_op("gfxgraph_tests::closes_the_window", mutates_args=())
def closes_the_window(x: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        launch_counts.watching().close()
        launch_counts.watching().open()
    launch_counts.watching().close()
    return x.clone()


def test_a_window_that_is_closed_inside_an_operation(step):
    """As calls that wait for the main thread may: the counter comes back on the stack with the operation's end."""
    seen = launch_counts.start()
    try:
        step()
        closes_the_window(torch.ones(2))
        assert not seen.is_open
    finally:
        launch_counts.stop()
    assert torch.utils._python_dispatch._len_torch_dispatch_stack() == 0


def test_counts_of_processes_add_up():
    """Sums keep shares, and lines of the same place are one."""
    line = {"op": "aten::sum", "where": "a.py:1", "why": "w", "n": 5}
    one = Coverage.from_dict(Coverage(15, 5).as_dict() | {"lines": [line]})
    both = one + one
    assert (both.graph_launches, both.eager_launches, both.share) == (30, 10, 0.75)
    assert [line.n for line in both.lines] == [10]


def test_comparing_with_eager_is_in_no_share(platform):
    """What a validated replay launches besides its graph is gfxgraph's own, also at the last one that is validated."""
    from gfxgraph.process import process

    process.current().validate_replays = 2
    x = torch.ones(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2 + 1
    with gfxgraph.coverage() as seen:
        for _ in range(6):
            graph.replay()
    assert (seen.graph_launches, seen.eager_launches) == (12, 0) and seen.validation_launches > 0
    assert y.tolist() == [3.0] * 8


def test_what_changes_on_the_host_is_not_done_twice(platform):
    """Sizes of a tensor, and host memory, are a program's own: an exact count leaves both as eager leaves them."""

    def work():
        x = torch.arange(12.0, device="cuda").view(3, 4)
        made = [x.clone().unsqueeze_(0), x.clone().t_(), x.clone().transpose_(0, 1), x[:, :1].clone().squeeze_()]
        host = torch.zeros(3, 4)
        host.copy_(x)
        x.add_(1).relu_()
        return [*made, host, x]

    wanted = work()
    with gfxgraph.coverage() as seen:
        found = work()
    for one, other in zip(found, wanted):
        assert one.shape == other.shape and one.stride() == other.stride() and torch.equal(one, other)
    assert not {line.op for line in seen.lines} & {
        "aten::unsqueeze_",
        "aten::t_",
        "aten::transpose_",
        "aten::squeeze_",
    }
