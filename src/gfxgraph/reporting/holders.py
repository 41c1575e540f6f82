"""What holds tensors that no visible variable names: attributes, and the containers in them."""

from __future__ import annotations

import gc
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType

from torch import Tensor

from gfxgraph.guard.names import TensorNames

_PLACE = re.compile(r"\[[^]]*\]|\d+")
_CONTAINERS = (list, tuple, dict, set, deque)


def holders_of(tensors: Sequence[Tensor], frame: FrameType) -> list[str]:
    """The name of each tensor's holder, "" if unknown; positions in one container count as one, ``kept[...]``.

    Takes two walks over all objects of the process for those without a variable, however many there are.
    """
    names = TensorNames(frame)
    found = {id(tensor): _PLACE.sub("[...]", names.of(tensor)) for tensor in tensors}
    inside: dict[int, object] = {}
    of_container: dict[int, list[int]] = {}
    for holder, name, item in _held([tensor for tensor in tensors if not found[id(tensor)]], ours=tensors):
        if name:
            found[id(item)] = name
        elif isinstance(holder, _CONTAINERS):
            inside[id(holder)] = holder
            of_container.setdefault(id(holder), []).append(id(item))
    for _, name, container in _held(list(inside.values()), ours=inside):
        for key in of_container[id(container)] if name else ():
            found[key] = found[key] or f"{name}[...]"
    return [found[id(tensor)] for tensor in tensors]


def _held(items: Sequence[object], ours: object) -> Iterator[tuple[object, str, object]]:
    """(holder, name of the attribute or variable, item): "" if the holder is a container."""
    wanted = {id(item) for item in items}
    for holder in gc.get_referrers(*items) if items else ():
        if holder is items or holder is ours:
            continue
        for name, item in _entries(holder):
            if id(item) in wanted:
                yield holder, name if isinstance(name, str) and name.isidentifier() else "", item


def _entries(holder: object) -> Iterable[tuple[object, object]]:
    if type(holder) is dict:
        return list(holder.items())
    if isinstance(holder, _CONTAINERS):
        return [(None, item) for item in list(holder)]
    attributes = getattr(holder, "__dict__", None)  # an object may have attributes without a dict since Python 3.11
    return list(attributes.items()) if type(attributes) is dict else ()
