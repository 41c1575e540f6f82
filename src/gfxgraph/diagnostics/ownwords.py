"""Recognizes blocks printed by gfxgraph itself: one of our errors counts once as evidence; an explanation does not.

An explained log is often stored and explained again. Its explanations quote messages and name statuses, which would
be
found as if they had occurred. A block is a line ``code: title`` and the indented lines below it; one printed by
``explain`` has lines that errors do not have ("seen:", "code:").

Enters: lines of a log.
Stays out: patterns.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence

from gfxgraph.diagnostics.index import names

REACH = 40
"""Lines that a block may have."""
_HEADER = re.compile(r"(\w+): ")
_MORE = ("  more: ", "  详情：")
_LABELS = ("  what: ", "  现象：")
_OF_EXPLANATIONS = (
    *("  seen: ", "  code: ", "  gpu:  ", "  part: ", "  near: ", "  here: ", "  case: "),
    *("  日志：", "  代码：", "  GPU：", "  显卡：", "  组件：", "  附近：", "  本例：", "  案例："),
)


def is_evidence(lines: Sequence[str], at: int, codes: Container[str]) -> bool:
    """Whether ``lines[at]`` reports something that happened: in one of our blocks only an error's last line does."""
    header = at
    while header > 0 and at - header < REACH and (not lines[header].strip() or lines[header].startswith("  ")):
        header -= 1
    found = _HEADER.match(lines[header])
    if found is None or found[1] not in codes:
        return True
    below = lines[header + 1 : header + 3]
    if not any(line.startswith((*_LABELS, *_OF_EXPLANATIONS)) for line in below):
        return True
    is_explanation = any(line.startswith(_OF_EXPLANATIONS) for line in below)
    return lines[at].startswith(_MORE) and not is_explanation


def not_evidence(lines: Mapping[int, str]) -> set[int]:
    """The numbers of the lines that are in our blocks."""
    if not any(line.startswith((*_LABELS, *_OF_EXPLANATIONS)) for line in lines.values()):
        return set()
    codes = names().ranks
    numbers = sorted(lines)
    texts = [lines[number] for number in numbers]
    return {number for at, number in enumerate(numbers) if not is_evidence(texts, at, codes)}
