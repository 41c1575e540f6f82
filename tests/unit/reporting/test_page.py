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


def account(**ways):
    base = {"by_graph": 9, "eager": {}, "raised": {}, "in_pieces": {}, "slow": {}, "places": {}, "seconds": {}}
    return {"name": "f", "where": f"{__file__}:1", "operations": (0, 0), **base, **ways}


def profile():
    nodes = [
        {"ms": ms, "module": module, "kernel": "k", "op": "aten::mm", "where": "a.py:3", "kind": "kernel"}
        for module, ms in (("layers.0.mlp", 2.0), ("layers.0.norm", 1.0), ("layers.1.mlp", 2.0), ("", 0.5))
    ]
    graph = {"name": "decode", "nodes": nodes, "ms": 5.6, "gap_ms": 0.1, "sum_ms": 5.5, "agrees": True}
    graph |= {"how": "node walk", "overhead_ms": 9.0, "n_replays": 10}
    tables = {key: [["layers.*.mlp", 40.0, 2]] for key in ("by_module", "by_where", "by_kernel", "by_part")}
    return {"graphs": [graph], "seconds": 0.1, "busy_ms": 56.0, "named": 0.75, **tables}


def seen():
    """Two processes with calls of every way, the first profiled."""
    found = []
    for pid in (1, 2):
        table = process(40)
        table["pid"] = pid
        ways = {
            "eager": {"cheap": 50, "dear": 2, "warm-up": 3},
            "raised": {"KeyError": 1},
            "in_pieces": {"broken": 4},
        }
        table["stats"]["calls"] = {"of": [account(**ways, seconds={"cheap": 0.1, "dear": 9.0})]}
        table["stats"]["calls"] |= {"by_graph": 9, "in_pieces": 4, "eager": 55, "raised": 1}
        found.append(table)
    found[0]["profile"] = profile()
    return found


def test_several_processes_are_summed_first():
    """Calls of all processes; reasons by cost, warm-ups last, each with its source; the profile as a tree."""
    first, *others = data_of(page.html(seen()))["processes"]
    assert first["pid"] == 0 and len(others) == 2
    assert {way: first["stats"]["calls"][way] for way in ("by_graph", "in_pieces", "eager", "raised")} == {
        "by_graph": 18, "in_pieces": 8, "eager": 110, "raised": 2,
    }  # fmt: skip
    assert [(row[0], row[1], row[4]) for row in first["reasons"]] == [
        ("raised", 2, "KeyError"), ("eager", 4, "dear"), ("eager", 100, "cheap"), ("in_pieces", 8, "broken"),
        ("eager", 6, "warm-up"),
    ]  # fmt: skip
    assert first["sources"][f"{__file__}:1"] and "step 10.0 ms, GPU busy in graphs 56 %" in first["line"]["en"]
    name, ms, parts = first["profile"]["tree"]
    assert (name, ms, [part[0] for part in parts]) == ("", 55.0, ["layers", "-"])
    assert [part[:2] for part in parts[0][2]] == [["0", 30.0], ["1", 20.0]]


def test_two_runs_are_compared():
    """Calls by way and GPU time of a replay by module, before and now, what took longest first."""
    now = seen()
    now[0]["profile"]["graphs"][0]["nodes"][0]["ms"] = 7.0
    rows = data_of(page.html(now, seen()))["compared"]
    assert rows[:4] == [["by_graph", 18, 18], ["in_pieces", 8, 8], ["eager", 110, 110], ["raised", 2, 2]]
    assert rows[4:6] == [["layers.0.mlp", 2.0, 7.0], ["layers.1.mlp", 2.0, 2.0]] and rows[-1] == ["-", 0.5, 0.5]
    assert data_of(page.html(now))["compared"] == []


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH")
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_cut_off(tmp_path, width):
    """No part of the page is wider than the window, light and dark; flame graph, time axis and reasons are drawn."""
    script = """<script>
      const hides = e => ["auto", "hidden"].includes(getComputedStyle(e).overflowX);
      const scrolls = e => e && (hides(e) || scrolls(e.parentElement));
      const all = name => [...document.querySelectorAll(name)];
      const wide = () => all("main *, header *").filter(e => !scrolls(e.parentElement)
        && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName + "." + e.className).slice(0, 5);
      const told = { wide: wide(), cells: all(".flame button").length, axis: all(".axis i").length,
        page: document.documentElement.scrollWidth - innerWidth, rows: all("td.why").length,
        narrow: Math.min(...all("td.why").map(e => e.getBoundingClientRect().width)) };
      document.querySelector(".flame button").click(); document.getElementById("theme").click(); told.dark = wide();
      document.title = JSON.stringify(told);</script></body>"""
    path = tmp_path / "report.html"
    path.write_text(page.html(seen(), seen()).replace("</body>", script), encoding="utf-8")
    # A headless window is at least 500 wide: the page is in a frame as wide as asked for.
    frame = tmp_path / "frame.html"
    style = f"width:{width}px;height:3000px;border:0"
    frame.write_text(f"""<iframe id="f" src="report.html" style="{style}"></iframe><script>
      onload = () => {{ document.title = document.getElementById("f").contentDocument.title; }}</script>""")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom"]
    flags += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1400,3000"]
    done = subprocess.run([CHROMIUM, *flags, frame.as_uri()], capture_output=True, text=True, timeout=120)
    told = json.loads(re.search(r"<title>(.*?)</title>", done.stdout, re.S)[1].replace("&amp;", "&"))
    assert told["wide"] == told["dark"] == [] and told["page"] <= 0, told
    assert told["cells"] >= 8 and told["axis"] >= 4 and told["rows"] >= 5 and told["narrow"] >= 250


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
