"""The identity gate: what NVIDIA's build reads is the same before and after an edit.

Problem: a fix for AMD must not change what NVIDIA runs, and a promise is no proof. Idea: an edit has a form in which
the old text stays. In C++ and CMake the old lines stay, word for word, in the arm that NVIDIA's build takes, or a
condition is widened by a macro of ROCm's alone; the gate takes the other arm away and compares the lines. In Python
the old expression stands where it is the value if ``torch.version.hip`` is None. Everything else is refused.

It takes ``torch`` to be PyTorch: a file that binds the name to something else gets no edit (`edits.torch_is_bound`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gfxgraph_port.fix.edits import Edit

_ROCM = "USE_ROCM|__HIPCC__|__HIP__|__HIP_PLATFORM_AMD__|__HIP_PLATFORM_HCC__|__AMDGCN__|__HIP_DEVICE_COMPILE__"
_PYTHON = re.compile(
    r"\(torch\.version\.hip is (?:None and|not None or) \{old\}\)|"
    r"\([^\n]+ if torch\.version\.hip(?: and [^\n]+)? else \{old\}\)"
)
_DIRECTIVE = re.compile(r"\s*#\s*(if|ifdef|ifndef|elif|else|endif)\b(.*)")
_COMMAND = re.compile(r"\s*(if|elseif|else|endif)\s*\(([^)]*)", re.I)
# What a line is to the conditions: the word, NVIDIA's answer where the condition is ours, and how it reads there.
Line = tuple[str, bool | None, str]


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """Whether an edit may pass, and why not."""

    passes: bool
    reason: str = ""


def check(path: str, old: str, new: str, edits: Sequence[Edit] = ()) -> GateVerdict:
    """Judge what edits made of a file, by its kind."""
    if path.endswith(".py"):
        for e in edits:
            if e.last_line or not _PYTHON.fullmatch(e.text):
                return GateVerdict(False, f"line {e.line}: NVIDIA's path would change")
        return GateVerdict(True)
    if re.search(r"\.(cu|cuh|c|cc|cpp|cxx|h|hpp|hh|inl)$", path):
        return check_cpp(old, new)
    if re.search(r"(^|/)CMakeLists\.txt$|\.cmake$", path):
        return check_cmake(old, new)
    return GateVerdict(False, "no gate for this kind of file")


def check_cpp(old: str, new: str) -> GateVerdict:
    """Whether the lines with ROCm's macros undefined are the same in both texts."""
    widened = re.compile(rf"\s*\|\|\s*defined\((?:{_ROCM})\)|(?<=\))\s*&&\s*!\s*defined\((?:{_ROCM})\)")
    ours, turned = re.compile(rf"defined\((?:{_ROCM})\)"), re.compile(rf"!\s*defined\((?:{_ROCM})\)")

    def read(line: str) -> Line:
        match = _DIRECTIVE.match(line)
        if match is None:
            return "", None, line
        word, text = match[1], re.sub(r"//.*|/\*.*?\*/", "", match[2]).strip()
        if word in ("ifdef", "ifndef"):
            text = f"{'!' * (word == 'ifndef')}defined({text})"
        text = widened.sub("", re.sub(r"defined\s*\(?\s*(\w+)\s*\)?", r"defined(\1)", text))
        value = None
        if word.startswith("if") and "||" not in text:
            terms = [term.strip() for term in text.split("&&")]
            value = False if any(map(ours.fullmatch, terms)) else True if turned.fullmatch(text) else None
        kind = "if" if word.startswith("if") else word
        return kind, value, f"#{kind} {text}"

    return _same(old, new, read)


def check_cmake(old: str, new: str) -> GateVerdict:
    """Whether the commands are the same with USE_HIP off, an option that the old text does not know."""
    if "USE_HIP" in old:
        return GateVerdict(False, "USE_HIP is already used here: what it means is not ours to say")

    def read(line: str) -> Line:
        match = _COMMAND.match(line)
        if match is None:
            return "", None, "" if line.startswith("option(USE_HIP ") else line
        return (
            match[1].lower().replace("elseif", "elif"),
            {"USE_HIP": False, "NOT USE_HIP": True}.get(match[2].strip()),
            line,
        )

    return _same(old, new, read)


def _same(old: str, new: str, read: Callable[[str], Line]) -> GateVerdict:
    before, after = _seen(old, read), _seen(new, read)
    if before == after:
        return GateVerdict(True)
    at = next((i for i, (a, b) in enumerate(zip(before, after)) if a != b), min(len(before), len(after)))
    return GateVerdict(False, f"the CUDA build would change near: {' '.join(after[at : at + 1])}"[:160])


def _seen(text: str, read: Callable[[str], Line]) -> list[str]:
    """The lines that NVIDIA's build reads, without indentation; conditions that are not ours stay."""
    kept: list[str] = []
    stack: list[bool | None] = []  # of the arm we are in: NVIDIA's answer, None where it is not ours
    for line in text.split("\n"):
        word, ours, shown = read(line)
        if word == "if":
            stack.append(ours)
            if ours is not None:
                continue
        elif word in ("else", "elif") and stack and stack[-1] is not None:
            stack[-1] = not stack[-1] if word == "else" else None
            if word == "else":
                continue
        elif word == "endif" and stack and stack.pop() is not None:
            continue
        if False not in stack and shown.strip():
            kept.append(" ".join(shown.split()))
    return kept
