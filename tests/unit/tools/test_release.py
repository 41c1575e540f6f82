"""What `make release` writes into the packages: the version, an address where one is given, links that work."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
URL = "https://example.org/a/b"


@pytest.fixture(scope="module")
def release():
    spec = importlib.util.spec_from_file_location("release", ROOT / "tools/release.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["pyproject.toml", "native/pyproject.toml"])
def test_an_address_is_in_the_metadata_only_where_it_is_given(release, tmp_path, name):
    """Authors, keywords and classifiers are there in any case."""
    plain = tomllib.loads((ROOT / name).read_text(encoding="utf-8"))["project"]
    assert "urls" not in plain and plain["authors"] and plain["keywords"] and plain["classifiers"]
    copy = tmp_path / "pyproject.toml"
    copy.write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    release.add_urls(copy, URL)
    assert tomllib.loads(copy.read_text(encoding="utf-8"))["project"]["urls"]["Repository"] == URL


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
