"""The C API (gfxgraph.h), by a C program, over the fake HIP and the fake CUDA runtime."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gfxgraph import native

ROOT = Path(__file__).parent.parent.parent
CATALOGUE = ROOT / "src/gfxgraph/diagnostics/catalogue"
PROFILES = ("6.2", "7.2.0", "7.14", "10.0")
RUNTIMES = {"hip": "libamdhip64.so.6", "cuda": "libcudart.so.13"}
SCENARIOS = ("conditional", "pipeline", "pool", "compositor", "nested")

# The same on both runtimes: the graph copies 20s and adds a number.
RESULTS = {
    "conditional": {
        "branch_0": 21, "taken": 1, "branch_1": 22, "taken_empty": 2, "unchanged": 22, "none": 1, "updated": 22,
        "rebuilt": 21, "left": 0,
    },
    "pipeline": {
        "first": 21, "changed": 33, "same": 33, "half_copied": 13, "filled": 0x01010101 + 13, "after_wait": 33,
        "updated": 120, "of_new_graph": 220, "touched_while_running": 0, "left": 0,
    },
    "pool": {
        "bucket": 4, "value": 24, "captures": 3, "largest_first": 1, "bucket_of_5": 8, "updated": 60,
        "others_stay": 28, "left": 0,
    },
    "compositor": {"last_wins": 22, "replaced": 25, "other_shape": 25, "extended": 22, "left": 0},
    "nested": {"nested": 1021, "left": 0},
}  # fmt: skip


def run(build: Path, backend: str, *arguments: str, profile: str = "7.2.0") -> tuple[int, dict[str, str], str]:
    """Run the C program; return its exit status, what it said (the last of each name), and all of it."""
    done = subprocess.run(
        [build / "tests/c_api", build / "fake" / RUNTIMES[backend], *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "GFX_FAKE_PROFILE": profile},
    )
    assert "Sanitizer" not in done.stderr and "runtime error" not in done.stderr, done.stderr
    said = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if len(line.split()) == 2)
    return done.returncode, said, done.stdout + done.stderr


@pytest.mark.parametrize("backend", RUNTIMES)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_bridge_gives_the_right_results(checked: Path, scenario: str, backend: str) -> None:
    """On HIP's layouts and on CUDA's, with nothing left behind; the runtime is the one that is mapped."""
    code, said, everything = run(checked, backend, scenario)
    assert code == 0, everything
    assert said["backend"] == backend
    assert said["version"] == {"hip": "70226015", "cuda": "13000"}[backend]
    assert {name: int(said[name]) for name in RESULTS[scenario]} == RESULTS[scenario]


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("backend", RUNTIMES)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_nth_call_may_fail(checked: Path, scenario: str, backend: str, profile: str) -> None:
    """A catalogued error or the right result, never both wrong; nothing left; the next run is clean."""
    code, said, everything = run(checked, backend, scenario, "every", profile=profile)
    assert code == 0, everything
    assert int(said["calls"]) > 25 and int(said["told"]) > 10
    assert int(said["bad"]) == int(said["uncatalogued"]) == 0
    assert int(said["calls"]) == int(said["told"]) + int(said["healed"])


def test_misuse_is_refused_with_a_catalogued_error(checked: Path) -> None:
    """Each kind of mistake has its entry, and none reaches the runtime."""
    code, said, everything = run(checked, "hip", "misuse")
    assert code == 0, everything
    names = [line.split()[1] for line in everything.splitlines() if line.startswith("error ")]
    assert set(names) == {
        "native_invalid_argument",
        "native_capture_empty",
        "native_callback_failed",
        "native_capture_failed",
        "native_not_ready",
        "native_context_busy",
        "native_no_bucket",
    }
    for name in names:
        assert (CATALOGUE / f"{name}.toml").exists()
    assert "hipStreamEndCapture returned hipErrorStreamCaptureUnjoined (904)" in everything
    assert "1 of them are alive" in everything
    assert (said["left"], said["null_graph"], said["null_is_fine"], said["no_context"]) == ("0", "1", "1", "1")


def test_statistics_count_what_was_done(checked: Path) -> None:
    """And a caller built against a smaller struct keeps the rest of its memory."""
    _, said, _ = run(checked, "hip", "stats")
    wanted = {"captures": 10, "nodes": 18, "launches": 18, "flag_reads": 3, "skipped": 2, "failures": 0}
    assert {name: int(said[name]) for name in wanted} == wanted
    assert said["timed"] == said["older_callers_keep_theirs"] == "1"


def test_the_library_says_what_the_catalogue_says() -> None:
    """The texts in C are made from the catalogue, and were made again after its last change."""
    assert subprocess.run([sys.executable, ROOT / "tools/make_native.py", "--check"]).returncode == 0
    entry = tomllib.loads((CATALOGUE / "native_no_bucket.toml").read_text(encoding="utf-8"))
    assert entry["zh"]["title"] in (ROOT / "native/bridge/errors.inc").read_text(encoding="utf-8")


# From Python --------------------------------------------------------------------------------------


def test_the_bridge_counts_as_there_only_when_it_loads(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is no library, one that is another library, and the right one."""
    from gfxgraph.process import health

    broken = tmp_path / "libhipgraph_bridge.so"
    broken.write_text("not a library")
    for path, problem in (
        (broken, "invalid ELF header|file too short"),
        (plain / "libcudagraph_compat.so", "gfxg_abi"),
    ):
        monkeypatch.setenv("GFXGRAPH_LIB", str(path))
        state = native.state()
        assert (state.loads, state.library) == (False, "")
        assert any(word in state.problem for word in problem.split("|")), state.problem
        assert health.health_check()["native_bridge"] is False
    monkeypatch.setenv("GFXGRAPH_LIB", str(plain / "libhipgraph_bridge.so"))
    assert native.state() == native.State(True, str(plain / "libhipgraph_bridge.so"))
    assert health.health_check()["native_bridge"] is True


def test_without_the_companion_the_bridge_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every place that was tried is told."""
    monkeypatch.delenv("GFXGRAPH_LIB", raising=False)
    monkeypatch.setattr("gfxgraph._native.candidates", lambda name: iter(["libhipgraph_bridge_absent.so"]))
    state = native.state()
    assert not state.loads and "libhipgraph_bridge_absent.so" in state.problem


# The page ------------------------------------------------------------------------------------------


def test_the_pages_example_compiles_and_prints_what_it_says(plain: Path, tmp_path: Path) -> None:
    """docs/native.md's program, as plain C, with its outputs."""
    page = (ROOT / "docs/native.md").read_text(encoding="utf-8")
    source = tmp_path / "decode.c"
    source.write_text(page.split("```c\n")[1].split("```")[0], encoding="utf-8")
    program = tmp_path / "decode"
    libraries = [plain / "libhipgraph_bridge.so", plain / "fake/libamdhip64.so.6"]
    command = [
        "cc",
        "-std=c99",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pedantic",
        source,
        f"-I{ROOT / 'native'}",
        *libraries,
    ]
    compiled = subprocess.run(
        [*command, "-o", program, f"-Wl,-rpath,{plain}:{plain / 'fake'}"], capture_output=True, text=True
    )
    assert compiled.returncode == 0, compiled.stderr
    done = subprocess.run([program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    for text in (done.stdout, done.stderr):
        assert len(text.splitlines()) == 5
        assert all(f"\n{line}\n" in page for line in text.splitlines()), text
