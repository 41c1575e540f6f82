"""A part of a tape as a script that runs on its own: inputs, operations, and the check that shows the fault.

Plain torch if the fault shows without gfxgraph, so that the script can be used in any bug report.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gfxgraph.core.tape import Entry, TapeValue, leaves


class FaultKind(StrEnum):
    """What a script must show."""

    DIFFERS = "differs"  # graph and eager give different numbers
    CAPTURE = "capture"  # the operation cannot be captured
    FAULT = "fault"  # the replay ends the device


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that this part of the tape reads.

    Args:
        source: a Python expression that makes it; ``data(...)`` and ``strided(...)`` are available.
    """

    value: TapeValue
    source: str


@dataclass(frozen=True, slots=True)
class Alias:
    """A tensor over another tensor's storage that no operation made."""

    before: int
    made: TapeValue
    base: TapeValue
    dtype: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


_HEAD = '''"""{title}

Written by gfxgraph bisect. {ends}
"""

import base64
import sys
import zlib

import torch
{setup}

def strided(flat, size, stride):
    """The tensor with exactly this layout."""
    flat = flat.view(size)
    for dim, step in enumerate(stride):
        flat = flat.narrow(dim, 0, 1) if step == 0 and size[dim] > 1 else flat
    made = torch.empty_strided(flat.size(), stride, dtype=flat.dtype, device="cuda")
    return made.copy_(flat).expand(size)


def data(text, dtype, size, stride):
    """The tensor whose elements, row by row, are in ``text``."""
    raw = torch.frombuffer(bytearray(zlib.decompress(base64.b85decode(text))), dtype=torch.uint8)
    return strided(raw.view(dtype), size, stride)


def random(seed, dtype, size, stride, low=0, high=1):
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point or dtype.is_complex:
        return strided((torch.rand(size, generator=generator) * (high - low) + low).to(dtype), size, stride)
    return strided(torch.randint(int(low), int(high) + 1, size, generator=generator).to(dtype), size, stride)


def inputs():
    return [
{inputs}
    ]


def step({names}):
{body}
    return [{results}]

'''

_ENDS = "Prints REPRODUCED and ends with status 1 where the fault shows, with 0 where not."
_ENDS_BY_SIGNAL = (
    "Prints REPRODUCED and ends with status 1 where the fault shows, with 0 where not;\n"
    "a runtime that ends the process at a fault ends it by SIGABRT instead."
)

_CAPTURE = """
def captured(step, given):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        results = step(*given)
    return graph, results

"""

_DIFFERS = """
expected = [t.clone() for t in step(*inputs())]
given = inputs()
graph, results = captured(step, given)
for target, source in zip(given, inputs()):
    for dim, stride in enumerate(target.stride()):
        if stride == 0 and target.size(dim) > 1:
            target, source = target.narrow(dim, 0, 1), source.narrow(dim, 0, 1)
    target.copy_(source)
graph.replay()
torch.cuda.synchronize()
for number, (graphed, eager) in enumerate(zip(results, expected)):
    wide = torch.complex128 if eager.is_complex() else torch.float64
    gap = (graphed.to(wide) - eager.to(wide)).abs().nan_to_num().max().item() if eager.numel() else 0.0
    scale = eager.to(wide).abs().nan_to_num().max().item() if eager.numel() else 0.0
    if gap > {tolerance} * max(scale, 1e-30):
        print(f"REPRODUCED: result {{number}} differs by {{gap:g}} between graph and eager")
        sys.exit(1)
print("not reproduced")
"""

_CANNOT = """
given = inputs()
try:
    step(*inputs())
    captured(step, given)
except RuntimeError as error:
    print(f"REPRODUCED: the capture failed: {str(error).splitlines()[0]}")
    sys.stdout.flush()
    import os
    os._exit(1)  # a failed capture may leave torch unable to end well
print("not reproduced")
"""

_FAULTS = """
given = inputs()
graph, results = captured(step, given)
try:
    graph.replay()
    torch.cuda.synchronize()
except RuntimeError as error:
    print(f"REPRODUCED: the replay failed: {str(error).splitlines()[0]}")
    sys.stdout.flush()
    import os
    os._exit(1)  # the device is gone
print("not reproduced")
"""


def script(
    kind: FaultKind,
    title: str,
    setup: Sequence[str],
    given: Sequence[Input],
    entries: Sequence[tuple[int, Entry]],
    aliases: Sequence[Alias],
    results: Iterable[TapeValue],
    tolerance: float,
) -> str:
    """The script's text.

    Args:
        setup: lines that go below the imports.
        entries: (position, entry) of the operations, in order.
        results: values to compare.
        tolerance: relative to the largest magnitude.
    """
    names: dict[TapeValue, str] = {one.value: f"x{number}" for number, one in enumerate(given)}
    lines: list[str] = []
    pending = sorted(aliases, key=lambda alias: alias.before)
    for position, entry in entries:
        while pending and pending[0].before <= position:
            lines += _alias_lines(pending.pop(0), names)
        lines.append(f"    # {entry.where}")
        lines.append("    " + _call(entry, names))
    for alias in pending:
        lines += _alias_lines(alias, names)
    shown = [names[value] for value in dict.fromkeys(results) if value in names]
    head = _HEAD.format(
        title=title,
        ends=_ENDS_BY_SIGNAL if kind is FaultKind.FAULT else _ENDS,
        setup="\n".join(setup) + ("\n" if setup else ""),
        inputs="\n".join(f"        {one.source},  # {names[one.value]}" for one in given),
        names=", ".join(names[one.value] for one in given),
        body="\n".join(lines) or "    pass",
        results=", ".join(shown),
    )
    tail = {
        FaultKind.DIFFERS: _DIFFERS.format(tolerance=f"{tolerance:g}"),
        FaultKind.CAPTURE: _CANNOT,
        FaultKind.FAULT: _FAULTS,
    }
    return head + _CAPTURE + tail[kind]


def _alias_lines(alias: Alias, names: dict[TapeValue, str]) -> list[str]:
    if alias.base not in names:
        return []
    name = names[alias.made] = f"a{len(names)}"
    base = f"{names[alias.base]}.untyped_storage()"
    make = f'torch.empty(0, dtype={alias.dtype}, device="cuda")'
    return [f"    {name} = {make}.set_({base}, {alias.offset}, {alias.size}, {alias.stride})"]


def _call(entry: Entry, names: dict[TapeValue, str]) -> str:
    parts = [literal(arg, names) for arg in entry.args]
    parts += [f"{name}={literal(arg, names)}" for name, arg in entry.kwargs.items()]
    call = f"torch.ops.{entry.func}({', '.join(parts)})"
    made = _targets(entry.outputs, names)
    return f"{made} = {call}" if made else call


def _targets(spec: Any, names: dict[TapeValue, str]) -> str:
    if type(spec) is TapeValue:
        if spec in names:
            return ""  # in place: the same tensor
        name = names[spec] = f"v{len(names)}"
        return name
    if isinstance(spec, (list, tuple)):
        parts = []
        for item in spec:
            if type(item) is TapeValue and item in names:
                parts.append("_")
            else:
                parts.append(_targets(item, names) or "_")
        return "(" + ", ".join(parts) + ("," if len(parts) == 1 else "") + ")" if parts else ""
    return ""


def literal(item: Any, names: dict[TapeValue, str]) -> str:
    """An argument as source text."""
    if type(item) is TapeValue:
        return names.get(item, "None")
    if isinstance(item, list):
        return "[" + ", ".join(literal(part, names) for part in item) + "]"
    if isinstance(item, tuple):
        return "(" + ", ".join(literal(part, names) for part in item) + ("," if len(item) == 1 else "") + ")"
    if isinstance(item, float):
        text = repr(item)
        return f'float("{text}")' if text in ("inf", "-inf", "nan") else text
    text = repr(item)
    if item is None or isinstance(item, (bool, int, str)) or text.startswith("torch."):
        return text
    if text.startswith("device("):
        return f"torch.{text}"
    return "None"  # a generator, for example: the default will do


def inputs_of(entries: Sequence[tuple[int, Entry]], aliases: Sequence[Alias]) -> list[TapeValue]:
    """Values that this part of the tape reads but does not make, in order of first use."""
    made: set[TapeValue] = {alias.made for alias in aliases}
    found: dict[TapeValue, None] = {}
    for alias in aliases:
        if alias.base not in made:
            found[alias.base] = None
    for _, entry in entries:
        for value in (*leaves(entry.args), *leaves(entry.kwargs)):
            if value not in made:
                found[value] = None
        for value in leaves(entry.outputs):
            if value not in found:
                made.add(value)
    return list(found)


def needed(entries: Sequence[tuple[int, Entry]], last: int) -> list[tuple[int, Entry]]:
    """The operations that the last one depends on, by values and by what they write."""
    wanted: set[TapeValue] = set()
    kept: list[tuple[int, Entry]] = []
    for position, entry in reversed(entries):
        touched = {value.root or value for value in (*leaves(entry.outputs), *_written(entry))}
        touched |= set(leaves(entry.outputs))
        if position == last or touched & wanted:
            kept.append((position, entry))
            for value in (*leaves(entry.args), *leaves(entry.kwargs)):
                wanted.add(value)
                wanted.add(value.root or value)
    return kept[::-1]


def _written(entry: Entry) -> list[TapeValue]:
    schema = getattr(entry.func, "_schema", None)
    found: list[TapeValue] = []
    for position, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.alias_info is not None and argument.alias_info.is_write:
            target = entry.args[position] if position < len(entry.args) else entry.kwargs.get(argument.name)
            found += leaves(target)
    return found
