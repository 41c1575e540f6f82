"""The copying kernel over a fake runtime: how it is loaded, launched, and refused."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gfxgraph.driver import hiprtc, small_copies
from gfxgraph.driver.small_copies import MOST
from gfxgraph.errors import DriverError

BACKENDS = ("hip", "cuda")
Make = Callable[..., Any]
LAUNCH = {"hip": "hipModuleLaunchKernel", "cuda": "cuLaunchKernelEx"}


def buffers(n: int, nbytes: int = 64) -> tuple[list[Any], list[Any]]:
    given = [ctypes.create_string_buffer(bytes([i + 1]) * nbytes, nbytes) for i in range(n)]
    return given, [ctypes.create_string_buffer(nbytes) for _ in range(n)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_launch_copies_all_and_follows_new_addresses(fake: Make, backend: str) -> None:
    """Six stretches in one call; another source and another target are taken without preparing anew."""
    made = fake(backend)
    kernel = made.driver.copy_kernel("gfx942")
    given, taken = buffers(6)
    parts = [(ctypes.addressof(t), ctypes.addressof(g), 64) for g, t in zip(given, taken)]
    launch = kernel.prepare(parts, 0)
    made.log()
    assert launch.launch() == 0
    assert made.log() == [LAUNCH[backend]]
    assert [t.raw for t in taken] == [g.raw for g in given]
    launch.words[0], launch.words[MOST + 5] = ctypes.addressof(given[3]), ctypes.addressof(taken[1])
    assert launch.launch() == 0
    assert taken[0].raw == given[3].raw and taken[1].raw == given[5].raw


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_launch_goes_to_the_stream_it_is_told(fake: Make, backend: str) -> None:
    """The stream at first, then another."""
    made = fake(backend)
    made.library.fake_copied_on.restype = ctypes.c_void_p
    (given,), (taken,) = buffers(1)
    launch = made.driver.copy_kernel("gfx942").prepare(
        [(ctypes.addressof(taken), ctypes.addressof(given), 64)], 0x7F0000000010
    )
    launch.launch()
    assert made.library.fake_copied_on() == 0x7F0000000010
    launch.on(0x7F0000000020)
    launch.launch()
    assert made.library.fake_copied_on() == 0x7F0000000020
    launch.on(0)
    launch.launch()
    assert made.library.fake_copied_on() is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_refusal_is_handed_on(fake: Make, backend: str) -> None:
    """A status, no exception: whoever copies on the hot path knows another way."""
    made = fake(backend)
    (given,), (taken,) = buffers(1)
    launch = made.driver.copy_kernel("gfx942").prepare([(ctypes.addressof(taken), ctypes.addressof(given), 64)], 0)
    made.refuse(LAUNCH[backend], 700)
    assert launch.launch() == 700 and taken.raw == bytes(64)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_grid_grows_with_the_longest_and_has_an_end(fake: Make, backend: str) -> None:
    """16 bytes a thread, at most 1024 workgroups a stretch."""
    made = fake(backend)
    made.library.fake_copied_grid.restype = ctypes.POINTER(ctypes.c_uint * 3)
    kernel = made.driver.copy_kernel("gfx942")
    for nbytes, blocks in ((1, 1), (4096, 1), (4097, 2), (8 << 20, 1024)):
        given, taken = buffers(2, nbytes)
        kernel.prepare([(ctypes.addressof(t), ctypes.addressof(g), nbytes) for g, t in zip(given, taken)], 0).launch()
        assert list(made.library.fake_copied_grid().contents) == [blocks, 2, 256]


@pytest.mark.parametrize("backend", BACKENDS)
def test_loading_is_relaxed_and_put_back(fake: Make, backend: str) -> None:
    """Other threads' captures must not end of it; the thread's own mode is what it was."""
    made = fake(backend)
    made.driver.copy_kernel("gfx942")
    exchange = {"hip": "hipThreadExchangeStreamCaptureMode", "cuda": "cuThreadExchangeStreamCaptureMode"}[backend]
    said = made.log()
    assert [name for name in said if name == exchange] == [exchange] * 2
    assert said.index(exchange) < next(i for i, name in enumerate(said) if name.endswith("ModuleLoadData"))
    mode = ctypes.c_int(7)
    made.library[exchange](ctypes.byref(mode))
    assert mode.value == 0


def test_what_is_loaded(fake: Make) -> None:
    """CUDA's driver is given the text that the tool wrote; AMD's runtime what its compiler made."""
    for backend, begin in (("hip", b"object"), ("cuda", b".versio")):
        made = fake(backend)
        made.library.fake_image.restype = ctypes.c_char_p
        made.driver.copy_kernel("gfx942")
        assert made.library.fake_image() == begin


def test_a_refused_kernel_says_why(fake: Make) -> None:
    """The compiler's words, and no compiler for what is no AMD GPU."""
    made = fake("hip")
    with pytest.raises(DriverError, match="no way!") as caught:
        made.driver.copy_kernel("gfx90a")
    assert caught.value.code == "kernel_not_compiled" and "hiprtcDestroyProgram" in made.log()
    with pytest.raises(DriverError, match="architecture"):
        made.driver.copy_kernel("sm_90")
    assert made.log() == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_old_runtime_has_none(fake: Make, backend: str) -> None:
    """Its name is among what is missing."""
    assert "copy_kernel" in fake(backend, old=True).driver.missing


def test_the_text_for_cuda_is_of_this_source() -> None:
    """One kernel of one argument of three tables, each with a place for every part."""
    text = Path(small_copies.__file__).with_name("copies.ptx").read_text()
    assert f".visible .entry {small_copies.KERNEL}(" in text and f"[{3 * 8 * MOST}]" in text
    assert f"from[{MOST}], to[{MOST}], nbytes[{MOST}]" in small_copies.SOURCE
    assert "ld.global.v4" in text or "ld.global.nc.v4" in text


def test_no_compiler_names_every_place(fake: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that finds nothing lists where it looked."""
    made = fake("hip")
    monkeypatch.setattr(hiprtc, "_places", lambda runtime: iter(["/nowhere/libhiprtc.so.6", "libc.so.6"]))
    with pytest.raises(DriverError, match=r"/nowhere/libhiprtc.so.6.*libc.so.6 has no hiprtcCreateProgram"):
        made.driver.copy_kernel("gfx942")
