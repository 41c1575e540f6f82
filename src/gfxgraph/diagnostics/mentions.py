"""Separates failures from text that only mentions failures, and AMD's failures from other vendors'.

Release notes, source code, lists of options and passed tests contain the same sentences that programs
print when they fail. They are distinguished by their form. The devices and packages named in a text show whose
GPU it is about.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from gfxgraph.diagnostics import kinds
from gfxgraph.diagnostics.expression_index import names

AROUND = 4  # lines between items of the same list
LONGEST_SECTION = 60  # lines
LONGEST_BLOCK = 40  # lines that gfxgraph prints about one error
_MORE = ("  more: ", "  详情：")
_LABELS = ("  what: ", "  现象：")
_OF_EXPLANATIONS = (
    *("  seen: ", "  code: ", "  gpu:  ", "  part: ", "  near: ", "  here: ", "  case: "),
    *("  日志：", "  代码：", "  GPU：", "  显卡：", "  组件：", "  附近：", "  本例：", "  案例："),
)

# Printed on machines without an NVIDIA GPU by programs built for one, whatever packages the text lists.
_SAYS_NO_NVIDIA = frozenset({"framework_not_rocm", "not_rocm_cuda_torch", "no_device", "driver_library_not_found"})


def is_said(line: str) -> bool:
    """Whether ``line`` mentions failures without being one, as far as one line can show."""
    form = kinds.of(line)
    return _is_change(form) or "narration" in form or ("source" in form and "printed_anyhow" not in form)


def _is_change(form: Collection[str]) -> bool:
    return "changelog" in form or ("commit_line" in form and "no_commit_line" not in form)


def in_prose(lines: Sequence[str], at: int) -> bool:
    """Whether ``lines[at]`` belongs to a section of prose, to a commit's message or to a list of changes."""
    line = lines[at]
    before = lines[max(0, at - LONGEST_SECTION) : at]
    # Only programs print some lines, which a section of prose does not hold.
    if "printed" not in kinds.of(line) and any(one[:1] == "#" and "heading" in kinds.of(one) for one in before):
        return True
    # GoogleTest's marks: what a test printed that passed was expected.
    if next((one for one in reversed(before) if one.startswith("[ ")), "").startswith("[ RUN "):
        if next((one for one in lines[at + 1 :] if one.startswith("[ ")), "").startswith("[       OK"):
            return True
    if line.startswith("    "):
        # A commit's message is indented below its header, however long it is.
        head = next((one for one in reversed(before) if one.strip() and not one.startswith("    ")), "")
        return "commit_head" in kinds.of(head)
    around = lines[max(0, at - AROUND) : at + AROUND + 1]
    return "bullet" in kinds.of(line) and any(_is_change(kinds.of(other)) for other in around)


def in_own_block(lines: Sequence[str], at: int) -> bool:
    """Whether ``lines[at]`` is of a block that gfxgraph printed, which quotes messages and names statuses.

    A block is a line ``code: title`` and the indented lines below it. The last line of one of our errors counts; of
    an explanation, which has lines that errors do not have, nothing does.
    """
    header = at
    while header > 0 and at - header < LONGEST_BLOCK and (not lines[header].strip() or lines[header][:2] == "  "):
        header -= 1
    if lines[header].partition(": ")[0] not in names().ranks:
        return False
    below = lines[header + 1 : header + 3]
    if any(line.startswith(_OF_EXPLANATIONS) for line in below):
        return True
    return any(line.startswith(_LABELS) for line in below) and not lines[at].startswith(_MORE)


def is_of_others(lines: list[str]) -> Callable[[str], bool]:
    """Return a function that tells for a code whether it is another vendor's failure in a text with ``lines``."""
    if any(map(names_amd, lines)):
        return lambda code: False
    named = {kind for line in lines for kind in kinds.of(line)}
    if "other_device" in named:
        return lambda code: True
    return lambda code: "other_package" in named and code not in _SAYS_NO_NVIDIA


def names_amd(line: str) -> bool:
    """Whether ``line`` names an AMD device, driver or library as present."""
    form = kinds.of(line)
    return "amd" in form and "not_amd" not in form
