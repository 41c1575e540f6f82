"""Finding the runtime: what is mapped first, then names and places, and a full list on failure."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gfxgraph.driver import library, locate
from gfxgraph.errors import DriverError

MAPS = """\
55d0-55d1 r--p 00000000 08:01 1 /usr/bin/python3.11
7f00-7f01 r-xp 00000000 08:01 2 /opt/rocm/lib/libamdhip64.so.6.3.60443
7f01-7f02 rw-p 00000000 08:01 2 /opt/rocm/lib/libamdhip64.so.6.3.60443
7f02-7f03 r-xp 00000000 08:01 3 /home/me/my env/torch/lib/libamdhip64.so
7f03-7f04 r-xp 00000000 08:01 4 /usr/lib/libamdhip64-1a2b3c4d.so.7 (deleted)
7f04-7f05 r-xp 00000000 08:01 5 /usr/lib/libcuda.so.580.65.06
7f05-7f06 r-xp 00000000 08:01 6 /usr/lib/libcudart.so.13
7f06-7f07 r-xp 00000000 08:01 7 /usr/lib/libamdhip64_tools.so
7f07-7f08 rw-p 00000000 00:00 0
"""


def test_maps_name_each_runtime_file_once() -> None:
    """Paths with spaces, hashes and deleted files are found; look-alikes are not."""
    assert library.mapped_paths("hip", MAPS) == [
        "/opt/rocm/lib/libamdhip64.so.6.3.60443",
        "/home/me/my env/torch/lib/libamdhip64.so",
        "/usr/lib/libamdhip64-1a2b3c4d.so.7",
    ]
    assert library.mapped_paths("cuda", MAPS) == ["/usr/lib/libcuda.so.580.65.06"]


def test_places_put_torch_before_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own copy is tried before a ROCm prefix, and that before the loader's search."""
    (tmp_path / "torch" / "lib").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('never imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(library, "_PREFIXES", (str(tmp_path / "rocm*").lstrip("/"),))
    (tmp_path / "rocm-7.2").mkdir()
    places = list(library.candidates("hip"))
    torch, prefix, bare = (
        next(i for i, place in enumerate(places) if place.startswith(start))
        for start in (str(tmp_path / "torch/lib"), str(tmp_path / "rocm-7.2/lib"), "libamdhip64")
    )
    assert torch < prefix < bare
    assert "torch" not in sys.modules


def test_a_failed_search_lists_every_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the files that are missing and what the loader said."""
    monkeypatch.setattr(library, "read_maps", lambda: "")
    monkeypatch.setattr(library, "_PREFIXES", (str(tmp_path).lstrip("/"),))
    with pytest.raises(DriverError) as caught:
        locate("hip")
    assert caught.value.code == "driver_library_not_found"
    tried = caught.value.fields["tried"]
    assert isinstance(tried, list)
    assert f"{tmp_path}/lib/libamdhip64.so.7: no such file" in tried
    assert any(place.startswith("libamdhip64.so.6: cannot open") for place in tried)
    assert f"{tmp_path}/lib/libamdhip64.so.7" in str(caught.value)


def build(path: Path, flavour: str) -> None:
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("needs a C compiler")
    source = Path(__file__).parent / "fake_runtime.c"
    subprocess.run([gcc, "-shared", "-fPIC", "-w", f"-D{flavour}", "-o", path, source], check=True)


def test_the_mapped_runtime_is_taken_and_nothing_is_loaded(tmp_path: Path) -> None:
    """A library mapped under a place that no search knows is found."""
    hip, cuda = tmp_path / "libamdhip64.so.6", tmp_path / "libcuda.so.1"
    for flavour, path in (("HIP", hip), ("CUDA", cuda)):
        build(path, flavour)
    script = (
        "import ctypes\n"
        "from gfxgraph.driver import library, locate\n"
        f"ctypes.CDLL({str(cuda)!r})\n"
        "assert locate('cuda').name == 'cuda'\n"
        f"ctypes.CDLL({str(hip)!r})\n"
        "found = library.find_mapped('hip')\n"
        f"assert found.path == {str(hip)!r}, found\n"
        "driver = locate('hip')\n"
        "assert (driver.name, driver.version) == ('hip', (6, 4, 43484)), driver.version\n"
        "assert locate('cuda').version == (13, 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_torchs_copy_is_taken_where_there_are_two(tmp_path: Path) -> None:
    """Handles come from torch, so its copy is the one to call."""
    system, torchs = tmp_path / "libamdhip64.so.6", tmp_path / "torch" / "lib" / "libamdhip64.so"
    torchs.parent.mkdir(parents=True)
    for path in (system, torchs):
        build(path, "HIP")
    for order in ((system, torchs), (torchs, system)):
        script = (
            "import ctypes\n"
            "from gfxgraph.driver import library\n"
            f"for path in {[str(path) for path in order]!r}: ctypes.CDLL(path)\n"
            "found = library.find_mapped('hip')\n"
            f"assert found.path == {str(torchs)!r}, found\n"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
