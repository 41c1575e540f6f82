"""diagnostics.derived_files: files that spare a start the parsing of TOML."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gfxgraph.diagnostics import derived_files


class Sources:
    """A folder of sources, and how often they were read."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.n_read = folder, 0
        folder.mkdir()
        (folder / "a.toml").write_text("1")

    def load(self) -> list[str]:
        return derived_files.load("sources", 1, [self.folder], self._read, lambda data: json.loads(data)["texts"])

    def _read(self) -> bytes:
        self.n_read += 1
        return json.dumps({"texts": [path.read_text() for path in sorted(self.folder.iterdir())]}).encode()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "gfxgraph"


def test_sources_are_read_once_and_after_an_edit(tmp_path: Path, place: Path) -> None:
    """The derived file answers until a source changes or is added; old ones go in time."""
    sources = Sources(tmp_path / "sources")
    assert sources.load() == sources.load() == ["1"] and sources.n_read == 1
    (sources.folder / "a.toml").write_text("22")
    assert sources.load() == sources.load() == ["22"] and sources.n_read == 2
    (sources.folder / "b.toml").write_text("3")
    assert sources.load() == ["22", "3"] and sources.n_read == 3
    for n in range(12):
        (sources.folder / "b.toml").write_text("3" * n)
        sources.load()
    assert len(list(place.iterdir())) == 1 + derived_files.MOST_KEPT


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "3"])
def test_a_broken_file_is_written_anew(tmp_path: Path, place: Path, text: str) -> None:
    """Whatever stands in it: the sources are read again."""
    sources = Sources(tmp_path / "sources")
    sources.load()
    (file,) = place.iterdir()
    file.write_text(text)
    assert sources.load() == sources.load() == ["1"] and sources.n_read == 2


def test_where_the_cache_cannot_be_written(tmp_path: Path, place: Path) -> None:
    """The sources are read each time; nothing is ever written beside the package."""
    sources = Sources(tmp_path / "sources")
    place.write_text("a file where a folder is wanted")
    assert sources.load() == sources.load() == ["1"] and sources.n_read == 2


def test_nothing_of_ours_lies_beside_the_package(tmp_path: Path, place: Path) -> None:
    """What pip did not install it does not remove, and a folder that is left can be imported."""
    Sources(tmp_path / "sources").load()
    assert [path.name.split(".")[0] for path in place.iterdir()] == ["sources"]
    assert not list(Path(derived_files.__file__).parent.rglob("sources.*"))
