"""What the widened rules catch, and what they leave alone."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from gfxgraph.cli.port import command
from gfxgraph_port import render
from gfxgraph_port.audit import Audit
from tests.unit.gfxgraph_port.conftest import Run, write


def lines(report: Audit, rule: str) -> list[int]:
    return sorted({n for f in report.findings if f.rule == rule for n in (f.lines or (f.line,))})


def test_each_use_of_libcudacxx_counts(run: Run) -> None:
    """libcu++ names are reported where they are used, a project's own namespace cuda is not."""
    body = "int a = cuda::std::max(1, 2);\nauto b = cuda::atomic_ref<int>{x};\nauto c = mine::cuda::run();\n"
    report = run({"a.cu": body + "auto d = cg::labeled_partition(w, 1);\nauto e = cg::tiled_partition<4>(b);\n"})
    assert lines(report, "GFX205") == [1, 2, 4]


def test_long_paths_keep_their_line(run: Run) -> None:
    """A narrow terminal shows path and line in full, and the words below."""
    path = "a_long_folder/with_another_below/and_a_file_of_a_long_name_indeed.cu"
    report = run({path: '__global__ void f() {\n  asm volatile("mov.u32 %0, %laneid;" : "=r"(x));\n}\n'})
    out = io.StringIO()
    render.show(report, Console(file=out, width=60), lang="en", guarded=False, limit=0)
    text = "".join(part.strip() for part in out.getvalue().splitlines())
    assert f"{path}:2" in text


def test_verify_says_what_the_model_does_not_take(tmp_path: Path) -> None:
    """A shape the model refuses is said in a line, with what to do, and status 2."""
    write(tmp_path, {"m.py": "from torch import nn\n\n\ndef build():\n    return nn.Linear(512, 4)\n"})
    pytest.importorskip("torch")
    arguments = ["verify", "record", f"{tmp_path}/m.py:build", "--out", str(tmp_path / "g.pt"), "--device", "cpu"]
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 2 and "4x128x2048" in done.output and "--shape" in done.output


def test_a_lock_counts_once(run: Run) -> None:
    """The NVIDIA wheels of a lock file are one finding; of a requirement list, one each."""
    lock = "".join(f'[[package]]\nname = "nvidia-{n}-cu12"\nversion = "1"\n\n' for n in ("cublas", "cufft", "nccl"))
    report = run({"poetry.lock": lock, "requirements.txt": "nvidia-cublas-cu12\nnvidia-cufft-cu12\n"})
    assert [f.path for f in report.findings if f.rule == "GFX003"].count("poetry.lock") == 1
    assert [f.lines for f in report.findings if f.rule == "GFX003" and f.path == "requirements.txt"] == [(1, 2)]


def test_many_bindings_of_one_name_are_quick(run: Run) -> None:
    """A function that binds one name again and again under its own conditions takes no time to judge."""
    step = '    if key == "a{n}" and flag != key:\n        key = key.replace("a{n}", flag)\n'
    body = "".join(step.replace("{n}", str(n)) for n in range(40))
    text = f'import torch\n\n\ndef f(key, flag):\n{body}    return torch.compile(g, mode="reduce-overhead")\n'
    started = time.process_time()
    assert lines(run({"convert.py": text}, "gfx942"), "GFX601") == [85]
    assert time.process_time() - started < 5
