"""A corpus of hostile repositories: nothing outside is written, nothing of theirs runs, an answer always comes."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from gfxgraph.cli.port import command
from gfxgraph_port import budget, project
from gfxgraph_port.audit import AuditError, audit
from gfxgraph_port.bounded import bound
from gfxgraph_port.files import UnsafePathError, printable, read_inside, write_inside, write_out
from tests.unit.gfxgraph_port.conftest import Run, codes, write

FIXABLE = "import torch\n\nok = torch.cuda.get_device_capability()[0] >= 9\n"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "precious").write_text("keep")
    (folder / "m.py").write_text(FIXABLE)
    return folder


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir()
    return folder


def git(root: Path, *arguments: str) -> None:
    name = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    subprocess.run(["git", "-C", str(root), *name, *arguments], check=True, capture_output=True)


def untouched(outside: Path) -> bool:
    return (outside / "precious").read_text() == "keep" and (outside / "m.py").read_text() == FIXABLE


# -- nothing outside the tree is written -----------------------------------------------------------


def test_apply_follows_no_planted_temporary(tree: Path, outside: Path) -> None:
    """``fix --apply`` edits the file itself, whatever stands where a temporary file might."""
    (tree / "inner.py").write_text(FIXABLE)
    for name in ("inner.py.gfxport.tmp", "inner.py.tmp", ".inner.py.tmp"):
        (tree / name).symlink_to(outside / "precious")
    result = CliRunner().invoke(command, ["fix", str(tree), "--unsafe", "--apply"])
    assert result.exit_code == 0, result.output
    assert untouched(outside) and not (tree / "inner.py").is_symlink()
    assert "torch.version.hip" in (tree / "inner.py").read_text()


def test_folder_links_are_not_followed(tree: Path, outside: Path) -> None:
    """Neither the audit nor ``fix`` goes through a link to a folder outside, and the report names it."""
    (tree / "linked").symlink_to(outside)
    (tree / "m.py").symlink_to(outside / "m.py")
    report = audit(str(tree), jobs=1)
    assert not report.findings
    assert {(s.path, s.reason) for s in report.skipped} >= {("linked", "link")}
    CliRunner().invoke(command, ["fix", str(tree), "--unsafe", "--apply"])
    assert untouched(outside)


@pytest.mark.parametrize("name", ["out", "out.tmp"])
def test_outputs_follow_no_link(tree: Path, outside: Path, name: str) -> None:
    """A patch whose place a link holds is refused or replaces the link; never followed."""
    (tree / "inner.py").write_text(FIXABLE)
    (tree / name).symlink_to(outside / "precious")
    CliRunner().invoke(command, ["fix", str(tree), "--unsafe", "--output", str(tree / "out")])
    assert untouched(outside)


def test_output_through_a_folder_link(tree: Path, outside: Path) -> None:
    """A file named below the tree is not written through a link of the tree."""
    (tree / "build").symlink_to(outside)
    with pytest.raises(UnsafePathError):
        write_out(str(tree / "build" / "b.json"), "{}", tree=str(tree))
    assert not (outside / "b.json").exists()


def test_a_file_swapped_for_a_link(tree: Path, outside: Path) -> None:
    """A file that became a link after it was read is refused."""
    (tree / "a.py").symlink_to(outside / "m.py")
    with pytest.raises(UnsafePathError):
        write_inside(str(tree), "a.py", b"x")
    with pytest.raises(UnsafePathError):
        read_inside(str(tree), "a.py", 100)
    for bad in ("../outside/m.py", "/etc/hostname", "a/../b", ""):
        with pytest.raises(UnsafePathError):
            write_inside(str(tree), bad, b"x")
    assert untouched(outside)


def test_write_keeps_the_mode(tree: Path) -> None:
    """An edited script stays executable, and nothing is left beside it."""
    script = tree / "run.py"
    script.write_text("old")
    script.chmod(0o750)
    write_inside(str(tree), "run.py", b"new")
    assert script.read_text() == "new" and script.stat().st_mode & 0o7777 == 0o750
    assert os.listdir(tree) == ["run.py"]


# -- nothing of the repository runs ----------------------------------------------------------------


def test_diff_runs_nothing(tree: Path, outside: Path) -> None:
    """``audit --diff`` runs no monitor, converter, filter, hook or helper that the repository configures."""
    git(tree, "init", "-q")
    (tree / "a.py").write_text("import torch\n")
    (tree / ".gitattributes").write_text("*.py diff=evil filter=evil\n")
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "first")
    (tree / "a.py").write_text("import torch\nassert torch.cuda.get_device_capability()[0] >= 9\n")
    keys = [
        "core.fsmonitor", "diff.evil.textconv", "diff.evil.command", "filter.evil.clean", "filter.evil.process",
        "core.sshCommand", "core.pager", "diff.external", "core.alternateRefsCommand", "remote.o.uploadpack",
    ]  # fmt: skip
    for key in keys:
        git(tree, "config", key, f"sh -c 'touch {outside}/ran-{key}; cat'")
    git(tree, "config", "remote.o.promisor", "true")
    git(tree, "config", "remote.o.url", str(tree))
    report = audit(str(tree), jobs=1, diff="HEAD")
    assert codes(report) == ["capability-gate"]
    assert sorted(os.listdir(outside)) == ["m.py", "precious"]


@pytest.mark.parametrize("revision", ["--output=x", "-S", "--", "HEAD:a.py", "nosuch", "a\nb", ""])
def test_diff_takes_revisions_only(tree: Path, revision: str) -> None:
    """What is no commit is refused, options above all."""
    git(tree, "init", "-q")
    (tree / "a.py").write_text("import torch\n")
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "first")
    with pytest.raises(AuditError, match="revision"):
        audit(str(tree), jobs=1, diff=revision)
    assert sorted(os.listdir(tree)) == [".git", "a.py"]


def test_diff_below_the_root_and_with_other_line_ends(tree: Path) -> None:
    """In a folder of a repository only the changed lines count, even if the checkout changed the line ends."""
    git(tree, "init", "-q")
    (tree / "pkg").mkdir()
    old = "import torch\nassert torch.cuda.get_device_capability()[0] >= 9\n"
    (tree / "pkg" / "a.py").write_text(old)
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "first")
    new = old + "assert torch.cuda.get_device_capability()[0] >= 9\n"
    (tree / "pkg" / "a.py").write_bytes(new.replace("\n", "\r\n").encode())
    assert [f.line for f in audit(str(tree / "pkg"), jobs=1, diff="HEAD").findings] == [3]


# -- an answer always comes ------------------------------------------------------------------------

SHUFFLE = "__shfl_sync(0xffffffff, v, 0);\n"
DEEP = {
    "conditionals": ("a.cu", "#if X\n" * 50_000 + SHUFFLE + "#endif\n" * 50_000, "too deep"),
    "arms": ("a.cu", "#if A\n" + "#elif B\n" * 50_000 + SHUFFLE + "#endif\n", "too deep"),
    "calls": ("a.cu", "__shfl_sync(" * 50_000 + ")" * 50_000 + ";\n", "^$"),
    "python calls": ("a.py", "import torch\n" + "f(" * 50_000 + ")" * 50_000 + "\n", "syntax|too deep"),
    "python sum": ("a.py", "import torch\nx = " + "+".join(["1"] * 50_000) + "\n", "too deep|^$"),
    "attributes": ("a.py", "import torch\nx = a" + ".b" * 50_000 + "\n", "too deep|^$"),
    "raw strings": ("a.cu", 'R"(' * 100_000 + "cuda", "^$"),
    "empty notebook": ("a.py", b"\xff\xfe\x00", "not valid|binary"),
}


@pytest.mark.parametrize("name", DEEP)
def test_deep_input_is_reported(run: Run, name: str) -> None:
    """What nests without end is a line in the report, and the file beside it is audited."""
    path, text, reason = DEEP[name]
    beside = {"beside.py": FIXABLE, "a" * 63 + ".py": FIXABLE}
    report = run({path: text, **beside})
    assert {f.path for f in report.findings if f.code == "capability-gate"} >= set(beside)
    reasons = " ".join(s.reason for s in report.skipped if s.path == path)
    assert re.search(reason, reasons), reasons


def test_special_files_names_and_circles(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipes, names that are not UTF-8 and links in circles are named and passed over."""
    monkeypatch.setitem(project.own_git.__kwdefaults__, "timeout_s", 0.5)  # git waits for the pipe's writer
    os.mkfifo(tree / "pipe.py")
    os.mkfifo(tree / ".gitignore")
    (tree / "round").symlink_to(".")
    (tree / "nowhere").symlink_to("nowhere")
    with open(os.fsencode(tree) + b"/\xff\xfe.py", "w") as odd:
        odd.write(FIXABLE)
    (tree / "esc\x1b]52;c;aGk=\x07.py").write_text(FIXABLE)
    (tree / "good.py").write_text(FIXABLE + "x = 1  # \x1b]0;title\x07\n")
    result = CliRunner().invoke(command, ["audit", str(tree)])
    assert result.exit_code == 1 and "good.py" in result.output
    assert "\x1b" not in result.output and "\x07" not in result.output
    reasons = {s.reason for s in audit(str(tree), jobs=1).skipped}
    assert reasons >= {"special", "name", "link"}


def test_evidence_is_printable(run: Run) -> None:
    """Control characters of a source line reach no terminal."""
    (found,) = run({"a.py": FIXABLE.replace(">= 9", ">= 9  # \x1b[2J\u202e")}).findings
    assert found.evidence.endswith(r"# \x1b[2J\u202e")
    assert printable("plain, \u00e9 \u4e2d") == "plain, \u00e9 \u4e2d"


def test_a_slow_file_is_stopped(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that takes too much processor time is reported, and the next one audited."""
    from gfxgraph_port import engine
    from gfxgraph_port.budget import processor_time

    real = engine._audit_text

    def slow(result, context, kind, text, archs):  # type: ignore[no-untyped-def]
        if result.path == "slow.py":
            while True:
                try:
                    sum(range(1000))
                except Exception:  # noqa: BLE001, S110 - what the bound must get through
                    pass
        real(result, context, kind, text, archs)

    monkeypatch.setattr(engine, "_audit_text", slow)
    monkeypatch.setattr(engine, "processor_time", lambda: processor_time(0.2))
    report = run({"slow.py": "import torch\n", "good.py": FIXABLE})
    assert codes(report) == ["capability-gate"]
    assert [(s.path, s.reason) for s in report.skipped] == [("slow.py", "too slow")]


def test_the_bound_gives_the_timer_back() -> None:
    """The timer and the handler of the host program are as they were."""
    import signal

    before = signal.getsignal(signal.SIGVTALRM)
    with budget.processor_time(5):
        assert signal.getitimer(signal.ITIMER_VIRTUAL)[0] > 0
    assert signal.getsignal(signal.SIGVTALRM) is before
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


def test_repetitions_are_bounded() -> None:
    """No repetition of a rule's expression is endless, unless nothing can follow it."""
    assert bound(r"\w*x[^;]+y") == r"\w{0,48}x[^;]{1,160}y"
    assert bound(r"a{2,}b(?:c|d)*e") == r"a{2,160}b(?:c|d){0,48}e"
    assert bound(r"#.*$") == r"#.*$"
    assert bound(r"[*+]\*\+") == r"[*+]\*\+"


def test_settings_of_the_tree_do_not_reach_git(tmp_path: Path) -> None:
    """A pipe in the settings makes nobody wait, a worktree elsewhere lists nothing else, a broken index is said."""
    write(tmp_path / "r", {".gitignore": "*.gen.py\n", "a.py": FIXABLE, "x.gen.py": FIXABLE})
    subprocess.run(["git", "init", "-q", str(tmp_path / "r")], check=True)
    os.mkfifo(tmp_path / "pipe")
    with open(tmp_path / "r/.git/config", "a") as config:
        config.write(f"[include]\n\tpath = {tmp_path}/pipe\n[core]\n\tworktree = /\n")
    assert [f.path for f in audit(str(tmp_path / "r"), jobs=1).findings] == ["a.py"]
    (tmp_path / "r/.git/index").write_bytes(b"DIRC" + b"\xff" * 90)
    report = audit(str(tmp_path / "r"), jobs=1)
    assert [f.path for f in report.findings] == ["a.py"] and [s.path for s in report.skipped] == [".git/index"]


def test_depth_and_dotted_keys_are_counted_first(run: Run) -> None:
    """Before a parser or the walk works on them: a key of thousands of parts, folders without end."""
    deep = "/".join(["d"] * 90)
    report = run({"pyproject.toml": ".".join(["a"] * 30_000) + " = 1\n", f"{deep}/a.py": FIXABLE, "b.py": FIXABLE})
    assert [f.path for f in report.findings] == ["b.py"]
    said = {s.reason: s.detail for s in report.skipped}
    assert "over 64 parts" in said["syntax"] and "64 folders" in said["too deep"]


def test_conditionals_of_recipes_are_counted(run: Run) -> None:
    """A recipe nested beyond what people read is named with the figure, and costs neither memory nor time."""
    files = {
        "Makefile": "ifdef A\n" * 30_000 + "\thipcc --offload-arch=gfx90a\n" * 30_000,
        "CMakeLists.txt": "if(" * 20_000,
    }
    report = run({**files, "pyproject.toml": "a = " + "[" * 30_000})
    said = {s.path: s.detail for s in report.skipped}
    assert said["Makefile"] == "line 65: more than 64 conditionals within each other"
    assert said["pyproject.toml"] == "brackets nested 30000 deep, limit 64"
