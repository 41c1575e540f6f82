"""Inductor with the simulator, where there is no device to generate code for.

Inductor takes all its usual paths (partitions, static inputs, its caches, the backward), but every operation is left
to
torch's own kernels, which the simulator has. Inductor's scheduler requires a Triton before it checks whether there is
anything to generate; here it gets one that generates nothing. Copies between devices, which Inductor keeps out of
graphs by a node type of its own, are torch operations here, and are kept out by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from gfxgraph import torch_names
from gfxgraph.process import process


def is_on() -> bool:
    """True while the simulator is the device."""
    state = process.current()
    return state is not None and state.platform == "simulator"


def settings() -> dict[str, object]:
    """Inductor's settings for the simulator; empty otherwise."""
    if not is_on():
        return {}
    return {
        **({"fallback_by_default": True} if hasattr(torch_names.inductor_config, "fallback_by_default") else {}),
        "fx_graph_cache": False,
        "compile_threads": 1,
        "custom_should_partition_ops": ["prims::device_put"],
    }


@contextmanager
def device() -> Iterator[None]:
    """Make Inductor compile for the simulator, if that is on."""
    if is_on():
        _stand()
    yield


def _is_left_to_torch(is_unsupported: Callable[..., bool], node: Any, *more: object) -> bool:
    """What ``fallback_by_default`` does, by the question that torch 2.9 asks of each operation."""
    of_sizes = (torch_names._assert_scalar.default, torch.ops.aten.lift_fresh_copy.default)
    return is_unsupported(node, *more) or (is_on() and node.target not in of_sizes)


_is_standing = False


def _stand() -> None:
    global _is_standing
    if _is_standing:
        return
    if not hasattr(torch_names.inductor_config, "fallback_by_default"):  # before torch 2.10
        asked = torch_names.fallback_node_due_to_unsupported_type
        torch_names.put("fallback_node_due_to_unsupported_type", partial(_is_left_to_torch, asked))
    create = torch_names.create_backend
    compilers_hash = torch_names.triton_hash_with_backend

    def triton_hash_with_backend() -> str:
        return "none" if is_on() else compilers_hash()  # the original would look for the card's driver

    def create_backend(self: object, device: Any) -> object:
        if not is_on() or device.type != "cuda":
            return create(self, device)
        return _NoKernels(self)

    class _NoKernels(torch_names.BaseScheduling):  # type: ignore[misc]
        """Answers the scheduler's questions that do not concern kernels."""

        def group_fn(self, sizes: Any) -> tuple[object, ...]:

            return tuple(torch_names.sympy_product(size) for size in sizes)

        def can_fuse_vertical(self, node1: object, node2: object) -> bool:
            return False

        def can_fuse_horizontal(self, node1: object, node2: object) -> bool:
            return False

        def codegen_sync(self) -> None:
            return None

        def ready_to_flush(self) -> bool:
            return False

        def flush(self) -> None:
            return None

        def get_backend_features(self, device: object) -> object:

            return torch_names.OrderedSet()

    torch_names.put("create_backend", create_backend)
    torch_names.put("triton_hash_with_backend", triton_hash_with_backend)
    _is_standing = True
