"""The functions of one opened runtime, and the one place where a status becomes an exception.

Statuses are read by name, not by number: HIP's and CUDA's numbers agree up to 910 and part ways
above it, and every runtime can name its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from gfxgraph.driver import runtime_functions
from gfxgraph.driver.library import FoundLibrary
from gfxgraph.errors import DriverError

SUCCESS = 0


def split_version(backend: str, number: int) -> tuple[int, ...]:
    """HIP packs 7.2.26015 as 70226015, CUDA 13.0 as 13000."""
    if backend == "cuda":
        return number // 1000, number % 1000 // 10
    return number // 10_000_000, number // 100_000 % 100, number % 100_000


class Table:
    """Function pointers of one runtime.

    Raises:
        DriverError: `graph_api_missing`, where the library lacks a function that we cannot do
            without.
    """

    def __init__(self, found: FoundLibrary) -> None:
        self.found = found
        self.backend = found.backend
        self._functions: dict[str, Callable[..., Any]] = {}
        self._symbols: dict[str, str] = {}
        absent: set[str] = set()
        for function in runtime_functions.FUNCTIONS:
            symbol = function.hip if found.backend == "hip" else function.cuda
            if symbol is None:
                continue
            self._symbols[function.name] = symbol
            try:
                # By item, not by attribute: a CDLL keeps those it hands out by attribute, and
                # another library's signature must not end up on them.
                pointer = found.handle[symbol]
            except AttributeError:
                if not function.serves:
                    raise self._absent(symbol) from None
                absent.update(function.serves)
                continue
            pointer.argtypes = function.args
            pointer.restype = function.result
            self._functions[function.name] = pointer
        self.missing = frozenset(absent)

    def has(self, name: str) -> bool:
        return name in self._functions

    def symbol(self, name: str) -> str:
        """The runtime's own name of a function."""
        return self._symbols[name]

    def function(self, name: str) -> Callable[..., Any]:
        """Return the function itself; the caller passes its status to `check`.

        Raises:
            DriverError: `graph_api_missing`.
        """
        try:
            return self._functions[name]
        except KeyError:
            raise self._absent(self._symbols.get(name, name)) from None

    def undeclared(self, name: str) -> Callable[..., Any]:
        """The function without a declared signature, for a call that is made very often.

        ctypes converts each argument of a declared function anew; here the caller passes ctypes objects.

        Raises:
            DriverError: `graph_api_missing`.
        """
        self.function(name)
        pointer = self.found.handle[self._symbols[name]]
        pointer.restype = self._functions[name].restype  # type: ignore[attr-defined]
        return pointer  # type: ignore[no-any-return]

    def call(self, name: str, *args: object) -> None:
        """Call a function and raise unless it succeeds.

        Raises:
            DriverError: `driver_call_failed`, with the runtime's name for the status.
        """
        status = self.function(name)(*args)
        if status != SUCCESS:
            self.check(status, name, args)

    def check(self, status: int, name: str, args: tuple[object, ...] = ()) -> None:
        """Raise for ``status`` of the function called ``name``, if it is not success."""
        if status == SUCCESS:
            return
        said = self.status_name(status)
        self.forget_last_error()
        symbol = self._symbols[name]
        shown = ", ".join(hex(arg) if isinstance(arg, int) else "..." for arg in args)
        raise DriverError("driver_call_failed", api=symbol, status=said, number=status, detail=f"{symbol}({shown})")

    def status_name(self, status: int) -> str:
        """What the runtime calls ``status``, e.g. ``hipErrorStreamCaptureInvalidated``."""
        naming = self._functions["error_name"]
        if self.backend == "hip":
            text = naming(status)
        else:
            pointer = ctypes.c_char_p()
            text = pointer.value if naming(status, ctypes.byref(pointer)) == SUCCESS else None
        return text.decode("ascii", "replace") if text else f"status {status}"

    def forget_last_error(self) -> None:
        """Clear what a refused call left behind.

        HIP keeps a failed call's status per thread, and torch reads it after its next launch: a
        refusal that we handle would surface there as the error of an unrelated kernel.
        """
        if self.backend == "hip":
            self._functions["last_error"]()

    def _absent(self, symbol: str) -> DriverError:
        number = ctypes.c_int()
        known = self._functions.get("version")
        version = number.value if known and known(ctypes.byref(number)) == SUCCESS else None
        return DriverError("graph_api_missing", api=symbol, library=self.found.path, version=version)
