"""Write docs/evidence.md, one line for each claim, from docs/evidence.toml, and prove each line by its result file.

    python tools/make_evidence.py            writes the page
    python tools/make_evidence.py --check    fails where the page is not what the rows say (``make docs``)

Rows stand by ``group``, what a user asks. One that missed its target says ``why``, and the page that makes the claim
(``told``) has the figure, too. Both fail where that does not hold, where a row has no commit, where there are more
than 45 rows, where a cell is longer than 120 characters, where a row's file is not there, and where that file has not
the row's figure: every number of the figure must stand in the file, to the digits that the figure shows. A
number of a file is also how many entries one of its lists or tables has, and a share as per cent.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "docs" / "evidence.toml"
PAGE = ROOT / "docs" / "evidence.md"
RESULTS = ROOT / "benchmarks" / "results"
LONGEST = 120
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?")
VERDICTS = {"met": "met", "missed": "**missed**", "": ""}
MOST = 45
HEAD = "| Claim | Figure | Target | Verdict | Run on |\n| --- | --- | --- | --- | --- |\n"


def numbers_in(what: object) -> Iterator[float]:
    """Every number of a result file: its values, those in its texts, and the lengths of its lists and tables."""
    if isinstance(what, dict):
        yield len(what)
        for key, value in what.items():
            yield from numbers_in(key)
            yield from numbers_in(value)
    elif isinstance(what, list):
        yield len(what)
        for value in what:
            yield from numbers_in(value)
    elif isinstance(what, str):
        yield from (float(text.replace(",", "")) for text in NUMBER.findall(what))
    elif isinstance(what, (int, float)) and not isinstance(what, bool):
        yield float(what)


def numbers_of(text: str) -> list[str]:
    """The numbers of a text, as they are written."""
    return [each.rstrip(",") for each in NUMBER.findall(text)]


def not_held(figure: str, held: set[float]) -> list[str]:
    """The numbers of ``figure`` that none of ``held`` rounds to."""
    missing = []
    for text in NUMBER.findall(figure):
        digits = len(text.partition(".")[2])
        wanted = float(text.replace(",", ""))
        scales = (1.0, 100.0) if f"{text} %" in figure or f"{text}%" in figure else (1.0,)
        if not any(abs(value * scale - wanted) <= 0.5001 * 10**-digits for value in held for scale in scales):
            missing.append(text)
    return missing


def commit_of(result: object) -> str:
    """The commit that a result file names, shortened; '' where it names none or several."""
    if not isinstance(result, dict):
        return ""
    found = result.get("commit") or commit_of(result.get("environment")) or commit_of(result.get("machine"))
    return str(found or "")[:8]


def line(row: dict[str, str], result: object) -> str:
    """One line of the table."""
    name = row["result"]
    place = f"../{name}" if "/" in name else f"../benchmarks/results/{name}"
    claim = row["claim"] + (f"<br>*{row['why']}*" if row.get("why") else "")
    where = f"{row['where']}, [{commit_in(row, result)}]({place})"
    return f"| {claim} | {row['figure']} | {row['target']} | {VERDICTS[row['verdict']]} | {where} |\n"


def commit_in(row: dict[str, str], result: object) -> str:
    """The commit of a row: its own word, else the result file's."""
    return row.get("commit") or commit_of(result)


def problems(row: dict[str, str]) -> Iterator[str]:
    """What is wrong with a row, in sentences."""
    for name, text in row.items():
        if len(text) > LONGEST:
            yield f"{name} has {len(text)} characters, and {LONGEST} is the most: {text!r}"
    path = ROOT / row["result"] if "/" in row["result"] else RESULTS / row["result"]
    if row["verdict"] == "missed":
        page = ROOT / row.get("told", "")
        said = numbers_of(page.read_text(encoding="utf-8")) if page.is_file() else []
        missing = [each for each in numbers_of(row["figure"].split(";")[0]) if each not in said]
        if not row.get("why") or missing:
            yield f"missed, and {row.get('told', 'no page')} does not say {', '.join(missing)}, or there is no why"
    if not path.is_file():
        yield f"there is no {row['result']}"
    elif path.suffix == ".json":
        missing = not_held(row["figure"], set(numbers_in(json.loads(path.read_text(encoding="utf-8")))))
        if missing:
            yield f"{row['result']} does not hold {', '.join(missing)} of the figure {row['figure']!r}"


def page(told: dict[str, object]) -> tuple[str, list[str]]:
    """The page's text, and what is wrong with its rows."""
    rows = told["row"]
    assert isinstance(rows, list)
    wrong = [f"{row['claim']}: {problem}" for row in rows for problem in problems(row)]
    if len(rows) > MOST:
        wrong.append(f"{len(rows)} rows, and {MOST} is the most")
    text = f"{told['before']}"
    for group in dict.fromkeys(row["group"] for row in rows):
        text += f"\n## {group}\n\n{HEAD}"
        for row in (each for each in rows if each["group"] == group):
            path = RESULTS / row["result"]
            is_read = path.suffix == ".json" and path.is_file()
            result = json.loads(path.read_text(encoding="utf-8")) if is_read else None
            if not commit_in(row, result):
                wrong.append(f"{row['claim']}: no commit")
            text += line(row, result)
    return f"{text}\n{told['after']}", wrong


def main() -> int:
    text, wrong = page(tomllib.loads(ROWS.read_text(encoding="utf-8")))
    if "--check" in sys.argv[1:]:
        if not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
            wrong.append("docs/evidence.md is not what docs/evidence.toml says: python tools/make_evidence.py")
    elif not wrong:
        PAGE.write_text(text, encoding="utf-8")
    for each in wrong:
        sys.stderr.write(f"evidence: {each}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
