"""A guard that remembers the current stream of each thread, for a torch without one of its own (2.9).

Enters: c10's calls on ``DeviceGuardImplInterface``, for the one device there is.
Stays out: registering it (torch_device.py).

Later torches ship ``FakeGuardImpl<CUDA>``; 2.9 ships its header alone. A guard is asked while exceptions are on their
way through C++, so Python cannot answer, and ctypes cannot return a ``c10::Stream`` in two registers. So the three
functions that give one are x86-64 machine code here, for System V's calling convention; a thread's current stream is
a thread-local value of pthread's. All others are asked for a number, a truth or nothing: 1 is right for each
(``c10::Device`` of the first CUDA device is 1, too).
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import platform
from typing import Final

_CALL_GET: Final = "bf{key} 48b8{get} ffd0"  # mov edi, key; mov rax, pthread_getspecific; call rax
_RETURN_DEVICE: Final = "b801000000"  # mov eax, cuda:0
_CODE: Final = {
    # xor edx, edx; return {cuda:0, 0}
    "getDefaultStream": f"31d2 {_RETURN_DEVICE} c3",
    # return {cuda:0, pthread_getspecific(key)}
    "getStream": f"4883ec08 {_CALL_GET} 4889c2 {_RETURN_DEVICE} 4883c408 c3",
    # push rbx; push r12; r12 = new number; rbx = old one; pthread_setspecific(key, r12); return {cuda:0, rbx}
    "exchangeStream": f"53 4154 4883ec08 4989d4 {_CALL_GET} 4889c3 bf{{key}} 4c89e6 48b8{{set}} ffd0 4889da "
    f"{_RETURN_DEVICE} 4883c408 415c 5b c3",
}


@functools.cache
def make_guard(names: tuple[str, ...], one: int) -> tuple[int, list[object]]:
    """The address of a guard object with these virtual functions, and what must outlive it; one for the process.

    0 where this machine has another instruction set.

    Args:
        names: those of the interface, in the order of its vtable.
        one: the address of a function that returns 1.
    """
    if platform.machine() != "x86_64":
        return 0, []
    libc, key = ctypes.CDLL(None), ctypes.c_uint()
    libc.pthread_key_create(ctypes.byref(key), None)
    words = {"key": bytes(key).hex()}
    for word in ("get", "set"):
        words[word] = bytes(ctypes.cast(libc[f"pthread_{word}specific"], ctypes.c_void_p)).hex()
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    start = ctypes.addressof(ctypes.c_char.from_buffer(page))
    table = (ctypes.c_void_p * 64)(*[one] * 64)
    for name, code in _CODE.items():
        table[names.index(name)] = start + page.tell()
        page.write(bytes.fromhex(code.format(**words)))
    guard = (ctypes.c_void_p * 1)(ctypes.addressof(table))
    return ctypes.addressof(guard), [page, table, guard]
