"""Functions that refuse a tracked number, as they stand while the program holds one and no capture runs.

After its capture a number is a plain one to nearly everything; ``torch.tensor`` and ``json`` ask for the type itself.
As long as numbers live they are replaced by functions that hand them the plain value; once Dynamo has compiled
anything they stay, for its code is guarded on them.
"""

from __future__ import annotations

import functools
import json
import weakref
from typing import Any

import torch

from gfxgraph.capture.record.fused_recording import has_compiled_nothing
from gfxgraph.capture.record.tracked_numbers import TrackedNumber, holds_numbers, plain
from gfxgraph.process import process

_alive: dict[int, weakref.ref[TrackedNumber]] = {}
"""The numbers that there are, by the ``id`` of the references."""
_undo: list[tuple[object, str, object, object]] = []
"""Owner, attribute, what stood there, what stands there now."""
_TARGETS = (
    (torch, "tensor"), (torch, "as_tensor"), (torch, "asarray"), (json.JSONEncoder, "default"),
    (json.JSONEncoder, "iterencode"),
)  # fmt: skip


def note(number: TrackedNumber) -> None:
    """A number has been handed out."""
    ref = weakref.ref(number, _died)
    _alive[id(ref)] = ref


def _died(ref: weakref.ref[TrackedNumber]) -> None:
    _alive.pop(id(ref), None)
    if _undo and not _alive and not process.sessions():
        settle()


def settle() -> None:
    """No capture runs: replace the functions, or put them back, as there are numbers or not."""
    if _alive and not _undo and has_compiled_nothing():
        for owner, name in _TARGETS:
            original = getattr(owner, name)
            replacement = _json_default(original) if name == "default" else _plain_first(original)
            _undo.append((owner, name, original, replacement))
            setattr(owner, name, replacement)
    elif not _alive:
        put_back()


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
        return item._leave("JSON") if type(item) is TrackedNumber else original(self, item)

    return default
