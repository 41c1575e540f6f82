"""Fixes: what they write, what they refuse, and that NVIDIA's path stays."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from gfxgraph.cli.port import command
from gfxgraph_port.fix import run
from tests.unit.gfxgraph_port.conftest import write

SETUP = "from torch.utils.cpp_extension import CUDAExtension\nCUDAExtension('m', ['k.cu'])\n"
SOURCE = """import torch
import torch._inductor.config  # needed below
import triton

# a comment that must stay
net = torch.compile(net,   mode="reduce-overhead")  # odd   spacing
torch._inductor.config.triton.cudagraphs = True


def launch(k):
    k[(1,)](num_warps = 32)
"""


def fixed(tmp_path: Path, files: dict[str, str], **options: bool) -> dict[str, run.FileFix]:
    write(tmp_path, files)
    return {f.path: f for f in run.fix(str(tmp_path), **options)}


def test_safe_fixes_keep_everything_else(tmp_path: Path) -> None:
    """Each edit replaces one expression; comments, spacing and the rest stay byte for byte."""
    made = fixed(tmp_path, {"m.py": SOURCE})["m.py"]
    assert sorted(e.rule for e in made.applied) == ["GFX601", "GFX603"] and not made.refused
    assert '("default" if torch.version.hip else "reduce-overhead"))  # odd   spacing' in made.new
    assert "cudagraphs = (torch.version.hip is None and True)" in made.new
    assert "num_warps = 32" in made.new and "# a comment that must stay" in made.new
    assert len(made.old.splitlines()) == len(made.new.splitlines())


@pytest.mark.skipif(shutil.which("patch") is None, reason="patch is not installed")
def test_the_command_that_it_prints_applies_the_patch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the tree is a folder of the one that one is in."""
    write(tmp_path, {"sub/m.py": SOURCE})
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(command, ["fix", "sub"]).output
    assert subprocess.run(said.splitlines()[0].partition("then ")[2], shell=True, check=False).returncode == 0
    assert "torch.version.hip" in (tmp_path / "sub/m.py").read_text()


def test_fixes_are_idempotent(tmp_path: Path) -> None:
    """A second run finds nothing to do."""
    made = fixed(tmp_path, {"m.py": SOURCE})
    run.write_all(str(tmp_path), list(made.values()))
    again = run.fix(str(tmp_path))
    assert not any(f.applied for f in again)


def test_what_cannot_be_proved_is_refused(tmp_path: Path) -> None:
    """No torch yet: refused, with the reason."""
    files = {
        "late.py": 'import os\nos.environ["PYTORCH_CUDA_ALLOC_CONF"] = '
        '"max_split_size_mb:1,expandable_segments:True"\nimport torch\n',
    }
    made = fixed(tmp_path, files)
    assert "not imported before" in made["late.py"].refused[0].reason
    assert not any(f.applied for f in made.values())


def test_rebound_torch_is_refused_by_the_gate(tmp_path: Path) -> None:
    """Where torch is not PyTorch the gate cannot vouch for the edit."""
    text = 'import torch\ntorch = wrap(torch)\nnet = torch.compile(net, mode="reduce-overhead")\n'
    made = fixed(tmp_path, {"m.py": text})["m.py"]
    assert made.new == made.old and "torch is not imported" in made.refused[0].reason


def test_unsafe_fixes_pass_the_gate_too(tmp_path: Path) -> None:
    """Suggested edits come on request; those that change NVIDIA's path are refused all the same."""
    files = {
        "gate.py": "import torch\nfast = torch.cuda.get_device_capability() >= (9, 0)\n",
        "host.h": "#ifdef __CUDACC__\n#define HD __host__ __device__\n#endif\n",
    }
    assert fixed(tmp_path, files).keys() == {"host.h"}
    made = fixed(tmp_path, files, unsafe=True)
    assert "(torch.version.hip is None and torch.cuda.get_device_capability() >= (9, 0))" in made["gate.py"].new
    assert "#if defined(__CUDACC__) || defined(__HIPCC__)" in made["host.h"].new


def test_patch_is_written_and_applies(tmp_path: Path) -> None:
    """By default the sources stay and a patch appears, which git applies."""
    write(tmp_path, {"m.py": SOURCE})
    patch = tmp_path / "p.patch"
    done = CliRunner().invoke(command, ["fix", str(tmp_path), "--output", str(patch)])
    assert done.exit_code == 0 and (tmp_path / "m.py").read_text() == SOURCE
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "apply", str(patch)], cwd=tmp_path, check=True)
    assert "torch.version.hip" in (tmp_path / "m.py").read_text()
    patch.unlink()
    assert CliRunner().invoke(command, ["fix", str(tmp_path), "--dry-run"]).exit_code == 0
    assert not patch.exists()


def test_interruption_undoes_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If writing is interrupted at the second file, the first has its old text again and none is left over."""
    made = fixed(tmp_path, {"a.py": SOURCE, "b.py": SOURCE})
    real = run.write_inside

    def interrupted(root: str, path: str, data: bytes, **options: bool) -> None:
        if path == "b.py":
            raise KeyboardInterrupt
        real(root, path, data, **options)

    monkeypatch.setattr(run, "write_inside", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.write_all(str(tmp_path), list(made.values()))
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a.py": SOURCE, "b.py": SOURCE}


def test_what_is_edited_meanwhile_is_not_written(tmp_path: Path) -> None:
    """A file that changed since it was read stays as it is, when edits are written and when they are put back."""
    made = list(fixed(tmp_path, {"a.py": SOURCE, "b.py": SOURCE}).values())
    (tmp_path / "b.py").write_text("mine\n")
    with pytest.raises(OSError, match="changed since"):
        run.write_all(str(tmp_path), made)
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a.py": SOURCE, "b.py": "mine\n"}
    (tmp_path / "b.py").write_text(SOURCE)
    run.write_all(str(tmp_path), made)
    (tmp_path / "a.py").write_text("mine\n")
    assert run.restore(str(tmp_path), made) == ["a.py"]
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a.py": "mine\n", "b.py": SOURCE}


def test_no_right_of_another_user_moves_to_a_file_of_this_one(tmp_path: Path) -> None:
    """The new file belongs to whoever writes it: setuid and setgid do not go along."""
    write(tmp_path, {"a.py": SOURCE})
    (tmp_path / "a.py").chmod(0o6755)
    run.write_all(str(tmp_path), run.fix(str(tmp_path)))
    assert (tmp_path / "a.py").stat().st_mode & 0o7777 == 0o755
