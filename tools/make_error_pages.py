"""Pages of the documentation: every entry of the catalogue, and the list of all."""

from __future__ import annotations

from gfxgraph.diagnostics import pages
from gfxgraph.diagnostics.entries import codes, entry
from gfxgraph.diagnostics.render import LABELS

WORDS = {
    "en": {
        "title": "Errors explained",
        "intro": "Every condition that `gfxgraph explain` knows, a page each, as `gfxgraph explain CODE` prints it.",
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


def markdown(code: str, lang: str) -> str:
    """Return one entry as a page of the documentation."""
    found = entry(code)
    words = pages.WORDS[lang]
    lines = [f"# {found.code}", "", f"**{_escape(found.text(lang).title)}**", ""]
    what, why, do = (label.strip() for label in LABELS[lang][:3])
    for label, body in pages.sections(found, lang, (what, why, do)):
        lines += [label, "", *(f"- {_escape(step)}" for step in body.split("\n")), ""]
    for heading, body in pages.extras(found, lang):
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


def _escape(text: str) -> str:
    """Keep Markdown from reading placeholders as tags and names as emphasis."""
    return text.replace("<", "&lt;").replace("*", "\\*").replace("__", "\\_\\_").replace("[", "\\[")
