"""Memory words that change with an object, all compared in one call.

Problem: reading an attribute in Python costs 30 to 60 ns, reading a tensor's address through C++ as much, and a
16-layer Llama has some 200 tensors and 300 objects to check. Idea: whatever can change in an object is a pointer or a
number at a fixed offset in its memory. The offsets are learned, once per process, from samples in which everything is
changed: no layout is hard-coded. NumPy gathers the words of all objects in one call, 0.8 ns each.

Invariants: a word is read only while its object is kept alive, so what is reached through a pointer is read in a
later phase than the pointer. The expected targets are kept alive too, so that no address is reused. An offset is used
only if the object at hand holds there what the sample predicts; everything else is compared in Python.

Source: measured (decision 0144); tests/unit/watching/test_memory_words.py changes every kind of thing watched.
"""

from __future__ import annotations

import ctypes
import functools
import types
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

try:
    import numpy as np
except ImportError:  # torch works without NumPy, too
    np = None  # type: ignore[assignment]

_WORD = ctypes.sizeof(ctypes.c_uint64)
_IMPL_WORDS = 23
"""Most words of a ``TensorImpl``: what follows belongs to something else."""
_STORAGE_WORDS, _META_WORDS, _BEFORE = 8, 32, 4
_CLASS_WORDS = 50
"""A class is larger than this."""
_MOST_DIMS = 5
"""With more dims, sizes and strides are stored elsewhere."""
_MOST_VIEWS = 8
"""Up to this many ranges are compared as memoryviews, 20 ns each; more are gathered, 200 ns and 1 ns a word."""
if np is not None:
    # All of memory; only ever indexed. Kept out of local names, because a debugger that shows them would print it.
    _memory = memoryview((ctypes.c_uint64 * (1 << 44)).from_address(_WORD))
    _gather = np.ndarray((1 << 44) - 1, np.uint64, _memory).__getitem__


def words_at(address: int, n: int) -> list[int]:
    return list((ctypes.c_uint64 * n).from_address(address))


def text_of_difference(addresses: Iterable[int], name: str, names: dict[str, object]) -> str:
    """An expression that is true if a word has changed since now.

    Args:
        addresses: of the words of one phase, multiples of a word's size.
        name: prefix of the names that the expression uses.
        names: those names are added to it.
    """
    words = sorted(set(addresses))
    runs = _runs(words)
    if np is not None and len(runs) > _MOST_VIEWS:
        index = np.array(words, np.int64) // _WORD - 1
        names |= {name: _gather, f"{name}_at": index, f"{name}_seen": _gather(index).tobytes()}
        return f"{name}({name}_at).tobytes() != {name}_seen"
    texts = []
    for i, (at, n) in enumerate(runs):
        view = memoryview((ctypes.c_uint64 * n).from_address(at)).cast("B").cast("Q")
        names |= {f"{name}_{i}": view, f"{name}_{i}_seen": memoryview(bytes(view)).cast("Q")}
        texts.append(f"{name}_{i} != {name}_{i}_seen")
    return " or ".join(texts)


def _runs(words: list[int]) -> list[tuple[int, int]]:
    """Ranges of adjacent words: start and number of words."""
    runs: list[tuple[int, int]] = []
    for at in words:
        if runs and at == runs[-1][0] + _WORD * runs[-1][1]:
            runs[-1] = runs[-1][0], runs[-1][1] + 1
        else:
            runs.append((at, 1))
    return runs


# -- Python objects ----------------------------------------------------------------------------------------


def _only(found: list[int], wanted: int) -> int | None:
    """The offset of ``wanted``; None if it occurs nowhere or several times."""
    return found.index(wanted) * _WORD if found.count(wanted) == 1 else None


@functools.cache
def _places() -> dict[str, int | None]:
    """Byte offsets of pointers in an object, by the pointer's meaning."""

    class Sample:
        pass

    held = object()

    def function(a: object = 1, *, b: object = 2) -> Any:
        return held

    sample, cell, row = Sample(), types.CellType(held), [held] * 3
    row.append(held)  # now it has room for more than four
    own = vars(sample)
    names = ("__code__", "__defaults__", "__kwdefaults__", "__closure__")
    of_function = words_at(id(function), type(function).__basicsize__ // _WORD)
    before = words_at(id(sample) - _BEFORE * _WORD, _BEFORE)
    of_list = words_at(id(row), list.__basicsize__ // _WORD)
    pointers = [word for word in of_list if word > 1 << 16 and word != id(list)]
    managed = _only(before, id(own))
    return {
        "type": _only(words_at(id(sample), 2), id(Sample)),
        "dict": managed - _BEFORE * _WORD if managed is not None else None,
        "cell": _only(words_at(id(cell), types.CellType.__basicsize__ // _WORD), id(held)),
        "length": _only(of_list, len(row)),
        "items": _only(of_list, *pointers) if len(pointers) == 1 else None,
        "__mro__": _only(words_at(id(Sample), _CLASS_WORDS), id(Sample.__mro__)),
        **{name: _only(of_function, id(getattr(function, name))) for name in names},
    }


def word_of(owner: object, name: str, value: object) -> int | None:
    """The address of ``owner``'s pointer to ``value``; None if unknown.

    Args:
        name: "type", "dict" (its own), "cell" (its content), "__mro__" of a class or a name of a function's.
    """
    place = _places()[name]
    if name == "dict" and type(owner).__dictoffset__ > 0:
        place = type(owner).__dictoffset__
    if place is None:
        return None
    address = id(owner) + place
    (found,) = words_at(address, 1)
    # A function without defaults has a null pointer there.
    return address if found == id(value) or (value is None and found == 0 and name in _MAY_LACK) else None


_MAY_LACK = ("__defaults__", "__kwdefaults__", "__closure__")


def words_of_list(value: list[object]) -> tuple[list[int], list[int]] | None:
    """Words of a list, and of its items, which its second word points to; None if it must be compared in Python."""
    length, items = _places()["length"], _places()["items"]
    if length is None or items is None:
        return None
    (at,) = words_at(id(value) + items, 1)
    if words_at(id(value) + length, 1) != [len(value)] or words_at(at, len(value)) != [id(item) for item in value]:
        return None
    return [id(value) + length, id(value) + items], [at + i * _WORD for i in range(len(value))]


TAG_AT = 3 * ctypes.sizeof(ctypes.c_ssize_t)
"""Offset of a dict's version number (CPython 3.11): after its reference count, type and length."""


# -- tensors ----------------------------------------------------------------------------------------------


@functools.cache
def _tensor_places(n_dims: int) -> tuple[list[int], int, int, int] | None:
    """Offsets for tensors of this many dims: in the ``TensorImpl``, in the storage, of autograd's data, and in it.

    None if changing everything changed fewer words than expected.
    """
    with torch.inference_mode(False), torch.no_grad():
        sample = torch.zeros((2,) * n_dims, dtype=torch.complex64, device="cpu")
        before, changed = words_at(sample._cdata, _IMPL_WORDS), set()
        for n in (n_dims, n_dims - 1 if n_dims else 1):
            sizes, strides = tuple(range(3, 3 + n)), tuple(range(101, 101 + n))
            sample.data = torch.zeros(4096, dtype=torch.complex128, device="cpu").as_strided(sizes, strides, 7).conj()
            after = words_at(sample._cdata, _IMPL_WORDS)
            changed |= {i for i, (a, b) in enumerate(zip(before, after)) if a != b}
        storage = sample.untyped_storage()
        # At least storage, offset, number of elements, dtype, dispatch keys, number of dims, sizes and strides.
        if after.count(storage._cdata) != 1 or len(changed) < 2 * n_dims + 6:
            return None
        held = words_at(storage._cdata, _STORAGE_WORDS)
        of_storage = held.index(storage.data_ptr()) * _WORD
        leaf = torch.zeros((2,) * n_dims, device="cpu")
        bare = words_at(leaf._cdata, _IMPL_WORDS)
        leaf.requires_grad_(True)
        (meta, *more) = [i for i, word in enumerate(words_at(leaf._cdata, _IMPL_WORDS)) if word != bare[i]] or [-1]
        if meta < 0 or more or bare[meta]:
            return None
        (at,) = words_at(leaf._cdata + meta * _WORD, 1)
        needs = words_at(at, _META_WORDS)
        leaf.requires_grad_(False)
        flag = [i for i, word in enumerate(words_at(at, _META_WORDS)) if word != needs[i]]
        if len(flag) != 1:
            return None
    return [i * _WORD for i in sorted(changed)], of_storage, meta * _WORD, flag[0] * _WORD


def words_of_tensor(tensor: Tensor) -> tuple[list[int], list[int], object] | None:
    """What to watch of a tensor: words of the Python object, words reached through pointers, and what to keep alive.

    None if it must be compared in Python.
    """
    places = _tensor_places(tensor.dim()) if tensor.dim() <= _MOST_DIMS else None
    kind = word_of(tensor, "type", type(tensor))
    object_words = words_at(id(tensor), type(tensor).__basicsize__ // _WORD)
    impl = tensor._cdata
    points = _only(object_words, impl)
    if places is None or kind is None or points is None:
        return None
    of_impl, of_storage, meta, flag = places
    storage = tensor.untyped_storage()
    home = storage._cdata
    if home not in words_at(impl, _IMPL_WORDS) or words_at(home + of_storage, 1) != [storage.data_ptr()]:
        return None
    behind = [*(impl + place for place in of_impl), impl + meta, home + of_storage]
    (at,) = words_at(impl + meta, 1)
    if at:
        behind.append(at + flag)
    # The storage may be released and its memory freed; the few words that show this stay.
    return [kind, id(tensor) + points], behind, StorageWeakRef(storage)


@functools.cache
def _address_places(n_dims: int) -> tuple[list[int], int] | None:
    """Offsets in a ``TensorImpl``: of the storage, of the tensor's offset in it, of the number of elements, the dtype
    and, with several dims, of the first stride; and in the storage, of the memory's address.
    """
    with torch.inference_mode(False), torch.no_grad():
        n = max(n_dims, 1)
        strides, whole = tuple(range(1001, 1001 + n)), torch.zeros(32768, device="cpu")
        sample = whole.as_strided((1,) * n, strides, 12345)
        words, storage = words_at(sample._cdata, _IMPL_WORDS), whole.untyped_storage()
        held = words_at(storage._cdata, _STORAGE_WORDS)
        found = [_only(words, each) for each in (storage._cdata, 12345, *strides[: n_dims > 1])]
        sizes = [tuple(1 + (i == dim) for i in range(n)) for dim in range(n)]
        of_size = [_changed(sample, whole.as_strided(size, strides, 12345)) for size in sizes]
        of_dtype = _changed(sample, sample.view(torch.int32))
    found += [_WORD * max(each) if each else None for each in (set.intersection(*of_size) - of_dtype, of_dtype)]
    places = [place for place in found if place is not None]
    at = held.index(storage.data_ptr()) * _WORD if storage.data_ptr() in held else None
    return (places, at) if at is not None and len(places) == len(found) else None


def _changed(sample: Tensor, other: Tensor) -> set[int]:
    """Which words of its ``TensorImpl`` change where it is given the other's data."""
    before, kept = words_at(sample._cdata, _IMPL_WORDS), sample.data
    sample.data = other
    found = {i for i, word in enumerate(words_at(sample._cdata, _IMPL_WORDS)) if word != before[i]}
    sample.data = kept
    return found


def words_of_address(tensor: Tensor) -> list[int] | None:
    """Words behind the Python object that change with what a graph depends on: the tensor's address and layout.

    Its storage must be kept alive, and be what it holds; None if it must be compared in Python.
    """
    places = _address_places(tensor.dim()) if tensor.dim() <= _MOST_DIMS else None
    if places is None:
        return None
    impl, storage = tensor._cdata, tensor.untyped_storage()
    home = storage._cdata
    if _word_at(impl + places[0][0]).value != home or _word_at(home + places[1]).value != storage.data_ptr():
        return None
    return [home + places[1], *(impl + place for place in places[0])]


_word_at = ctypes.c_uint64.from_address
