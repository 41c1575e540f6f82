"""The strategy, the order of the edits, the document for porting agents and its gate; training in `verify`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("tree_sitter_cuda", reason="the port extra is not installed: pip install '.[port]'")

from gfxgraph.cli.port import command
from gfxgraph.port.audit import audit
from gfxgraph.port.facts import gather
from gfxgraph.port.impact import Impact, impact_of
from gfxgraph.port.project import discover
from gfxgraph.port.strategy import PortingRoute, choose, stages
from tests.unit.port.conftest import write

CPP = "#include <cuda_runtime.h>\nvoid f() { cudaMalloc(&p, 3); }\n"
KERNEL = "__global__ void k(float* o) { o[0] = __shfl_xor_sync(0xffffffff, o[0], 1); }\n"
SETUP = "from torch.utils.cpp_extension import CUDAExtension\nCUDAExtension('m', ['k.cu'])\n"
PTX = '__global__ void p() { asm volatile("cp.async.wait_all;"); }\n'


@pytest.mark.parametrize(
    ("files", "way"),
    [
        ({"a.cpp": CPP, "k.cu": KERNEL, "CMakeLists.txt": "project(x LANGUAGES CXX CUDA)\n"}, PortingRoute.HEADER),
        ({"setup.py": SETUP, "k.cu": KERNEL}, PortingRoute.HIPIFY),
        ({"k.cu": KERNEL, "Makefile": "hip:\n\thipcc k.cu\n"}, PortingRoute.EXISTING),
        ({"a.cu": PTX, "b.cu": PTX, "setup.py": SETUP}, PortingRoute.DUAL),
        ({"m.py": "import triton\n\nC = triton.Config({}, num_warps=32)\n"}, PortingRoute.TRITON),
        ({"m.py": "import torch\n"}, PortingRoute.NONE),
    ],
)
def test_the_way_follows_from_the_repository(tmp_path: Path, files: dict[str, str], way: PortingRoute) -> None:
    """What builds the sources, and how much has no counterpart, decides; the reasons say so in both languages."""
    write(tmp_path, files)
    project = discover(str(tmp_path))
    gather(project)
    chosen = choose(audit(str(tmp_path), jobs=1), project)
    assert chosen.way is way
    assert chosen.reasons and all(en and zh and en != zh for en, zh in chosen.reasons)


def test_stages_hold_every_finding_once(tmp_path: Path) -> None:
    """Packages, build, what stops, what is silently wrong, what is slow, names."""
    text = "import torch\n\ntorch.backends.cuda.matmul.allow_tf32 = True\n"
    files = {"a.cpp": CPP, "k.cu": KERNEL + PTX, "CMakeLists.txt": "project(x LANGUAGES CXX CUDA)\n", "m.py": text}
    write(tmp_path, files)
    findings = audit(str(tmp_path), jobs=1).findings
    made = stages(findings)
    assert sum(s.count for s in made) == len(findings)
    assert set(made[0].codes) == {"inline-ptx", "no-amd-build"}
    plan = CliRunner().invoke(command, ["plan", str(tmp_path)]).output
    assert "what stops the compiler" in plan


def test_the_impact_is_the_rules() -> None:
    """What a finding does to a port is stated by its rule."""
    assert impact_of("inline-ptx") is Impact.BREAKS and impact_of("warp-size-32") is Impact.SILENT


def test_agent_document_and_gate(tmp_path: Path) -> None:
    """The document ranks findings; the gate passes when nothing that breaks is left but what is accepted."""
    root = tmp_path / "repo"
    gate = "import torch\n\ncap = torch.cuda.get_device_capability()\nassert cap >= (9, 0)\nold = cap < (9, 0)\n"
    write(root, {"m.py": gate, "a.cpp": CPP})
    cli, saved = CliRunner(), tmp_path / "port.json"
    done = cli.invoke(command, ["agent", str(root), "--json"])
    data = json.loads(done.output)
    assert done.exit_code == 0
    assert [w["impact"] for w in data["work"]] == ["breaks", "silent"]
    saved.write_text(done.output)
    assert cli.invoke(command, ["agent", str(root), "--gate", str(saved)]).exit_code == 1
    cli.invoke(command, ["fix", str(root), "--unsafe", "--apply"])
    half = json.loads(cli.invoke(command, ["agent", str(root), "--gate", str(saved)]).output)
    assert not half["passed"] and [f["lines"] for f in half["left"]] == [[3, 5]] and not half["new"]
    data["gate"]["accepted"] = {half["left"][0]["fingerprint"]: "no AMD GPU is older"}
    saved.write_text(json.dumps(data))
    passed = cli.invoke(command, ["agent", str(root), "--gate", str(saved)])
    assert passed.exit_code == 0 and json.loads(passed.output)["accepted"] == 1
    (root / "new.cu").write_text("__device__ int lane = threadIdx.x & 31; // __shfl\n#include <mma.h>\n")
    assert json.loads(cli.invoke(command, ["agent", str(root), "--gate", str(saved)]).output)["new"]
    for wrong in ({}, {**data, "work": [None]}, {**data, "work": [{}]}, {**data, "gate": None}):
        saved.write_text(json.dumps(wrong))
        refused = cli.invoke(command, ["agent", str(root), "--gate", str(saved)])
        assert refused.exit_code == 2 and "not a document of" in refused.output + str(refused.exception)


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
    from gfxgraph.rocm import golden

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
    from gfxgraph.rocm import golden

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
