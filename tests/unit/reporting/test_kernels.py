"""`gfxgraph bench kernels`: how it measures and what it prints, on a CPU; the figures need a GPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from click.testing import CliRunner  # noqa: E402

from gfxgraph.kernels import launching, trial  # noqa: E402
from gfxgraph.reporting import kernels  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def composed(monkeypatch):
    """Composed of torch's own operations, and nothing compiled."""
    monkeypatch.setattr(launching, "has_triton", lambda: False)
    monkeypatch.setattr(torch, "compile", lambda fn, **kwargs: fn)


def test_every_case_is_the_same_operation_in_every_way():
    """Eager, compiled and ours give the same numbers for every operation."""
    for case in kernels.cases(rows=(2,), widths=(256,)):
        result = kernels.measure(case, 1, CPU, torch.float32, 10.0)
        assert [way.error for way in result.ways] == ["", "", ""], case.name
        assert all(distance < 1e-4 for distance in result.error.values()), (case.name, result.error)


def test_figures(monkeypatch):
    """A speed-up is over the best peer, by pairs; the share is of what a copy moves."""
    times = iter([8.0, 4.0, 2.0] * 6)
    monkeypatch.setattr(trial, "timer", lambda way, device, n_calls=1: lambda: next(times))
    case = kernels.KernelCase("a case", 8000, lambda *given: {"eager": _one, "compiled": _one, "gfxgraph": _one})
    row = kernels.measure(case, 6, CPU, torch.float32, 10.0).as_dict()
    assert row["best_peer"] == "compiled" and row["speedup"] == 2.0 and row["interval"] == [2.0, 2.0]
    assert row["of_copy"] == pytest.approx(8000 / 2e-6 / 1e9 / 10.0)
    text = kernels.table([row])
    assert "2.00x" in text and "40%" in text


def test_a_way_that_fails_takes_no_other_with_it():
    """Its reason is in the result."""
    case = kernels.KernelCase("a case", 8, lambda *given: {"eager": _one, "liger": _broken, "gfxgraph": _one})
    row = kernels.measure(case, 2, CPU, torch.float32, 0.0).as_dict()
    assert [way["error"] for way in row["ways"]] == ["", "RuntimeError: not on this device", ""]
    assert "not on this device" in kernels.table([row]) and row["of_copy"] is None


def _one(index):
    return torch.ones(3)


def _broken(index):
    raise RuntimeError("not on this device")


@pytest.mark.parametrize(
    "args, said",
    [
        (["kernels", "--simulate"], "the simulator runs no kernels"),
        (["kernels", "--compile-only"], "there is no module triton"),
    ],
)
def test_what_cannot_be_measured(args, said):
    """The command says why, and ends with 2."""
    import gfxgraph
    from gfxgraph.cli.bench import command

    try:
        made = CliRunner().invoke(command, args)
    finally:
        gfxgraph.disable()
    assert made.exit_code == 2 and said in made.output
