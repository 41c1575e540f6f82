"""gfxgraph 1.1.0's C names (hipgraph_bridge.h), and the presets by which the library is built and tested."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
HEADER = ROOT / "native/hipgraph_bridge.h"
# What 1.1.0's header declares.
NAMES = """
hgb_get_version hgb_init hgb_shutdown hgb_is_initialized hgb_validate_gfx1030 hgb_set_debug
hgb_conditional_create hgb_conditional_launch hgb_conditional_launch_by_flag hgb_conditional_destroy
hgb_pipeline_create hgb_pipeline_launch hgb_pipeline_update_kernel hgb_pipeline_update_and_launch
hgb_pipeline_destroy hgb_monotonic_ns hgb_profiler_reset hgb_profiler_record hgb_profiler_snapshot
hgb_shape_pool_create hgb_shape_pool_launch hgb_shape_pool_update_params hgb_shape_pool_destroy
hgb_compose_graphs hgb_compose_update_child hgb_compose_launch hgb_compose_destroy
hgb_pipeline_handle_create hgb_pipeline_handle_launch hgb_pipeline_handle_update_kernel
hgb_pipeline_handle_update_and_launch hgb_pipeline_handle_destroy hgb_composed_handle_create
hgb_composed_handle_launch hgb_composed_handle_update_child hgb_composed_handle_destroy
""".split()
PARTS = ("conditional", "pipeline", "shapes", "compositor", "handles", "profiler", "refusals")


def run(build: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [build / "tests/older", build / "fake/libamdhip64.so.6", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environ},
    )


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("profile", ("6.2", "7.2.0", "10.0"))
def test_the_older_names_do_what_they_say(checked: Path, part: str, profile: str) -> None:
    """Results, refusals, and nothing left behind, under the sanitizers; the program compares them itself."""
    done = run(checked, part, GFX_FAKE_PROFILE=profile)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Sanitizer" not in done.stderr and "runtime error" not in done.stderr
    assert "left 0" in done.stdout.splitlines()


def test_refusals_are_told_in_words_where_asked(checked: Path) -> None:
    """HGB_DEBUG=1: the catalogue's text on stderr; without it nothing is said."""
    assert run(checked, "shapes").stderr == ""
    done = run(checked, "shapes", HGB_DEBUG="1")
    assert "native_no_bucket: no bucket of the shape pool is large enough" in done.stderr


def test_the_gpu_is_named_as_programs_see_it(checked: Path) -> None:
    """By HSA_OVERRIDE_GFX_VERSION, as HIP does."""
    done = run(checked, "profiler", HSA_OVERRIDE_GFX_VERSION="10.3.0")
    assert "version 2 gfx1030 7.2.26015" in done.stdout, done.stdout
    assert "version 2 gfx90a " in run(checked, "profiler", HSA_OVERRIDE_GFX_VERSION="9.0.10").stdout


def test_every_name_is_declared_and_exported(plain: Path) -> None:
    """The header has 1.1.0's functions, no others, and the library has each."""
    declared = re.findall(r"HGB_EXPORT [\w ]+?\*?(hgb_\w+)\(", HEADER.read_text(encoding="utf-8"))
    assert sorted(declared) == sorted(NAMES)
    library = ctypes.CDLL(str(plain / "libhipgraph_bridge.so"))
    assert [name for name in NAMES if not hasattr(library, name)] == []


def test_python_initializes_the_library_that_it_finds(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``hipgraph_bridge.init()`` is ``hgb_init``: without a HIP runtime it says that there is no device."""
    import hipgraph_bridge

    monkeypatch.setenv("GFXGRAPH_LIB", str(plain / "libhipgraph_bridge.so"))
    assert hipgraph_bridge.init() in (0, 100)
    assert hipgraph_bridge.shutdown() == 0


def test_presets_are_those_of_the_page() -> None:
    """``cmake --preset release`` builds into build/, as 1.1.0's page has it; each preset builds and tests."""
    presets = json.loads((ROOT / "CMakePresets.json").read_text(encoding="utf-8"))
    configure = {each["name"]: each for each in presets["configurePresets"]}
    assert list(configure) == ["release", "debug", "checked"]
    assert configure["release"]["binaryDir"] == "${sourceDir}/build"
    for kind in ("buildPresets", "testPresets"):
        assert [each["name"] for each in presets[kind]] == list(configure)
    listed = subprocess.run(["cmake", "--list-presets"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert all(f'"{name}"' in listed.stdout for name in configure)


def test_ctest_finds_the_tests(plain: Path) -> None:
    """Those of the C API on both runtimes, and those of the older names; all pass."""
    done = subprocess.run(["ctest", "--test-dir", plain], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    for part in PARTS:
        assert f"older.{part} " in done.stdout
    assert "conditional.libcudart.so.13.every_call_fails" in done.stdout
