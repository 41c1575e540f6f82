"""The HTML report: one file without a network, small, whole; in a browser where there is one."""

import json
import re
import shutil
import subprocess

import pytest

from gfxgraph.reporting import page
from tests.unit.reporting.made import process

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def data_of(html):
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', html, re.S)[1])


def test_it_is_one_file_without_a_network():
    """Nothing is loaded from anywhere, and data that looks like markup does not end its element."""
    html = page.html([process()])
    assert not re.search(r"""(src|href)\s*=|url\(|@import|https?://(?!www.w3.org/2000/svg)""", html)
    assert data_of(html)["processes"][0]["captures"][0]["steps"][1]["rewrite"].endswith("</script>")


def test_five_thousand_nodes_fit_in_two_megabytes():
    """Every node is there, with its line and tensors; equal layers are folded."""
    html = page.html([process(5000)])
    assert len(html.encode()) < 2_000_000
    found = data_of(html)
    step = found["processes"][0]["captures"][0]["steps"][0]
    assert len(step["nodes"]) == 5000 and step["folds"] == [[0, 25, 200]]
    node = step["nodes"][4999]
    assert found["strings"][node[4]] == "/models/llama/modeling.py:124" and len(node[11]) == 3


def test_both_languages_have_the_same_words():
    """No text is missing in one of them."""
    html = page.html([process()])
    english, chinese = re.search(r"en: \{(.*?)\},\n  zh: \{(.*?)\} \};", html, re.S).groups()
    keys = [re.findall(r"(\w+): \"", text) for text in (english, chinese)]
    assert sorted(keys[0]) == sorted(keys[1]) and len(keys[0]) > 40
    used = set(re.findall(r'\bw\("(\w+)"', html))
    assert used <= set(keys[0])


def test_it_opens_with_the_line_and_shows_the_source_of_what_ran_outside():
    """The line of the run's end in both languages; each split and fallback with its line and those around it."""
    table = process()
    table["stats"]["events"] = [{"kind": "fallback", "reason": "r", "op": "", "where": f"{__file__}:1", "count": 1}]
    found = data_of(page.html([table]))["processes"][0]
    assert found["line"]["en"].startswith("gfxgraph: ") and "first fallback at" in found["line"]["en"]
    assert "首次回退" in found["line"]["zh"]
    assert found["sources"] == {f"{__file__}:1": f'    1> """{__doc__}"""'}


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH")
def test_a_browser_shows_it(tmp_path):
    """In Chromium: line, timeline, the drawn graph, folds, splits; a node is found and clicked."""
    html = page.html([process(200)])
    script = """<script>
      const q = document.getElementById("search"); q.value = "modeling.py:107"; find(q.value);
      document.querySelector("svg circle:nth-of-type(8)").dispatchEvent(new MouseEvent("click"));
      document.title = JSON.stringify({folds: document.querySelectorAll(".fold").length,
        red: document.querySelectorAll(".step.host").length, hits: document.getElementById("hits").textContent,
        first: document.querySelector(".first").textContent, blocks: document.querySelectorAll("svg rect").length,
        dots: document.querySelectorAll("svg circle").length, edges: document.querySelectorAll("svg line").length,
        detail: document.getElementById("detail").textContent.includes("modeling.py:107")});
      document.getElementById("lang").click(); document.getElementById("theme").click();
      document.body.dataset.zh = document.querySelector(".step.host").textContent;
      document.body.dataset.after = document.documentElement.lang + " " + document.documentElement.dataset.theme;
      </script></body>"""
    path = tmp_path / "report.html"
    path.write_text(html.replace("</body>", script), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    done = subprocess.run([CHROMIUM, *flags, path.as_uri()], capture_output=True, text=True)
    seen = json.loads(re.search(r"<title>(.*?)</title>", done.stdout)[1].replace("&quot;", '"'))
    assert seen["folds"] == 1 and seen["red"] == 1 and seen["detail"] and seen["hits"] == "8 found"
    assert seen["first"].startswith("gfxgraph: ") and (seen["blocks"], seen["dots"], seen["edges"]) == (3, 200, 199)
    assert re.search(r'data-after="zh (dark|light)"', done.stdout)
    chinese = re.search(r'data-zh="(.*?)"', done.stdout)[1]
    assert "主机读取了一个值" in chinese and "a value read" not in chinese
