"""Padding judged from the graph: what is refused is named, what is allowed is right whatever the padding holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from gfxgraph.callables.padding.row_independence import PaddingRefusal, Trace, rows_independent
from tests.unit.callables.padding.programs import PROGRAMS, Program

N, BUCKET = 5, 8


@dataclass
class Verdict:
    """What was decided: a refusal, or what padding needs."""

    refusal: str = ""
    op: str = ""
    written: frozenset[Any] = frozenset()
    needs_last: bool = False


def rows(step: Any, own: Any, large: Any, n: int = N, bucket: int = BUCKET, of: Any = None) -> Verdict:
    """The verdict on a function, or on the graphs of both sizes, for arguments of both."""
    try:
        with torch.no_grad():
            found = rows_independent(n, bucket, Trace().run(step, own), Trace().run(of or step, large))
    except PaddingRefusal as refusal:
        return Verdict(refusal.named("n").reason, refusal.op)
    return Verdict("", "", found.written, found.needs_last)


def judged(program: Program, n: int = N, bucket: int = BUCKET) -> Verdict:
    return rows(program.step, program.like(n), program.like(bucket), n, bucket)


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
        large = [padded(t.clone(), program.dynamic.get(i, {}), {"n": bucket}, fill) for i, t in enumerate(given)]
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
    verdict = judged(program)
    if program.refused is not None:
        assert verdict.refusal, verdict.refusal
        assert not verdict.op or any(op in verdict.op for op in program.refused.split("|")), verdict.refusal
        return
    for n in (N, 1, 3, 7):
        verdict = judged(program, n)
        if n > 1:
            assert not verdict.refusal, (n, verdict.refusal)
        if not verdict.refusal:
            check(program, verdict, n, BUCKET)


def test_table_is_large_enough() -> None:
    """So that no kind of program is lost when cases are moved about."""
    assert len(PROGRAMS) >= 200
    assert sum(program.refused is None for program in PROGRAMS.values()) >= 100


def test_an_operation_may_write_to_tensors_of_its_own() -> None:
    """Torch takes RMSNorm apart into steps of which one writes in place, where gradients are on."""
    own, large = (Trace().run(torch.nn.RMSNorm(4), [torch.randn(n, 4)]) for n in (N, BUCKET))
    assert not rows_independent(N, BUCKET, own, large).needs_last


def dynamo_graph(step: Any, *args: torch.Tensor) -> tuple[torch.fx.GraphModule, list[Any]]:
    """What Dynamo gives a backend for a call whose arguments have a dynamic first dim."""
    found: list[Any] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        found.extend((graph, [each.node.hint if isinstance(each, torch.SymInt) else each for each in inputs]))
        return graph

    torch._dynamo.reset()
    for arg in args:
        torch._dynamo.mark_dynamic(arg, 0)
    with torch.no_grad():
        torch.compile(step, backend=backend)(*args)
    return tuple(found)  # type: ignore[return-value]


def of_dynamo(step: Any) -> Verdict:
    """The verdict on the graphs that Dynamo makes at both sizes."""
    (graph, own), (other, large) = (dynamo_graph(step, torch.randn(n, 4)) for n in (N, BUCKET))
    return rows(graph, own, large, of=other)


def test_a_graph_of_dynamo_is_refused_with_its_source_line() -> None:
    """The sentence names the operation and the line that the user wrote."""

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return y - y.mean(0)

    said = of_dynamo(step).refusal
    assert said.startswith("n is not padded: aten::mean (") and "test_row_independence.py:" in said


def test_a_graph_of_dynamo_writes_to_a_buffer() -> None:
    """A write to a tensor of the module is judged; one call's graph holds it as an argument."""
    norm = torch.nn.BatchNorm1d(4)
    assert of_dynamo(norm.train()).refusal
    assert not of_dynamo(norm.eval()).refusal


def of(step: Any, n: int = N, bucket: int = BUCKET) -> Verdict:
    """The verdict on a function of one tensor."""
    return rows(step, [torch.randn(n, 4)], [torch.randn(bucket, 4)], n, bucket)


def test_a_function_that_writes_rows_to_memory_of_its_own_is_refused() -> None:
    """Its tensor is no argument, and the judgement leaves it alone."""
    total, calls = torch.zeros(4), torch.zeros(())

    def step(x: torch.Tensor) -> torch.Tensor:
        calls.add_(1)
        total.add_(x.sum(0))
        return x

    assert of(step).refusal
    assert not total.any() and not calls.any()


def test_graphs_with_their_sizes_fixed_are_different_programs() -> None:
    """A size that was made a number is another one in the graph of the bucket."""
    own, large = (make_fx(lambda x: x * x.shape[0])(torch.randn(n, 4)) for n in (N, BUCKET))
    verdict = rows(own, [torch.randn(N, 4)], [torch.randn(BUCKET, 4)], of=large)
    assert verdict.refusal and "mul" in verdict.op


@pytest.mark.parametrize(
    ("step", "is_padded"),
    (
        (lambda x: x * 2, True),
        (lambda x: x.sum(0) if x.shape[0] % 8 == 0 else x * 2, False),
        (lambda x: x * 3 if x.shape[0] > 6 else x * 2, False),
        (lambda x: x * 2 if x.shape[0] > 4 else x.sum(0), True),
        (lambda x: x * torch.tensor(x.shape[0]), False),
        (lambda x: x * 2 if x.shape[0] > 6 else x.t().reshape(-1).view(4, -1).t() * 2, False),
    ),
)
def test_a_function_that_is_another_at_the_buckets_size_is_refused(step: Any, is_padded: bool) -> None:
    """Both sizes do the same, whatever another size would do."""
    verdict = of(step)
    assert bool(verdict.refusal) is not is_padded, verdict


def test_a_write_through_what_is_a_view_at_one_size_alone_is_refused() -> None:
    """One transposed row is contiguous: there a reshaped tensor shares memory with its argument."""
    for n in (1, 2):
        verdict = of(lambda x: x.view(-1, 2, 2).transpose(0, 1).reshape(2, -1).add_(1), n)
        assert bool(verdict.refusal) is (n == 1), verdict


def test_the_kernel_of_a_convolution_is_no_other_program() -> None:
    """Torch chooses it by the number of rows."""
    conv = torch.nn.Conv2d(4, 8, 3)
    assert not rows(conv, [torch.randn(N, 4, 8, 8)], [torch.randn(32, 4, 8, 8)], N, 32).refusal


def test_dims_are_judged_apart() -> None:
    """A mean over the one does not keep the other from being padded; results are cut in both."""
    for step, refused in ((lambda x: x.mean(1), (False, True)), (lambda x: x.transpose(0, 1) * 2, (False, False))):
        for larger, n, bucket, is_refused in (((8, 5), 3, 8, refused[0]), ((3, 8), 5, 8, refused[1])):
            verdict = rows(step, [torch.randn(3, 5, 4)], [torch.randn(*larger, 4)], n, bucket)
            assert bool(verdict.refusal) is is_refused, verdict


def test_an_operation_without_a_rule_names_itself() -> None:
    """Nothing is guessed of operations that no table knows."""
    verdict = of(lambda x: torch.linalg.qr(x.T)[0])
    assert verdict.refusal and "linalg_qr" in verdict.refusal
