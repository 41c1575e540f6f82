"""Readable C++ names of kernels, through the C++ library that every process with torch has loaded."""

from __future__ import annotations

import ctypes
import re
from functools import lru_cache


@lru_cache(maxsize=4096)
def demangled(name: str) -> str:
    """The full name; unchanged if it is not mangled or there is no C++ library."""
    if not name.startswith("_Z"):
        return name
    decode = _decoder()
    if decode is None:
        return name
    status = ctypes.c_int()
    made = decode(name.encode(), None, None, ctypes.byref(status))
    if not made:
        return name
    try:
        return ctypes.string_at(made).decode("utf-8", "replace")
    finally:
        _free()(made)


@lru_cache(maxsize=4096)
def short(name: str) -> str:
    """A demangled kernel name without return type, namespaces and arguments, one level of template arguments kept.

    ``void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, ...>(int, ...)`` is
    ``vectorized_elementwise_kernel<CUDAFunctor_add>``.
    """
    name = re.sub(r"\((anonymous namespace|lambda[^()]*(\([^()]*\))?[^()]*)\)", "", name)
    head, _, rest = name.partition("<")
    plain = _last(head.split("(")[0])
    inner = [word for word in re.findall(r"[\w:~]+", rest.split("(")[0]) if "::" in word and not word.endswith("::")]
    telling = [word for word in map(_last, inner) if word not in _DULL and len(word) > 2]
    return f"{plain}<{telling[0]}>" if rest and telling else plain


def _last(qualified: str) -> str:
    words = qualified.strip().split(" ")[-1]
    return words.rsplit("::", 1)[-1] or words


_DULL = frozenset({"array", "detail", "Array", "type", "value", "native", "opmath_t", "arg1_t", "arg2_t"})


@lru_cache(maxsize=1)
def _decoder() -> ctypes._NamedFuncPointer | None:
    for library in (None, "libstdc++.so.6", "libc++.so.1"):
        try:
            found = ctypes.CDLL(library).__cxa_demangle
        except (OSError, AttributeError):
            continue
        found.restype = ctypes.c_void_p
        found.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
        return found
    return None


@lru_cache(maxsize=1)
def _free() -> ctypes._NamedFuncPointer:
    free = ctypes.CDLL(None).free
    free.argtypes = [ctypes.c_void_p]
    free.restype = None
    return free
