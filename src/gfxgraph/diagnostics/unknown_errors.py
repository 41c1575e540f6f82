"""Handles errors unknown to the catalogue: names the component that failed, and where to look next.

Used only if nothing was recognised. A line counts if it has the form of an error, names a part of ROCm or
an AMD device, and is not text that merely mentions failures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gfxgraph.diagnostics import kinds, mentions

CODE = "not_in_catalogue"
_FAR = 25  # lines
_END_OF_ALL = 9
_WEAKEST = 2  # form of a failure


def find(lines: Mapping[int, str]) -> tuple[str, int, str] | None:
    """Return component, number and text of the line that shows best what failed, or None."""
    best: tuple[tuple[int, int], tuple[str, int, str]] | None = None
    nearest, seen = "", -_FAR
    numbers = sorted(lines)
    texts = [lines[number] for number in numbers]
    for at, (number, line) in enumerate(zip(numbers, texts)):
        if mentions.is_said(line) or mentions.in_own_block(texts, at) or mentions.in_prose(texts, at):
            continue
        form = kinds.of(line)
        name = component_of(line)
        surety = _surety(line) if name else _END_OF_ALL
        if name:
            nearest, seen = name, number
        elif number - seen > _FAR or "fatal" not in form or "not_ours" in form:
            continue  # no exception of a kind that runtimes raise, a few lines after an AMD message
        # Other entries cover the death of the process. Among equals the first: consequences of a failure come later.
        if surety is not None and "died" not in form and (best is None or (surety, number) < best[0]):
            best = (surety, number), (name or nearest, number, line.strip())
    return best and best[1]


def went_on(lines: Mapping[int, str], hits: Iterable[tuple[int, str]]) -> bool:
    """Whether nothing broke: the hits are warnings, and after them the program went on, or the driver started."""
    found = list(hits)
    last = max(number for number, _ in found)
    after = [line for number, line in lines.items() if number > last and line.strip()]
    is_up = any("came_up" in kinds.of(line) for line in after)
    are_mild = all("warning" in kinds.of(text) or (is_up and _surety(text) == _WEAKEST) for _, text in found)
    goes_on = all("goes_on" in kinds.of(text) for _, text in found)
    has_done = is_up or goes_on or any("success" in kinds.of(line) for line in after)
    return are_mild and has_done and all(_surety(line) is None for line in after)


def component_of(line: str) -> str:
    """The component that ``line`` names, '' if it names none."""
    if not mentions.names_amd(line):
        return ""
    # A line that names only a device is still ROCm's to explain.
    return [*kinds.of(line).get("component", ()), [*kinds.components()][-1]][0]


def _surety(line: str) -> int | None:
    form = kinds.of(line)
    surety = next((level for level in range(3) if f"failure{level}" in form), None)
    if surety is None or (surety and "quiet" in form) or mentions.is_said(line) or "installer" in form:
        return None
    # A sentence with a full stop and nothing before a colon is prose.
    if surety == _WEAKEST and (line.rstrip().endswith(".") or not {":", "[", "="} & set(line)):
        return None
    return surety
