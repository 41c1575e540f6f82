"""Fail where an expression of the audit or the catalogue can be made slow: more than 50 ms on 8 KB of anything.

    python tools/check_patterns.py

The expressions are those that run: ``re`` hands out recorders while every rule audits its own examples. For each
expression, inputs are made from its own parts: what leads to a repetition, the repetition pumped up to 8 KB, and
an end that does not match. That finds overlapping and nested repetitions, and searches that start over at every
character. An expression is tried the way it is used (search, match, fullmatch), in processor time, the best of
three, scaled by what a search of known cost takes now: a busy or slow machine fails nothing.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SIZE, LIMIT_S = 8192, 0.050
REFERENCE_S = 0.035  # what `machine_scale` searches for took this where the limit was set: a 2-core Xeon, Python 3.11
BUDGET_S = 1.0  # for one expression: beyond it, what was found so far stands
OF_CATALOGUE = (
    3  # attacks on each expression there, whose time grows with the text alone if the engine keeps its word
)
SMALL = 1024  # tried first; an expression that is quadratic is slow enough here to be tried at full size
USES = ("search", "match", "fullmatch", "finditer", "findall", "sub", "split")
PREFERRED = ("a", " ", "\n", "(", "0", "_", '"', "\\", "A", "<", ",", "=", "#", "*")
_real = {name: getattr(re, name) for name in (*USES, "compile")}
seen: dict[tuple[str, int, str], str] = {}


class Recorder:
    """A compiled expression that notes which of its methods are called, and by which file."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern

    def __getattr__(self, name: str) -> Any:
        if name in USES and isinstance(self._pattern.pattern, str):
            note(self._pattern, name)
        return getattr(self._pattern, name)


def note(pattern: re.Pattern[str], use: str) -> None:
    use = use if use in ("match", "fullmatch") else "search"
    key = (pattern.pattern, pattern.flags, use)
    if key not in seen:
        frame = sys._getframe(2)
        while frame.f_back and "gfxgraph_port" not in frame.f_code.co_filename:
            frame = frame.f_back
        seen[key] = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def record() -> None:
    """Let every expression of the audit run once on every rule's examples."""

    def is_ours() -> bool:
        return "gfxgraph_port" in sys._getframe(2).f_code.co_filename

    def compile_(pattern: Any, flags: int = 0) -> Any:
        made = _real["compile"](pattern, flags)
        return Recorder(made) if is_ours() and not isinstance(pattern, Recorder) else made

    def direct(name: str) -> Any:
        def call(pattern: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(pattern, Recorder):
                return getattr(pattern, name)(*args, **kwargs)
            if is_ours() and isinstance(pattern, str):
                flags = kwargs.get("flags", 0)
                spare = args[{"sub": 3, "split": 2}.get(name, 1) :]
                note(_real["compile"](pattern, flags or (spare[0] if spare else 0)), name)
            return _real[name](pattern, *args, **kwargs)

        return call

    re.compile = compile_  # type: ignore[assignment]
    for name in USES:
        setattr(re, name, direct(name))
    import tempfile

    from gfxgraph_port.audit import audit
    from gfxgraph_port.registry import load

    for loaded in load():
        for kind in ("bad", "good"):
            files = loaded.rule.files(kind)
            if set(files) == {"env.json"}:
                continue
            with tempfile.TemporaryDirectory() as folder:
                for name, body in files.items():
                    path = Path(folder, name)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(body, encoding="utf-8")
                audit(folder, jobs=1)
    for name, value in _real.items():
        setattr(re, name, value)


def record_tables() -> None:
    """Every expression that a rule's table states, whether or not an example reaches it."""
    import tomllib

    from gfxgraph_port.bounded import bound

    uses = {"idents": "fullmatch", "includes": "fullmatch", "names": "fullmatch", "writes": "fullmatch",
            "packages": "fullmatch", "imports": "match", "lines": "search", "strings": "search", "calls": "search",
            "unless": "search", "only": "search", "not_line": "search", "not_path": "search"}  # fmt: skip
    for path in sorted((ROOT / "src/gfxgraph_port/rules").glob("*.toml")):
        for row in tomllib.loads(path.read_text(encoding="utf-8"))["rule"]:
            for spec in row["check"].values():
                for key, wanted in spec.items() if isinstance(spec, dict) else ():
                    if key in uses and not (key == "calls" and isinstance(wanted, list)):  # names of Python's
                        for text in [wanted] if isinstance(wanted, str) else list(wanted):
                            seen.setdefault((bound(text), re.UNICODE.value, uses[key]), f"{path.name} {row['id']}")


def sample(nodes: Any, preferred: str) -> str:
    """A text that the nodes match, made of ``preferred`` where they allow it."""
    out = []
    for op, value in nodes:
        if op is sre.LITERAL:
            out.append(chr(value))
        elif op is sre.NOT_LITERAL:
            out.append(preferred if ord(preferred) != value else "b")
        elif op is sre.ANY:
            out.append(preferred if preferred != "\n" else "a")
        elif op is sre.IN:
            out.append(member(value, preferred))
        elif op in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            low, _, body = value
            out.append(sample(body, preferred) * low)
        elif op is sre.SUBPATTERN:
            out.append(sample(value[3], preferred))
        elif op is sre.ATOMIC_GROUP:
            out.append(sample(value, preferred))
        elif op is sre.BRANCH:
            out.append(sample(value[1][0], preferred))
    return "".join(out)


def member(items: Any, preferred: str) -> str:
    matcher = _real["compile"](
        "[" + "".join(one(op, value) for op, value in items) + "]", re.I if preferred.isalpha() else 0
    )
    for c in (preferred, *PREFERRED, *map(chr, range(33, 127))):
        if matcher.match(c):
            return c
    return preferred


def one(op: Any, value: Any) -> str:
    if op is sre.NEGATE:
        return "^"
    if op is sre.LITERAL:
        return re.escape(chr(value))
    if op is sre.RANGE:
        return f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
    names = {
        sre.CATEGORY_DIGIT: r"\d", sre.CATEGORY_NOT_DIGIT: r"\D", sre.CATEGORY_SPACE: r"\s",
        sre.CATEGORY_NOT_SPACE: r"\S", sre.CATEGORY_WORD: r"\w", sre.CATEGORY_NOT_WORD: r"\W",
    }  # fmt: skip
    return names[value]


def repeats(nodes: Any, before: str, preferred: str) -> Iterator[tuple[str, str]]:
    """Every unbounded repetition, as (a text that leads to it, a text that it repeats)."""
    lead = before
    for op, value in nodes:
        if op in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            low, high, body = value
            if high is sre.MAXREPEAT or high > 16:
                pump = sample(body, preferred)
                if pump:
                    yield lead, pump
            yield from repeats(body, lead, preferred)
        elif op is sre.SUBPATTERN:
            yield from repeats(value[3], lead, preferred)
        elif op is sre.ATOMIC_GROUP:
            yield from repeats(value, lead, preferred)
        elif op is sre.BRANCH:
            for arm in value[1]:
                yield from repeats(arm, lead, preferred)
        elif op in (sre.ASSERT, sre.ASSERT_NOT):
            yield from repeats(value[1], lead, preferred)
        lead += sample([(op, value)], preferred)


def attacks(pattern: str, flags: int) -> dict[tuple[str, str], None]:
    """Pairs of (lead, pump), each once."""
    tree = parser.parse(pattern, flags & ~re.UNICODE)
    found: dict[tuple[str, str], None] = {}
    for preferred in PREFERRED:
        whole = sample(tree, preferred)
        if whole:
            found[("", whole)] = None
        for lead, pump in repeats(tree, "", preferred):
            for pair in ((lead, pump), ("", pump), ("", lead + pump), (lead, pump + lead)):
                found[pair] = None
    return found


def seconds(pattern: re.Pattern[str], use: str, text: str) -> float:
    started = time.process_time()
    if use == "search":
        for _ in pattern.finditer(text):
            pass
    else:
        getattr(pattern, use)(text)
    return time.process_time() - started


def machine_scale() -> float:
    """How much slower than the reference this machine is now; at least 1."""
    pattern = _real["compile"](r"(?:\\.|[^\]\\]){0,200}\]")
    return max(1.0, min(seconds(pattern, "search", "[\\a" * 1024) for _ in range(3)) / REFERENCE_S)


def slowest(pattern: re.Pattern[str], use: str) -> tuple[float, str]:
    """The longest time on 8 KB, and how the text begins."""
    from gfxgraph_port.budget import OutOfTimeError, processor_time

    worst, shown = 0.0, ""
    began = time.process_time()
    for lead, pump in attacks(pattern.pattern, pattern.flags):
        for end in ("\0", "!\n"):
            small = lead + pump * max(1, SMALL // len(pump)) + end
            try:
                with processor_time(0.5):
                    if seconds(pattern, use, small[: 2 * SMALL]) < LIMIT_S / 80:
                        continue
                    text = (lead + pump * (SIZE // len(pump)) + end)[:SIZE]
                    took = min(seconds(pattern, use, text) for _ in range(3))
            except OutOfTimeError:
                took, text = 0.5, small
            if took > worst:
                worst, shown = took, text[:60]
            if worst > 2 * LIMIT_S or time.process_time() - began > BUDGET_S:
                return worst, shown
    return worst, shown


def catalogue() -> int:
    """Attack each expression of the catalogue through the scanner, which uses all at once; return how many slow."""
    from gfxgraph.diagnostics import kinds
    from gfxgraph.diagnostics.expression_index import rows
    from gfxgraph.diagnostics.scan import Scanner

    def scanned(text: str) -> float:
        scanner = Scanner()
        started = time.process_time()
        scanner.feed(text.encode())
        scanner.finish()
        return time.process_time() - started

    bad = 0
    items = [*rows(), *kinds.rows()]
    scanned("HIP error")  # compiles the expressions of gates
    for item in items:
        for lead, pump in list(attacks(item.regex.removeprefix("(?i)"), 0))[:OF_CATALOGUE]:
            text = (lead + pump * (SIZE // len(pump)))[:SIZE]
            if scanned(text) > LIMIT_S and (took := min(scanned(text) for _ in range(3))) > LIMIT_S * machine_scale():
                bad += 1
                print(
                    f"{item.code or item.kind}: {1000 * took:.0f} ms on 8 KB of {text[:60]!r}\n    {item.regex[:160]}"
                )
                break
    print(f"check_patterns: {len(items)} expressions of the catalogue, {bad} slow")
    return bad


def main() -> None:
    sys.path.insert(0, str(ROOT / "src"))
    record()
    record_tables()
    bad = catalogue()
    for (pattern, flags, use), place in sorted(seen.items(), key=lambda item: item[1]):
        took, text = slowest(_real["compile"](pattern, flags), use)
        if took > LIMIT_S and took > LIMIT_S * machine_scale():
            bad += 1
            print(f"{place}: {use} takes {1000 * took:.0f} ms on 8 KB of {text!r}\n    {pattern[:160]}", flush=True)
    print(f"check_patterns: {len(seen)} expressions of the audit; slow in all: {bad}")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
