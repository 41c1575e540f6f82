"""Padding judged from the graph: what is refused is named, what is allowed is right whatever the padding holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from gfxgraph.callables.padding.judge import PaddingRefusal, choose
from gfxgraph.callables.padding.rows import Independence, rows_independent
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
        pairs = [*zip(want, got, strict=True)]
        for i in range(len(given)):
            if i in verdict.written:
                pairs.append((own[i], large[i]))
            else:
                assert torch.equal(own[i], given[i])
        for a, b in pairs:
            assert sum(m != n for m, n in zip(a.shape, b.shape, strict=True)) <= 1
            b = b[tuple(slice(0, size) for size in a.shape)]
            torch.testing.assert_close(a, b, equal_nan=True, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", PROGRAMS)
def test_verdict(name: str) -> None:
    """A refusal names the operation; what is allowed gives the call's own rows, whatever the padding holds."""
    program = PROGRAMS[name]
    torch.manual_seed(0)
    found = judged(program)
    verdict = found.dims["n"]
    if program.refused is not None:
        assert verdict.refusal, verdict.explain()
        assert not verdict.op or any(op in verdict.op for op in program.refused.split("|")), verdict.explain()
        return
    assert not verdict.refusal, verdict.explain()
    for n, bucket in ((N, BUCKET), (3, BUCKET), (7, BUCKET)):
        if found.holds({"n": n}) and found.holds({"n": bucket}):
            check(program, verdict, n, bucket)


def test_table_is_large_enough() -> None:
    """So that no kind of program is lost when cases are moved about."""
    assert len(PROGRAMS) >= 200
    assert sum(program.refused is None for program in PROGRAMS.values()) >= 100


def test_an_operation_may_write_to_tensors_of_its_own() -> None:
    """Torch takes RMSNorm apart into steps of which one writes in place, where gradients are on."""
    found = rows_independent(torch.nn.RMSNorm(4), (torch.randn(N, 4),), {0: {0: "n"}})
    assert not found.dims["n"].refusal, found.dims


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
        said = rows_independent(*dynamo_graph(step, torch.randn(N, 4))).dims["n"].explain()
    assert said.startswith("n is not padded: aten::mean (") and "test_rows.py:" in said


def test_a_graph_of_dynamo_writes_to_a_buffer() -> None:
    """A write to a tensor of the module is judged; one call's graph holds it as an argument."""
    norm = torch.nn.BatchNorm1d(4)
    with torch.no_grad():
        assert rows_independent(*dynamo_graph(norm.train(), torch.randn(N, 4))).dims["n"].refusal
        assert not rows_independent(*dynamo_graph(norm.eval(), torch.randn(N, 4))).dims["n"].refusal


def test_a_function_that_writes_rows_to_memory_of_its_own_is_refused() -> None:
    """Its tensor is no argument, and the judgement leaves it alone."""
    total, calls = torch.zeros(4), torch.zeros(())

    def step(x: torch.Tensor) -> torch.Tensor:
        calls.add_(1)
        total.add_(x.sum(0))
        return x

    assert rows_independent(step, [torch.randn(N, 4)], {0: {0: "n"}}).dims["n"].refusal
    assert not total.any() and not calls.any()


def test_a_graph_with_its_size_fixed_is_refused() -> None:
    """Sizes that were made numbers cannot be told from other numbers."""
    graph = make_fx(lambda x: x * x.shape[0])(torch.randn(N, 4))
    verdict = rows_independent(graph, [torch.randn(N, 4)], {0: {0: "n"}}).dims["n"]
    assert verdict.refusal and "fixed" in verdict.explain()


def test_a_branch_on_the_size_is_a_condition() -> None:
    """The verdict is about sizes on this side of the branch."""
    found = rows_independent(lambda x: x * 2 if x.shape[0] > 4 else x.sum(0), [torch.randn(N, 4)], {0: {0: "n"}})
    assert not found.dims["n"].refusal
    assert found.holds({"n": 8}) and not found.holds({"n": 3})


def test_a_function_that_is_another_at_the_buckets_size_is_refused() -> None:
    """What the trace assumes about sizes holds for the call's and the bucket's."""
    for step, is_padded in (
        (lambda x: x * 2, True),
        (lambda x: x.sum(0) if x.shape[0] % 8 == 0 else x * 2, False),
        (lambda x: x * 3 if x.shape[0] > 6 else x * 2, False),
    ):
        found = choose(rows_independent(step, [torch.randn(N, 4)], {0: {0: "n"}}), {"n": N}, {"n": BUCKET})
        assert isinstance(found, PaddingRefusal) is not is_padded, (step, found)


def test_the_kernel_of_a_convolution_is_no_other_program() -> None:
    """Torch chooses it by the number of rows."""
    found = rows_independent(torch.nn.Conv2d(4, 8, 3), (torch.randn(N, 4, 8, 8),), {0: {0: "n"}})
    assert choose(found, {"n": N}, {"n": 32}) is False


def test_two_dims_are_judged_apart() -> None:
    """A mean over the one does not keep the other from being padded; results are cut in both."""
    dynamic = {0: {0: "batch", 1: "seq"}}
    found = rows_independent(lambda x: x.mean(1), [torch.randn(3, 5, 4)], dynamic)
    assert not found.dims["batch"].refusal and found.dims["seq"].refusal
    found = rows_independent(lambda x: x.transpose(0, 1) * 2, [torch.randn(3, 5, 4)], dynamic)
    assert not any(verdict.refusal for verdict in found.dims.values())


def test_an_operation_without_a_rule_names_itself() -> None:
    """Nothing is guessed of operations that no table knows."""
    verdict = rows_independent(lambda x: torch.linalg.qr(x.T)[0], [torch.randn(N, 4)], {0: {0: "n"}}).dims["n"]
    assert verdict.refusal and "linalg_qr" in verdict.explain()
