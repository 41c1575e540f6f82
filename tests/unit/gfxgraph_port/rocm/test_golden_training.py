"""Impacts of the rules; golden vectors and training in `verify`."""

from __future__ import annotations

from pathlib import Path

import pytest

from gfxgraph_port.model import Impact
from gfxgraph_port.registry import impact_of


def test_the_impact_is_the_rules() -> None:
    """What a finding does to a port is stated by its rule."""
    assert impact_of("inline-ptx") is Impact.BREAKS and impact_of("warp-size-32") is Impact.SILENT


MODEL = """import torch


def build():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))


class _Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * 1.5


class Broken(torch.nn.Sequential):
    def forward(self, x):
        return super().forward(x) if not torch.is_grad_enabled() else self[2](_Wrong.apply(self[1](self[0](x))))


def broken():
    return Broken(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))


def loss(out):
    return out.abs().mean()
"""


def test_golden_vectors_are_whole_or_refused(tmp_path: Path) -> None:
    """Each part by another kind of value, in a file that is golden vectors by its schema."""
    torch = pytest.importorskip("torch")
    from gfxgraph_port.rocm import golden

    (tmp_path / "t.py").write_text(MODEL)
    made = golden.record(golden.load_target(f"{tmp_path}/t.py:build"), shapes=[(2, 8)])
    path = str(tmp_path / "golden.pt")
    golden.save(made, path)
    assert golden.load(path).keys() == made.keys()
    (case,) = made["cases"]
    wrong = [{**made, name: value} for name in made for value in (None, [None], torch.zeros(2, 2))]
    of_case = dict.fromkeys(case, (-1, "x")) | {"outputs": (3, [None]), "layers": (3, [None], [("a", 1)])}
    of_case["training"] = (-1, "x", [None], {"loss": 0, "gradients": 2}, {"loss": 0, "gradients": {"w": 1}})
    wrong += [{**made, "cases": [{**case, name: value}]} for name, values in of_case.items() for value in values]
    for each in wrong:
        golden.save(each, path)
        with pytest.raises(golden.GoldenError):
            golden.load(path)


def test_verify_compares_losses_and_gradients(tmp_path: Path) -> None:
    """A backward pass that is wrong fails a model whose outputs agree, and names the first gradient."""
    pytest.importorskip("torch")
    from gfxgraph_port.rocm import golden

    (tmp_path / "t.py").write_text(MODEL)
    made = golden.record(golden.load_target(f"{tmp_path}/t.py:build"), shapes=[(2, 8)])
    same = golden.compare(golden.load_target(f"{tmp_path}/t.py:build"), made, iterations=1)
    assert same["passed"] and same["cases"][0]["training"]["outcome"] == "passed"
    assert same["loaded"]["model"].endswith("container.py") and same["cases"][0]["first_run_s"] >= 0
    row = golden.compare(golden.load_target(f"{tmp_path}/t.py:broken"), made, iterations=1)["cases"][0]
    assert row["max_abs_error"] == 0 and not row["passed"]
    assert row["training"]["outcome"] == "failed" and row["training"]["first_gradient"] == "0.bias"
    del made["cases"][0]["training"]
    old = golden.compare(golden.load_target(f"{tmp_path}/t.py:build"), made, iterations=1)
    assert old["passed"] and old["cases"][0]["training"]["outcome"] == "skipped"
