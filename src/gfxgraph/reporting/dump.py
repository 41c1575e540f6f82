"""Copies of tensors inside a graph, recorded as nodes of it and read after a replay.

A hook that prints or saves runs once, at the capture. One that copies is captured with the rest: each replay fills
the copy again. So the first layer in which a graph differs from eager, or one machine from another, is found by
running both with the same names, and comparing the files (``gfxgraph diff``).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gfxgraph import files, torch_names
from gfxgraph.capture.record.user_lines import user_frame
from gfxgraph.core.tape import Args, Kwargs
from gfxgraph.reporting.origins import Noting

_LINE = re.compile(r".*\.py:\d+$")


class dump:  # noqa: N801  # a context, as torch.no_grad is
    """Copy the results of modules and of lines, in eager calls and in captures.

        with gfxgraph.dump("layers.*.mlp", "model.py:41") as found:
            with torch.cuda.graph(graph): y = model(x)
        graph.replay()
        found.save("graph.npz")

    Args:
        names: paths of modules below the one that is called, with ``*``, or lines.

    What Dynamo traced (``graphed``, ``torch.compile``) has no modules that could be called. New in 2.0.
    """

    def __init__(self, *names: str) -> None:
        self._lines = [name for name in names if _LINE.match(name)]
        self._modules = [name for name in names if name not in self._lines]
        self._kept: dict[str, Tensor] = {}
        self._noting = Noting()
        self._watching = ExitStack()

    def __enter__(self) -> dump:
        self._kept.clear()
        if self._modules:
            self._watching.callback(nn.modules.module.register_module_forward_hook(self._after).remove)
        if self._lines:
            self._watching.enter_context(_Lines(self))
        return self

    def __exit__(self, *error: object) -> None:
        self._watching.close()

    def _after(self, module: nn.Module, args: object, result: object) -> None:
        if torch.compiler.is_compiling():
            return
        path = self._noting.path(sys._getframe(1))
        if path is not None and any(fnmatchcase(path, pattern) for pattern in self._modules):
            self._keep(path, result)

    def _keep(self, name: str, result: object) -> None:
        """Copy the tensors of a result; where a capture runs, each replay of it does."""
        tensors = [t for t in torch_names.tree_leaves(result) if isinstance(t, Tensor)]
        for i, tensor in enumerate(tensors):
            self._kept[name if len(tensors) == 1 else f"{name}[{i}]"] = tensor.detach().clone()

    def _lines_of(self, where: str) -> Iterator[str]:
        """Which of the lines asked for this one is."""
        return (line for line in self._lines if where == line or where.endswith(f"/{line}"))

    def read(self) -> dict[str, Tensor]:
        """The copies as they are now, on the host, in the order in which they were made.

        Returns:
            By name, each of the shape and dtype of what was copied: [any shape] any dtype, host.
        """
        return {name: tensor.cpu() for name, tensor in self._kept.items()}

    def save(self, path: str | Path) -> None:
        """Write them for ``gfxgraph diff``; types that NumPy lacks as float32.

        Args:
            path: the file, in NumPy's format .npz; an existing one is replaced.
        """
        plain = {name: t.float() if t.dtype in _WITHOUT_NUMPY else t for name, t in self.read().items()}
        files.write_arrays(Path(path), {name: t.numpy() for name, t in plain.items()})


_WITHOUT_NUMPY = {getattr(torch, name) for name in dir(torch) if name.startswith(("bfloat16", "float8"))}


class _Lines(torch_names.TorchDispatchMode):  # type: ignore[misc, valid-type]
    """Sees each operation, and copies the results of those on certain lines."""

    supports_higher_order_operators = True

    def __init__(self, owner: dump) -> None:
        super().__init__()
        self._owner = owner

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: object, args: Args = (), kwargs: Kwargs | None = None) -> object:
        result = func(*args, **(kwargs or {}))
        frame = user_frame(sys._getframe(1))
        if frame is not None:
            for line in self._owner._lines_of(f"{frame.f_code.co_filename}:{frame.f_lineno}"):
                self._owner._keep(line, result)
        return result


def differences(one: dict[str, Any], other: dict[str, Any]) -> Iterator[tuple[str, float, float, str]]:
    """For each name of two dumps, in order: the largest difference, that relative to the largest value, and what else
    differs.
    """
    # lazily: as above
    import numpy

    for name in [*one, *(name for name in other if name not in one)]:
        a, b = one.get(name), other.get(name)
        if a is None or b is None:
            yield name, numpy.inf, numpy.inf, "only in one of them"
        elif a.shape != b.shape:
            yield name, numpy.inf, numpy.inf, f"shapes {a.shape} and {b.shape}"
        else:
            x, y = a.astype("float64"), b.astype("float64")
            with numpy.errstate(invalid="ignore"):
                gap = numpy.where((x == y) | (numpy.isnan(x) & numpy.isnan(y)), 0.0, numpy.abs(x - y))
            most = float(numpy.nan_to_num(gap, nan=numpy.inf).max(initial=0.0))
            scale = float(numpy.nan_to_num(numpy.abs(y)).max(initial=0.0))
            yield name, most, most / scale if scale else most, ""
