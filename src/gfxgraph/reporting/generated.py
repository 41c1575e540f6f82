"""The program's own line behind a line of code that torch generated.

A graphed function runs as Dynamo traced it, so its operations come from lines like ``<eval_with_key>.7:12``. torch.fx
keeps which node each generated line is, and Dynamo which line of the program each node was traced from.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

from gfxgraph.core.tape import where_of
from gfxgraph.guard.names import objects_of

_NO_FRAME = where_of(None, -1).file
_GENERATED = "<eval_with_key>"
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


class Sources:
    """Finds the program's lines, and caches them by generated file."""

    def __init__(self) -> None:
        self._modules: dict[str, Any] = {}

    def of(self, where: str) -> str:
        """``where`` itself, or the line it was generated from where that is known; "" where there was no line."""
        if where.startswith(_NO_FRAME):
            return ""
        if not where.startswith(_GENERATED):
            return where
        file, _, line = where.rpartition(":")
        if file not in self._modules:
            self._modules[file] = next(_modules_of(file), None)
        module = self._modules[file]
        return (_line_of(module, int(line)) if module is not None and line.isdigit() else "") or where


def _modules_of(file: str) -> Iterator[Any]:
    graph_module = getattr(sys.modules.get("torch.fx.graph_module"), "GraphModule", None)
    pending = [graph_module] if graph_module is not None else []
    while pending:
        kind = pending.pop()
        pending += type.__subclasses__(kind)  # each module has a class of its own
        code = getattr(vars(kind).get("forward"), "__code__", None)
        if code is not None and code.co_filename == file:
            yield from objects_of({kind})


def _line_of(module: Any, line: int) -> str:
    at = (getattr(module, "_lineno_map", None) or {}).get(line - (getattr(module, "_prologue_start", None) or 0))
    nodes = list(module.graph.nodes)
    if at is None or at >= len(nodes):
        return ""
    frames = [f for f in _FRAME.findall(nodes[at].stack_trace or "") if not f[0].startswith("<")]
    return ":".join(frames[-1]) if frames else _module_of(nodes[at])


def _module_of(node: Any) -> str:
    """Where the innermost of torch's own modules that the node was traced from begins: no line of the program did."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    code = getattr(getattr(stack[-1][1], "forward", None), "__code__", None) if stack else None
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""
