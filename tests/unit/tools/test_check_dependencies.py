"""tools/check_dependencies.py, and what a plain install of the package puts where."""

import importlib.util
import os
import subprocess
import sys
import tomllib
import zipfile
from datetime import date
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
spec = importlib.util.spec_from_file_location("check_dependencies", ROOT / "tools" / "check_dependencies.py")
checked = importlib.util.module_from_spec(spec)
sys.modules["check_dependencies"] = checked
spec.loader.exec_module(checked)

PROJECT = {
    "name": "us",
    "dependencies": ["A_b>=1"],
    "optional-dependencies": {"dev": ["us[x]", "c; python_version > '3'"]},
}
ROWS = {
    "a-b": {"group": "run", "licence": "MIT OR Apache-2.0", "version": "1", "released": date(2026, 1, 1)},
    "c": {"group": "dev", "licence": "GPL-3.0", "version": "1", "released": date(2020, 1, 1), "why": "a tool"},
}


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("a-b", None, ""),
        ("a-b", {"licence": "GPL-3.0", "why": "needed"}, "not permissive"),
        ("a-b", {"released": date(2023, 1, 1)}, "two years"),
        ("a-b", {"group": "dev"}, "is of the group run"),
        ("c", {"group": "dev", "why": None}, "not permissive"),
    ],
)
def test_what_is_wrong_is_said(monkeypatch, name, change, said):
    """A licence that is not permissive, an old release, another group; a reason excuses tools alone."""
    monkeypatch.setattr(checked, "said_by_package", lambda name: "")
    row = {key: value for key, value in (ROWS[name] | (change or {})).items() if value is not None}
    found = list(checked.problems(PROJECT, ROWS | {name: row}, date(2026, 6, 1)))
    assert (said in found[0]) if said else found == []


def test_rows_and_dependencies_are_the_same(monkeypatch):
    """One without a row, a row without a dependency, a licence that the package does not have."""
    monkeypatch.setattr(checked, "said_by_package", lambda name: "MIT")
    found = list(checked.problems(PROJECT, {"a-b": ROWS["a-b"], "d": ROWS["c"]}, date(2026, 6, 1)))
    assert [text.split(":")[0].split(" has")[0] for text in found] == ["d", "a-b", "c"]


def test_actions_are_pinned(tmp_path):
    """By forty digits; an action of the repository itself needs none."""
    (tmp_path / ".github" / "workflows").mkdir(parents=True)
    (tmp_path / "action.yml").write_text("uses: ./here@v1\n")
    flow = tmp_path / ".github" / "workflows" / "w.yml"
    flow.write_text(f"- uses: a/b@{'0' * 40}  # v1\n- uses: c/d@v4\n")
    assert [text.split(": ")[1] for text in checked.unpinned(tmp_path)] == ["c/d@v4 is not pinned by commit"]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """The wheel, built twice, in two folders."""
    found = []
    for name in ("first", "second"):
        folder = tmp_path_factory.mktemp(name)
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        found += folder.glob("*.whl")
    return found


def test_the_wheel_is_the_same_when_built_again(wheels):
    """Byte for byte."""
    assert len(wheels) == 2 and wheels[0].read_bytes() == wheels[1].read_bytes()


def test_a_plain_install_changes_nothing_for_other_programs(wheels):
    """Its files are in five packages and its metadata: no .pth file, no sitecustomize at the top, one command."""
    with zipfile.ZipFile(wheels[0]) as wheel:
        names = wheel.namelist()
        points = wheel.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
        needs = wheel.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    tops = {name.partition("/")[0] for name in names}
    packages = {"gfxgraph", "gfxgraph_kernels", "gfxgraph_port", "gfxgraph_simulator", "hipgraph_bridge"}
    assert {top for top in tops if not top.endswith(".dist-info")} == packages
    assert not [name for name in names if name.endswith((".pth", ".so")) or ".data/" in name]
    assert points.count("[console_scripts]") == 1 and points.partition("[console_scripts]")[2].count(" = ") >= 1
    assert not [line for line in needs.splitlines() if line.startswith("Requires-Dist: torch")]


def test_the_wheel_installs_and_says_what_it_is(wheels, tmp_path):
    """Where only its files are: name, Python, licence, extras; the package explains and its command answers."""
    zipfile.ZipFile(wheels[0]).extractall(tmp_path)
    program = """if True:
        import importlib.metadata, gfxgraph
        from gfxgraph.cli.main import cli
        about = importlib.metadata.metadata("gfxgraph-rocm")
        has_native = "native" in about.get_all("Provides-Extra")
        print(about["Name"], about["Requires-Python"], about["License-Expression"], has_native)
        print(gfxgraph.__file__, gfxgraph.explain("hipErrorOutOfMemory").code)
        cli(["--version"])
    """
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, cwd=tmp_path
    )
    first, second, third = done.stdout.splitlines()
    assert first == "gfxgraph-rocm >=3.11 MIT False"
    assert second == f"{tmp_path}/gfxgraph/__init__.py out_of_memory" and "2.0" in third


def test_the_bill_of_materials_has_what_a_plain_install_brings():
    """The run-time dependencies and what they need in turn, with licences."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    told = checked.sbom(project, tomllib.loads(checked.TABLE.read_text(encoding="utf-8")))
    names = {part["name"] for part in told["components"]}
    assert {"click", "rich", "pygments"} <= names and "torch" not in names
    assert all(part["licenses"][0]["expression"] for part in told["components"])
