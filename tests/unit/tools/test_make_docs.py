"""``make docs``: pages from the code, and no dead links."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_pages_are_written_and_links_lead_somewhere(tmp_path):
    """Every command, setting and error has its place, and no committed page links to nothing."""
    line = [sys.executable, str(ROOT / "tools" / "make_docs.py"), str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "## gfxgraph run" in (tmp_path / "commands.md").read_text()
    assert "`GFXGRAPH_ON_UNSAFE` | split \\| pin \\| raise" in (tmp_path / "settings.md").read_text()
    assert "## no_torch" in (tmp_path / "errors.md").read_text()
