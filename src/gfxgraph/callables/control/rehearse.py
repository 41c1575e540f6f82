"""Running a function ahead of its capture, and undoing what it did.

A capture ahead of the first call needs a run before it: libraries make handles and workspaces when
they are first used, on the stream they are used on. That run is not one the program asked for, so
what it changes is put back: tensors it wrote that it did not make, and the random generators.

Not seen, and so not put back: writes of kernels launched beside torch and inside compiled code.
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

from gfxgraph.capture.memory import storage_address
from gfxgraph.capture.rollback import Rollback
from gfxgraph.capture.structure import written_arguments


class _Writes(TorchDispatchMode):
    """Keeps what is written from outside, as it was before the first write."""

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
        # Higher-order operators have no schema; what they call comes by here.
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
    # While something is traced, tensors without memory come by here.
    is_real = isinstance(item, Tensor) and not isinstance(item, FakeTensor | FunctionalTensor)
    return is_real and not torch._is_functional_tensor(item) and item.layout is torch.strided


def _is_input(made: Tensor, args: Any, kwargs: Any) -> bool:
    """True where the result shares memory with an argument: an in-place operation or a view."""
    address = storage_address(made)
    given = [*args, *kwargs.values()]
    flat = [t for g in given for t in (g if isinstance(g, (list, tuple)) else (g,))]
    return any(_has_memory(t) and storage_address(t) == address for t in flat)


@contextmanager
def rehearsal() -> Iterator[_Writes]:
    """Run the block for the handles and caches that it leaves behind, and for nothing else."""
    mode = _Writes()
    try:
        with mode:
            yield mode
    finally:
        mode.before.put_back()


def rehearse(run: Callable[[], Any], trace: Callable[[], Any]) -> Any:
    """Run ``run`` in a rehearsal, then ``trace``, which does the same work, and undo that too.

    Dynamo traces nothing below a dispatch mode, so the second is not watched: what the first wrote is put back.
    """
    with rehearsal() as seen:
        run()
    try:
        return trace()
    finally:
        seen.before.put_back()
