"""What holds for values that Python reads inside plain captures, whatever the program."""

from __future__ import annotations

import builtins
import dataclasses
import datetime
import decimal
import importlib
import json
import math
import random
import sqlite3
from fractions import Fraction

import numpy as np
import pytest
import torch

import gfxgraph

pytestmark = pytest.mark.usefixtures("nothing_compiled")
INPUTS = [[0.0, 1.0, 2.0, 3.0], [0.25, 1.0, 2.5, 3.0], [3.0, 3.0, 3.0, 3.0], [-1.0, -2.0, -0.5, -4.0]]


def test_captures_share_a_value(platform):
    """A number read in one capture and used in another, inside it or after it, is what its latest replay read."""
    x = torch.tensor(INPUTS[0], device="cuda")
    first, second, inner = (torch.cuda.CUDAGraph() for _ in range(3))
    with torch.cuda.graph(first):
        total = x.sum().item()
        with torch.cuda.graph(inner, stream=torch.cuda.Stream()):
            b = x * total
    with torch.cuda.graph(second):
        y = x * total + abs(total)
    for values in INPUTS[1:]:
        x.copy_(torch.tensor(values))
        for graph in (first, second, inner):
            graph.replay()
        want = x.sum().item()
        assert torch.allclose(y, x * want + abs(want)) and torch.allclose(b, x * want)
        assert total == pytest.approx(want)  # what the program still holds follows the replays
    assert isinstance(total, float) and total + 1 == pytest.approx(want + 1)


def test_strict_refuses_what_flows(platform):
    """strict: comparing and printing are allowed, computing is refused at capture."""
    x = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph(on_unsafe="strict")
    with torch.cuda.graph(graph):
        if x.sum().item() > 3:
            y = x * 2
    graph.replay()
    assert y.tolist() == [2.0] * 4
    for body in (lambda: x * x.sum().item(), lambda: x.sum().item() + 1, lambda: float(x.sum())):
        with (
            pytest.raises(gfxgraph.CaptureError) as caught,
            torch.cuda.graph(torch.cuda.CUDAGraph(on_unsafe="strict")),
        ):
            body()
        assert caught.value.code == "host_value_escaped"


def test_guard_names_line_and_both_values(platform):
    """A pinned value that changed: the line that used it, what it was, what it is."""
    x = torch.full((4,), 2.0, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _ = x * float(x.max())
    x.fill_(3.0)
    with pytest.raises(gfxgraph.GuardMismatch) as caught:
        graph.replay()
    text = str(caught.value)
    assert "2.0" in text and "3.0" in text and "test_host_values_rules.py:" in text
    assert gfxgraph.stats()["guard_mismatches"] == 1


def test_a_capture_leaves_python_as_it_was(platform):
    """What stands in for Python's and torch's functions while a capture has numbers is gone afterwards."""
    names = [(builtins, "min"), (math, "sqrt"), (torch.Tensor, "view"), (torch, "zeros"), (torch.Tensor, "item")]
    before = [getattr(owner, name) for owner, name in names]
    x = torch.arange(4.0, device="cuda")
    with torch.device("cpu"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        with torch.device("cpu"):
            kept = x[x > 1]
            _ = kept.sum() * math.sqrt(min(x.max().item(), 2.0))
        assert torch.zeros(1).device.type == "cpu"
    assert [getattr(owner, name) for owner, name in names] == before
    assert torch._C._len_torch_function_stack() == 0


def test_capture_computes_nothing(platform):
    """What the host's steps ran at capture is undone, writes to tensors from outside among them."""
    x, seen = torch.arange(4.0, device="cuda"), torch.zeros(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = x[x > 1]
        seen[: kept.numel()] += kept
        seen.mul_(x.max().item())
    assert not seen.any()
    x.copy_(torch.tensor([5.0, 0.0, 0.0, 6.0]))
    graph.replay()
    assert seen.tolist() == [30.0, 36.0, 0.0, 0.0]
    x.copy_(torch.tensor([5.0, 2.0, 2.0, 6.0]))
    graph.replay()
    assert seen.tolist() == [210.0, 228.0, 12.0, 36.0]
    assert kept.tolist() == [5.0, 2.0, 2.0, 6.0]


def test_a_number_after_its_capture(platform):
    """JSON takes the latest value; ``torch.tensor``, which asks for Python's own type, refuses it, and takes float()."""
    x = torch.tensor(INPUTS[0], device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        values = x.tolist()
    x.copy_(torch.tensor(INPUTS[1]))
    graph.replay()
    assert json.loads(json.dumps({"values": values})) == {"values": INPUTS[1]}
    with pytest.raises(TypeError):
        json.dumps({"graph": graph})
    with pytest.raises((TypeError, RuntimeError)) as caught:
        torch.tensor(values)
    print(caught.value)
    assert torch.tensor([*map(float, values)]).tolist() == INPUTS[1]


def test_text_is_guarded(platform):
    """Whatever the program shows, writes or keeps of a number is a conversion: a replay with another value is refused."""
    for use in (str, repr, "{:.2f}".format, print, json.dumps):
        x, graph = torch.ones(4, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            v = x.sum().item()
            use(v)
            y = x * v
        graph.replay()
        assert y.tolist() == [4.0] * 4
        x.fill_(100.0)
        with pytest.raises(gfxgraph.GuardMismatch, match="test_host_values_rules.py"):
            graph.replay()


@dataclasses.dataclass(frozen=True)
class Point:
    at: float


def test_a_line_is_the_programs_own(platform):
    """A method that a dataclass got from its decorator has no file: the line that calls it is named."""
    x = torch.full((4,), 2.0, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        names = {Point(x[0].item()): "first"}
        y = x * len(names)
    x.fill_(3)
    with pytest.raises(gfxgraph.GuardMismatch, match=r"test_host_values_rules\.py:\d+ was 2\.0 .* is 3\.0 now"):
        graph.replay()
    assert y.shape == (4,)


REFUSING = """
Decimal(v); Decimal.from_float(v); decimal.Context().create_decimal(v); timedelta(seconds=v); timedelta(milliseconds=n)
datetime.datetime.fromtimestamp(v); time.gmtime(v); time.ctime(v); "%*d" % (n, n); "%.*f" % (n, v); b"%*d" % (n, n)
np.datetime64(n, "s"); np.timedelta64(n, "s"); np.random.default_rng(n); ctypes.c_void_p(n); float.hex(v)
int.bit_length(n); float.__add__(v, 1.0); socket.socket().settimeout(v); select.select([], [], [], v / 1000)
threading.Lock().acquire(timeout=v); threading.RLock().acquire(timeout=v); collections.deque([v], n)
itertools.permutations([1, 2], n); sqlite3.connect(":memory:").execute("select ?", (v,)); [Decimal(i) for i in [v, n]]
(lambda f: f(v))(Decimal); [f(v) for f in (Decimal, float)]; getattr(decimal, "Decimal")(v); box.make(v)
functools.partial(Decimal, v)(); timedelta(**{"seconds": v}); Decimal(*[v]); KINDS["decimal"](v)
torch.Generator().manual_seed(n); list(map(Decimal, [v, n])); Fraction(v); struct.pack("f", v); np.float32(v)
array.array("f", [v]); ctypes.c_float(v); random.Random(v).random(); complex(v, n); bytes(n); chr(n); json.dumps(v)
"""
MODULES = (
    "array collections ctypes datetime decimal functools itertools json random select socket sqlite3 struct threading "
    "time types"
)
KINDS = {"decimal": decimal.Decimal}


class Box:
    def make(self, v):
        return decimal.Decimal(v)


@pytest.mark.any_platform
def test_c_code_gets_a_plain_number_or_refuses(platform, tmp_path):
    """C code pins what it converts, and raises its own error at the capture for what it does not: none is silent."""
    x, y = torch.tensor([0.5, 1.0, 1.0], device="cuda"), torch.tensor(2, device="cuda")
    for at, expression in enumerate(REFUSING.strip().replace("\n", "; ").split("; ")):
        name = tmp_path / f"program_{at}.py"
        name.write_text(f"def body(x, y):\n    v, n = x.sum().item(), y.item()\n    {expression}\n    return x * v\n")
        room = {name: importlib.import_module(name) for name in MODULES.split()} | {
            "Decimal": decimal.Decimal, "timedelta": datetime.timedelta, "Fraction": Fraction, "np": np, "torch": torch,
            "box": Box(), "KINDS": KINDS,
        }  # fmt: skip
        exec(compile(name.read_text(), str(name), "exec"), room)
        x.copy_(torch.tensor([0.5, 1.0, 1.0]))
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                z = room["body"](x, y)
        except (TypeError, KeyError, ValueError, RuntimeError, sqlite3.Error):
            continue
        graph.replay()
        assert z.tolist() == [1.25, 2.5, 2.5], expression
        x.copy_(torch.tensor([0.5, 1.0, 2.0]))
        try:
            graph.replay()
            assert z.tolist() == [1.75, 3.5, 7.0], expression
        except gfxgraph.GuardMismatch as error:
            ratio = "was 5 when captured and is 7 now"  # of a Fraction, which asks for types
            assert "was 2.5 when captured and is 3.5 now" in str(error) or ratio in str(error), expression


def test_a_seed_is_eagers_or_refused(platform):
    """C code seeds itself with a number's hash, which of a negative int is not what eager code takes."""
    x = torch.tensor([3, -3], device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        n, negative = x[0].item(), x[1].item()
        assert random.Random(n).random() == random.Random(3).random()
        with pytest.raises(TypeError, match="int"):
            random.Random(negative)
        assert random.Random(int(negative)).random() == random.Random(-3).random()


def test_what_refuses_a_number_says_which(platform):
    """C code that cannot be foreseen names the number by what it is, not by a class of ours."""
    x = torch.ones(4, device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        scope = {"read": x.sum().item, "chosen": iter([decimal.Decimal])}
        with pytest.raises(TypeError, match="number_read_in_a_capture"):
            exec("next(chosen)(read())", scope)


def test_of_a_long_list_the_element_is_shown(platform):
    """A pinned list that changed: the first element that differs, not thousands of numbers."""
    x = torch.arange(5000.0, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * x.tolist()[7]
    graph.replay()
    assert y[1].item() == 7
    x[9] = -1
    with pytest.raises(
        gfxgraph.GuardMismatch, match=r"value\[9\] at .* was 9\.0 when captured and is -1\.0 now"
    ) as caught:
        graph.replay()
    assert len(str(caught.value)) < 700


class Masked(torch.nn.Module):
    def forward(self, x):
        return x[x > 0] * 2


@pytest.mark.parametrize("how", ["fx", "no file"])
def test_generated_code_is_not_the_programs_line(platform, how):
    """What torch.fx writes, or exec with the name of a file that is not there: the line that calls it is named."""
    scope = {}
    exec(compile("def run(x):\n    return x[x > 0] * 2\n", "/nowhere/generated.py", "exec"), scope)
    run = torch.fx.symbolic_trace(Masked()) if how == "fx" else scope["run"]
    x = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(x).view(4)  # the line
    x[0] = -1
    with pytest.raises(gfxgraph.GuardMismatch) as caught:
        graph.replay()
    line = next(n for n, text in enumerate(open(__file__), 1) if text.rstrip().endswith("# the line"))
    assert f"test_host_values_rules.py:{line}" in str(caught.value)


def test_what_the_captures_caller_names_takes_no_numbers(platform):
    """A result's number is looked for in the captured code, not in what begins the capture, whatever that names."""
    generator = torch.Generator().manual_seed(int(decimal.Decimal(3)))
    x = torch.rand(4, generator=generator).to("cuda")

    def step():
        v = x.sum().item()
        return x * v

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = step()
    x.fill_(2.0)
    graph.replay()
    assert y.tolist() == [16.0] * 4


def test_a_generator_seeded_before_goes_on_beside_seeds_of_others(platform):
    """What the captured code seeds is known by name: torch's own functions and other generators are not this one."""
    other = torch.Generator()

    def body(generator):
        drawn = torch.rand(4, generator=generator).to("cuda")
        torch.manual_seed(3)
        other.manual_seed(4)
        return drawn + torch.rand(4, generator=other).to("cuda")

    mine, twin = torch.Generator().manual_seed(6), torch.Generator().manual_seed(6)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        drawn = body(mine)
    for _ in range(3):
        graph.replay()
        assert torch.equal(drawn, body(twin))


@torch.library.custom_op("gfxgraph_tests::by_experts", mutates_args=())
def _by_experts(rows: torch.Tensor, weights: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    made, start = torch.empty_like(rows), 0
    for expert, n in enumerate(counts.tolist()):
        made[start : start + n] = rows[start : start + n] @ weights[expert]
        start += n
    return made


_by_experts.register_fake(lambda rows, weights, counts: torch.empty_like(rows))


def test_an_operation_whose_kernel_reads_is_a_step_of_the_hosts(platform):
    """Experts in a loop over the tokens that each has: every routing is a replay, and no value is guarded."""
    weights = torch.randn(3, 4, 4, device="cuda")

    def mixed(x, choice):
        order = choice.argsort(stable=True)
        counts = (choice[:, None] == torch.arange(3, device="cuda")).sum(0)
        return _by_experts(x[order], weights, counts)[order.argsort()] * 2

    g = gfxgraph.graphed(mixed)
    for seed in range(6):
        torch.manual_seed(seed)
        x, choice = torch.randn(6, 4, device="cuda"), torch.randint(0, 3, (6,), device="cuda")
        torch.testing.assert_close(g(x, choice), mixed(x, choice))
    assert g.stats()["replays"] == 5 and set(g.stats()["eager"]) == {"warm-up"}, g.explain()
