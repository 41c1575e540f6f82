"""The page of one entry for the terminal; tools/make_error_pages.py makes the documentation of the same parts."""

from __future__ import annotations

from collections.abc import Iterator

from gfxgraph.diagnostics import situation, statuses
from gfxgraph.diagnostics.entries import Condition, entry
from gfxgraph.diagnostics.render import LABELS, fill

WORDS = {
    "en": {
        "here": "where the log shows {when}",
        "note": "on {family}",
        "aliases": "also called",
        "statuses": "status codes",
        "sources": "sources",
    },
    "zh": {
        "here": "当日志中出现 {when}",
        "note": "{family}",
        "aliases": "别名",
        "statuses": "状态码",
        "sources": "来源",
    },
}


def page(code: str, lang: str) -> str:
    """Return one whole entry for the terminal."""
    found = entry(code)
    text, words = found.text(lang), WORDS[lang]
    what, why, do, _ = LABELS[lang]
    lines = [f"{code}: {text.title}"]
    for label, body in sections(found, lang, (what, why, do)):
        lines.append(f"  {label}" + body.replace("\n", "\n" + " " * 8))
    for heading, body in extras(found, lang):
        lines.append(f"\n  {heading}:\n    " + body.replace("\n", "\n    "))
    if found.aliases:
        lines.append(f"\n  {words['aliases']}: {', '.join(found.aliases)}")
    return "\n".join(lines)


def sections(found: Condition, lang: str, labels: tuple[str, str, str]) -> Iterator[tuple[str, str]]:
    """What, why and do, each with its label."""
    text = found.text(lang)
    names = {name: f"<{name}>" for name in found.fields}
    yield labels[0], fill(text.what, found, names, lang)
    yield labels[1], _general(fill(text.why, found, names, lang))
    yield labels[2], "\n".join(_general(fill(step, found, names, lang)) for step in text.do)


def _general(step: str) -> str:
    """A step for all situations, with its conditions in brackets before it."""
    conditions, text = situation.general(step)
    shown = ", ".join(name for name in conditions if name[0] not in "!?")
    return f"[{shown}] {text}" if shown else text


def extras(found: Condition, lang: str) -> Iterator[tuple[str, str]]:
    """Advice that depends on the log, notes by GPU, statuses and sources, each with its heading."""
    words = WORDS[lang]
    for hint in found.hints:
        yield words["here"].format(when=f"`{hint.when}`"), _general(hint.words[lang])
    notes = found.text(lang).notes
    if notes:
        yield (
            "GPU",
            "\n".join(f"{words['note'].format(family=name)}: {_general(note)}" for name, note in notes.items()),
        )
    members = [status for status in statuses.every() if status.entry == found.code]
    if members:
        rows = (f"{s.name} ({s.api} {s.shown_number()}): {s.meaning(lang)}" for s in members)
        yield words["statuses"], "\n".join(rows)
    if found.sources:
        yield words["sources"], "\n".join(found.sources)
