"""One writer and one reader: nothing that stands in a folder already leads them elsewhere or makes them wait."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gfxgraph import config, files
from gfxgraph.diagnostics import derived_files
from gfxgraph.errors import GfxGraphError
from gfxgraph.hardware import advice, defect_environment

ROOT = Path(__file__).parents[2]
needs_links = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no FIFOs")
DEEP = "[" * 200_000


def test_a_file_is_written_whole(tmp_path):
    """What was there is replaced, its mode kept, and nothing is left beside it."""
    target = tmp_path / "a.json"
    files.write(target, "1")
    target.chmod(0o640)
    files.write(target, b"22", is_lasting=True)
    assert target.read_bytes() == b"22"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["a.json"]


@needs_links
def test_nothing_is_written_through_a_link(tmp_path):
    """A link in the place of a file is refused, for writing and for reading; what it points at stays as it is."""
    outside = tmp_path / "outside"
    outside.write_text("keep")
    inside = tmp_path / "inside"
    inside.mkdir()
    link = inside / "a.json"
    link.symlink_to(outside)
    for attempt in (
        lambda: files.write(link, "gone"),
        lambda: files.append(link, "gone"),
        lambda: files.create(link),
        lambda: files.read(link),
    ):
        with pytest.raises(OSError):
            attempt()
    assert outside.read_text() == "keep"


@needs_links
def test_a_pipe_is_not_waited_for(tmp_path):
    """Reading a FIFO that nobody writes to is refused at once."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        files.read(tmp_path / "pipe")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
def test_another_users_file_is_not_believed(tmp_path):
    """A file that neither this user nor root owns is refused."""
    target = tmp_path / "a.json"
    target.write_text("{}")
    os.chown(target, 12345, -1)
    with pytest.raises(OSError, match="belongs to user 12345"):
        files.read_json(target)
    assert not files.is_private(target)


@pytest.mark.parametrize(
    "content", [DEEP, '{"a":' * 100_000, "NaN", "[Infinity]", "-Infinity", "[1e999]", "\xff", "", "{", "\0"]
)
def test_json_of_any_kind_is_an_answer_or_a_refusal(content):
    """Nesting beyond Python's stack, infinities and bytes that are no text are ValueErrors."""
    with pytest.raises(ValueError):
        files.parse_json(content.encode("latin-1"))


def test_a_large_file_is_refused(tmp_path):
    """No file is read into memory beyond the limit."""
    (tmp_path / "a").write_bytes(b"x" * 100)
    with pytest.raises(OSError):
        files.read(tmp_path / "a", limit=99)


@pytest.mark.parametrize("content", [DEEP, "[]", '{"a": 1}', "null", "Infinity", "\0\0"])
def test_what_is_kept_in_the_cache_may_hold_anything(tmp_path, monkeypatch, content):
    """A derived file that somebody else wrote is made again."""
    monkeypatch.setattr(derived_files, "_fingerprint", lambda *_: "0")
    monkeypatch.setattr(config, "cache_folder", lambda: tmp_path)
    (tmp_path / "x.0").write_text(content, encoding="utf-8")

    def understand(data):
        return files.parse_json(data)["rows"][0]["name"]

    assert derived_files.load("x", 1, [], lambda: b'{"rows": [{"name": "right"}]}', understand) == "right"


def test_nobody_knows_the_home(monkeypatch):
    """Without HOME and without an entry for the user, the state folder is an OSError that says what to set."""
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    with pytest.raises(OSError, match="XDG_STATE_HOME"):
        config.state_folder({})
    assert config.home_folder({}) is None


def test_a_relative_home_is_none():
    """Else files of ours, libraries among them, would be looked for in whatever folder is the current one."""
    assert config.home_folder({"HOME": "rel"}) is None
    with pytest.raises(OSError, match="XDG_STATE_HOME"):
        config.state_folder({"HOME": "rel", "XDG_STATE_HOME": "rel"})


def test_home_is_a_file(tmp_path):
    """Where the folder cannot be made the error is an OSError."""
    (tmp_path / "home").write_text("")
    folder = config.state_folder({"HOME": str(tmp_path / "home")})
    with pytest.raises(OSError):
        files.new_folder(folder)


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_a_folder_that_no_file_system_takes(tmp_path, name):
    """Such a name is an OSError, as every reason why a folder cannot be made."""
    with pytest.raises(OSError):
        files.new_folder(tmp_path / name)


def test_reports_show_listed_variables_alone():
    """A variable that only looks like a GPU's, with a secret in it, is not among what a report shows."""
    given = {
        "VLLM_API_KEY": "s",
        "HIP_SECRET": "s",
        "HIP_VISIBLE_DEVICES": "0",
        "GFXGRAPH": "1",
        "GFXGRAPH_LIB": "/x",
        "GFXGRAPH_REPORT": "/home/me/x",
        "NCCL_DEBUG": "https://me:s@host",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True,roundup_power2_divisions:[256:1,>:4]",
        "GFXGRAPH_ARCH": "gfx90a:sramecc+:xnack-",
    }
    shown = {"HIP_VISIBLE_DEVICES": "0", "GFXGRAPH": "1", "GFXGRAPH_ARCH": "gfx90a:sramecc+:xnack-"}
    shown |= {"PYTORCH_ALLOC_CONF": given["PYTORCH_ALLOC_CONF"]}
    assert config.reported(given) == shown | dict.fromkeys(("GFXGRAPH_REPORT", "NCCL_DEBUG"), "<not shown>")


def test_what_is_pasted_into_a_bug_report_holds_no_secret(monkeypatch):
    """``gfxgraph status`` and ``doctor --json`` show of the variables what a report may show."""
    monkeypatch.setenv("VLLM_API_KEY", "s3cret")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0")
    text = advice.environment_report() + json.dumps(defect_environment.detect().as_dict())
    assert "HIP_VISIBLE_DEVICES" in text
    assert "s3cret" not in text


def test_only_one_module_writes():
    """The check finds each way to write, and none of them in the package."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import ast

        import check_writes
    finally:
        sys.path.pop(0)
    for text in ("open('a', 'w')", "p.open('ab')", "open('a', mode='x')", "p.write_text('')", "os.replace(a, b)",
                 "os.open(a, os.O_CREAT)", "tempfile.mkstemp()", "shutil.copy(a, b)", "p.mkdir()",
                 "open(a, mode)", "io.open(a, 'w')", "gzip.open(a, mode='wt')", "os.open(a, 65)", "os.open(a, flags)",
                 "p.replace(q)", "torch.save(x, a)", "np.save(a, x)", "logging.FileHandler(a)", "ZipFile(a, 'w')",
                 "from os import replace", "from os import O_CREAT", "import shutil as s"):  # fmt: skip
        assert list(check_writes.writes(ast.parse(text))), text
    for text in ("open('a')", "open('a', 'rb')", "p.open()", "'a'.replace('b', 'c')", "os.open(a, os.O_RDONLY)",
                 "replace(a, b=1)", "open(os.devnull, mode)", "torch.save(x, buffer)", "import os.path"):  # fmt: skip
        assert not list(check_writes.writes(ast.parse(text))), text
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "check_writes.py")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_libraries_come_from_folders_of_ours(tmp_path, monkeypatch):
    """A build folder two levels above an installed package is somebody else's."""
    from gfxgraph import _native

    installed = tmp_path / "lib" / "site" / "gfxgraph"
    planted = tmp_path / "lib" / "build" / "libhipgraph_bridge.so"
    for folder in (installed, planted.parent):
        folder.mkdir(parents=True)
    planted.write_bytes(b"")
    monkeypatch.setattr(_native, "__file__", str(installed / "_native.py"))
    monkeypatch.setattr(_native, "library_path", lambda name: None)
    monkeypatch.delenv("GFXGRAPH_LIB", raising=False)
    assert list(_native.candidates()) == []


def test_lines_are_added(tmp_path):
    """Statistics of several processes stand line by line in one file."""
    for n in range(2):
        files.append(tmp_path / "stats", json.dumps(n) + "\n")
    assert (tmp_path / "stats").read_text() == "0\n1\n"


@needs_links
def test_what_the_user_names_is_read_whatever_it_is(tmp_path):
    """A pipe with a writer is read to its end; one without is empty at once; what has no end is refused."""
    reader, writer = os.pipe()
    os.write(writer, b"whole")
    os.close(writer)
    assert files.read_named(f"/dev/fd/{reader}") == b"whole"
    os.close(reader)
    os.mkfifo(tmp_path / "pipe")
    assert files.read_named(tmp_path / "pipe") == b""
    with pytest.raises(OSError, match="more than 10 bytes"):
        files.read_named("/dev/zero", limit=10)
    for path in (tmp_path, "a\0b", tmp_path / "missing"):
        with pytest.raises(OSError):
            files.read_named(path)


@needs_links
@pytest.mark.parametrize(
    "read",
    [defect_environment.load],
    ids=["environment"],
)
@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00", b"[" * 100_000, b'{"n_gpus": null}'], ids=str)
def test_no_file_of_the_users_hangs_a_command_or_ends_in_a_traceback(read, content, tmp_path):
    """A pipe without a writer (None), and content of any kind: the error is one of ours, or there is text."""
    path = tmp_path / "file"
    os.mkfifo(path) if content is None else path.write_bytes(content)
    try:
        assert isinstance(read(path), str)
    except GfxGraphError as error:
        assert str(path) in str(error)


def test_a_pipe_that_nobody_reads_blocks_no_end(tmp_path):
    """A line for it is an error at once."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device"):
        files.append(tmp_path / "pipe", "line\n")
