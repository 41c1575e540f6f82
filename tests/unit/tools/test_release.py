"""What `make release` writes into the packages: the version, an address where one is given, links that work."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
URL = "https://example.org/a/b"


@pytest.fixture(scope="module")
def release():
    sys.path.append(str(ROOT / "tools"))
    spec = importlib.util.spec_from_file_location("release", ROOT / "tools/release.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_one_address_in_pyproject_is_the_address_of_both_packages(release, tmp_path, monkeypatch):
    """None while pyproject has none; set once there, the native package has the same."""
    (tmp_path / "native").mkdir()
    for name in ("pyproject.toml", "native/pyproject.toml"):
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    assert release.address() == ""
    text = (tmp_path / "pyproject.toml").read_text(encoding="utf-8")
    setting = "".join(re.findall(r"^# (\[project.urls\]\n)# (.*\n)# (.*\n)", text, re.MULTILINE)[0])
    text = text.replace("[project.optional-dependencies]", setting + "[project.optional-dependencies]", 1)
    (tmp_path / "pyproject.toml").write_text(text.replace("https://HOST/OWNER/gfxgraph", URL), encoding="utf-8")
    assert release.address() == URL
    native = tmp_path / "native/pyproject.toml"
    release.add_urls(native)
    found = tomllib.loads(native.read_text(encoding="utf-8"))["project"]["urls"]
    assert found == {"Repository": URL, "Issues": f"{URL}/issues"}


def test_a_python_of_each_supported_version_is_tried(release, monkeypatch, tmp_path):
    """Those that the classifiers name; where one is missing, the release says which and ends."""
    monkeypatch.delenv("PYTHONS", raising=False)
    monkeypatch.setattr(release, "answers", lambda python: True)
    monkeypatch.setattr(release.shutil, "which", lambda name: f"/{name}")
    assert release.supported() == ["/python3.11", "/python3.12", "/python3.13"]
    monkeypatch.setattr(release.shutil, "which", lambda name: "" if name == "python3.12" else f"/{name}")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(SystemExit, match=r"no Python 3\.12 here"):
        release.supported()


def test_readmes_links_work_on_a_package_index(release):
    """Every relative link and image of README gets the address and stays a file of the repository."""
    made = release.absolute((ROOT / "README.md").read_text(encoding="utf-8"), f"{URL}/blob/v2")
    targets = re.findall(r"\]\(([^)\s]+)\)", made)
    assert targets and all("://" in target for target in targets)
    ours = [target.removeprefix(f"{URL}/blob/v2/") for target in targets if target.startswith(URL)]
    assert all((ROOT / target.partition("?")[0].partition("#")[0]).exists() for target in ours) and len(ours) > 20


def test_every_place_of_the_version_is_written(release, tmp_path, monkeypatch):
    """The same version stands in both packages and in the code."""
    for name in release.VERSIONED:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    release.set_version("9.8.7")
    assert all("9.8.7" in (tmp_path / name).read_text(encoding="utf-8") for name in release.VERSIONED)
