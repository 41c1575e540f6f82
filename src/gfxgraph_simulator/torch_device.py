"""Make torch's C++ believe in one "cuda" device, without a driver and without compiling anything.

Enters: two registries inside torch's own libraries.
Stays out: Python names (torch_names.py), kernels (kernels.py).

Three things in C++ ask for a device before any kernel runs: ``.to("cuda")`` asks the device guard which
device is current; autograd asks the guard for streams, and asks the CUDA hooks whether there is an
accelerator at all. Everything else of a tensor (device, keys, storage) needs no driver. ``torch.Stream.is_capturing``
(2.13 and later) asks the guard too.

* The guard. torch ships ``FakeGuardImpl<CUDA>`` (thread-local current device and stream, no driver) and
  installs it through ``torch._C._ensureCUDADeviceGuardSet()``, but only over a guard that reports no
  devices. A CPU build has none at all, so a guard that answers 0 to everything is registered first. It knows of
  no captures: its object gets a copy of its own vtable in which ``isStreamCapturing`` asks the simulator.
* The hooks. The live hooks object gets a copy of its own vtable in which ``hasCUDA`` and its like answer
  yes. The slots are counted from the headers that every torch wheel carries.

Both are put back by ``undo``. Tensors that outlive it keep their memory and lose their kernels.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import mmap
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from gfxgraph import torch_names
from gfxgraph.errors import SimulatorError

_INCLUDE: Final = Path(torch.__file__).parent / "include"
_CUDA_DEVICE_TYPE: Final = 1  # c10::DeviceType::CUDA
_YES: Final = ("isBuilt", "isAvailable", "hasPrimaryContext", "deviceCount", "hasCUDA", "getNumGPUs")
# A CUDA build's composite kernels would go to these libraries, which need a real card.
_NO: Final = ("compiledWithCuDNN", "compiledWithMIOpen")
_SLOTS: Final = 160  # more than any version's vtable; the tail is copied and never called

_STREAM_ID_OFFSET: Final = 8  # of c10::Stream: a device, then the stream's number
_AnswerType = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
_AskType = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p)
_answer_zero = _AnswerType(lambda _this: 0)
# Not Python: asked while an exception is on its way through C++, that would lose it, and a signal may strike there.
_answer_one = ctypes.pythonapi.Py_IsInitialized


def _keep_for_ever(*objects: object) -> None:
    """C++ has pointers to these; they must outlive even this module."""
    for one in objects:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


_keep_for_ever(_answer_zero, _answer_one)


class NativeDevice:
    """The patched guard and hooks; ``undo`` restores both.

    Args:
        is_capturing: whether the stream with this number captures.
    """

    def __init__(self, is_capturing: Callable[[int], bool]) -> None:
        lib = Path(torch.__file__).parent / "lib"
        self._c10 = ctypes.CDLL(str(lib / "libc10.so"))
        self._cpu = ctypes.CDLL(str(lib / "libtorch_cpu.so"))
        self._guard_before = self._guard_slot().value
        self._vtables_before: list[tuple[int, int]] = []
        self._install_guard(is_capturing)
        self._install_hooks()
        # C++ static objects may call the hooks when Python is gone.
        atexit.register(self.undo)

    def undo(self) -> None:
        atexit.unregister(self.undo)
        while self._vtables_before:
            an_object, table = self._vtables_before.pop()
            ctypes.c_void_p.from_address(an_object).value = table
        self._guard_slot().value = self._guard_before

    def _guard_slot(self) -> ctypes.c_void_p:
        registry = ctypes.addressof(ctypes.c_byte.in_dll(self._c10, "_ZN3c104impl26device_guard_impl_registryE"))
        return ctypes.c_void_p.from_address(registry + _CUDA_DEVICE_TYPE * ctypes.sizeof(ctypes.c_void_p))

    def _install_guard(self, is_capturing: Callable[[int], bool]) -> None:
        names = _virtuals(_INCLUDE / "c10" / "core" / "impl" / "DeviceGuardImplInterface.h")
        if torch_names._ensureCUDADeviceGuardSet is None:
            address, kept = make_guard(tuple(names), _address_of(_answer_one))
            if not address:
                raise SimulatorError(
                    "simulator_unsupported", feature="a guard that this torch lacks", where="this torch"
                )
            _keep_for_ever(*kept)
            self._guard_slot().value = address
            return
        if self._guard_before is None:
            table = (ctypes.c_void_p * 64)(*[_address_of(_answer_zero)] * 64)
            guard = (ctypes.c_void_p * 1)(ctypes.addressof(table))
            _keep_for_ever(table, guard)
            self._guard_slot().value = ctypes.addressof(guard)
        stand_in = self._guard_slot().value
        torch_names._ensureCUDADeviceGuardSet()
        if self._guard_before is None and self._guard_slot().value == stand_in:
            self._guard_slot().value = None
            raise SimulatorError("simulator_unsupported", feature="a CUDA device guard", where="this torch")
        if "isStreamCapturing" in names:
            asks = _AskType(
                lambda _this, stream: is_capturing(ctypes.c_int64.from_address(stream + _STREAM_ID_OFFSET).value)
            )
            _keep_for_ever(asks)
            guard_object = self._guard_slot().value
            assert guard_object is not None  # one has just been set
            self._replace(guard_object, {names.index("isStreamCapturing"): _address_of(asks)})

    def _install_hooks(self) -> None:
        get_hooks: Any = self._cpu["_ZN2at6detail12getCUDAHooksEv"]
        get_hooks.restype = ctypes.c_void_p
        slots = _hook_slots()
        answers = {slots[name]: _address_of(_answer_one) for name in _YES}
        answers |= {slots[name]: _address_of(_answer_zero) for name in _NO if name in slots}
        self._replace(int(get_hooks()), answers)

    def _replace(self, an_object: int, functions: dict[int, int]) -> None:
        """Give a C++ object a copy of its vtable with other functions, by slot."""
        before = ctypes.c_void_p.from_address(an_object).value
        assert before is not None  # a C++ object with virtual functions always has one
        # Two words before the first slot: offset-to-top and type info, kept for dynamic_cast.
        table_type = ctypes.c_void_p * (_SLOTS + 2)
        table = table_type.from_buffer_copy(table_type.from_address(before - 16))
        for slot, function in functions.items():
            table[2 + slot] = function
        _keep_for_ever(table)
        self._vtables_before.append((an_object, before))
        ctypes.c_void_p.from_address(an_object).value = ctypes.addressof(table) + 16


def _hook_slots() -> dict[str, int]:
    """Vtable slot of every virtual function of at::CUDAHooksInterface, by name."""
    folder = _INCLUDE / "ATen" / "detail"
    base = _virtuals(folder / "AcceleratorHooksInterface.h")
    derived = _virtuals(folder / "CUDAHooksInterface.h")
    # The Itanium ABI gives a virtual destructor two slots; an override keeps its base's slot.
    order = ["(destructor)"] + base + [name for name in derived if name not in base]
    missing = [name for name in _YES if name not in order]
    if missing:
        feature = f"CUDA hooks {', '.join(missing)}"
        raise SimulatorError("simulator_unsupported", feature=feature, where="this torch's headers")
    return {name: slot for slot, name in enumerate(order)}


def _virtuals(header: Path) -> list[str]:
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", header.read_text("utf-8"), flags=re.DOTALL)
    return re.findall(r"\bvirtual\s[^;{]*?(~?\w+)\s*\(", text)


def _address_of(function: Any) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address


# -- the guard of torch 2.9 ------------------------------------------------------------------------------------
#
# It remembers the current stream of each thread, for a torch without one of its own: later torches ship
# ``FakeGuardImpl<CUDA>``, 2.9 its header alone. A guard is asked while exceptions are on their way through C++, so
# Python cannot answer, and ctypes cannot return a ``c10::Stream`` in two registers. So the three functions that give
# one are x86-64 machine code, for System V's calling convention; a thread's current stream is a thread-local value of
# pthread's. All others are asked for a number, a truth or nothing: 1 is right for each (``c10::Device`` of the first
# CUDA device is 1, too).


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
