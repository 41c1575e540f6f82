"""``make docs``: pages from the code, and no dead links."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from gfxgraph import config
from gfxgraph.diagnostics.entries import codes
from gfxgraph_port.registry import load

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "tools"))  # for the tools that it imports


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("make_docs", ROOT / "tools" / "make_docs.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def found(tool):
    return {**tool.written_pages(), **tool.made_pages()}


def test_every_error_rule_command_and_setting_has_its_place(tool, found):
    """Errors on the page of their group, rules on that of their phase, in both languages."""
    for folder in ("", "zh/"):
        for code in codes():
            assert f"\n## {code}\n" in found[f"{folder}errors/{tool.group_of(code)}.md"]
        for rule in (each.rule for each in load()):
            assert f"\n## {rule.id} {rule.code}\n" in found[f"{folder}rules/phase-{rule.phase}.md"]
    assert len(found) < 150
    assert "## gfxgraph port audit" in found["commands.md"] and "## gfxgraph run" in found["commands.md"]
    for page in ("settings.md", "zh/settings.md"):
        assert "`GFXGRAPH_ON_UNSAFE` | split \\| pin \\| strict \\| raise | split | " in found[page]
        assert set(config.VARIABLES) <= set(re.findall(r"^\| `(\w+)` \|", found[page], re.MULTILINE))
    assert "## gfxgraph port verify run" in found["zh/commands.md"] and "显示此帮助并退出" in found["zh/commands.md"]
    assert "::: gfxgraph.callables.api.graphed" in found["api.md"]


def test_every_link_leads_somewhere(tool, found):
    """Between pages, to headings, to files of the repository; also from the pages outside of docs/."""
    assert tool.dead_links(found) == []


def test_the_repository_read_as_it_is_has_no_dead_link_and_the_kept_pages_are_the_made_ones(tool, found):
    """No page leads to one that only the site has; commands and settings are as tools/make_docs.py writes."""
    assert tool.dead_in_the_repository() == []
    for name in tool.KEPT:
        assert (tool.DOCS / name).read_text(encoding="utf-8") == found[name], name


def test_the_site_has_every_image_and_page(tool, found, tmp_path):
    """Links of the assembled pages are looked up in the folder that the site is made of, images too."""
    pages = {name: found[name] for name in ("see.md", "index.md", "crashes/hang.md")}
    tool.assemble(pages, tmp_path)
    assert not [line for line in tool.dead_on_the_site(tmp_path) if ".png" in line or ".svg" in line]
    (tmp_path / "images" / "see.png").unlink()
    assert "see.md: images/see.png" in tool.dead_on_the_site(tmp_path)
    assert "(errors/" not in (tmp_path / "see.md").read_text()
    assert "(../errors/components.md#gpu_hang)" in (tmp_path / "crashes" / "hang.md").read_text()


def test_a_dead_link_is_told(tool):
    """A page, a heading and a file that are not there; what stands in code is no link."""
    text = "# A b\n[1](no.md) [2](a.md#nope) [3](a.md#a-b) [4](../README.md) [5](../no.json) `[6](no)`\n"
    dead = tool.dead_links({"a.md": text})
    assert [line.split(": ")[1] for line in dead] == ["no.md", "a.md#nope", "../no.json"]


def test_pages_are_whole_without_the_repository(tool, tmp_path):
    """Files that pages link to are copied beside them."""
    pages = {"a.md": "[run](../benchmarks/results/core_h100.json) [page](b.md)\n", "b.md": "# B\n"}
    tool.assemble(pages, tmp_path / "site")
    text = (tmp_path / "site" / "a.md").read_text()
    assert "(files/benchmarks/results/core_h100.json)" in text and "(b.md)" in text
    assert (tmp_path / "site" / "files" / "benchmarks" / "results" / "core_h100.json").is_file()
