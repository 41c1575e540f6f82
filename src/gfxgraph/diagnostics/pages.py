"""Whole pages: one entry for the terminal, and all entries as a document for ``docs/``."""

from __future__ import annotations

from collections.abc import Iterator

from gfxgraph.diagnostics import situation, statuses
from gfxgraph.diagnostics.entries import Entry, codes, entry
from gfxgraph.diagnostics.render import LABELS, fill

_WORDS = {
    "en": {
        "here": "where the log shows {when}",
        "note": "on {family}",
        "aliases": "also called",
        "statuses": "status codes",
        "sources": "sources",
        "title": "Errors explained",
        "intro": "Every condition that `gfxgraph explain` knows, made from `src/gfxgraph/diagnostics/catalogue` by "
        "`make docs`. In Chinese: [errors.zh.md](errors.zh.md).",
        "own": "Errors of gfxgraph itself",
        "others": "Errors of ROCm, frameworks and engines",
    },
    "zh": {
        "here": "当日志中出现 {when}",
        "note": "{family}",
        "aliases": "别名",
        "statuses": "状态码",
        "sources": "来源",
        "title": "错误说明",
        "intro": "`gfxgraph explain` 能识别的全部问题，由 `make docs` 根据 "
        "`src/gfxgraph/diagnostics/catalogue` 生成。英文版：[errors.md](errors.md)。",
        "own": "gfxgraph 自身的错误",
        "others": "ROCm、框架与引擎的错误",
    },
}

_CONDITIONS = {
    "en": {"windows": "Windows", "linux": "Linux", "wsl": "WSL", "apu": "APU", "cdna": "CDNA", "rdna": "RDNA"},
    "zh": {"windows": "Windows", "linux": "Linux", "wsl": "WSL", "apu": "APU", "cdna": "CDNA", "rdna": "RDNA",
           "container": "容器", "override": "需要覆盖版本"},
}  # fmt: skip


def page(code: str, lang: str) -> str:
    """Return one entry whole, for the terminal."""
    found = entry(code)
    text, words = found.text(lang), _WORDS[lang]
    what, why, do, _ = LABELS[lang]
    lines = [f"{code}: {text.title}"]
    for label, body in _sections(found, lang, (what, why, do)):
        lines.append(f"  {label}" + body.replace("\n", "\n" + " " * 8))
    for heading, body in _extras(found, lang):
        lines.append(f"\n  {heading}:\n    " + body.replace("\n", "\n    "))
    if found.aliases:
        lines.append(f"\n  {words['aliases']}: {', '.join(found.aliases)}")
    return "\n".join(lines)


def document(lang: str) -> str:
    """Return the page with every entry, in Markdown."""
    words = _WORDS[lang]
    lines = [f"# {words['title']}", "", words["intro"], ""]
    everything = [entry(code) for code in codes()]
    for heading, own in ((words["own"], True), (words["others"], False)):
        members = [found for found in everything if bool(found.fields) == own]
        lines += [f"## {heading}", ""]
        for found in members:
            lines += [*_markdown(found, lang), ""]
    return "\n".join(lines).rstrip() + "\n"


def _markdown(found: Entry, lang: str) -> Iterator[str]:
    words = _WORDS[lang]
    yield f"### {found.code}"
    yield ""
    yield f"**{found.text(lang).title}**"
    yield ""
    what, why, do = (label.strip() for label in LABELS[lang][:3])
    for label, body in _sections(found, lang, (what, why, do)):
        if label == do:
            yield f"{label}"
            yield ""
            yield from (f"- {_escape(step)}" for step in body.split("\n"))
        else:
            yield f"{label} {_escape(body)}"
            yield ""
    for heading, body in _extras(found, lang):
        yield ""
        yield f"{heading}:"
        yield ""
        yield from (f"- {_escape(line)}" for line in body.split("\n"))
    if found.aliases:
        yield ""
        yield f"{words['aliases']}: {', '.join(found.aliases)}"


def _sections(found: Entry, lang: str, labels: tuple[str, str, str]) -> Iterator[tuple[str, str]]:
    text = found.text(lang)
    names = {name: f"<{name}>" for name in found.fields}
    yield labels[0], fill(text.what, found, names, lang)
    yield labels[1], fill(text.why, found, names, lang)
    yield labels[2], "\n".join(_general(fill(step, found, names, lang), lang) for step in text.do)


def _general(step: str, lang: str) -> str:
    """A step for everybody: its conditions in brackets before it."""
    conditions, text = situation.general(step)
    shown = ", ".join(_CONDITIONS[lang].get(name, name) for name in conditions if not name.startswith("!"))
    return f"[{shown}] {text}" if shown else text


def _extras(found: Entry, lang: str) -> Iterator[tuple[str, str]]:
    words = _WORDS[lang]
    for hint in found.hints:
        yield words["here"].format(when=f"`{hint.when}`"), _general(hint.words[lang], lang)
    notes = found.text(lang).notes
    if notes:
        yield (
            "GPU",
            "\n".join(f"{words['note'].format(family=name)}: {_general(note, lang)}" for name, note in notes.items()),
        )
    members = [status for status in statuses.every() if status.entry == found.code]
    if members:
        rows = (f"{s.name} ({s.api} {s.shown_number()}): {s.meaning(lang)}" for s in members)
        yield words["statuses"], "\n".join(rows)
    if found.sources:
        yield words["sources"], "\n".join(found.sources)


def _escape(text: str) -> str:
    """Keep Markdown from reading placeholders as tags and names as emphasis."""
    return text.replace("<", "&lt;").replace("*", "\\*").replace("__", "\\_\\_")
