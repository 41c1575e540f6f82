"""What holds for values that Python reads inside plain captures, whatever the program."""

from __future__ import annotations

import builtins
import dataclasses
import decimal
import gc
import importlib
import json
import math
from contextlib import nullcontext

import pytest
import torch

import gfxgraph
from gfxgraph.capture import afterwards

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
        y = x * total + math.sqrt(total * total)
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


def test_numbers_after_their_capture_are_plain_to_what_asks_for_types(platform):
    """``torch.tensor`` and JSON take the latest value; with the last number torch's own functions stand there again."""
    gc.collect()
    afterwards._alive.clear()  # numbers that other tests' errors hold
    afterwards.put_back()
    before = torch.tensor, torch.as_tensor, json.JSONEncoder.default
    x = torch.tensor(INPUTS[0], device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        values = x.tolist()
    x.copy_(torch.tensor(INPUTS[1]))
    graph.replay()
    assert torch.tensor(values).tolist() == INPUTS[1] and torch.as_tensor(values[1]).item() == 1.0
    assert json.loads(json.dumps({"values": values})) == {"values": INPUTS[1]}
    with pytest.raises(TypeError):
        json.dumps({"graph": graph})
    values.clear()
    assert (torch.tensor, torch.as_tensor, json.JSONEncoder.default) == before


def test_text_read_in_another_module_is_guarded(platform, tmp_path, monkeypatch):
    """A text in an attribute or a module's variable decides in another file; one that is only shown there is free."""
    writer, reader = f"writer_{platform}", f"reader_{platform}"
    (tmp_path / f"{reader}.py").write_text(
        "def chosen(o, x): return x * 2 if o.label == '4.0' else x * 3\n"
        "def length(o, x): return x + len(o.text_of())\n"
        "def show(o, x):\n    print(o.caption)\n    return x\n"
    )
    (tmp_path / f"{writer}.py").write_text(
        f"import {reader} as reader\n"
        "class Note:\n    def text_of(self): return self.kept\n"
        "def decides(x):\n    o, v = Note(), x.sum().item()\n    o.label = f'{v}'\n    return reader.chosen(o, x)\n"
        "def returned(x):\n    o, v = Note(), x.sum().item()\n    o.kept = f'{v}'\n    return reader.length(o, x)\n"
        "def shown(x):\n    o, v = Note(), x.sum().item()\n    o.caption = f'{v}'\n    return reader.show(o, x) * v\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module(writer)
    for body, is_free in ((module.decides, False), (module.returned, False), (module.shown, True)):
        x, graph = torch.ones(4, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = body(x)
        x.fill_(100.0)
        with nullcontext() if is_free else pytest.raises(gfxgraph.GuardMismatch, match=f"{writer}.py"):
            graph.replay()
        assert not is_free or y.tolist() == [40000.0] * 4


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


def test_an_error_that_does_not_come_again(platform):
    """An error that the program caught is named where a replay would not raise it, with the line."""
    x = torch.full((4,), 9.0, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        i = x[0].long().item()
        try:
            y = x[i] * 1
        except IndexError:
            y = x * 2
    graph.replay()
    assert y.tolist() == [18.0] * 4
    x.fill_(1)
    with pytest.raises(gfxgraph.GuardMismatch, match=r"was IndexError: index 9 .* is no error now"):
        graph.replay()


def test_what_refuses_a_number_says_which(platform):
    """C code that cannot be foreseen names the number by what it is, not by a class of ours."""
    x = torch.ones(4, device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        scope = {"read": x.sum().item, "take": decimal.Decimal}
        with pytest.raises(TypeError, match="number_read_in_a_capture"):
            exec("take(read())", scope)


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
