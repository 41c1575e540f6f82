"""Functions that refuse a tracked number, as they stand while the program holds one.

``json`` asks for the type itself, and so does ``torch.tensor`` once no capture runs any more (during one it is
replaced in tensor_reads.py). As long as numbers live they are handed the plain value; once Dynamo has compiled
anything torch's stay, for its code is guarded on them.
"""

from __future__ import annotations

import functools
import json
import weakref
from typing import Any

import torch

from gfxgraph.capture.record.fused_recording import has_compiled_nothing
from gfxgraph.capture.record.tracked_numbers import NUMBERS, TrackedNumber, holds_numbers, plain
from gfxgraph.process import process

_alive: dict[int, weakref.ref[TrackedNumber]] = {}
"""The numbers that there are, by the ``id`` of the references."""
_undo: list[tuple[object, str, object, object]] = []
"""Owner, attribute, what stood there, what stands there now."""
_JSON = ((json.JSONEncoder, "default"), (json.JSONEncoder, "iterencode"))
_TENSORS = ((torch, "tensor"), (torch, "as_tensor"), (torch, "asarray"))


def note(number: TrackedNumber) -> None:
    """A number has been handed out."""
    ref = weakref.ref(number, _died)
    _alive[id(ref)] = ref
    _replace(_JSON)


def _died(ref: weakref.ref[TrackedNumber]) -> None:
    _alive.pop(id(ref), None)
    if not _alive and not process.sessions():
        put_back()


def settle() -> None:
    """No capture runs: replace torch's functions, or put all back, as there are numbers or not."""
    if not _alive:
        put_back()
    elif has_compiled_nothing():
        _replace(_TENSORS)


def _replace(targets: tuple[tuple[Any, str], ...]) -> None:
    for owner, name in targets:
        if not any(each[:2] == (owner, name) for each in _undo):
            original = getattr(owner, name)
            replacement = _json_default(original) if name == "default" else _plain_first(original)
            _undo.append((owner, name, original, replacement))
            setattr(owner, name, replacement)


def put_back() -> None:
    """Restore the functions, whether or not numbers are left."""
    while _undo:
        owner, name, original, replacement = _undo.pop()
        if getattr(owner, name) is replacement:
            setattr(owner, name, original)


def _plain_first(original: Any) -> Any:
    def function(*args: object, **kwargs: object) -> Any:
        is_json = original.__name__ == "iterencode"  # whose keys may be numbers
        if not torch.compiler.is_compiling() and (is_json or holds_numbers(args)):
            args = plain(args, original.__name__)
        return original(*args, **kwargs)

    function.__code__ = function.__code__.replace(co_filename="<gfxgraph>")  # Dynamo looks through it
    return functools.update_wrapper(function, original)


def _json_default(original: Any) -> Any:
    def default(self: Any, item: object) -> Any:
        return plain(item, "JSON") if type(item) in NUMBERS else original(self, item)

    return default
