"""A kernel node's launch: its geometry, its function and the bytes of its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import POINTER, c_size_t, c_void_p, cast, string_at
from dataclasses import dataclass
from typing import Any

from gfxgraph.driver import layouts

Triple = tuple[int, int, int]
Layout = Sequence[tuple[int, int]]  # (offset, nbytes) of each parameter in the argument buffer


@dataclass(frozen=True, slots=True)
class KernelParams:
    """How a kernel node launches its kernel.

    ``params`` holds each argument's bytes; None where the runtime does not tell how the arguments
    are laid out, and then ``why_unknown`` says what is missing.
    """

    grid: Triple
    block: Triple
    shared_nbytes: int
    func: int
    params: tuple[bytes, ...] | None
    why_unknown: str = ""


def read(raw: Any, layout: Layout | None, why_unknown: str) -> KernelParams:
    """Copy out of ``raw``, a struct just filled by the runtime, before the node changes again."""
    packed = _packed(raw.extra) if raw.extra and not raw.params else None
    params: tuple[bytes, ...] | None = None
    if layout is not None:
        if packed is not None:
            params = tuple(packed[offset : offset + nbytes] for offset, nbytes in layout)
        elif raw.params:
            slots = cast(raw.params, POINTER(c_void_p))
            places = [slots[i] for i in range(len(layout))]
            if all(places):
                params = tuple(string_at(at, nbytes) for at, (_, nbytes) in zip(places, layout))
            else:
                why_unknown = "an argument slot is null"
        elif not layout:
            params = ()
    return KernelParams(
        grid=tuple(raw.grid),
        block=tuple(raw.block),
        shared_nbytes=raw.shared_nbytes,
        func=raw.func or 0,
        params=params,
        why_unknown="" if params is not None else why_unknown,
    )


def _packed(extra: int) -> bytes | None:
    items = cast(extra, POINTER(c_void_p))
    where, nbytes = 0, None
    for at in (0, 2):
        if items[at] == layouts.LAUNCH_BUFFER_POINTER:
            where = items[at + 1] or 0
        elif items[at] == layouts.LAUNCH_BUFFER_SIZE:
            nbytes = cast(items[at + 1], POINTER(c_size_t))[0] if items[at + 1] else None
        else:
            break  # the end marker; what lies behind it is not ours to read
    return string_at(where, nbytes) if where and nbytes is not None else None
