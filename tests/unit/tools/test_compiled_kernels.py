"""What the kernels compile to for AMD GPUs: the committed table, and, where Triton is, the same again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from tests.unit.gfxgraph_kernels.conftest import HAS_TRITON  # noqa: E402

from gfxgraph.hardware.architectures import architecture  # noqa: E402
from gfxgraph_kernels import shapes  # noqa: E402

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "tools"))
import compiled_kernels  # noqa: E402

TABLE = json.loads((ROOT / "benchmarks" / "results" / "kernels_code_objects.json").read_text(encoding="utf-8"))
ROWS = TABLE["rows"]


def test_the_table_is_of_these_sources():
    """Kernels and sizes are those that were compiled; else run tools/make_kernel_table.py."""
    assert TABLE["sources"] == compiled_kernels.source_digest()
    assert TABLE["ran_on_hardware"] is False


def test_every_case_on_every_target():
    """Eight targets, three dtypes, every case, every kernel."""
    assert set(TABLE["compute_units"]) == set(compiled_kernels.TARGETS)
    wanted = {
        (t, c.name, d)
        for t in compiled_kernels.TARGETS
        for c in compiled_kernels.CASES
        for d in compiled_kernels.DTYPES
    }
    assert {(row["target"], row["case"], row["dtype"]) for row in ROWS} == wanted
    kernels = {row["kernel"] for row in ROWS}
    assert {"norm_forward", "rotary_angles", "linear_vector", "linear_three", "linear_tiled", "linear_finish",
            "attention_parts", "attention_finish", "choice_parts", "choice_finish"} == kernels  # fmt: skip


@pytest.mark.parametrize("target", compiled_kernels.TARGETS)
def test_nothing_spills_and_all_fits(target):
    """No spilled register, no scratch, LDS within the workgroup's; wave32 on RDNA, wave64 on GCN and CDNA."""
    known = architecture(target)
    assert known is not None
    for row in (row for row in ROWS if row["target"] == target):
        assert not (row["vgpr_spills"] or row["sgpr_spills"] or row["scratch_nbytes"]), row
        assert row["lds_nbytes"] <= compiled_kernels.lds_limit(target), row
        assert row["wavefront"] == (32 if known.family.startswith("RDNA") else 64), row
        assert row["num_warps"] * row["wavefront"] <= 1024, row


def test_the_limits_would_be_noticed():
    """LDS beyond 64 KiB is allowed on gfx950 alone."""
    assert (
        compiled_kernels.lds_limit("gfx950")
        > compiled_kernels.lds_limit("gfx942")
        == compiled_kernels.lds_limit("gfx1030")
        == 65536
    )


def test_what_a_target_launches():
    """Sizes follow the architecture: dot by matrix instructions only where there are some."""
    targets = {name: shapes.target_of(name) for name in compiled_kernels.TARGETS}
    dots = {name: shapes.attention(8, 32, 8, 4096, 128, target).is_dot for name, target in targets.items()}
    assert dots == {name: name in ("gfx90a", "gfx942", "gfx950") for name in targets}
    taken = {name: target.has_bf16_dot for name, target in targets.items()}
    assert taken == {name: name not in ("gfx906", "gfx1030") for name in targets}


def test_inputs_are_split_where_outputs_are_few():
    """A projection to 512 outputs on 304 units is split; a vocabulary is not, and no split is empty."""
    target = shapes.target_of("gfx942", 304)
    assert shapes.linear(1, 512, 8192, target).splits > 1
    assert shapes.linear(1, 128256, 2048, target).splits == 1
    for m in (1, 4, 8, 32):
        for k in (64, 1000, 8192):
            how = shapes.linear(m, 256, k, target)
            assert how.splits == 1 or how.splits * how.block_k <= k


AGAIN = f"""
import json, sys
sys.path.append({str(ROOT / "tools")!r})
import compiled_kernels as objects
cases = tuple(case for case in objects.CASES if case.name in ("norm and gate, 1 x 2048 to 8192", "greedy, 128256"))
targets, dtypes = dict(gfx1100=objects.TARGETS["gfx1100"]), dict(fp16=objects.DTYPES["fp16"])
print(json.dumps(list(objects.rows(targets, dtypes, cases))))
"""


@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
def test_made_again():
    """Triton at hand compiles the same cases without spilling; Triton of the table to the same numbers."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    made = subprocess.run([sys.executable, "-c", AGAIN], env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr[-2000:]
    rows = json.loads(made.stdout)
    assert [row["kernel"] for row in rows] == ["linear_vector", "choice_parts", "choice_finish"]
    assert not any(row["vgpr_spills"] + row["sgpr_spills"] + row["scratch_nbytes"] for row in rows)
    from importlib.metadata import version

    if version("triton") == TABLE["triton"]:
        # code_nbytes holds the paths of the sources
        plain = [{key: value for key, value in row.items() if key != "code_nbytes"} for row in ROWS]
        for row in rows:
            assert {key: value for key, value in row.items() if key != "code_nbytes"} in plain
