"""Which module of the program made each operation of a capture.

An eager module is a frame of torch's ``_call_impl``: while profiling is on, the recorder asks here, and the frames
are walked. Hooks would do the same, but Dynamo guards on them, and would trace anew inside a capture. What Dynamo
traced has the path of each operation in its FX graph, whenever it was captured.
"""

from __future__ import annotations

import re
import sys
import time
from types import FrameType
from typing import Any

from torch import nn

from gfxgraph import torch_names
from gfxgraph.core.tape import Entry, Tape
from gfxgraph.reporting.generated_lines import Sources

_CALL = getattr(torch_names._call_impl, "__code__", None)
_ROOT = re.compile(r"^L(?:\['\w+'\]|\.\w+)(?:\.__self__)?|^_modules\b")
_PART = re.compile(r"\['?(\w+)'?\]|\.?(\w+)(?:\(\))?")
_DULL = frozenset({"_modules", "_orig_mod", "self", "fn", "module", "L"})


class Noting:
    """Notes the path of the module that runs, with each operation of a tape."""

    def __init__(self) -> None:
        self.begun = 0.0
        """When it was first called."""
        self._names: dict[int, tuple[nn.Module, dict[int, str]]] = {}
        """By the outermost module's id: the paths of those in it."""

    def __call__(self, tape: Tape) -> None:
        self.begun = self.begun or time.perf_counter()
        path = self.path(sys._getframe(2))
        if path is not None:
            tape.modules[len(tape.rows)] = path

    def path(self, frame: FrameType | None) -> str | None:
        """The path of the module that runs at a frame, below the outermost one; None if none does."""
        inner = outer = None
        while frame is not None:
            if frame.f_code is _CALL:
                outer = frame.f_locals.get("self")
                inner = inner if inner is not None else outer
            frame = frame.f_back
        return self._path(outer, inner) if inner is not None and outer is not None else None

    def _path(self, outer: nn.Module, inner: nn.Module) -> str:
        known = self._names.get(id(outer))
        if known is None or known[0] is not outer or id(inner) not in known[1]:
            paths = {id(module): path for path, module in outer.named_modules()}
            known = self._names[id(outer)] = (outer, paths)
        return known[1].get(id(inner), type(inner).__name__) or type(outer).__name__


def module_of(tape: Tape, at: int, entry: Entry | None, sources: Sources) -> str:
    """The path of the module that made the operation at this place of the tape; "" if none is known.

    Args:
        entry: the operation; None for a launch outside torch, which belongs to the last operation before it.
    """
    if at in tape.modules:
        return tape.modules[at]
    if entry is None:
        before = [i for i in tape.modules if i <= at]
        return tape.modules[max(before)] if before else ""
    node = sources.node(str(entry.where))
    stack = list((node.meta.get("nn_module_stack") or {}).values()) if node is not None else []
    return plain(str(stack[-1][0])) or _class(stack) if stack else ""


def _class(stack: list[Any]) -> str:
    kind = stack[-1][1]
    return kind.__name__ if isinstance(kind, type) else str(kind).rsplit(".", 1)[-1]


def plain(path: str) -> str:
    """Dynamo's name of a module as the program knows it: ``L['fn']._modules['a']._modules['0']`` is a.0."""
    words = [bracket or name for bracket, name in _PART.findall(_ROOT.sub("", path))]
    return ".".join(word for word in words if word not in _DULL)
