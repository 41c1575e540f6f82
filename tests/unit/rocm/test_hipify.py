"""hipify runs out of place, with torch's own translator."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from gfxgraph.cli.port import command
from tests.unit.port.conftest import no_progress, write  # noqa: F401  (of every test here)

pytest.importorskip("torch", reason="hipify comes with torch")

KERNEL = "#include <cuda_runtime.h>\nvoid f(void** p) { cudaMalloc(p, 8); }\n"


def test_sources_stay_and_a_copy_is_translated(tmp_path: Path) -> None:
    """The CUDA source keeps its bytes; the translated copy stands in the folder asked for."""
    write(tmp_path, {"src/k.cu": KERNEL, "src/m.py": "x = 1\n"})
    source, out = tmp_path / "src", tmp_path / "out"
    done = CliRunner().invoke(command, ["fix", str(source), "--output", str(tmp_path / "p"), "--hipify", str(out)])
    assert done.exit_code == 0, done.output
    assert (source / "k.cu").read_text() == KERNEL and sorted(p.name for p in source.iterdir()) == ["k.cu", "m.py"]
    translated = [p.read_text() for p in out.rglob("*") if p.is_file() and p.suffix in (".hip", ".cu")]
    assert any("hipMalloc" in text and "hip/hip_runtime.h" in text for text in translated)


def test_a_folder_inside_the_sources_is_refused(tmp_path: Path) -> None:
    """Translating into the repository would mix copies with sources."""
    write(tmp_path, {"k.cu": KERNEL})
    done = CliRunner().invoke(
        command, ["fix", str(tmp_path), "--output", str(tmp_path / "p"), "--hipify", str(tmp_path / "hip")]
    )
    assert done.exit_code == 2 and "outside" in done.output
    assert not (tmp_path / "hip").exists()
