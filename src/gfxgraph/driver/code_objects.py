"""Kernel argument layouts out of AMD code objects, for runtimes that do not tell them.

    host library ──section .hip_fatbin──> offload bundle ──entry per architecture──> AMDGPU ELF
    AMDGPU ELF ──note "AMDGPU", type 32──> msgpack ──amdhsa.kernels──> name, arguments

Bundles may be compressed (``CCOB``): zlib is read, zstd is not, since Python has it only from 3.14 on.

Source: LLVM AMDGPUUsage "Code Object V3-V6 Metadata" and clang-offload-bundler's file format;
tests/unit/driver/test_code_objects.py reads metadata that hipcc wrote for gfx1030.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any

Buffer = bytes | memoryview
_BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__"
_COMPRESSED = b"CCOB"
_AMDGPU = 224
_NOTE_METADATA = 32
_SHT_NOTE = 7
_ZLIB = 0


class CodeObjectError(ValueError):
    """The bytes are not a code object, or one in a form that is not read."""


def kernels_in(data: Buffer) -> dict[str, list[tuple[int, int]]]:
    """(offset, nbytes) of the explicit arguments of every kernel in ``data``, by name.

    Args:
        data: an AMDGPU ELF, an offload bundle, or a host library that carries one.

    Raises:
        CodeObjectError: it is none of these.
    """
    view = memoryview(data)
    found: dict[str, list[tuple[int, int]]] = {}
    try:
        for code in _device_elves(view):
            for kernel in metadata(code).get("amdhsa.kernels", ()):
                layout = [
                    (argument[".offset"], argument[".size"])
                    for argument in kernel.get(".args", ())
                    if not argument.get(".value_kind", "").startswith("hidden_")
                ]
                found.setdefault(kernel[".name"], layout)
    except (struct.error, IndexError, KeyError, TypeError, UnicodeDecodeError, zlib.error) as error:
        raise CodeObjectError(f"not a readable code object: {error!r}") from error
    return found


def fat_binary(data: Any) -> bytes:
    """The offload bundles of a host library; ``data`` is anything that slices into bytes, as a mapped file.

    Raises:
        CodeObjectError: it has none.
    """
    with memoryview(data) as view:
        for name, _, offset, size in list(_sections(view)):
            if name == b".hip_fatbin":
                return bytes(view[offset : offset + size])
    raise CodeObjectError("no .hip_fatbin section")


def metadata(elf: Buffer) -> dict[str, Any]:
    """The metadata table of one AMDGPU ELF.

    Raises:
        CodeObjectError: it has none.
    """
    view = memoryview(elf)
    for _, kind, offset, size in _sections(view):
        if kind != _SHT_NOTE:
            continue
        for name, note, content in _notes(view[offset : offset + size]):
            if name == b"AMDGPU" and note == _NOTE_METADATA:
                table = _Unpacker(content).value()
                if isinstance(table, dict):
                    return table
    raise CodeObjectError("no AMDGPU metadata note")


def _device_elves(view: memoryview) -> Iterator[memoryview]:
    head = bytes(view[:24])
    if head.startswith(_BUNDLE) or head.startswith(_COMPRESSED):
        yield from _unbundle(view)
    elif head.startswith(b"\x7fELF"):
        if struct.unpack_from("<H", view, 18)[0] == _AMDGPU:
            yield view
            return
        bundles = [(offset, size) for name, _, offset, size in _sections(view) if name == b".hip_fatbin"]
        if not bundles:
            raise CodeObjectError("no .hip_fatbin section")
        for offset, size in bundles:
            yield from _unbundle(view[offset : offset + size])
    else:
        raise CodeObjectError("neither ELF nor offload bundle")


def _unbundle(view: memoryview) -> Iterator[memoryview]:
    """AMDGPU ELFs of every bundle in ``view``: translation units stand one after the other, padded."""
    at = 0
    while at < len(view):
        head = bytes(view[at : at + 24])
        if head.startswith(_COMPRESSED):
            plain, size = _decompress(view[at:])
            yield from _unbundle(memoryview(plain))
            at += size
        elif head.startswith(_BUNDLE):
            end = 0
            (count,) = struct.unpack_from("<Q", view, at + 24)
            entry = at + 32
            for _ in range(count):
                offset, size, n_name = struct.unpack_from("<QQQ", view, entry)
                name = bytes(view[entry + 24 : entry + 24 + n_name])
                entry += 24 + n_name
                end = max(end, offset + size)
                if size and not name.startswith(b"host"):
                    yield view[at + offset : at + offset + size]
            at += max(end, entry - at)
        else:
            at += 1
            # Only zeros stand between bundles.
            step = bytes(view[at : at + 4096]).lstrip(b"\0")
            at += 4096 - len(step) if len(view) - at >= 4096 else max(len(view) - at - len(step), 0)
            if step and not step.startswith((_BUNDLE[: len(step)], _COMPRESSED)):
                return


def _decompress(view: memoryview) -> tuple[bytes, int]:
    version, method = struct.unpack_from("<HH", view, 4)
    if method != _ZLIB:
        raise CodeObjectError("the bundle is compressed with zstd")
    if version >= 3:
        (size,) = struct.unpack_from("<Q", view, 8)
        begin = 32
    elif version == 2:
        (size,) = struct.unpack_from("<I", view, 8)
        begin = 24
    else:
        size, begin = len(view), 20
    engine = zlib.decompressobj()
    plain = engine.decompress(view[begin:size])
    return plain, size - len(engine.unused_data) if version < 2 else size


def _sections(view: memoryview) -> Iterator[tuple[bytes, int, int, int]]:
    """(name, type, offset, size) of each section of a 64-bit ELF."""
    if bytes(view[:5]) != b"\x7fELF\x02":
        raise CodeObjectError("not a 64-bit ELF")
    (at,) = struct.unpack_from("<Q", view, 40)
    entry_nbytes, count, names_index = struct.unpack_from("<HHH", view, 58)
    rows = [struct.unpack_from("<IIQQQQ", view, at + index * entry_nbytes) for index in range(count)]
    if names_index >= len(rows):
        return
    names_at = rows[names_index][4]
    for name, kind, _, _, offset, size in rows:
        begin = names_at + name
        stop = begin
        while stop < len(view) and view[stop]:
            stop += 1
        yield bytes(view[begin:stop]), kind, offset, size


def _notes(view: memoryview) -> Iterator[tuple[bytes, int, memoryview]]:
    at = 0
    while at + 12 <= len(view):
        n_name, n_content, kind = struct.unpack_from("<III", view, at)
        at += 12
        name = bytes(view[at : at + n_name]).rstrip(b"\0")
        at += -(-n_name // 4) * 4
        yield name, kind, view[at : at + n_content]
        at += -(-n_content // 4) * 4


class _Unpacker:
    """The part of msgpack that code objects use."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.at = 0

    def value(self) -> Any:
        tag = self.data[self.at]
        self.at += 1
        if tag < 0x80:
            return tag
        if tag < 0x90:
            return self._map(tag & 0x0F)
        if tag < 0xA0:
            return self._array(tag & 0x0F)
        if tag < 0xC0:
            return self._text(tag & 0x1F)
        if tag >= 0xE0:
            return tag - 256
        plain = {0xC0: None, 0xC2: False, 0xC3: True}
        if tag in plain:
            return plain[tag]
        numbers = {
            0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
            0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
        }  # fmt: skip
        if tag in numbers:
            return self._number(numbers[tag])
        lengths = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I", 0xC4: ">B", 0xC5: ">H", 0xC6: ">I"}
        if tag in lengths:
            n = self._number(lengths[tag])
            return self._text(n) if tag >= 0xD9 else self._bytes(n)
        counts = {0xDC: ">H", 0xDD: ">I", 0xDE: ">H", 0xDF: ">I"}
        if tag in counts:
            n = self._number(counts[tag])
            return self._array(n) if tag <= 0xDD else self._map(n)
        raise CodeObjectError(f"msgpack tag {tag:#x}")

    def _number(self, form: str) -> Any:
        (number,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return number

    def _bytes(self, n: int) -> bytes:
        found = bytes(self.data[self.at : self.at + n])
        self.at += n
        return found

    def _text(self, n: int) -> str:
        return self._bytes(n).decode("utf-8")

    def _array(self, n: int) -> list[Any]:
        return [self.value() for _ in range(n)]

    def _map(self, n: int) -> dict[Any, Any]:
        return {self.value(): self.value() for _ in range(n)}
