"""Run explain once on logs drawn after the last change to the catalogue, without and with facts; write the answers.

    python benchmarks/explain_fresh.py SAMPLES.jsonl ANSWERS.json

A sample is that of score_explain.py with "in_text" (could an expert tell from the text: yes, partly, no), "cause"
(what the thread found) and "facts" (of the machine, where the thread gives some). Labels are written before the run.
A person judges the answers, by these rules: *right* is the cause, or for "no" one of the causes named undecided;
*honest* says that the log does not decide and names a check that would; *misleading* is a first line of advice for
another cause, system or program; *fix first* is the thread's fix in the first line of advice.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

from gfxgraph.hardware import advice


def main() -> None:
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    answers = []
    for row in rows:
        found = advice.explain(row["text"], lang="en", facts={})
        answer = {"source": row["source"], "in_text": row.get("in_text"), "code": found.code, "accept": row["accept"]}
        answer |= {"right_class": found.code in row["accept"] if row["accept"] else not found}
        answer |= {"undecided": found.as_dict().get("undecided"), "answer": found.format() if found else ""}
        if row.get("facts"):
            with_facts = advice.explain(row["text"], lang="en", facts=row["facts"])
            answer["with_facts"] = with_facts.format()
        answers.append(answer)
    lengths = [len(one["answer"]) for one in answers if one["answer"]]
    figures = {
        "failures": sum(bool(row["accept"]) for row in rows),
        "right_class": sum(bool(one["accept"]) and one["right_class"] for one in answers),
        "harmless": sum(not row["accept"] for row in rows),
        "harmless_called_failure": sum(not one["accept"] and not one["right_class"] for one in answers),
        "median_characters": statistics.median(lengths),
    }
    Path(sys.argv[2]).write_text(json.dumps({"figures": figures, "answers": answers}, indent=1, ensure_ascii=False))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
