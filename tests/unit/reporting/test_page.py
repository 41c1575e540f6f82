"""The HTML report: one file without a network, small, whole; in a browser where there is one."""

import json
import re
import shutil
import subprocess

import pytest

from gfxgraph.reporting import page
from tests.unit.reporting.made import process

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

BENCH = {
    "provenance": {"device": "a GPU", "torch": "2.13", "gfxgraph": "2.0", "at": "2026-01-01", "runtime": None},
    "results": [
        {
            "workload": "mlp",
            "ways": [
                {
                    "way": "eager",
                    "ms": [2.0, 2.1, 2.2],
                    "median_ms": 2.1,
                    "error": "",
                    "speedup": None,
                    "why_none": "",
                },
                {"way": "graph", "ms": [1.0, 1.1], "median_ms": 1.05, "error": "", "speedup": 2.0, "why_none": ""},
                {"way": "compiled", "ms": [], "median_ms": None, "error": "no compiler", "speedup": None},
            ],
        }
    ],
}


def data_of(html):
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', html, re.S)[1])


def test_it_is_one_file_without_a_network():
    """Nothing is loaded from anywhere, and data that looks like markup does not end its element."""
    html = page.html([process()])
    assert not re.search(r"""(src|href)\s*=|url\(|@import|https?://(?!\S*schema)""", html)
    assert data_of(html)["processes"][0]["captures"][0]["steps"][1]["rewrite"].endswith("</script>")


def test_five_thousand_nodes_fit_in_two_megabytes():
    """Every node is there, with its line and tensors; equal layers are folded."""
    html = page.html([process(5000)])
    assert len(html.encode()) < 2_000_000
    found = data_of(html)
    step = found["processes"][0]["captures"][0]["steps"][0]
    assert len(step["nodes"]) == 5000 and step["folds"] == [[0, 25, 200]]
    node = step["nodes"][4999]
    assert found["strings"][node[4]] == "/models/llama/modeling.py:124" and len(node[12]) == 3


def test_both_languages_have_the_same_words():
    """No text is missing in one of them."""
    html = page.html([process()])
    english, chinese = re.search(r"en: \{(.*?)\},\n  zh: \{(.*?)\} \};", html, re.S).groups()
    keys = [re.findall(r"(\w+): \"", text) for text in (english, chinese)]
    assert sorted(keys[0]) == sorted(keys[1]) and len(keys[0]) > 40
    used = set(re.findall(r'\bw\("(\w+)"', html))
    assert used <= set(keys[0])


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH")
def test_a_browser_shows_it(tmp_path):
    """In Chromium the page draws its graphs, folds, splits and coverage, and finds a node by its line."""
    html = page.html([process(5000)], [BENCH])
    script = """<script>
      const q = document.getElementById("search"); q.value = "modeling.py:107"; find(q.value);
      document.querySelector(".node").click();
      document.title = JSON.stringify({rows: document.querySelectorAll(".node").length,
        folds: document.querySelectorAll(".fold").length, red: document.querySelectorAll(".step.host").length,
        hits: document.getElementById("hits").textContent, bars: document.querySelectorAll(".bar").length,
        charts: [...document.querySelectorAll(".chart path")].map(p => p.getAttribute("d").length > 9),
        tracks: document.querySelectorAll(".track").length, shown: document.getElementById("main").textContent,
        detail: document.getElementById("detail").textContent.includes("modeling.py:100")});
      document.getElementById("lang").click(); document.getElementById("theme").click();
      const press = (key, on) => (on || document.activeElement).dispatchEvent(
        new KeyboardEvent("keydown", { key, bubbles: true }));
      const place = () => document.activeElement.dataset.path || document.activeElement.id, keys = [];
      press("/", document.body); keys.push(place());
      q.value = "modeling.py:107"; press("Enter"); keys.push(place());
      for (const key of ["n", "N", "j", "k"]) { press(key); keys.push(place()); }
      document.activeElement.click(); press("Escape");
      keys.push(place(), document.getElementById("detail").hidden);
      let printed = 0; window.print = () => printed++; press("p"); keys.push(printed);
      document.body.dataset.keys = JSON.stringify(keys);
      document.body.dataset.zh = ["step.host", "lines"].map(c => document.querySelector("." + c).textContent).join();
      document.body.dataset.after = document.documentElement.lang + " " + document.documentElement.dataset.theme;
      </script></body>"""
    path = tmp_path / "report.html"
    path.write_text(html.replace("</body>", script), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    done = subprocess.run([CHROMIUM, *flags, path.as_uri()], capture_output=True, text=True)
    seen = json.loads(re.search(r"<title>(.*?)</title>", done.stdout)[1].replace("&quot;", '"'))
    assert seen["rows"] < 500 and seen["folds"] == 1 and seen["red"] == 1 and seen["detail"]
    assert seen["hits"] == "200 found" and seen["bars"] == 4  # launches, time, memory, padding
    assert seen["charts"] == [True] * 7 and seen["tracks"] == 2
    assert "16.7 %Padding" in seen["shown"] and "2.00x" in seen["shown"] and "no compiler" in seen["shown"]
    assert re.search(r'data-after="zh (dark|light)"', done.stdout)
    keys = json.loads(re.search(r'data-keys="(.*?)"', done.stdout)[1].replace("&quot;", '"'))
    assert keys == ["search", "0.0.7", "0.0.32", "0.0.7", "0.0.8", "0.0.7", "0.0.7", True, 1]
    chinese = re.search(r'data-zh="(.*?)"', done.stdout)[1]
    assert "主机读取了一个值" in chinese and "没有捕获覆盖这一行" in chinese and "no capture" not in chinese
