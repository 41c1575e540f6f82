"""A kernel node's launch: its geometry, its function and the bytes of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import POINTER, addressof, c_size_t, c_ulonglong, c_void_p, cast, create_string_buffer, string_at
from dataclasses import dataclass
from typing import Any

from gfxgraph.driver import layouts
from gfxgraph.errors import DriverError

Triple = tuple[int, int, int]
Layout = Sequence[tuple[int, int]]  # (offset, nbytes) of each parameter in the argument buffer


@dataclass(frozen=True, slots=True)
class KernelParams:
    """How a kernel node launches its kernel.

    ``params`` holds each argument's bytes; None where the runtime does not tell how the arguments
    are laid out, and then ``why_unknown`` says what is missing. A launch that passed one packed
    buffer has it in ``packed``, known even where its layout is not.
    """

    grid: Triple
    block: Triple
    shared_nbytes: int
    func: int
    params: tuple[bytes, ...] | None
    packed: bytes | None = None
    offsets: tuple[int, ...] = ()
    why_unknown: str = ""
    kern: int = 0  # CUDA: the function of a library, used where func is 0
    ctx: int = 0


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
        packed=packed,
        offsets=tuple(offset for offset, _ in layout or ()),
        why_unknown="" if params is not None else why_unknown,
        kern=getattr(raw, "kern", None) or 0,
        ctx=getattr(raw, "ctx", None) or 0,
    )


def write(raw: Any, wanted: KernelParams, launch_end: int) -> list[Any]:
    """Fill ``raw`` from ``wanted``; return what must stay alive until the runtime has copied it.

    Raises:
        DriverError: `kernel_layout_unknown`.
    """
    raw.grid, raw.block = wanted.grid, wanted.block
    raw.shared_nbytes, raw.func = wanted.shared_nbytes, wanted.func
    if hasattr(raw, "kern"):
        raw.kern, raw.ctx = wanted.kern, wanted.ctx
    raw.params = raw.extra = None
    if wanted.packed is not None:
        buffer = create_string_buffer(wanted.packed, len(wanted.packed))
        nbytes = c_size_t(len(wanted.packed))
        # HIP reads these by position: pointer first, size second.
        extra = (c_void_p * 5)(
            layouts.LAUNCH_BUFFER_POINTER,
            addressof(buffer),
            layouts.LAUNCH_BUFFER_SIZE,
            addressof(nbytes),
            launch_end,
        )
        raw.extra = addressof(extra)
        return [buffer, nbytes, extra]
    if wanted.params is None:
        raise DriverError("kernel_layout_unknown", why=wanted.why_unknown)
    buffers = [create_string_buffer(param, len(param)) for param in wanted.params]
    # One slot more than needed: a kernel without arguments still gets an array (HIP 5.2 frees extra
    # where both pointers are null).
    slots = (c_void_p * (len(buffers) + 1))(*(addressof(buffer) for buffer in buffers))
    raw.params = addressof(slots)
    return [*buffers, slots]


class PreparedLaunch:
    """A launch in the runtime's own form, with words that can be changed in place.

    Args:
        raw: an empty struct of the runtime's.
        apply: gives it to the runtime.
    """

    def __init__(self, raw: object, params: KernelParams, launch_end: int, apply: Callable[[Any], None]) -> None:
        self._raw = raw
        self._alive = write(raw, params, launch_end)
        self._is_packed = params.packed is not None
        self._offsets = params.offsets
        self._apply = apply

    def put(self, argument: int, at: int, word: int) -> None:
        buffer, start = (self._alive[0], self._offsets[argument]) if self._is_packed else (self._alive[argument], 0)
        c_ulonglong.from_buffer(buffer, start + at).value = word

    def apply(self) -> None:
        self._apply(self._raw)


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
