"""tools/make_kernel_plot.py: the picture of docs/compile.md is that of the committed results."""

from __future__ import annotations

import importlib.util
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("make_kernel_plot", ROOT / "tools" / "make_kernel_plot.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_the_picture_is_of_the_committed_results(tool, tmp_path, monkeypatch):
    """Run again it comes out the same: each operation's point and its best peer's, and the copy's line."""
    out = tmp_path / "again.svg"
    monkeypatch.setattr("sys.argv", ["make_kernel_plot.py", "--out", str(out)])
    tool.main()
    assert out.read_text(encoding="utf-8") == tool.OUT.read_text(encoding="utf-8")
    runs = json.loads(tool.RESULTS.read_text(encoding="utf-8"))["runs"]
    run = next(run for run in runs if run["operations"])
    drawn = ET.parse(out).getroot()
    n_points = len(drawn.findall(".//{http://www.w3.org/2000/svg}circle"))
    assert n_points == 2 * len(run["operations"])
    assert f"a copy on the NVIDIA H200: {run['copy_gb_s']:.0f} GB/s" in "".join(drawn.itertext())


def test_a_faster_way_is_higher(tool):
    """Half the time is twice the bytes in a second: farther up, below the roof."""
    ways = [{"way": "eager", "us": 8.0}, {"way": "gfxgraph", "us": 4.0}]
    rows = [{"case": "softmax, 1 x 2", "nbytes": size, "best_peer": "eager", "ways": ways} for size in (4000, 8000)]
    picture = ET.fromstring(tool.plot(rows, 100.0, "card"))
    circles = picture.findall(".//{http://www.w3.org/2000/svg}circle")
    peer, ours = circles[:2]
    assert peer.get("fill") == "none" and ours.get("fill") == tool.COLORS["softmax"]
    assert float(ours.get("cy")) < float(peer.get("cy")) and ours.get("cx") == peer.get("cx")
