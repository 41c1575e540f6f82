"""``gfxgraph bench``: a speed-up is said only where the samples bear it."""

import json

from gfxgraph.reporting.bench import BenchedWay, WorkloadResult, compare, table


def rounds(base, wobble):
    return [base * (1 + wobble * ((i * 7) % 11 - 5) / 5) for i in range(15)]


def test_a_clear_speedup_is_a_number():
    """Twice as fast with little spread is 2x, and its interval holds it."""
    found = compare(rounds(2.0, 0.02), rounds(1.0, 0.02))
    assert found.is_clear and abs(found.ratio - 2.0) < 0.1 and found.interval[0] > 1.8
    assert found.text() == f"{found.ratio:.2f}x"


def test_a_difference_within_the_spread_is_none():
    """Rounds that lie further apart than the ways do give no number, nor do too few rounds."""
    noisy = [1.0, 1.9, 1.1, 1.7, 1.2, 1.8, 0.9, 2.0, 1.0, 1.9]
    assert not compare(noisy, list(reversed(noisy))).is_clear
    assert not compare(rounds(1.02, 0.3), rounds(1.0, 0.3)).is_clear
    assert not compare([2.0] * 4, [1.0] * 4).is_clear
    assert "no difference to tell" in compare(noisy, list(reversed(noisy))).text()


def test_the_table_and_json_hide_it_likewise():
    """A hidden speed-up is in neither; a way that failed says why."""
    noisy = [1.0, 1.9, 1.1, 1.7, 1.2, 1.8, 0.9, 2.0, 1.0, 1.9]
    ways = [
        BenchedWay("eager", noisy),
        BenchedWay("graph", list(reversed(noisy))),
        BenchedWay("compiled", error="RuntimeError: no gcc"),
    ]
    result = WorkloadResult("mlp", ways)
    text = table([result])
    assert "x\n" not in text.replace("to tell", "") or "no difference" in text
    assert "RuntimeError: no gcc" in text and "no difference to tell" in text
    rows = json.loads(json.dumps(result.as_dict()))["ways"]
    assert rows[1]["speedup"] is None and rows[1]["why_none"] and rows[2]["error"]
    clear = WorkloadResult("mlp", [BenchedWay("eager", rounds(2.0, 0.01)), BenchedWay("graph", rounds(1.0, 0.01))])
    assert clear.as_dict()["ways"][1]["speedup"] > 1.9 and "2.0" in table([clear])
