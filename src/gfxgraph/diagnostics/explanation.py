"""The explanation of something recognised: plain data, readable text, JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gfxgraph.diagnostics import causes, kinds, libraries
from gfxgraph.diagnostics.causes import Judged
from gfxgraph.diagnostics.entries import Condition, EntryText, entry
from gfxgraph.diagnostics.render import LABELS, fill, visible
from gfxgraph.diagnostics.situation import CONDITION, Situation
from gfxgraph.diagnostics.statuses import Status, every

_BOTH = {
    "seen": ("seen: ", "日志："),
    "line": ("line {line}", "第 {line} 行"),
    "times": ("{count} times", "共 {count} 次"),
    "proved": ("proved: ", "已证实："),
    "undecided": ("the log does not decide between", "日志不足以判断是以下哪一种："),
    "check": ("check: {check}", "检查：{check}"),
    "may be": ("; it may be: {why}", "；可能的原因：{why}"),
    "open": ("the log does not decide", "日志不足以判断"),
    "open check": ("check: ", "检查："),
    "try": ("try:  ", "尝试："),
    "means": ("   {means}", "   {means}"),
    "then": ("then: {do}", "则：{do}"),
    "note": ("note: ", "说明："),
    "status": ("code: ", "代码："),
    "gpu": ("gpu:  ", "GPU："),
    "part": ("part: ", "组件："),
    "source": ("from: ", "来源："),
    "also": ("also: ", "另有："),
    "nothing": (
        "gfxgraph does not recognize this; gfxgraph explain --list shows what it knows",
        "没有识别出已知问题；可识别的内容见 gfxgraph explain --list",
    ),
    "warned": (
        "nothing failed: line {line} warns, and the program went on; more: gfxgraph explain {code}",
        "没有故障：第 {line} 行只是警告，程序继续运行；详情：gfxgraph explain {code}",
    ),
    "form": (
        "gfxgraph does not know this sentence; by its form it says this",
        "gfxgraph 没有收录这条报错，以上是根据句式作出的判断",
    ),
}
_WORDS = {lang: {key: both[n] for key, both in _BOTH.items()} for n, lang in enumerate(("en", "zh"))}

_UNKNOWN = "not_in_catalogue"
_LONGEST_ADVICE, _SHORT_ADVICE, _LONGEST_SEEN, _MOST_STEPS, _MOST_OTHERS = 340, 200, 120, 3, 2
_OF_A_PROGRAM = re.compile(
    r"(vLLM|SGLang|ComfyUI|TensorFlow|JAX|ollama|llama\.cpp|LM Studio|Blender|Lemonade|whisper)\b[^:：]{0,30}[:：]",
    re.IGNORECASE,
)
_SETTING = re.compile(r"\b[A-Z][A-Z0-9_]{5,}=[\w.:]+")


class Parts(NamedTuple):
    """What is said of one match. ``check`` decides between the causes where ``open``: then ``do`` may be tried."""

    title: str
    what: str
    why: str
    package: str
    check: str
    open: bool
    do: list[str]
    notes: list[str]
    sources: list[str]


@dataclass(frozen=True, slots=True)
class Match:
    """One recognised condition: its code and, if it came from a log, the line and number of occurrences.

    ``component`` is the part of ROCm named by an unknown sentence; ``is_by_form``: it was classified by its form.
    ``causes`` are those that the log shows, each with the line.
    """

    code: str
    text: str = ""
    line: int = 0
    count: int = 0
    causes: Mapping[int, int] = field(default_factory=dict)
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

    ``situation`` is the GPU and system that advice is filled in for, with the facts of the machine that failed.
    ``families`` are the GPU families in play ("RDNA2"), whose notes are shown; ``archs`` the gfx targets named in the
    log, with theirs; ``words`` its words. ``warned`` is what a program has warned of that went on: no match then.
    """

    matches: tuple[Match, ...] = ()
    families: tuple[str, ...] = ()
    lang: str = "en"
    archs: tuple[str, ...] = ()
    situation: Situation = Situation()
    words: frozenset[str] = frozenset()
    warned: tuple[Match, ...] = ()
    bad_versions: tuple[causes.PossibleCause, ...] = ()

    @property
    def code(self) -> Code | None:
        """The root cause's slug, or None. It also equals the entry's older slugs."""
        return Code(self.matches[0].code) if self.matches else None

    def __bool__(self) -> bool:
        return bool(self.matches)

    def __str__(self) -> str:
        return self.format()

    def format(self, lang: str = "", *, more: bool = False) -> str:
        """Return the readable text: the likeliest fix first, at most three lines of advice.

        Args:
            lang: ``en`` or ``zh``; by default the explanation's own.
            more: everything that is known about the root cause, and one line for each consequence.
        """
        lang = lang or self.lang
        words = _WORDS[lang]
        if self.warned:
            return words["warned"].format(line=self.warned[0].line, code=self.warned[0].code)
        if not self.matches:
            return words["nothing"]
        root, *others = self.matches
        parts = self._parts(root, lang, more)
        lines = [f"{root.code}: {parts.title}", *self._place(root, lang, 200 if more else _LONGEST_SEEN)]
        lines += [_indent(LABELS[lang][0], parts.what)] if more else []
        lines += self._answer(parts, self.judged(root, everything=more), lang, more)
        if root.is_by_form:
            lines.append(_indent(words["note"], words["form"]))
        if more:
            lines += [_indent(words["note"], note) for note in parts.notes]
            statuses = [one for one in every() if one.entry == root.code and one != root.status]
            lines += [_indent(words["status"], _status(one, lang)) for one in statuses]
            lines += [_indent(words["source"], source) for source in parts.sources]
        else:
            lines.append(_indent(LABELS[lang][3], f"gfxgraph explain {root.code}"))
        lines += [
            _indent(words["also"], _brief(match, lang)) for match in others[: len(others) if more else _MOST_OTHERS]
        ]
        return "\n".join(lines)

    def _answer(self, parts: Parts, judged: list[Judged], lang: str, more: bool) -> Iterator[str]:
        """The cause that is proved and its fix, else what is left, the check that decides, and what may be tried."""
        words, (_, why, do, _) = _WORDS[lang], LABELS[lang]
        if len(judged) > 1 and not judged[0].proof and not parts.package:
            yield from self._undecided(judged if more else judged[: causes.LISTED], lang)
            if not more:
                return
        if parts.open:
            yield _indent("", words["open"]) + (words["may be"].format(why=parts.why) if parts.why else "")
        elif parts.why and not parts.package:
            is_of_machine = judged and judged[0].proof == "machine"
            shown = f"   ({causes.shown(judged[0].cause.facts, self.situation.facts)})" if is_of_machine else ""
            yield _indent(words["proved"] if is_of_machine else why, parts.why + shown)
        if parts.check:
            yield _indent(words["open check"], parts.check)
        steps = parts.do if more else self._first(parts.do, _SHORT_ADVICE if parts.open else _LONGEST_ADVICE)
        if steps:
            yield _indent(words["try"] if parts.open else do, "\n".join(steps))

    def judged(self, match: Match, *, everything: bool = False) -> list[Judged]:
        """The causes of ``match`` that are proved, or, if none is, those that are not excluded."""
        if not match.text and not self.situation.facts:  # a code or a number: nothing has failed
            return []
        known = entry(match.code)
        found = (*known.causes, *causes.of_machines(match.code), *self.bad_versions)
        # A list of those that nothing speaks for is never all there is: a check of the class's own is better.
        general = known.text("en").seen or known.text("en")
        most = len(found) if everything else 0 if general.check else causes.LISTED
        return causes.judge(found, match.causes, match.line, self.situation.facts, self._can_be, most)

    def _can_be(self, cause: causes.PossibleCause) -> bool:
        """Whether a cause is one for this system, and not of a program or a GPU that nothing here names."""
        if not self.situation.advice(cause.where + cause.words["en"].do):
            return False
        unknown = causes.names_in(cause.facts) - self.situation.facts.keys()
        packages = {name[8:].rstrip("s") for name in unknown if name.startswith("package.")}
        if any(name.startswith("torch.") for name in unknown) and not self._names("torch"):
            return False
        return "gpu.arch" not in unknown and all(map(self._names, packages))

    def _names(self, program: str) -> bool:
        return any(program in word for word in self.words)

    def _undecided(self, judged: list[Judged], lang: str) -> Iterator[str]:
        """The causes that are left, each with the command that decides and what follows."""
        words = _WORDS[lang]
        yield _indent("", words["undecided"])
        for letter, one in zip("ABCDEFGHIJKLMNOP", judged):
            its = one.cause.words[lang]
            check = words["check"].format(check=self.situation.named(one.cause.check or "gfxgraph doctor", lang))
            yield _indent(f"{letter}  ", self.situation.named(its.why, lang))
            yield _indent("   ", check + (words["means"].format(means=its.means) if its.means else ""))
            yield _indent("   ", words["then"].format(do=self.situation.advice(one.cause.where + its.do, lang)))

    def _place(self, root: Match, lang: str, longest: int) -> Iterator[str]:
        """Where it was seen: the line, the component, the GPU, and what this machine says."""
        words = _WORDS[lang]
        if root.text:
            text = visible(root.text if len(root.text) <= longest else root.text[: longest - 3] + "...")
            yield _indent(words["seen"], text + _places(root, words))
        if root.component:
            yield _indent(words["part"], root.component)
        if root.status:
            yield _indent(words["status"], _status(root.status, lang))
        if self.archs:
            yield _indent(words["gpu"], ", ".join(self.archs))

    def as_dict(self, lang: str = "") -> dict[str, object]:
        """Return plain data for JSON: ``code``, ``matches`` and the explanation."""
        lang = lang or self.lang
        parts = self._parts(self.matches[0], lang) if self.matches else None
        judged = self.judged(self.matches[0], everything=True) if self.matches else []
        warned = self.warned[:1]
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
            "explanation": parts and parts._asdict(),
            "verdict": "failure" if self.matches else "warning" if warned else "nothing",
            "warned": [{"code": match.code, "line": match.line, "text": match.text} for match in warned],
            "causes": [
                {
                    "proved_by": one.proof or None,
                    "line": one.line or None,
                    **one.cause.words[lang]._asdict(),
                    "check": one.cause.check or "gfxgraph doctor",
                    "facts": list(one.cause.facts),
                }
                for one in judged
            ],
            "undecided": bool(parts and parts.open) or (len(judged) > 1 and not judged[0].proof),
            "facts": dict(self.situation.facts),
            "text": self.format(lang),
            "families": list(self.families),
            "archs": list(self.archs),
            "lang": lang,
        }

    def _parts(self, match: Match, lang: str, more: bool = False) -> Parts:
        found = entry(match.code)
        words = found.text(lang)
        general = words.seen or words
        is_asked = more and not match.text  # by its code, without a log
        judged = [] if is_asked else self.judged(match)
        cause = judged[0].cause.words[lang] if judged and judged[0].proof else None
        kind = self.situation.facts.get("torch.kind")
        package = "" if cause else libraries.advice(match.text, self.situation.conditions, lang, str(kind))
        why, steps = general.why, self._steps(match, found, general, lang)
        check = next(filter(None, (self.situation.advice(one, lang) for one in general.check)), "")
        is_open = bool(general.check) and not (cause or package or is_asked)
        if cause:
            why, steps = cause.why, [cause.do]
        elif is_asked:
            steps += [one.words[lang].do for one in found.causes]
        elif len(judged) == 1:
            one, its = judged[0].cause, judged[0].cause.words[lang]
            if judged[0].line:  # the log speaks for it alone
                is_open, why, check, steps = True, its.why, f"{one.check}: {its.means}", [its.do, *steps]
            else:
                steps.append(f"{one.check}: {its.means}: {its.do}")
        check = self.situation.named(check, lang).replace("{library}", libraries.stem(match.text))
        return Parts(
            words.title,
            _plain(general.what, found, lang),
            self.situation.advice(_plain(why, found, lang), lang),
            package,
            check if is_open or is_asked else "",
            is_open,
            self._fitting(filter(None, [package, *steps]), lang),
            self._fitting(self._notes(words, is_asked), lang),
            [*found.sources, *(source for one in judged for source in one.cause.sources)],
        )

    def _steps(self, match: Match, found: Condition, general: EntryText, lang: str) -> list[str]:
        """The class's own steps, and those of the component, which come first where nothing else is known."""
        # What is for this system alone first.
        ranked = sorted(general.do, key=lambda step: not step.startswith("@windows:"))
        own = [_plain(step, found, lang) for step in ranked]
        component = kinds.components()[match.component][lang] if match.component else []
        return [*component, *own] if match.code == _UNKNOWN else [*own, *component]

    def _notes(self, words: EntryText, is_asked: bool) -> Iterator[str]:
        for name, note in words.notes.items():
            if is_asked or name == self.situation.arch or any(_is_of(name, one, words) for one in self.families):
                yield f"{name}: {note}"

    def _first(self, steps: list[str], left: int) -> list[str]:
        """The first steps that fit into that many characters: one at least, three at most."""
        chosen: list[str] = []
        for step in steps:
            if len(chosen) < _MOST_STEPS and (not chosen or len(step) <= left):
                chosen.append(step)
                left -= len(step)
        return chosen

    def _fitting(self, steps: Iterable[str], lang: str) -> list[str]:
        """The steps for this situation, with values filled in, without settings that the text has already."""
        shown = [text for step in steps if self._is_of_here(step) and (text := self.situation.advice(step, lang))]
        other = [text for text in shown if not any(word.lower() in self.words for word in _SETTING.findall(text))]
        return other or shown

    def _is_of_here(self, step: str) -> bool:
        """Whether ``step`` is not for a program that the log does not name."""
        found = _OF_A_PROGRAM.match(CONDITION.sub("", step))
        return not (found and self.words) or self._names(found[1].lower())


def _is_of(name: str, family: str, words: EntryText) -> bool:
    """Whether a note is for this family; one for RDNA applies to RDNA2 unless that has its own."""
    return name == (family if family in words.notes else family.rstrip("0123456789."))


def _plain(text: str, found: Condition, lang: str) -> str:
    """``text`` without values: our own errors' texts hold some, of which only the names are known here."""
    return fill(text, found, {name: f"<{name}>" for name in found.fields}, lang)


def _indent(label: str, text: str) -> str:
    return f"  {label}" + text.strip().replace("\n", "\n" + " " * 8)


def _places(match: Match, words: Mapping[str, str]) -> str:
    places = [words["line"].format(line=match.line)] if match.line else []
    places += [words["times"].format(count=match.count)] if match.count > 1 else []
    return f"  ({', '.join(places)})" if places else ""


def _status(status: Status, lang: str) -> str:
    known = f", CUDA: {status.aka[-1]}" if status.aka and status.aka[-1].startswith("cuda") else ""
    return f"{status.name} ({status.api} {status.shown_number()}{known})\n{status.meaning(lang)}"


def _brief(match: Match, lang: str) -> str:
    title = entry(match.code).text(lang).title
    if match.status and not match.text:
        return f"{match.status.api} {match.status.shown_number()} {match.status.name}: {match.code}, {title}"
    return f"{match.code}: {title}" + _places(match, _WORDS[lang])
