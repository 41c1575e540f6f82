"""Renders an entry and its values as readable text.

The first line never varies for a code, so that it can be searched for; values go below it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gfxgraph.diagnostics.entries import Condition, UnknownCodeError, entry

LINES = "\n\t"
_PLACEHOLDER = re.compile(r"\{([a-z_][a-z0-9_]*)\}")
_SECRET = re.compile(r"^-(?:.*[-_])?(?:token|secret|password|passwd|api[-_]?key|credentials?)$", re.IGNORECASE)
_KEY = re.compile(r"(?<=://)[^/@\s]+(?=@)|\b(?:hf|sk|ghp|gho|glpat|xox[bp])[-_][A-Za-z0-9_-]{8,}")
_UNKNOWN = {"en": "(not known)", "zh": "（未知）"}
_GIVEN = frozenset({"path", "name", "script", "target"})
"""Fields with user input: an empty one was entered empty."""
LABELS = {
    "en": ("what: ", "why:  ", "do:   ", "more: "),
    "zh": ("现象：", "原因：", "处理：", "详情："),  # each as wide as the English one
}


def render(code: str, values: Mapping[str, object], lang: str = "en", quote: str = "") -> str:
    """Return the five-line text of ``code``; never raises, since it is called while an error is shown.

    Args:
        code: slug of a catalogue entry.
        values: values of the placeholders; a missing one reads "(not known)".
        lang: ``en`` or ``zh``.
        quote: a third party's message, shown verbatim after the reason, because programs
            search exceptions for it.
    """
    try:
        found = entry(code)
    except UnknownCodeError:
        shown = ", ".join(f"{name}={value}" for name, value in values.items())
        return f"{code}: {visible(shown, keep=LINES)}" + (f"\n  why:  {quote}" if quote else "")
    text = found.text(lang)
    why = fill(text.why, found, values, lang)
    if quote:
        why = f"{why}\n{quote}" if "\n" in quote else f"{why} [{quote}]"
    steps = "\n".join(fill(step, found, values, lang) for step in text.do)
    lines = [f"{found.code}: {text.title}"]
    bodies = (fill(text.what, found, values, lang), why, steps, f"gfxgraph explain {found.code}")
    for label, body in zip(LABELS.get(lang, LABELS["en"]), bodies):
        lines.append(f"  {label}" + body.strip().replace("\n", "\n" + " " * 8))
    return "\n".join(lines)


def visible(text: str, keep: str = "") -> str:
    """``text`` with control characters escaped, except ``keep``: displayed text must not control the terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else repr(char)[1:-1] for char in text)


def without_secrets(command: Sequence[str]) -> list[str]:
    """A command line as it may be written down: values of options named for a secret, and keys, are ``***``."""
    shown: list[str] = []
    for word in command:
        name, equals, _ = word.partition("=")
        if shown and _SECRET.search(shown[-1]) and not word.startswith("-"):
            shown.append("***")
        elif equals and _SECRET.search(name):
            shown.append(f"{name}=***")
        else:
            shown.append(_KEY.sub("***", word))
    return shown


def fill(template: str, found: Condition, values: Mapping[str, object], lang: str) -> str:
    """Replace the entry's own placeholders; other braces (shell, JSON) are kept."""

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name not in found.fields:
            return match[0]
        shown = values.get(name)
        if shown == "" and name in _GIVEN:
            return '""'
        return _UNKNOWN.get(lang, _UNKNOWN["en"]) if shown is None or shown == "" else visible(str(shown), keep=LINES)

    return _PLACEHOLDER.sub(value, template)
