"""Score the diagnostics on labelled error texts.

    python benchmarks/score_diagnostics.py SAMPLES.jsonl [--out results.json] [--show]

Figures: recall (an error was explained at all), right label (the root cause's code is the label),
false alarms (something was explained in a text labelled "none"), and how many of the facts a right
explanation must contain are in it.

Leave-one-out, two ways, because nobody can tell afterwards which pattern was written from what:

left_out            a pattern that matches one sample only may have been written from it. It is taken
                    away for that sample, as if the sample had never been seen. Names of statuses and
                    hints stay. This is pessimistic: a label with one sample loses patterns that were
                    written from the program's source and happen to be met once.
left_out_of_source  as above, but a pattern that also matches a message in
                    tests/unit/diagnostics/formats.txt stays: that table holds what programs print,
                    as their own sources format it.

Neither replaces a measurement on texts never seen; docs/fails.md gives that.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from gfxgraph.diagnostics.entries import entry
from gfxgraph.diagnostics.explain import conclude, order
from gfxgraph.diagnostics.index import Item, load
from gfxgraph.diagnostics.scan import Scanner
from gfxgraph.hardware.architectures import architecture

FORMATS = Path(__file__).parents[1] / "tests" / "unit" / "diagnostics" / "formats.txt"


def family_of(arch: str) -> str:
    known = architecture(arch)
    return known.family if known else ""


def scan(text: str) -> Scanner:
    scanner = Scanner()
    scanner.feed(text.encode())
    return scanner


def matching(text: str) -> list[int]:
    """Numbers of the items that match any line of ``text``."""
    found = []
    lines = text.splitlines()
    for number, item in enumerate(load().items):
        if any(item.search(line, line.lower()) for line in lines):
            found.append(number)
    return found


def without(text: str, lost: set[int]) -> str | None:
    """The root code found in ``text`` when some items do not exist."""
    index = load()
    never = re.compile(r"(?!)")
    kept = {number: index.items[number].compiled for number in lost}
    for number in lost:
        index.items[number].compiled = never
    try:
        scanner = scan(text)
        scanner.finish()
        hits = order(scanner.hits.values())
        return hits[0].code if hits else None
    finally:
        for number, compiled in kept.items():
            index.items[number].compiled = compiled


def told(facts: list[str], words: str) -> int:
    """How many of ``facts`` have at least half of their telling words in the explanation."""
    return sum(_has(fact, words) for fact in facts)


def _has(fact: str, words: str) -> bool:
    telling = [word for word in re.findall(r"[\w./=:-]{3,}", fact.lower()) if word not in _FILLERS]
    present = sum(word in words for word in telling)
    return not telling or present * 2 >= len(telling)


_FILLERS = {"the", "for", "and", "not", "with", "this", "that", "from", "gpu", "has", "are", "use", "than"}


def formats() -> list[tuple[str, str, str]]:
    """Code, program and message of each line of the table of formats."""
    lines = (line for line in FORMATS.read_text().splitlines() if line and not line.startswith("#"))
    return [(code, program, text.replace(r"\n", "\n")) for code, program, text in (x.split(" | ", 2) for x in lines)]


def score(samples: list[dict[str, Any]]) -> dict[str, Any]:
    items: list[Item] = load().items
    matched = [matching(sample["text"]) for sample in samples]
    uses = Counter(number for numbers in matched for number in set(numbers))
    sourced = {number for _, _, text in formats() for number in matching(text)}
    rows = []
    started = time.perf_counter()
    for sample, numbers in zip(samples, matched):
        found = conclude(scan(sample["text"]), lang="en", family_of=family_of)
        words = (found.format("en") + " " + _page(found.code)).lower()
        own = {n for n in numbers if uses[n] == 1 and items[n].kind != "status" and items[n].kind != "hint"}
        rows.append(
            {
                "id": sample["id"],
                "label": sample["label"],
                "got": found.code,
                "all": [match.code for match in found.matches],
                "left_out": without(sample["text"], own) if own else found.code,
                "left_out_of_source": without(sample["text"], own - sourced) if own - sourced else found.code,
                "facts": len(sample["must_mention"]),
                "told": told(sample["must_mention"], words),
            }
        )
    seconds = time.perf_counter() - started
    return {"figures": _figures(rows), "seconds": round(seconds, 2), "rows": rows}


def _page(code: str | None) -> str:
    if code is None:
        return ""
    words = entry(code).text("en")
    return " ".join([words.title, words.what, words.why, *words.do, *words.notes.values()])


def _figures(rows: list[dict[str, Any]]) -> dict[str, Any]:
    errors = [row for row in rows if row["label"] != "none"]
    negatives = [row for row in rows if row["label"] == "none"]

    def share(count: int, total: int) -> float:
        return round(100 * count / total, 1) if total else 0.0

    figures: dict[str, Any] = {"samples": len(rows), "errors": len(errors), "negatives": len(negatives)}
    for key in ("got", "left_out", "left_out_of_source"):
        figures[key] = {
            "recall_percent": share(sum(row[key] is not None for row in errors), len(errors)),
            "right_label_percent": share(sum(row[key] == row["label"] for row in errors), len(errors)),
            "false_alarms": sum(row[key] is not None for row in negatives),
        }
    figures["label_among_matches_percent"] = share(sum(row["label"] in row["all"] for row in errors), len(errors))
    figures["facts_told_percent"] = share(sum(row["told"] for row in errors), sum(row["facts"] for row in errors))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("samples", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", action="store_true", help="list what is wrong")
    parser.add_argument("--ids", type=Path, help="score only the ids listed in this file")
    options = parser.parse_args()
    samples = [json.loads(line) for line in options.samples.read_text().splitlines() if line.strip()]
    if options.ids:
        wanted = set(options.ids.read_text().split())
        samples = [sample for sample in samples if sample["id"] in wanted]
    result = score(samples)
    print(json.dumps(result["figures"], indent=2))
    if options.show:
        for row in result["rows"]:
            if row["got"] != (None if row["label"] == "none" else row["label"]):
                print(row["id"], "label", row["label"], "got", row["got"], row["all"])
    if options.out:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
        head = {
            "what": "scoring of the diagnostics catalogue on labelled ROCm errors (development half)",
            "command": "python benchmarks/score_diagnostics.py rocm_errors_dev.jsonl --out RESULTS",
            "commit": commit.stdout.strip(),
            "python": platform.python_version(),
            "entries": len(load().ranks),
            "patterns": len(load().items),
        }
        options.out.write_text(json.dumps(head | result, indent=1) + "\n")
        print("wrote", options.out, file=sys.stderr)


if __name__ == "__main__":
    main()
