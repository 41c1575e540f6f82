"""Explain anything: a code, a status by name or number, an exception, a text, a finished scan."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from gfxgraph import config
from gfxgraph.diagnostics import statuses
from gfxgraph.diagnostics.explanation import Explanation, Match
from gfxgraph.diagnostics.expression_index import names

if TYPE_CHECKING:  # a code or a number is explained without searching anything
    from gfxgraph.diagnostics.scan import CodeHit, Scanner

FamilyOf = Callable[[str], str]
"""Turns ``gfx1030`` into ``RDNA2``; set by the hardware room, which is above this one."""

_NUMBER = re.compile(r"[(\s]*(0x[0-9a-f]+|\d{1,5})[)\s]*", re.IGNORECASE)
_STATUS_NAME = re.compile(r"(?:hip|cuda)Error[A-Z]\w*|HSA_STATUS_[A-Z_]+")
_WORD = re.compile(r"[a-z][\w./+=:-]{2,}[\w+]")
_MOST_TEXT = 4 << 20
_WARNED = 20  # ranks that a warning stands behind an error
_ENDS = 90
"""Rank of the ways in which a process ends, which are consequences of something else."""
_ANYBODYS = frozenset({"missing_shared_library", "symbol_version_mismatch"})
"""Codes whose weak signs are the loader's words for any library: they count only if something names AMD."""


def _no_family(arch: str) -> str:
    return ""


def explain(subject: object, *, lang: str = "", family_of: FamilyOf = _no_family) -> Explanation:
    """Explain ``subject``.

    Args:
        subject: a catalogue code, a status name (HIP's or CUDA's), a number, an exception, or text.
        lang: ``en`` or ``zh``; by default the configured language.
        family_of: maps gfx names in the text to families.

    Returns:
        An Explanation, false if nothing was recognised.
    """
    lang = lang or config.language_of()
    if isinstance(subject, BaseException):
        import traceback

        # The whole chain: engines wrap the error that gives the reason.
        text = "".join(traceback.format_exception(subject))[-_MOST_TEXT:]
        code = code_of(str(getattr(subject, "code", "")))
        matches: tuple[Match, ...] | None = (Match(code),) if code else None
    else:
        text = str(subject).strip()[:_MOST_TEXT]
        matches = _number(subject) if isinstance(subject, int) else _word(text)
    if matches is not None:
        return Explanation(matches, lang=lang)
    # lazily: explain must start fast
    from gfxgraph.diagnostics.scan import Scanner

    scanner = Scanner()
    scanner.feed(f"{text}\n".encode("utf-8", "replace"))
    return conclude(scanner, lang=lang, family_of=family_of)


def _word(text: str) -> tuple[Match, ...] | None:
    """What a code, the name of a status or a number means; None if ``text`` is none of them."""
    word = text.rstrip(":.")
    if code := code_of(word):
        return (Match(code),)
    status = statuses.by_name(word) if re.fullmatch(r"\w{6,60}", word) else None
    if status:
        return (Match(status.entry, status=status),)
    if _STATUS_NAME.fullmatch(word):
        return ()  # it looks like a status but is not one: a guess would mislead
    number = _NUMBER.fullmatch(text)
    return _number(int(number[1], 0)) if number else None


def code_of(word: str) -> str:
    """Return the code that ``word`` is, or is an alias of; '' if neither."""
    known = names()
    slug = word.strip().lower().replace("-", "_")
    return slug if slug in known.ranks else known.aliases.get(slug, "")


def conclude(scanner: Scanner, *, lang: str = "", family_of: FamilyOf = _no_family) -> Explanation:
    """Finish a scan and order what it found, the root cause first."""
    # lazily: explain must start fast
    from gfxgraph.diagnostics import situation, unknown_errors

    scanner.finish()
    lines = [*scanner.context.values(), *(hit.text for hit in scanner.hits.values())]
    matches = _matches(scanner, lines)
    lang = lang or config.language_of()
    if not matches:
        return Explanation(lang=lang)
    if unknown_errors.went_on(scanner.context, [(match.line, match.text) for match in matches]):
        return Explanation(lang=lang, warned=tuple(matches))
    archs = sorted(scanner.archs, key=lambda arch: -scanner.archs[arch])
    here = situation.read(lines, archs)
    families = {arch: family_of(arch) for arch in archs[:2] or [here.arch] if arch}
    return Explanation(
        tuple(matches),
        tuple(dict.fromkeys(filter(None, families.values()))),
        lang,
        tuple(f"{arch} ({its})" if its else arch for arch, its in families.items()),
        here,
        frozenset(_WORD.findall("\n".join(lines).lower())),
    )


def _matches(scanner: Scanner, lines: list[str]) -> list[Match]:
    """What was found, the root cause first, without what another vendor's devices or other lines explain."""
    # lazily: explain must start fast
    from gfxgraph.diagnostics import kinds, mentions, unknown_errors

    hits = [hit for hit in scanner.hits.values() if hit.code not in scanner.refuted]
    ranks = names().ranks
    only_ends = all(hit.strength <= 0 or ranks[hit.code] >= _ENDS or "note" in kinds.of(hit.text) for hit in hits)
    found = unknown_errors.find(scanner.context) if only_ends else None
    if hits or found:
        is_of_others = mentions.is_of_others(lines)
        hits = [hit for hit in hits if hit.strength == 3 or not is_of_others(hit.code)]
        if not any(map(mentions.names_amd, lines)):
            hits = [hit for hit in hits if hit.strength > 0 or (hit.strength == 0 and hit.code not in _ANYBODYS)]
    matches = [Match(hit.code, hit.text, hit.line, hit.count, _causes(scanner, hit)) for hit in order(hits)]
    if found and all(match.line != found[1] for match in matches):
        component, line, text = found
        code = next(iter(kinds.of(text).get("forms", ())), "")
        unknown = Match(code or unknown_errors.CODE, text, line, 1, component=component, is_by_form=bool(code))
        return [unknown, *matches]
    return matches


def _causes(scanner: Scanner, hit: CodeHit) -> dict[int, int]:
    """By the number of a cause of this class, the nearest line that shows it."""
    shown = {number: lines for (code, number), lines in scanner.causes.items() if code == hit.code}
    return {number: min(lines, key=lambda line: abs(line - hit.line)) for number, lines in shown.items()}


def order(hits: Iterable[CodeHit]) -> list[CodeHit]:
    """Put the root cause first, and drop weak hits if there are better ones.

    The rank in the catalogue says how close to the root a condition is: a container without
    device files explains "no device", which explains a failed collective. Among equals the
    earliest line wins.
    """
    # lazily: explain must start fast
    from gfxgraph.diagnostics import kinds

    ranks = names().ranks
    found = list(hits)
    # That a process died does not contradict a weak sign of why.
    best = max((hit.strength for hit in found if ranks[hit.code] < _ENDS), default=0)
    if best > 0:
        found = [hit for hit in found if hit.strength > 0]

    # Our own errors already name the cause, whatever they quote. A bare status says less than a
    # program's own words, so it ranks slightly lower.
    warnings = {hit.code for hit in found if "warning" in kinds.of(hit.text)}
    raised = any(hit.strength > 0 and ranks[hit.code] < _ENDS and hit.code not in warnings for hit in found)

    def place(hit: CodeHit) -> tuple[bool, int, int]:
        behind = 3 * (hit.strength == 1) + _WARNED * (raised and hit.code in warnings)
        return hit.strength < 3, ranks[hit.code] + behind, hit.line

    return sorted(found, key=place)


def _number(number: int) -> tuple[Match, ...]:
    if number < 0 and abs(number) <= 64:
        number = 128 - number  # Python's returncode for a signal, as a shell shows it
    return tuple(Match(status.entry, status=status) for status in statuses.by_number(number))
