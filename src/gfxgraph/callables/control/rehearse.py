"""Running a function before its capture, and undoing its effects.

A capture before the first call needs a run: libraries make handles and workspaces on first use,
on the stream they are used on. The program did not ask for that run, so
what it changes is restored: external tensors that it wrote, and the random generators.

Not seen, and so not restored: writes by kernels launched outside torch or inside compiled code.
A capture at the first real call needs none of this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._python_dispatch import TorchDispatchMode

from gfxgraph.capture.record.overloads import written_arguments
from gfxgraph.capture.replay.graph_tensors import storage_address
from gfxgraph.capture.replay.rollback import Rollback


class _Writes(TorchDispatchMode):
    """Saves external tensors before their first write."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.own: set[int] = set()
        device = torch.cuda.default_generators[torch.cuda.current_device()]
        self.before = Rollback((), (device, torch.default_generator))

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # otherwise compiled code would run, and stay, eager

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # Higher-order operators have no schema; the operations that they call are seen here.
        for position, name in written_arguments(func._schema) if hasattr(func, "_schema") else ():
            given = args[position] if position < len(args) else kwargs.get(name)
            for tensor in given if isinstance(given, (list, tuple)) else (given,):
                if _has_memory(tensor):
                    self._keep(tensor)
        out = func(*args, **kwargs)
        for tensor in out if isinstance(out, (list, tuple)) else (out,):
            if _has_memory(tensor) and not _is_input(tensor, args, kwargs):
                self.own.add(storage_address(tensor))
        return out

    def _keep(self, tensor: Tensor) -> None:
        if storage_address(tensor) in self.own or not tensor.numel():
            return
        self.before.save([tensor.detach()])


def _has_memory(item: Any) -> bool:
    # During tracing, tensors without memory come here.
    is_real = isinstance(item, Tensor) and not isinstance(item, FakeTensor | FunctionalTensor)
    return is_real and not torch._is_functional_tensor(item) and item.layout is torch.strided


def _is_input(made: Tensor, args: Any, kwargs: Any) -> bool:
    """True if the result shares memory with an argument: an in-place operation or a view."""
    address = storage_address(made)
    given = [*args, *kwargs.values()]
    flat = [t for g in given for t in (g if isinstance(g, (list, tuple)) else (g,))]
    return any(_has_memory(t) and storage_address(t) == address for t in flat)


@contextmanager
def rehearsal() -> Iterator[_Writes]:
    """Run the block only for the handles and caches that it leaves behind."""
    mode = _Writes()
    try:
        with mode:
            yield mode
    finally:
        mode.before.put_back()


def rehearse(run: Callable[[], Any], trace: Callable[[], Any]) -> Any:
    """Run ``run`` in a rehearsal, then ``trace``, which does the same work, and undo both.

    Dynamo traces nothing below a dispatch mode, so the second run is not watched: what the first wrote is restored.
    """
    with rehearsal() as seen:
        run()
    try:
        return trace()
    finally:
        seen.before.put_back()
