"""Edits of what a warp's width is written into: constants of 32, full masks, lane masks kept in 32 bits.

NVIDIA's line stays as it is in the other arm. An edit is refused where more than its line would have to change.
"""

from __future__ import annotations

from gfxgraph.port import bounded as re
from gfxgraph.port.fix.edits import Edit, EditRefusal
from gfxgraph.port.readers.cpp import CppFile

_HIP = "#if defined(__HIP_PLATFORM_AMD__)"
_REST = r"(\s*(?://.*|/\*.*)?)"
_QUALIFIERS = r"((?:(?:static|inline|extern|constexpr|const|__device__|__constant__|constant)\s+){0,5})"
_NARROW = r"(unsigned(?:\s+int)?|(?:std::)?u?int32_t|uint|int|auto)"
_CONSTANT = (
    re.compile(rf"(\s*#\s*define\s+(\w+)\s+\(?\s*)32([uU]?\s*\)?{_REST})$"),
    re.compile(rf"(\s*{_QUALIFIERS}[\w:]+(?:\s+int)?\s+(\w+)\s*(?:=\s*|\{{\s*))32([uU]?\s*\}}?\s*;{_REST})$"),
)
_FULL = r"(?:0[xX][fF]{8}[uUlL]{0,3}|UINT32_MAX|UINT_MAX|~0[uU]?)"
_LANES = re.compile(
    rf"(\s*(?:const\s+)?){_NARROW}(\s+(?:const\s+)?(\w+)\s*=\s*__(?:ballot|activemask|match_)\w*\s*\(.*)$"
)
_ALL_LANES = "0xffffffffffffffffull"
_SHIFTED = (
    r"\b{name}\s*(?:[&|^]=|<<=?|>>=?)|(?:<<|>>)\s*{name}\b|"
    r"\b__(?:popc|ffs|clz|brev|fns)\s*\(\s*\(?(?:int\)\s*)?{name}\b"
)


def gated(number: int, new: str, old: str, needs: str, more: str = "") -> Edit | EditRefusal:
    """A line for HIP; NVIDIA's stays in the other arm."""
    if old.rstrip().endswith("\\"):
        return EditRefusal(number, "inside a macro")
    text = "\n".join([f"{_HIP}{more}", new, "#else", old, "#endif"])
    return Edit(number, 0, text, last_line=number, needs=needs)


def constant(f: CppFile, number: int) -> Edit | EditRefusal:
    """``#define WARP_SIZE 32`` and its like read 64 in code for wavefronts of 64."""
    line = f.line_text(number)
    found = next((m for m in (pattern.match(line) for pattern in _CONSTANT) if m), None)
    if found is None:
        return EditRefusal(number, "no constant on a line of its own")
    name = found.group(2) if "define" in found.group(1) else found.group(3)
    if _in_host_code(f, name):
        return EditRefusal(number, f"host code reads {name} too: it must ask the device (hipDeviceProp_t::warpSize)")
    wide = re.sub(r"\b32(?=[uU]?[\s)}};/]|[uU]?$)", "64", line[found.end(1) :])
    needs = "only device code reads it (host code sees 32 on any GPU); what it sizes has room for 64 lanes"
    return gated(number, found.group(1) + wide, line, needs, " && defined(__GFX9__)  // wavefronts of 64 lanes")


def lane_mask(f: CppFile, number: int) -> Edit | EditRefusal:
    """What a vote returns is kept in 64 bits on HIP."""
    line = f.line_text(number)
    found = _LANES.match(line)
    if found is None or not line.rstrip().endswith(";"):
        return EditRefusal(number, "not a declaration on a line of its own")
    name = found.group(4)
    if re.search(_SHIFTED.format(name=re.escape(name)), f.code):
        return EditRefusal(number, f"{name} is shifted or counted: that needs 64 bits too (__popcll, __ffsll)")
    wide = f"{found.group(1)}unsigned long long{re.sub(_FULL, _ALL_LANES, found.group(3))}"
    return gated(number, wide, line, "what reads the mask takes 64 bits")


def _in_host_code(f: CppFile, name: str) -> bool:
    used = re.compile(rf"\b{re.escape(name)}\b")
    if re.search(rf"<<<[^;]{{0,200}}\b{re.escape(name)}\b", f.code):
        return True
    return any(
        used.search(text) and not re.search(r"__global__|__device__|(?i:device|kernel)", text.partition("{")[0])
        for _, text in f.functions
    )
