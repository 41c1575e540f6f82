"""Page-locked host memory and storages on the card, as requested through Python constructors.

Enters: ``pin_memory=True``, ``torch.UntypedStorage(n, device="cuda")``.
Stays out: the effect of pinning on a copy (special_kernels.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch

from gfxgraph import torch_names

if TYPE_CHECKING:
    from gfxgraph_simulator.card import Simulator


def _can_pin(name: str) -> bool:
    schemas = torch_names._jit_get_schemas_for_operator(f"aten::{name}")
    return any(each.name == "pin_memory" for schema in schemas for each in schema.arguments)


_FACTORIES: Final = [
    "tensor",
    *(name for name in dir(torch) if not name.startswith(("_", "sparse")) and _can_pin(name)),
]

_active: list[Simulator] = []
_wrapped: dict[str, Callable[..., object]] = {}


def factories_with_pinning(sim: Simulator) -> dict[str, Callable[..., object]]:
    """torch's factories with support for ``pin_memory=True``, for which a CPU build has no allocator.

    The same functions for every simulator of the process: Dynamo identifies torch's functions as objects, and treats
    an unknown one under a known name as user code.
    """
    _active[:] = [sim]

    def wrap(factory: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(factory)
        def make(*args: object, **kwargs: object) -> Any:
            if not kwargs.get("pin_memory"):
                return factory(*args, **kwargs)
            del kwargs["pin_memory"]
            made = factory(*args, **kwargs)
            if made.device.type != "cpu":
                raise RuntimeError("Only dense CPU tensors can be pinned")
            _active[0].note_pinned(made)  # this very tensor: it is the one that the dispatcher has shown
            return made

        return make

    if not _wrapped:
        _wrapped.update({name: wrap(getattr(torch, name)) for name in _FACTORIES})
        for name, function in _wrapped.items():  # TorchScript knows them as objects, too
            torch_names._register_builtin(function, f"aten::{name}")
    return dict(_wrapped)


def storage_constructor(sim: Simulator) -> object:
    """``torch.UntypedStorage.__new__`` with support for storages on the card."""
    real = torch.UntypedStorage.__base__.__new__

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is None or torch.device(device).type != "cuda":
            return real(cls, *args, **kwargs)
        wanted = args[0] if args else kwargs.get("size", 0)
        nbytes = wanted if isinstance(wanted, int) else len(wanted)
        storage = sim.allocate([nbytes], [1], torch.uint8).untyped_storage()
        if not isinstance(wanted, int):
            storage.copy_(real(cls, wanted))
        return storage

    return staticmethod(new)
