"""Handles errors unknown to the catalogue: names the component that failed, and where to look next.

Used only if nothing was recognised. A line counts if it has the form of an error, names a part of ROCm or
an AMD device, and is not text that merely mentions failures.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from gfxgraph.diagnostics import gates, ownwords
from gfxgraph.diagnostics.lazy import Expression

CODE = "not_in_catalogue"
_FILE = Path(__file__).parent / "components.toml"


class Component(NamedTuple):
    """A part of ROCm or something above it: its name, how to recognise it, and next steps by language."""

    name: str
    words: Expression
    do: Mapping[str, Sequence[str]]


@lru_cache(maxsize=1)
def components() -> dict[str, Component]:
    """Every component, most specific first."""
    table = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return {
        row["name"]: Component(
            row["name"], Expression(row["words"], re.IGNORECASE), {"en": row["en"], "zh": row["zh"]}
        )
        for row in table["component"]
    }


# How strongly a line's form indicates a failure, strongest first.
_FAILURES = tuple(
    Expression(pattern)
    for pattern in (
        r"\b[A-Za-z_][\w.]*(?:Error|Exception|Exceeded|Fault)\b(?:: |$)|terminate called|\bwhat\(\):"
        r"|\bFATAL\b|^F\d{4,8} |Fatal (?:error|Python error)|\bfatal error\b|Assertion .{0,200}failed"
        r"|\bSIG(?:SEGV|ABRT|BUS|ILL)\b"
        r"|[Ss]egmentation fault|Check failed|CHECK failed|\*ERROR\*|\bpanic(?:ked)?\b|LLVM ERROR",
        r"(?:^|[\s\[(|:])(?:ERROR|Error|error|E)(?:\]|:|\s-)\s|^E\d{4,8} |^E(?:RROR|rror)\b"
        r"|\[E:|level=ERROR|\bABORT|Aborted\b",
        r"\b(?:[Ff]ailed|[Ff]ailure|FAILED|FAILURE)\b"
        r"|\b(?:[Cc]annot|[Cc]ould not|[Uu]nable to|not supported|unsupported)\b"
        r"|\b(?:[Tt]imed out|[Tt]imeout|hung|hang|corrupt\w*|crash\w*|abort\w*|refused|rejected)\b"
        r"|\bundefined (?:symbol|reference)|No such file|[Ii]nvalid|not found|returned (?:non-zero|[1-9-])",
    )
)
_FAR = 25  # lines
_AFTER = 12  # lines, of a stack
_PARTICULAR = 7  # components, from the profilers to Triton
_END_OF_ALL = 9
_FATAL = Expression(
    r"^\W*(?:\(\S+ pid=\d+\)|\[rank\d+\]:|ERROR \S+ \S+ \[\S+\]|E  )?\W*(?:RuntimeError|AssertionError"
    r"|NotImplementedError"
    r"|torch\.[\w.]*Error|[\w.]*(?:InductorError|LoweringException|XlaRuntimeError|JaxRuntimeError|CompilationError)"
    r"|triton\.[\w.]*Error|BackendCompilerFailed|GGML_ASSERT)\b|GGML_ASSERT\(|terminate called after"
)
_DIED = Expression(
    r"[Ss]eg(?:mentation )?fault|SIG(?:SEGV|ABRT|BUS|ILL)|[Aa]borted"
    r"|runner (?:process has )?terminated|crashed"
)
_NOT_OURS = Expression(
    r"Expected all tensors|size mismatch|shape|state_dict|dtype|asyncio|event loop"
    r"|Address already"
)
_QUIET = Expression(
    r"\b(?:INFO|DEBUG|TRACE|VERBOSE|NOTICE)\b|level=(?:info|INFO|debug|DEBUG|warn|WARN)|\b[Ww]arn(?:ing)?\b|WARN\b"
    r"|\b0 (?:errors|failed|failures)\b|\berrors?[:=] ?(?:0|none|None|nil|null|false)\b|no errors?\b|without errors?"
    r"|[Ff]all(?:ing|s)? ?back|\boptional\b|\b[Ii]gnor\w+|\bskip\w*|\bretry\w*|\bexpected\b|--\w+|\?$|deprecat"
    r"|\b(?:added|fixed|fixes|resolved|improved)\b|^\s*(?:#|>|[*•-] )|\bsuccess",
)
_INSTALLER = Expression(r"Could not find a version that satisfies|No matching distribution")


def find(lines: Mapping[int, str]) -> tuple[str, int, str] | None:
    """Return component, number and text of the line that shows best what failed, or None."""
    best: tuple[int, int] | None = None
    found = None
    nearest = ""
    seen = -_FAR
    prose_until = 0
    ours = ownwords.not_evidence(lines)
    in_commit = False
    for number, line in sorted(lines.items()):
        # A commit's message is indented below its header, however long it is.
        in_commit = gates.is_head_of_commit(line) or (in_commit and (not line.strip() or line.startswith("    ")))
        if number in ours or in_commit:
            continue
        prose_until = max(prose_until, gates.section_end(line.encode(), number))
        name = component_of(line)
        if name and not gates.is_said(line):
            nearest, seen = name, number
        is_prose = number < prose_until and not gates.is_printed(line)
        surety = None if is_prose else _surety(line) if name else _END_OF_ALL
        if surety == _END_OF_ALL:
            # An exception of a kind that runtimes raise, a few lines after an AMD message.
            if number - seen > _FAR or not _FATAL.search(line) or _NOT_OURS.search(line) or gates.is_said(line):
                continue
            name = nearest
        # Other entries cover the death of the process.
        if surety is None or _DIED.search(line):
            continue
        # Among equals the first: consequences of a failure come later.
        if name and (best is None or (surety, number) < best):
            best, found = (surety, number), (name, number, line.strip())
    return found


def component_of(line: str) -> str:
    """The component that ``line`` names, '' if it names none."""
    if not gates.names_amd(line):
        return ""
    # A line that names only a device is still ROCm's to explain.
    return next((part.name for part in components().values() if part.words.search(line)), [*components()][-1])


# What failed, as far as the form of a sentence shows it in any program. The first match wins.
_FORMS = tuple(
    (Expression(pattern, re.IGNORECASE), code)
    for pattern, code in (
        (r"/dev/(?:kfd|dri).{0,60}(?:permission|not permitted|denied)", "kfd_permission"),
        (
            r"\b(?:ld|lld|ld\.lld|lld-link|link|collect2)\b\S*: (?:fatal )?error.{0,80}|unresolved external"
            r"|undefined reference|cannot find -l|unable to find library|fatal error: .{0,120}\.(?:h|hpp|cuh)\b"
            r"|hipcc.{0,80}(?:not found|not recognized|No such file)",
            "hip_toolchain_missing",
        ),
        (
            r"cannot open shared object|DLL load failed|(?:fail|unable|cannot|could not)\w* (?:to )?(?:d?l?open|load)"
            r" .{0,80}\.(?:so|dll)\b|\.(?:so|dll)\b\S* .{0,30}(?:not found|missing|No such file)",
            "missing_shared_library",
        ),
        (
            r"unsupported .{0,20}(?:gpu|arch|device|target|gfx)|(?:gpu|arch\w*|device|target|gfx\w*)\b.{0,40}"
            r"\b(?:(?:is|are) not supported|not supported|unsupported)|(?:not supported|unsupported) (?:on|by|for)"
            r" .{0,30}(?:gpu|arch|device|gfx|radeon|amd|rocm|hip)|requires? (?:an? )?(?:gfx\d|CDNA|MI\d{3})",
            "gpu_unsupported",
        ),
        (
            r"versions? .{0,60}(?:mismatch|not match|incompatible|too (?:old|new)|expected|differ)"
            r"|(?:mismatch|incompatible|expected|unsupported) .{0,40}version|ABI mismatch",
            "symbol_version_mismatch",
        ),
        (r"out of memory|failed to allocate|allocation .{0,30}failed|cannot allocate", "out_of_memory"),
        (
            r"(?:not|without|n't) .{0,12}(?:compiled|built) (?:with|for)|(?:compiled|built) without"
            r"|without (?:rocm|hip|gpu) support|requires? (?:CUDA|an? NVIDIA)",
            "framework_not_rocm",
        ),
        (
            r"no (?:\w+ )?(?:gpu|agent|device|accelerator)s? (?:\w+ )?(?:found|detected|available|present)"
            r"|(?:found|detected) (?:0|no) .{0,12}(?:gpu|device)s?",
            "no_device",
        ),
    )
)


def by_form(line: str) -> str:
    """The code that ``line`` indicates by its form alone; '' if the form shows nothing."""
    return next((code for pattern, code in _FORMS if pattern.search(line)), "")


def suspect(lines: Mapping[int, str], at: int) -> str:
    """The library whose code ran when a process died at line ``at``; '' if the lines around it name none.

    A fault, a crash or a hang shows where the process was, not why. Only specific components count: that HIP or
    the driver was involved is already known.
    """
    particular = list(components())[:_PARTICULAR]
    parts = components()
    for number in sorted((n for n in lines if -_FAR <= n - at <= _AFTER), key=lambda n: (n > at, abs(n - at))):
        name = next((name for name in particular if parts[name].words.search(lines[number])), "")
        if name and not gates.is_said(lines[number]):
            return name
    return ""


def _surety(line: str) -> int | None:
    for surety, pattern in enumerate(_FAILURES):
        if pattern.search(line):
            if (surety and _QUIET.search(line)) or gates.is_said(line) or _INSTALLER.search(line):
                return None
            # A sentence with a full stop and nothing before a colon is prose.
            if surety == 2 and (line.rstrip().endswith(".") or not re.search(r"[:\[=]", line)):
                return None
            return surety
    return None
