"""Which module and which line of the program made each operation of a capture.

An eager module is a frame of torch's ``_call_impl``: while profiling is on, the recorder asks here, and the frames
are walked. Hooks would do the same, but Dynamo guards on them, and would trace anew inside a capture. What Dynamo
traced has the path of each operation in its FX graph, whenever it was captured.

A graphed function runs as Dynamo traced it, so its operations come from lines like ``<eval_with_key>.7:12``. torch.fx
stores the node of each generated line, and Dynamo the program's line from which each node was traced.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from types import FrameType

from torch import fx, nn

from gfxgraph import torch_names
from gfxgraph.core.tape import Entry, Tape, where_of
from gfxgraph.guard.tensor_names import objects_of

_NO_FRAME = where_of(None, -1).file
_GENERATED = "<eval_with_key>"
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


class Sources:
    """Finds the program's lines, and caches them by generated file."""

    def __init__(self) -> None:
        self._modules: dict[str, fx.GraphModule | None] = {}

    def of(self, where: str) -> str:
        """``where`` itself, or the line from which it was generated, if known; "" if there was no line."""
        if where.startswith(_NO_FRAME):
            return ""
        node = self.node(where)
        return (_line_of(node) if node is not None else "") or where

    def node(self, where: str) -> fx.Node | None:
        """The node of the FX graph from which this line was generated; None if none was."""
        file, _, line = where.rpartition(":")
        if not where.startswith(_GENERATED) or not line.isdigit():
            return None
        if file not in self._modules:
            self._modules[file] = next(_modules_of(file), None)
        module = self._modules[file]
        return _node_at(module, int(line)) if module is not None else None


def _modules_of(file: str) -> Iterator[fx.GraphModule]:
    pending: list[type[fx.GraphModule]] = [fx.GraphModule]
    while pending:
        kind = pending.pop()
        pending += type.__subclasses__(kind)  # each module has a class of its own
        code = getattr(vars(kind).get("forward"), "__code__", None)
        if code is not None and code.co_filename == file:
            yield from objects_of({kind})


def _node_at(module: fx.GraphModule, line: int) -> fx.Node | None:
    at = (getattr(module, "_lineno_map", None) or {}).get(line - type(module).forward.__code__.co_firstlineno)
    nodes = list(module.graph.nodes)
    return nodes[at] if at is not None and at < len(nodes) else None


def _line_of(node: fx.Node) -> str:
    frames = [f for f in _FRAME.findall(node.stack_trace or "") if not f[0].startswith("<")]
    return ":".join(frames[-1]) if frames else _module_of(node)


def _module_of(node: fx.Node) -> str:
    """The start of the innermost torch module from which the node was traced, if no line of the program made it."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    code = getattr(getattr(stack[-1][1], "forward", None), "__code__", None) if stack else None
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""


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
    return plain(str(stack[-1][0])) or _class(stack[-1][1]) if stack else ""


def _class(kind: object) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind).rsplit(".", 1)[-1]


def plain(path: str) -> str:
    """Dynamo's name of a module as the program knows it: ``L['fn']._modules['a']._modules['0']`` is a.0."""
    words = [bracket or name for bracket, name in _PART.findall(_ROOT.sub("", path))]
    return ".".join(word for word in words if word not in _DULL)
