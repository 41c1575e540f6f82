"""Padding judged from the graph: what is refused is named, what is allowed is right whatever the padding holds."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from gfxgraph.callables.padding.dependence import Independence, rows_independent
from gfxgraph.callables.padding.judge import PaddingRefusal, choose
from tests.unit.callables.padding.programs import PROGRAMS, Program

N, BUCKET = 5, 8


def judged(program: Program, n: int = N) -> Independence:
    with torch.no_grad():
        return rows_independent(program.step, program.like(n), program.dynamic)


def padded(tensor: torch.Tensor, dims: dict[int, str], sizes: dict[str, int], fill: str) -> torch.Tensor:
    """The tensor at larger sizes."""
    for dim, name in dims.items():
        more = sizes[name] - tensor.shape[dim]
        shape = [more if d == dim else s for d, s in enumerate(tensor.shape)]
        if fill == "last":
            behind = tensor.narrow(dim, tensor.shape[dim] - 1, 1).expand(shape)
        else:
            behind = torch.zeros(shape, dtype=tensor.dtype)
        tensor = torch.cat([tensor, behind.to(tensor.dtype)], dim)
    return tensor


def check(program: Program, verdict: Any, n: int, bucket: int) -> None:
    """Run at both sizes, and compare what the verdict says is the call's own."""
    given = program.like(n)
    for fill in ("last",) if verdict.needs_last else ("last", "zero"):
        own = [t.clone() for t in given]
        large = [
            padded(t.clone(), program.dynamic.get(i, {}), {verdict.name: bucket}, fill) for i, t in enumerate(given)
        ]
        with torch.no_grad():
            want = [t for t in tree_leaves(program.step(*own)) if isinstance(t, torch.Tensor)]
            got = [t for t in tree_leaves(program.step(*large)) if isinstance(t, torch.Tensor)]
        pairs = [*zip(want, got, [place for place in verdict.outputs], strict=True)]
        for i in range(len(given)):
            if i in verdict.written:
                pairs.append((own[i], large[i], next(iter(program.dynamic.get(i, {})), None)))
            else:
                assert torch.equal(own[i], given[i])
        for a, b, place in pairs:
            assert [d for d, (m, n) in enumerate(zip(a.shape, b.shape, strict=True)) if m != n] == (
                [] if place is None else [place]
            )
            b = b[tuple(slice(0, size) for size in a.shape)]
            torch.testing.assert_close(a, b, equal_nan=True, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", PROGRAMS)
def test_verdict(name: str) -> None:
    """A refusal names the operation; what is allowed gives the call's own rows, whatever the padding holds."""
    program = PROGRAMS[name]
    torch.manual_seed(0)
    found = judged(program)
    verdict = found["n"]
    if program.refused is not None:
        assert not verdict.allowed, verdict.explain()
        if verdict.reason is not None:
            assert any(op in verdict.reason.op for op in program.refused.split("|")), verdict.explain()
        return
    assert verdict.allowed, verdict.explain()
    for n, bucket in ((N, BUCKET), (3, BUCKET), (7, BUCKET)):
        if found.holds({"n": n}) and found.holds({"n": bucket}):
            check(program, verdict, n, bucket)


def test_table_is_large_enough() -> None:
    """So that no kind of program is lost when cases are moved about."""
    assert len(PROGRAMS) >= 200
    assert sum(program.refused is None for program in PROGRAMS.values()) >= 100


def test_positions_are_valid_up_to_the_end_of_their_table() -> None:
    """An index made from positions is in range up to a size, which is a condition of the verdict."""
    found = judged(PROGRAMS["positions as an index"])
    assert found.holds({"n": 10}) and not found.holds({"n": 11})


def test_an_operation_may_write_to_tensors_of_its_own() -> None:
    """Torch takes RMSNorm apart into steps of which one writes in place, where gradients are on."""
    found = rows_independent(torch.nn.RMSNorm(4), (torch.randn(N, 4),), {0: {0: "n"}})
    assert found["n"].allowed, found.explain()


def dynamo_graph(step: Any, *args: torch.Tensor) -> tuple[torch.fx.GraphModule, list[Any], dict[int, dict[int, str]]]:
    """What Dynamo gives a backend for a call whose arguments have a dynamic first dim."""
    found: list[Any] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        nodes = graph.graph.find_nodes(op="placeholder")
        sizes = {i: getattr(node.meta["example_value"], "shape", ()) for i, node in enumerate(nodes)}
        dynamic = {i: {d: "n" for d, n in enumerate(shape) if not isinstance(n, int)} for i, shape in sizes.items()}
        found.extend((graph, list(inputs), {i: dims for i, dims in dynamic.items() if dims}))
        return graph

    torch._dynamo.reset()
    for arg in args:
        torch._dynamo.mark_dynamic(arg, 0)
    with torch.no_grad():
        torch.compile(step, backend=backend)(*args)
    return tuple(found)  # type: ignore[return-value]


def test_a_graph_of_dynamo_is_refused_with_its_source_line() -> None:
    """The sentence names the operation and the line that the user wrote."""

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return y - y.mean(0)

    with torch.no_grad():
        said = rows_independent(*dynamo_graph(step, torch.randn(N, 4))).explain()
    assert said.startswith("n is not padded: aten::mean (") and "test_dependence.py:" in said


def test_a_graph_of_dynamo_writes_to_a_buffer() -> None:
    """A write to a tensor of the module is judged; one call's graph holds it as an argument."""
    norm = torch.nn.BatchNorm1d(4)
    cache = torch.zeros(16, 4)

    def step(x: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(0, slot, x)
        return cache[slot]

    with torch.no_grad():
        found = rows_independent(*dynamo_graph(step, torch.randn(N, 4), torch.arange(N)))
        assert found["n"].allowed and found["n"].needs_last and len(found["n"].written) == 1
        assert not rows_independent(*dynamo_graph(norm.train(), torch.randn(N, 4)))["n"].allowed
        assert rows_independent(*dynamo_graph(norm.eval(), torch.randn(N, 4)))["n"].allowed


def test_a_function_that_writes_rows_to_memory_of_its_own_is_refused() -> None:
    """Its tensor is no argument, and the judgement leaves it alone."""
    total, calls = torch.zeros(4), torch.zeros(())

    def step(x: torch.Tensor) -> torch.Tensor:
        calls.add_(1)
        total.add_(x.sum(0))
        return x

    assert not rows_independent(step, [torch.randn(N, 4)], {0: {0: "n"}})["n"].allowed
    assert not total.any() and not calls.any()


def test_a_graph_with_its_size_fixed_is_refused() -> None:
    """Sizes that were made numbers cannot be told from other numbers."""
    graph = make_fx(lambda x: x * x.shape[0])(torch.randn(N, 4))
    verdict = rows_independent(graph, [torch.randn(N, 4)], {0: {0: "n"}})["n"]
    assert not verdict.allowed and "fixed" in verdict.explain()


def test_a_branch_on_the_size_is_a_condition() -> None:
    """The verdict is about sizes on this side of the branch."""
    found = rows_independent(lambda x: x * 2 if x.shape[0] > 4 else x.sum(0), [torch.randn(N, 4)], {0: {0: "n"}})
    assert found["n"].allowed
    assert found.holds({"n": 8}) and not found.holds({"n": 3})


def test_a_graph_that_torch_computes_in_two_ways_is_judged_in_both() -> None:
    """An FX graph, in which torch's functions ask for sizes, is one program: it is judged at both sizes."""

    def aligned(x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        return (x.contiguous() if n % 8 else x) * 2

    for step, is_padded in (
        (aligned, True),
        (lambda x: x.sum(0) if x.shape[0] % 8 == 0 else x * 2, False),
        (lambda x: x.amax(0) if x.shape[0] % 8 == 0 else x.mean(0) * 0, False),
    ):
        at = functools.partial(rows_independent, step, [torch.randn(N, 4)], {0: {0: "n"}})
        found = choose(at, {"n": N}, {"n": BUCKET})
        assert isinstance(found, PaddingRefusal) is not is_padded, (step, found)


def test_two_dims_are_judged_apart() -> None:
    """A mean over the one does not keep the other from being padded; results are cut in both."""
    dynamic = {0: {0: "batch", 1: "seq"}}
    found = rows_independent(lambda x: x.mean(1), [torch.randn(3, 5, 4)], dynamic)
    assert found["batch"].allowed and not found["seq"].allowed
    found = rows_independent(lambda x: x.transpose(0, 1) * 2, [torch.randn(3, 5, 4)], dynamic)
    assert [found[name].outputs[0] for name in ("batch", "seq")] == [1, 0]


def test_an_operation_without_a_rule_names_itself() -> None:
    """Nothing is guessed of operations that no table knows."""
    verdict = rows_independent(lambda x: torch.linalg.qr(x.T)[0], [torch.randn(N, 4)], {0: {0: "n"}})["n"]
    assert not verdict.allowed and "linalg_qr" in verdict.explain()
