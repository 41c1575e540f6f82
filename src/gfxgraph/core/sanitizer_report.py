"""What NVIDIA's compute-sanitizer and AMD's debug agent print, as findings that can be matched with nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gfxgraph.core.faults import NodeInfo


@dataclass(frozen=True, slots=True)
class SanitizerError:
    """One report of the tool.

    Args:
        what: its first line, ``Invalid __global__ write of size 4 bytes``.
        kernel: the function it names, '' where it names none.
        address: where, None where it does not say.
        n_times: how often it was printed for this kernel.
    """

    what: str
    kernel: str
    address: int | None
    n_times: int = 1


_NVIDIA = re.compile(
    r"^=+ (?P<what>(?:Invalid|Misaligned|Program hit|Warp|Device|Uninitialized|Race|Potential)[^\n]*)\n"
    r"(?P<body>(?:^=+ {2,}[^\n]*\n?)+)",
    re.MULTILINE,
)
_AT = re.compile(r"^=+ +at (?P<kernel>.+?)(?:\+0x[0-9a-f]+)?(?: in .*)?$", re.MULTILINE)
_ADDRESS = re.compile(r"Address (?P<address>0x[0-9a-fA-F]+)")
_AMD_WAVE = re.compile(
    r"^wave_\d+: pc=(?P<address>0x[0-9a-f]+)(?: \(kernel_code_entry=\S+ <(?P<kernel>[^>]+)>\))? "
    r"\(stopped, reason: (?P<what>[A-Z_ |,]+)\)",
    re.MULTILINE,
)
_AMD_FUNCTION = re.compile(r"^Disassembly for function (?P<kernel>[^\n:]+(?:::[^\n:]+)*):", re.MULTILINE)


def findings(text: str) -> list[SanitizerError]:
    """The distinct findings in a tool's output, in the order in which they first appear."""
    found: dict[tuple[str, str], SanitizerError] = {}
    for one in _each(text):
        key = one.what, one.kernel
        known = found.get(key)
        if known is None:
            found[key] = one
        else:
            found[key] = SanitizerError(known.what, known.kernel, known.address, known.n_times + 1)
    return list(found.values())


def _each(text: str) -> Iterator[SanitizerError]:
    for match in _NVIDIA.finditer(text):
        body = match["body"]
        at, address = _AT.search(body), _ADDRESS.search(body)
        kernel = at["kernel"].strip() if at else ""
        yield SanitizerError(match["what"].strip(), kernel, int(address["address"], 16) if address else None)
    waves = list(_AMD_WAVE.finditer(text))
    for number, match in enumerate(waves):
        end = waves[number + 1].start() if number + 1 < len(waves) else len(text)
        function = _AMD_FUNCTION.search(text, match.end(), end)
        kernel = match["kernel"] or (function["kernel"] if function else "")
        # The agent's address is the program counter, not a memory address.
        yield SanitizerError(match["what"].strip(), kernel.strip(), None)


def nodes_named(finding: SanitizerError, nodes: Iterable[NodeInfo]) -> list[NodeInfo]:
    """The graph nodes that run the kernel of a finding; the address decides if several do."""
    name = _plain(finding.kernel)
    if not name:
        return []
    same = [node for node in nodes if node.kernel and (node.kernel == finding.kernel or _plain(node.kernel) == name)]
    if len(same) > 1 and finding.address is not None:
        near = [node for node in same if any(_is_near(use, finding.address) for use in node.tensors)]
        return near or same
    return same


def _is_near(use: object, address: int) -> bool:
    begin = getattr(use, "address", 0)
    # An overrun lands just past a tensor; how far is not known.
    return bool(begin) and begin - 4096 <= address < begin + getattr(use, "nbytes", 0) + 4096


def _plain(name: str) -> str:
    """The plain name: ``void f<int>(float*)``, ``f`` and the mangled name of a C function are the same kernel."""
    text = name.split("(")[0].split("<")[0].strip()
    return text.split(" ")[-1].removesuffix(".kd")
