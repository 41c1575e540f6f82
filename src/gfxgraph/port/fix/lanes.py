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
_CONSTANT = (
    re.compile(rf"(\s*#\s*define\s+(\w+)\s+\(?\s*)32([uU]?\s*\)?{_REST})$"),
    re.compile(rf"(\s*{_QUALIFIERS}[\w:]+(?:\s+int)?\s+(\w+)\s*(?:=\s*|\{{\s*))32([uU]?\s*\}}?\s*;{_REST})$"),
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


def _in_host_code(f: CppFile, name: str) -> bool:
    used = re.compile(rf"\b{re.escape(name)}\b")
    if re.search(rf"<<<[^;]{{0,200}}\b{re.escape(name)}\b", f.code):
        return True
    return any(
        used.search(text) and not re.search(r"__global__|__device__|(?i:device|kernel)", text.partition("{")[0])
        for _, text in f.functions
    )
