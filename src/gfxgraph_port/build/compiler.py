"""One translation unit through a HIP compiler, host and device, and what it says.

Nothing is linked, written or run: ``-fsyntax-only``. Of the flags that a repository's build names only folders,
macros and the language's version are passed on, so that no plugin and no output of its choosing comes in.

Enters: a compiler on the PATH, a unit.
Stays out: what a diagnostic means for the port.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace

TIMEOUT_S = 600
_MOST_KB = 6 * 1024 * 1024
_MOST_OUTPUT = 4_000_000
_LIMITED = 'ulimit -v "$1" -t "$2" -c 0 2>/dev/null; shift 2; exec "$@"'
_LINE = re.compile(
    r"^(?P<path>[^\s:][^:\n]{0,500}):(?P<line>\d{1,9}):(?P<column>\d{1,9}): "
    r"(?P<kind>fatal error|error|warning|note): (?P<text>.*)$"
)
_END = re.compile(r"generated when compiling for (\S+?)\.?$")
_FROM = re.compile(r"^(?:In file included from|                 from) (?P<path>[^:\n]{1,500}):(?P<line>\d{1,9})[:,]")
_UNCHECKED = "declared with 'nodiscard' attribute"


@dataclass(frozen=True)
class Compiler:
    """A HIP compiler: its command, and the version that a cached verdict belongs to."""

    command: tuple[str, ...]
    version: str


@dataclass(frozen=True)
class Diagnostic:
    """One message: where, what, for which side (``host`` or an architecture), and the notes below it."""

    path: str
    line: int
    column: int
    kind: str  # "error", "missing header", "unchecked"
    text: str
    side: str = ""
    notes: tuple[tuple[str, int, str], ...] = ()
    through: tuple[tuple[str, int], ...] = ()  # the includes that led there, the outermost first


def find_compiler() -> Compiler | None:
    """``hipcc``, or a clang that finds HIP's headers; None where there is neither."""
    for name, more in (("hipcc", ("-x", "hip")), ("amdclang++", ("-x", "hip")), ("clang++", ("-x", "hip"))):
        path = shutil.which(name)
        if path is None:
            continue
        try:
            done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=False)
            probe = subprocess.run(
                [path, *more, "-fsyntax-only", "--offload-arch=gfx1030", "-include", "hip/hip_runtime.h", os.devnull],
                capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            continue
        if done.returncode == 0 and probe.returncode == 0:
            return Compiler((path, *more), " ".join(done.stdout.split())[:300])
    return None


def compile_unit(
    compiler: Compiler, source: str, flags: Sequence[str], archs: Sequence[str]
) -> tuple[bool, list[Diagnostic]]:
    """Check one unit for the host and for each architecture.

    Returns:
        Whether it compiles, and the diagnostics; a unit that ended otherwise has one that says how.
    """
    is_c = source.endswith(".c")  # C has no device code
    command = [
        *(compiler.command[:-1] if is_c else compiler.command), *(["c"] if is_c else []), "-fsyntax-only",
        *(f"--offload-arch={a}" for a in archs if not is_c),
        "-Wno-everything", "-Wunused-result", "-Wunused-value", "-ferror-limit=40", "-ftemplate-backtrace-limit=2",
        "-fcaret-diagnostics-max-lines=1", "-fno-color-diagnostics", *flags, source,  # no carets, no sides
    ]  # fmt: skip
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", _LIMITED, "sh", str(_MOST_KB), str(TIMEOUT_S), *command],
            capture_output=True, timeout=TIMEOUT_S * 2, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return False, [Diagnostic(source, 1, 1, "error", f"the compiler did not finish: {error}")]
    found = parse(done.stderr[:_MOST_OUTPUT].decode("utf-8", "replace"))
    is_good = done.returncode == 0
    if not is_good and not any(d.kind != "unchecked" for d in found):
        last = done.stderr[-300:].decode("utf-8", "replace").strip().rpartition("\n")[2]
        found.append(Diagnostic(source, 1, 1, "error", f"the compiler ended with status {done.returncode}: {last}"))
    return is_good, found


def parse(output: str) -> list[Diagnostic]:
    """The diagnostics of clang's output, each with the side it was compiled for."""
    found: list[Diagnostic] = []
    open_: list[Diagnostic] = []
    through: list[tuple[str, int]] = []
    for line in output.split("\n"):
        if match := _END.search(line):
            found += [replace(d, side=match[1]) for d in open_]
            open_ = []
            continue
        if match := _FROM.match(line):
            through.append((match["path"], int(match["line"])))
            continue
        match = _LINE.match(line)
        if match is None:
            continue
        chain, through = tuple(through), []
        place, text = (match["path"], int(match["line"])), match["text"]
        if match["kind"] == "note":
            if open_:
                last = open_[-1]
                open_[-1] = replace(last, notes=(*last.notes, (*place, text)))
            continue
        kind = "error"
        if match["kind"] == "warning":
            if _UNCHECKED not in text or "hip" not in text:
                continue
            kind = "unchecked"
        elif text.endswith("file not found"):
            kind = "missing header"
        open_.append(Diagnostic(*place, int(match["column"]), kind, text, through=chain))
    return [*found, *open_]
