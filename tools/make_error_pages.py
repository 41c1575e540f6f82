"""Pages of the documentation: every entry of the catalogue, and the list of all."""

from __future__ import annotations

from collections.abc import Iterator

from gfxgraph.diagnostics import causes, situation, statuses
from gfxgraph.diagnostics.entries import Condition, codes, entry
from gfxgraph.diagnostics.render import LABELS, fill

WORDS = {
    "en": {
        "title": "Errors explained",
        "intro": "Every condition that `gfxgraph explain` knows, a page each, as `gfxgraph explain CODE` says it.",
        "own": "Errors of gfxgraph itself",
        "others": "Errors of ROCm, frameworks and engines",
    },
    "zh": {
        "title": "错误说明",
        "intro": "`gfxgraph explain` 能识别的全部问题，每个一页；`gfxgraph explain CODE` 显示同样的内容。",
        "own": "gfxgraph 自身的错误",
        "others": "ROCm、框架与引擎的错误",
    },
}

LABELS_OF_PARTS = {
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


def markdown(code: str, lang: str) -> str:
    """Return one entry as a page of the documentation."""
    found = entry(code)
    words = LABELS_OF_PARTS[lang]
    lines = [f"# {found.code}", "", f"**{_escape(found.text(lang).title)}**", ""]
    what, why, do = (label.strip() for label in LABELS[lang][:3])
    for label, body in _sections(found, lang, (what, why, do)):
        lines += [label, "", *(f"- {_escape(step)}" for step in body.split("\n")), ""]
    for heading, body in _extras(found, lang):
        lines += [f"{heading}:", "", *(f"- {_escape(line)}" for line in body.split("\n")), ""]
    if found.aliases:
        lines += [f"{words['aliases']}: {', '.join(found.aliases)}", ""]
    return "\n".join(lines)


def markdown_index(lang: str) -> str:
    """Return the list of all entries, each with a link to its page."""
    words = WORDS[lang]
    lines = [f"# {words['title']}", "", words["intro"], ""]
    everything = [entry(code) for code in codes()]
    for heading, own in ((words["own"], True), (words["others"], False)):
        lines += [f"## {heading}", ""]
        members = [found for found in everything if bool(found.fields) == own]
        lines += [f"- [{found.code}]({found.code}.md): {_escape(found.text(lang).title)}" for found in members]
        lines += [""]
    return "\n".join(lines)


def _sections(found: Condition, lang: str, labels: tuple[str, str, str]) -> Iterator[tuple[str, str]]:
    """What, why and do, each with its label."""
    text = found.text(lang)
    names = {name: f"<{name}>" for name in found.fields}
    yield labels[0], fill(text.what, found, names, lang)
    yield labels[1], _general(fill(text.why, found, names, lang))
    steps = (*text.check, *text.do)
    yield labels[2], "\n".join(_general(fill(step, found, names, lang)) for step in steps)


def _general(step: str) -> str:
    """A step for all situations, with its conditions in brackets before it."""
    conditions, text = _general_step(step)
    shown = ", ".join(name for name in conditions if name[0] not in "!?")
    return f"[{shown}] {text}" if shown else text


def _extras(found: Condition, lang: str) -> Iterator[tuple[str, str]]:
    """Advice that depends on the log, notes by GPU, statuses and sources, each with its heading."""
    words = LABELS_OF_PARTS[lang]
    for cause in (*found.causes, *causes.of_machines(found.code)):
        how = cause.log or ", ".join(cause.facts)
        said = cause.words[lang]
        yield words["here"].format(when=f"`{how}`"), _general("\n".join(filter(None, (said.why, said.do))))
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


def _general_step(step: str) -> tuple[list[str], str]:
    """The conditions of ``step`` and its text, for pages that cover all situations."""
    conditions = []
    while match := situation.CONDITION.match(step):
        conditions.append(f"{match[1]}{match[2]}")
        step = step[match.end() :]
    return conditions, step.replace("{arch}", "gfxNNNN").replace("{override}", "X.Y.Z").replace(
        "{index}", "gfxNNX-all"
    )


def _escape(text: str) -> str:
    """Keep Markdown from reading placeholders as tags and names as emphasis."""
    return text.replace("<", "&lt;").replace("*", "\\*").replace("__", "\\_\\_").replace("[", "\\[")
