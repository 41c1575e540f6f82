"""Separates failures from text that only mentions failures, and AMD's failures from other vendors'.

Release notes, source code, lists of options and passed tests contain the same sentences that programs
print when they fail. They are distinguished by their form. The devices and packages named in a text show whose
GPU it is about.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from gfxgraph.diagnostics import kinds

AROUND = 4  # lines between items of the same list
LONGEST_SECTION = 60  # lines

# Printed on machines without an NVIDIA GPU by programs built for one, whatever packages the text lists.
_SAYS_NO_NVIDIA = frozenset({"framework_not_rocm", "not_rocm_cuda_torch", "no_device", "driver_library_not_found"})


def is_said(line: str) -> bool:
    """Whether ``line`` mentions failures without being one, as far as one line can show."""
    form = kinds.of(line)
    return _is_change(form) or "narration" in form or ("source" in form and "printed_anyhow" not in form)


def _is_change(form: Collection[str]) -> bool:
    return "changelog" in form or ("commit_line" in form and "no_commit_line" not in form)


def is_head_of_commit(line: str) -> bool:
    """Whether ``line`` belongs to the header that git prints above a commit's message."""
    return "commit_head" in kinds.of(line)


def in_list(line: str, around: list[str]) -> bool:
    """Whether ``line`` is an item of a list of changes, or the message of a commit."""
    if "bullet" in kinds.of(line):
        return any(_is_change(kinds.of(other)) for other in around)
    return line.startswith("    ") and any(map(is_head_of_commit, around))


def section_end(line: bytes, number: int) -> int:
    """Where the prose ends that is opened by a heading in line ``number``; 0 if it opens none."""
    is_heading = line.startswith(b"#") and "heading" in kinds.of(line.decode("utf-8", "replace"))
    return number + LONGEST_SECTION if is_heading else 0


def is_printed(line: str) -> bool:
    """Whether only programs print such a line: it ends a section of prose."""
    return "printed" in kinds.of(line)


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
