"""Score explain on labelled logs, without what it knows of their own threads.

    python benchmarks/score_explain.py SAMPLES.jsonl... [--show]

A sample has "text", "source" (its thread), "label" or "accept" (codes) and "must_mention" (facts of the thread); a
label of "none" or an empty "accept" means a harmless text. Advice from the sample's own thread is left out,
so that the figures say what explain makes of a thread that it has not seen. A fact is told if half of its telling
words are in what is printed: a rough measure, good for comparing two versions, not for a claim.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from gfxgraph.diagnostics import explanation
from gfxgraph.diagnostics.entries import Condition
from gfxgraph.hardware import advice

FILLERS = {
    "the",
    "for",
    "and",
    "not",
    "with",
    "this",
    "that",
    "from",
    "gpu",
    "has",
    "are",
    "use",
    "than",
    "its",
    "rocm",
}


def without_own(text: str, source: str) -> tuple[str, str]:
    """Code and answer for ``text``, as if no advice came from the thread ``source`` ("owner/name#number")."""
    owner, _, number = source.partition("#")
    own = re.compile(rf"{re.escape(owner)}/\w+/{number}$") if number else re.compile(r"(?!)")

    def entry(code: str) -> Condition:
        found = read(code)
        causes = (
            cause._replace(where="@nowhere: ") if any(map(own.search, cause.sources)) else cause
            for cause in found.causes
        )
        return found._replace(causes=tuple(causes))

    read, explanation.entry = explanation.entry, entry  # type: ignore[assignment]
    try:
        found = advice.explain(text, lang="en")
        return str(found.code or ""), found.format() if found else ""
    finally:
        explanation.entry = read


def told(fact: str, words: str) -> bool:
    telling = [word for word in re.findall(r"[\w./=:-]{3,}", fact.lower()) if word not in FILLERS]
    return bool(telling) and 2 * sum(word in words for word in telling) >= len(telling)


def score(samples: list[dict[str, Any]], show: bool) -> Counter[str]:
    figures: Counter[str] = Counter()
    for sample in samples:
        accepted = sample.get("accept", [label for label in [sample.get("label")] if label not in (None, "none")])
        code, answer = without_own(sample["text"], sample["source"])
        if not accepted:
            figures.update(harmless=1, false=bool(code))
            continue
        answer = answer.lower()
        first = answer.partition("  do:   ")[2].partition("\n")[0]
        facts = sample["must_mention"]
        n_told = sum(told(fact, answer) for fact in facts)
        figures.update(
            failures=1, recognized=bool(code), right_code=code in accepted, facts=len(facts), told=n_told,
            told_first=sum(told(fact, first) for fact in facts), characters=len(answer),
        )  # fmt: skip
        if show and n_told < len(facts):
            print(f"--- {sample['source']} {accepted} {facts}\n{sample['text'][-700:]}\n{answer}")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("samples", type=Path, nargs="+")
    parser.add_argument("--show", action="store_true", help="print the answers that leave out a fact")
    options = parser.parse_args()
    for path in options.samples:
        samples = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        print(path.stem, json.dumps(score(samples, options.show)))


if __name__ == "__main__":
    main()
