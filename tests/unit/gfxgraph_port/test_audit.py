"""The audit as a whole: odd input, ignores, diffs, outputs, exit status."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from gfxgraph.cli.port import command
from gfxgraph_port import render
from gfxgraph_port.audit import AuditError, audit
from gfxgraph_port.registry import load
from tests.unit.gfxgraph_port.conftest import Run, codes, write

BAD = 'import torch\n\ng = torch.compile(f, mode="reduce-overhead")\n'


def test_odd_input_is_passed_over_and_named(run: Run, tmp_path: Path) -> None:
    """Syntax errors, binary files, other encodings and huge files never stop an audit, and are reported."""
    report = run(
        {
            "good.py": BAD,
            "broken.py": "import torch\ndef f(:\n",
            "binary.py": b"\x00\x01\x02" * 50,
            "gbk.py": "# -*- coding: gbk -*-\n# 中文\n".encode("gbk") + BAD.encode(),
            "latin.cu": b'// caf\xe9\n__device__ void f() { asm("trap;"); }\n',
            "utf16.py": BAD.encode("utf-16"),
            "deep.py": "x = " + "(" * 400 + "1" + ")" * 400 + "\n",
            "huge.cu": b"int x;\n" * 400_000,
            "generated.py": b"x = 1\n" * 9_000_000,
            "open.cu": "#if FOO\n#else\n__device__ void f( {\n",
            "bad.toml": "[",
            "pyproject.toml": "[project\n",
        }
    )
    found = {f.path for f in report.findings}
    assert {"good.py", "gbk.py", "latin.cu", "utf16.py"} <= found
    reasons = {s.path: s.reason for s in report.skipped}
    assert reasons["broken.py"] == "syntax" and reasons["binary.py"] == "binary"
    assert reasons["huge.cu"] == reasons["generated.py"] == "too large"
    assert reasons["latin.cu"] == "encoding"
    assert reasons["pyproject.toml"] == "syntax"
    assert not any(s.reason == "rule failed" for s in report.skipped)


def test_links_do_not_loop(tmp_path: Path) -> None:
    """A folder that links to its own parent is walked once."""
    write(tmp_path, {"a/m.py": BAD})
    os.symlink(tmp_path, tmp_path / "a" / "again")
    os.symlink(tmp_path / "nowhere", tmp_path / "gone")
    report = audit(str(tmp_path), jobs=1)
    assert [f.path for f in report.findings] == ["a/m.py"]
    assert {s.path for s in report.skipped if s.reason == "link"} == {"a/again", "gone"}


def test_gitignore_is_honoured(run: Run) -> None:
    """Ignored files are not audited; nested rules and exceptions count."""
    report = run({".gitignore": "build/\n*.gen.py\n", "build/m.py": BAD, "x.gen.py": BAD, "m.py": BAD})
    assert [f.path for f in report.findings] == ["m.py"]


def test_inline_ignores_need_a_reason(run: Run) -> None:
    """An ignore with a reason hides a finding; one without does not, and is named."""
    line = BAD.splitlines()[2]
    report = run({"m.py": f"import torch\n{line}  # gfxport: ignore[GFX601] measured on our cards\n"})
    assert not report.findings and codes_of(report.suppressed) == ["compile-reduce-overhead"]
    report = run({"m.py": f"import torch\n# gfxport: ignore-next-line[GFX601] measured\n{line}\n"})
    assert not report.findings
    report = run({"m.py": f"import torch\n{line}  # gfxport: ignore[GFX601]\n"})
    assert codes(report) == ["compile-reduce-overhead"]
    assert any(s.reason == "ignore" for s in report.skipped)
    report = run({"m.py": f"import torch\n{line}  # gfxport: ignore[GFX101] another rule\n"})
    assert codes(report) == ["compile-reduce-overhead"]


def test_every_place_is_a_finding_of_its_own(run: Run) -> None:
    """Two uses of one thing are two findings: an ignore hides one place, and a guard is judged for each."""
    ptx = 'asm("trap;"); }'
    text = (
        f"#include <stdio.h>\nvoid a() {{ {ptx}\nvoid b() {{ {ptx}  // gfxport: ignore[GFX202] gone next week\n"
        f"#ifndef USE_ROCM\nvoid c() {{ {ptx}\n#endif\n"
    )
    report = run({"m.cpp": text})
    assert [f.line for f in report.findings] == [2] and [f.line for f in report.suppressed] == [3]
    assert [f.line for f in report.guarded] == [5]


def test_a_finding_spans_its_construct(run: Run) -> None:
    """A finding on a call over several lines ends where the call ends, never at the end of a body."""
    call = "f = torch.compile(\n    f,\n    mode=(\n        'reduce-overhead'\n    ),\n)\n"
    report = run({"m.py": "import torch\n\n" + call})
    spans = {f.code: (f.line, f.end_line) for f in report.findings}
    assert spans["compile-reduce-overhead"] == (6, 6)


def codes_of(findings: list[object]) -> list[str]:
    return [f.code for f in findings]  # type: ignore[attr-defined]


def test_diff_keeps_what_changed(tmp_path: Path) -> None:
    """--diff reports only lines changed since the revision; an unknown revision is an error."""
    write(tmp_path, {"m.py": BAD})
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *arguments], check=True)
    assert not audit(str(tmp_path), jobs=1, diff="HEAD").findings
    write(tmp_path, {"m.py": BAD + 'h = torch.compile(f2, mode="reduce-overhead")\n'})
    assert [f.line for f in audit(str(tmp_path), jobs=1, diff="HEAD").findings] == [4]
    with pytest.raises(AuditError, match="nonsense"):
        audit(str(tmp_path), jobs=1, diff="nonsense")


def test_workers_find_what_one_process_finds(tmp_path: Path) -> None:
    """Two processes report exactly what one does."""
    padding = "x = 1\n" * 12_000
    write(tmp_path, {f"m{i}.py": BAD + padding for i in range(8)})
    one, two = audit(str(tmp_path), jobs=1), audit(str(tmp_path), jobs=2)
    assert one.findings == two.findings and len(one.findings) == 8


def test_exit_status_and_languages(tmp_path: Path) -> None:
    """0 clean, 1 findings, 2 cannot run; both languages, text and JSON."""
    write(tmp_path, {"m.py": BAD})
    cli = CliRunner()
    done = cli.invoke(command, ["audit", str(tmp_path)])
    assert done.exit_code == 1 and "GFX601" in done.output and "m.py:3" in done.output
    done = cli.invoke(command, ["audit", str(tmp_path), "--lang", "zh", "--arch", "gfx1030"])
    assert done.exit_code == 1 and "阶段" in done.output
    (tmp_path / "g.py").write_text("import torch\nif torch.version.hip is None:\n    " + BAD.splitlines()[2] + "\n")
    shown = cli.invoke(command, ["audit", str(tmp_path), "--show-guarded"]).output
    assert "g.py:3" in shown and "line 2: torch.version.hip is None" in shown
    assert "g.py:3" not in cli.invoke(command, ["audit", str(tmp_path)]).output
    (tmp_path / "g.py").unlink()
    done = cli.invoke(command, ["audit", str(tmp_path), "--json"])
    rows = json.loads(done.output)["findings"]
    assert rows[0]["rule"] == "GFX601" and rows[0]["why"] and rows[0]["evidence"].startswith("g = ")
    assert cli.invoke(command, ["audit", str(tmp_path), "--exit-zero"]).exit_code == 0
    assert cli.invoke(command, ["audit", str(tmp_path / "none")]).exit_code == 2
    assert cli.invoke(command, ["audit", str(tmp_path), "--arch", "gfx9999"]).exit_code == 2
    (tmp_path / "m.py").write_text("x = 1\n")
    assert cli.invoke(command, ["audit", str(tmp_path)]).exit_code == 0


def test_report_groups_by_phase(run: Run) -> None:
    """The terminal report names phases in order and counts the findings."""
    console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    render.show(run({"m.py": BAD, "requirements.txt": "torch==2.6.0\n"}), console, lang="en", guarded=True, limit=3)
    text = console.export_text()
    assert text.index("Phase 0") < text.index("Phase 6") < text.index("2 findings")


def test_rule_pages() -> None:
    """`rules` lists every rule and `rule` explains one by id or code."""
    cli = CliRunner()
    assert cli.invoke(command, ["rules"]).output.count("\nGFX") == len(load())
    for name in ("GFX101", "capability-gate"):
        assert "get_device_capability" in cli.invoke(command, ["rule", name]).output
    assert cli.invoke(command, ["rule", "GFX999"]).exit_code == 2
