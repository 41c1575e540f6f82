"""The explanation of something recognised: plain data, readable text, JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gfxgraph.diagnostics.entries import Condition, entry
from gfxgraph.diagnostics.render import LABELS, fill, visible
from gfxgraph.diagnostics.situation import Situation
from gfxgraph.diagnostics.statuses import Status

_MORE_WORDS = {
    "en": {
        "seen": "seen: ",
        "line": "line {line}",
        "times": "{count} times",
        "hint": "here: ",
        "note": "note: ",
        "status": "code: ",
        "gpu": "gpu:  ",
        "part": "part: ",
        "near": "near: ",
        "also": "also: ",
        "nothing": "gfxgraph does not recognize this; gfxgraph explain --list shows what it knows",
        "form": "gfxgraph does not know this sentence; by its form it says this",
    },
    "zh": {
        "seen": "日志：",
        "line": "第 {line} 行",
        "times": "共 {count} 次",
        "hint": "本例：",
        "note": "说明：",
        "status": "代码：",
        "gpu": "GPU：",
        "part": "组件：",
        "near": "附近：",
        "also": "另有：",
        "nothing": "没有识别出已知问题；可识别的内容见 gfxgraph explain --list",
        "form": "gfxgraph 没有收录这条报错，以上是根据句式作出的判断",
    },
}


_UNKNOWN = "not_in_catalogue"


@dataclass(frozen=True, slots=True)
class Match:
    """One recognised condition: its code and, if it came from a log, the line and number of occurrences.

    ``component`` is the part of ROCm named by an unknown sentence, or by lines next to a crash.
    ``is_by_form`` means that the sentence is unknown and was classified by its form.
    """

    code: str
    text: str = ""
    line: int = 0
    count: int = 0
    hints: tuple[int, ...] = ()
    status: Status | None = None
    component: str = ""
    is_by_form: bool = False


class Code(str):
    """A slug that equals its former names: programs compare it with the older ones."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True or (isinstance(other, str) and other in entry(self).aliases)

    def __ne__(self, other: object) -> bool:
        return not self == other

    # Keeps the hash: dictionaries and sets know only the present slug.
    __hash__ = str.__hash__


@dataclass(frozen=True, slots=True)
class Explanation:
    """What was recognised, the root cause first. False if there is nothing to explain.

    ``situation`` is the GPU and system for which the advice is filled in.
    ``families`` are the GPU families in play ("RDNA2"), from the log or from this machine: their
    notes are shown. ``archs`` are the gfx targets named in the log, with their families. ``programs`` are those named
    in the log that have their own advice.
    """

    matches: tuple[Match, ...] = ()
    families: tuple[str, ...] = ()
    lang: str = "en"
    archs: tuple[str, ...] = ()
    situation: Situation = Situation()
    programs: tuple[str, ...] = ()

    @property
    def code(self) -> Code | None:
        """The root cause's slug, or None. It also equals the entry's older slugs."""
        return Code(self.matches[0].code) if self.matches else None

    def __bool__(self) -> bool:
        return bool(self.matches)

    def __str__(self) -> str:
        return self.format()

    def format(self, lang: str = "") -> str:
        """Return the readable text: the root cause in full, and one line for each consequence."""
        lang = lang or self.lang
        words = _MORE_WORDS[lang]
        if not self.matches:
            return words["nothing"]
        root, *others = self.matches
        lines = [self._full(root, lang)]
        lines += [_indent(words["also"], _brief(match, lang)) for match in others]
        return "\n".join(lines)

    def as_dict(self, lang: str = "") -> dict[str, object]:
        """Return plain data for JSON: ``code``, ``matches`` and the explanation."""
        lang = lang or self.lang
        return {
            "code": self.matches[0].code if self.matches else None,
            "matches": [
                {
                    "code": match.code,
                    "title": entry(match.code).text(lang).title,
                    "line": match.line,
                    "count": match.count,
                    "text": match.text,
                    "status": match.status.name if match.status else None,
                    "component": match.component or None,
                    "is_by_form": match.is_by_form,
                }
                for match in self.matches
            ],
            "explanation": self._parts(self.matches[0], lang) if self.matches else None,
            "text": self.format(lang) if self.matches else "",
            "families": list(self.families),
            "archs": list(self.archs),
            "lang": lang,
        }

    def _parts(self, match: Match, lang: str) -> dict[str, object]:
        found = entry(match.code)
        words = found.text(lang)
        general = words.seen or words
        # Our own errors' texts contain values; here none are available, so field names are shown instead.
        names = {name: f"<{name}>" for name in found.fields}
        # For an unknown error only the component's steps are left; known steps come before suspected ones.
        is_unknown = match.code == _UNKNOWN
        return {
            "title": words.title,
            "what": fill(general.what, found, names, lang),
            "why": fill(general.why, found, names, lang),
            "do": self._fitting(
                [
                    *(_next_steps(match.component, lang) if is_unknown else ()),
                    *(fill(step, found, names, lang) for step in general.do),
                    *(() if is_unknown else _next_steps(match.component, lang)),
                ]
            ),
            "hints": self._fitting(
                [
                    *(hint.words[lang] for n, hint in enumerate(found.hints) if not hint.when or n in match.hints),
                    *_of_programs(self.programs, lang),
                ]
            ),
            "notes": self._fitting(f"{name}: {note}" for name, note in self._notes(found, lang)),
            "sources": list(found.sources),
        }

    def _fitting(self, steps: Iterable[str]) -> list[str]:
        """The steps for this situation, with values filled in."""
        return [shown for step in steps if (shown := self.situation.advice(step))]

    def _full(self, match: Match, lang: str) -> str:
        parts = self._parts(match, lang)
        words = _MORE_WORDS[lang]
        what, why, do, more = LABELS[lang]
        lines = [f"{match.code}: {parts['title']}"]
        if match.text:
            lines.append(_indent(words["seen"], _seen(match, lang)))
        if match.component:
            is_named = match.code == _UNKNOWN or match.is_by_form
            lines.append(_indent(words["part" if is_named else "near"], match.component))
        if match.status:
            lines.append(_indent(words["status"], _status(match.status, lang)))
        if self.archs:
            lines.append(_indent(words["gpu"], ", ".join(self.archs)))
        lines.append(_indent(what, str(parts["what"])))
        lines.append(_indent(why, str(parts["why"])))
        lines += [_indent(words["hint"], hint) for hint in _texts(parts["hints"])]
        lines.append(_indent(do, "\n".join(_texts(parts["do"]))))
        if match.is_by_form:
            lines.append(_indent(words["note"], words["form"]))
        lines += [_indent(words["note"], note) for note in _texts(parts["notes"])]
        lines.append(_indent(more, f"gfxgraph explain {match.code}"))
        return "\n".join(lines)

    def _notes(self, found: Condition, lang: str) -> Iterable[tuple[str, str]]:
        """The notes for the GPU families in play; a note for RDNA applies to RDNA2 unless that has its own."""
        notes = found.text(lang).notes
        if self.situation.arch in notes:
            yield self.situation.arch, notes[self.situation.arch]
        for family in self.families:
            name = family if family in notes else family.rstrip("0123456789.")
            if name in notes:
                yield family, notes[name]


def _next_steps(component: str, lang: str) -> Iterable[str]:
    if not component:
        return ()
    # lazily: explain must start fast
    from gfxgraph.diagnostics.lastresort import components  # seldom needed

    return components()[component].do[lang]


def _of_programs(names: Iterable[str], lang: str) -> Iterable[str]:
    if not names:
        return ()
    # lazily: explain must start fast
    from gfxgraph.diagnostics.programs import programs

    return [programs()[name].says[lang] for name in names]


def _texts(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []


def _indent(label: str, text: str) -> str:
    return f"  {label}" + text.strip().replace("\n", "\n" + " " * 8)


def _seen(match: Match, lang: str) -> str:
    words = _MORE_WORDS[lang]
    text = visible(match.text if len(match.text) <= 200 else match.text[:197] + "...")
    places = [words["line"].format(line=match.line)] if match.line else []
    if match.count > 1:
        places.append(words["times"].format(count=match.count))
    return text + (f"  ({', '.join(places)})" if places else "")


def _status(status: Status, lang: str) -> str:
    known = f", CUDA: {status.aka[-1]}" if status.aka and status.aka[-1].startswith("cuda") else ""
    return f"{status.name} ({status.api} {status.shown_number()}{known})\n{status.meaning(lang)}"


def _brief(match: Match, lang: str) -> str:
    title = entry(match.code).text(lang).title
    if match.status and not match.text:
        return f"{match.status.api} {match.status.shown_number()} {match.status.name}: {match.code}, {title}"
    words = _MORE_WORDS[lang]
    places = [words["line"].format(line=match.line)] if match.line else []
    if match.count > 1:
        places.append(words["times"].format(count=match.count))
    return f"{match.code}: {title}" + (f"  ({', '.join(places)})" if places else "")
