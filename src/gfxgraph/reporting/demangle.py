"""Readable C++ names of kernels."""

from __future__ import annotations

import re
from functools import lru_cache

import torch


@lru_cache(maxsize=4096)
def demangled(name: str) -> str:
    """The full name; unchanged if it is not mangled."""
    return str(torch._C._demangle(name)) if name.startswith("_Z") else name


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
