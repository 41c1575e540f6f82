"""Host memory that captured code read as it was then: tensors, arrays and lists of the program's own.

Problem: what Python and host operations take from host memory inside a capture is a constant of the graph: a host
scalar in an operation on the device, ``host.item()``, ``torch.tensor(a_list)``. Eager code reads it anew in each
step, and a program that feeds its steps through it would be silently wrong. Idea: what existed before is remembered
with its content, and each replay compares it. What the captured code itself made is not compared; what it writes or
draws on the host is repeated at each replay, like any step of the host's (recorder.py).

Not seen: numbers, strings and attributes of Python's, and what NumPy computes.
"""

from __future__ import annotations

import copy
import sys
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from gfxgraph import torch_names
from gfxgraph.capture.record.overloads import NO_NODE, OpInfo, written
from gfxgraph.capture.record.user_lines import place
from gfxgraph.capture.replay.graph_tensors import flat, kept_identity, memory_of
from gfxgraph.core.tape import Place, where_of
from gfxgraph.core.unsafe import Kind, UnsafeOp, When
from gfxgraph.process import process

HOST_WRITE = UnsafeOp(
    "host write", Kind.NOT_RECORDED, "it writes to host memory of the program's, which no graph does", When.ALWAYS
)
HOST_DRAW = UnsafeOp("host draw", Kind.NOT_RECORDED, "it draws random numbers on the host", When.ALWAYS)
ON_HOST = frozenset({HOST_WRITE, HOST_DRAW})
_ALWAYS_COMPARED_NBYTES = 4096
_MOST_KEPT_NBYTES = 1 << 20
"""Of more, only torch's count of writes is compared."""


class HostReads:
    """What one capture read from host memory."""

    def __init__(self) -> None:
        self._made: dict[int, object] = {}
        """Memory that the capture's own host work made, by ``memory_of``."""
        self._tensors: dict[int, HostTensor] = {}
        self._contents: list[Contents] = []
        self._lent: list[Tensor] = []

    def is_own(self, tensor: Tensor) -> bool:
        """Whether the captured code made this memory."""
        return memory_of(tensor) in self._made

    def row_of(self, info: OpInfo, args: Any, kwargs: Any) -> UnsafeOp | None:
        """The row for work on the host that each replay repeats; what other operations read there is noted."""
        given = flat(args, kwargs)
        is_on_device = any(tensor.is_cuda for tensor in given) or not (given or _makes_on_host(kwargs))
        if info.draws and not is_on_device:
            return HOST_DRAW
        if not is_on_device and info.mutates and info.name not in NO_NODE:
            if not all(map(self.is_own, written(info.func, args, kwargs))):
                return HOST_WRITE
        if is_on_device and (info.unsafe is None or info.unsafe.kind is not Kind.HOST_COPY):
            for tensor in given:
                if not tensor.is_cuda:
                    self.note(tensor, place())
        return None

    def note_result(self, info: OpInfo, args: object, kwargs: object, out: object) -> None:
        """Work on the host that is done once."""
        if info.name == "aten::lift_fresh":  # how torch.tensor ends
            self.note_made(flat(out)[0])
        else:
            is_reading = not (info.is_view or _reads_no_content(info.name))
            self.note_work(args, kwargs, out, place() if is_reading else None)

    def note_made(self, tensor: Tensor) -> None:
        self._made[memory_of(tensor)] = kept_identity(tensor)

    def note_work(self, args: object, kwargs: object, out: object, where: Place | None) -> None:
        """Work on the host that is done once: what it made, and what it read.

        Args:
            where: the line; None where it reads no content.
        """
        given = flat(args, kwargs)
        if where is not None:
            for tensor in given:
                self.note(tensor, where)
        before = set(map(memory_of, given))
        for tensor in flat(out):
            if memory_of(tensor) not in before:
                self.note_made(tensor)

    def note(self, tensor: Tensor, where: Place) -> None:
        """A host tensor's content becomes a constant of the capture."""
        memory = memory_of(tensor)
        if memory not in self._made and memory not in self._tensors and tensor.layout is torch.strided:
            self._tensors[memory] = HostTensor(tensor, where)

    def note_write(self, tensor: Tensor) -> None:
        """The graph writes to a host tensor, which holds the values once somebody has waited for it."""
        if lends_memory(tensor):
            self._lent.append(tensor)

    def pop_lent(self) -> list[Tensor]:
        """What the graph wrote since the last wait and NumPy may read."""
        taken, self._lent = self._lent, []
        return taken

    def note_contents(self, data: object, where: Place) -> None:
        """A list or an array of the program's own, of which a tensor was made."""
        self._contents.append(Contents(data, where))

    def to_check(self) -> list[HostRead]:
        """What replays are to compare: neither what has changed since, which the captured code writes anew, nor what
        the program has let go of.
        """
        contents = [each for each in self._contents if each.is_held()]
        return [each for each in (*self._tensors.values(), *contents) if each.difference() is None]


def _makes_on_host(kwargs: Any) -> bool:
    """Whether an operation without tensors makes one in host memory."""
    device = kwargs.get("device")
    return device is None or torch.device(device).type == "cpu"


def _reads_no_content(name: str) -> bool:
    return name in NO_NODE or name == "aten::is_pinned" or name.endswith("_like") or name.startswith("aten::new_")


class HostRead(ABC):
    """Something that a capture read, with its content then."""

    _where: Place

    @abstractmethod
    def difference(self) -> tuple[str, object, object] | None:
        """What has changed, how it was, and how it is now."""

    def check(self) -> None:
        """Raises: GuardMismatch, where the content is another than at capture."""
        changed = self.difference()
        if changed is not None:
            what, then, now = changed
            where = where_of(*self._where)
            raise process.mismatch("host_memory_changed", what=what, where=where, expected=then, actual=now)


class HostTensor(HostRead):
    """A host tensor."""

    def __init__(self, tensor: Tensor, where: Place) -> None:
        self._tensor = tensor  # another one made here would not count the writes
        self._where = where
        self._content = tensor.detach().clone() if tensor.nbytes <= _MOST_KEPT_NBYTES else None
        self._version = _version(tensor)
        self._is_small = tensor.nbytes <= _ALWAYS_COMPARED_NBYTES

    def difference(self) -> tuple[str, object, object] | None:
        tensor, content = self._tensor, self._content
        version = _version(tensor)
        is_others = tensor.is_shared() or lends_memory(tensor)
        if version == self._version and not (self._is_small or (content is not None and is_others)):
            return None
        if content is None:
            return "the number of writes to a host tensor", self._version, version
        with torch_names._InferenceMode(True):
            then, now = content.reshape(-1), tensor.reshape(-1)
            same = torch.equal(then, now)
            if not same:
                differing = (then != now) & ~((then != then) & (now != now))
                same = not bool(differing.any())
        self._version = version
        if same:
            return None
        first = int(differing.nonzero()[0])
        return _named("a host tensor", first, then.numel()), then[first].item(), now[first].item()


class Contents(HostRead):
    """A list or a NumPy array."""

    def __init__(self, data: object, where: Place) -> None:
        self._data = data
        self._where = where
        self._then = copy.deepcopy(data)

    def is_held(self) -> bool:
        """Whether anybody else holds the data, and so can change it.

        Asked once the calls that used it are over: how many references their frames hold depends on the version of
        Python and on whether Dynamo watches them.
        """
        data = self._data
        parts = [part for part in data if isinstance(part, list)] if isinstance(data, list) else []
        n_alone, n_held = map(sys.getrefcount, [object(), data])  # counted from C, where no frame lends references
        return n_held > n_alone + 2 or bool(parts) or getattr(data, "base", None) is not None

    def difference(self) -> tuple[str, object, object] | None:
        then, now = _leaves(self._then), _leaves(self._data)
        if len(then) != len(now):
            return "the length of a list", len(then), len(now)
        for at, (old, new) in enumerate(zip(then, now)):
            if not (old == new or (old != old and new != new)):
                return _named("a list or array", at, len(then)), old, new
        return None


def lends_memory(tensor: Tensor) -> bool:
    """Whether a host tensor's memory is NumPy's, or has been handed to it; torch does not let such memory grow."""
    return not tensor.untyped_storage().resizable()


def host_generator(args: Any, kwargs: Any) -> torch.Generator:
    """The generator of a draw on the host."""
    given = (item for item in (*args, *kwargs.values()) if isinstance(item, type(torch.default_generator)))
    return next(given, torch.default_generator)  # type: ignore[return-value]


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _named(what: str, place: int, n: int) -> str:
    return what if n == 1 else f"element {place} of {what}"


def _leaves(data: object) -> list[Any]:
    if isinstance(data, (list, tuple)):
        return [leaf for part in data for leaf in _leaves(part)]
    return data.ravel().tolist() if hasattr(data, "ravel") and not isinstance(data, Tensor) else [data]


def may_change(data: Any) -> bool:
    """Whether data for a tensor can be changed in place, and compared."""
    if type(data) is list:
        return all(map(_is_of_numbers, data))
    is_array = type(data).__module__ == "numpy" and hasattr(data, "ravel") and getattr(data, "ndim", 0) > 0
    return is_array and data.dtype.kind in "biufc"


def _is_of_numbers(part: object) -> bool:
    if type(part) is list or type(part) is tuple:
        return all(map(_is_of_numbers, part))
    return isinstance(part, (bool, int, float, complex)) and type(part).__module__ == "builtins"


def shares_memory(made: Tensor, data: object) -> bool:
    """Whether a host tensor lies where the array does of which it was made."""
    return hasattr(data, "__array_interface__") and made.data_ptr() == data.__array_interface__["data"][0]
