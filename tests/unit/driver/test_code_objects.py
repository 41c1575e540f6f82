"""driver.code_objects: argument layouts out of what hipcc wrote for gfx1030.

``code_objects/gfx1030.msgpack`` is the metadata note of three kernels, compiled with HIP 6.4.3:

    saxpy(float, const float*, float*, int); by_value(struct of 24 bytes, char, short*); none()
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from gfxgraph.driver.code_objects import CodeObjectError, fat_binary, kernels_in, metadata

NOTE = (Path(__file__).parent / "code_objects" / "gfx1030.msgpack").read_bytes()
LAYOUTS = {
    "saxpy": [(0, 4), (8, 8), (16, 8), (24, 4)],
    "by_value": [(0, 24), (24, 1), (32, 8)],
    "none": [],
}


def elf(machine: int, sections: list[tuple[bytes, int, bytes]]) -> bytes:
    """A 64-bit ELF with these (name, type, content) sections."""
    names = b"\0" + b"".join(name + b"\0" for name, _, _ in sections) + b".shstrtab\0"
    body = b""
    rows = [(0, 0, 0, 0, 0, 0)]
    for name, kind, content in sections:
        rows.append((names.index(name + b"\0"), kind, 0, 0, 64 + len(body), len(content)))
        body += content + b"\0" * (-len(content) % 8)
    rows.append((names.index(b".shstrtab\0"), 3, 0, 0, 64 + len(body), len(names)))
    body += names
    head = b"\x7fELF\x02\x01\x01" + b"\0" * 9 + struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 0, 64 + len(body), 0,
                                                              64, 0, 0, 64, len(rows), len(rows) - 1)  # fmt: skip
    return head + body + b"".join(struct.pack("<IIQQQQIIQQ", *row, 0, 0, 0, 0) for row in rows)


def device_elf() -> bytes:
    note = struct.pack("<III", 7, len(NOTE), 32) + b"AMDGPU\0\0" + NOTE + b"\0" * (-len(NOTE) % 4)
    return elf(224, [(b".note", 7, note)])


def bundle(code: bytes) -> bytes:
    names = [b"host-x86_64-unknown-linux-gnu-", b"hipv4-amdgcn-amd-amdhsa--gfx1030"]
    head = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", 2)
    entries = [(4096, 0), (4096, len(code))]
    for (offset, size), name in zip(entries, names):
        head += struct.pack("<QQQ", offset, size, len(name)) + name
    return head.ljust(4096, b"\0") + code


def compressed(plain: bytes, version: int) -> bytes:
    packed = zlib.compress(plain)
    begin = {1: 20, 2: 24, 3: 32}[version]
    head = b"CCOB" + struct.pack("<HH", version, 0)
    if version == 2:
        head += struct.pack("<I", begin + len(packed))
    if version == 3:
        head += struct.pack("<Q", begin + len(packed))
    return head.ljust(begin, b"\0") + packed


def test_a_code_object_tells_offsets_and_sizes_without_hidden_arguments() -> None:
    """Explicit arguments only, structs by value with their size."""
    assert kernels_in(device_elf()) == LAYOUTS
    assert metadata(device_elf())["amdhsa.target"] == "amdgcn-amd-amdhsa--gfx1030"


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_bundles_are_opened_compressed_or_not(version: int) -> None:
    """Two translation units stand one after the other, padded; zlib in each of its three headers."""
    one = bundle(device_elf())
    if version:
        assert kernels_in(compressed(one, version)) == LAYOUTS
    else:
        other = bundle(device_elf().replace(b"saxpy", b"other"))
        both = one + b"\0" * (-len(one) % 4096) + other
        assert set(kernels_in(both)) == {*LAYOUTS, "other"}


def test_a_host_library_carries_them_in_a_section() -> None:
    """The section alone is read, so that a library of a gigabyte is not."""
    library = elf(62, [(b".text", 1, b"\x90" * 64), (b".hip_fatbin", 1, bundle(device_elf()))])
    assert kernels_in(library) == LAYOUTS
    assert kernels_in(fat_binary(library)) == LAYOUTS


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"MZ" * 40, elf(62, []), elf(224, []), NOTE])
def test_other_bytes_are_refused_with_one_exception(data: bytes) -> None:
    """Whatever a process has mapped may be looked at."""
    with pytest.raises(CodeObjectError):
        kernels_in(data)


def test_a_cut_off_code_object_is_refused() -> None:
    """At every length the same exception, never another."""
    whole = device_elf()
    for n in range(0, len(whole) - 1, 97):
        with pytest.raises(CodeObjectError):
            kernels_in(whole[:n])
