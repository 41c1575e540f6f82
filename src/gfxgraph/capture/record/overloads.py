"""What is known about an operation before it runs, determined once per overload."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from gfxgraph.capture.patches.deferred_calls import quiet
from gfxgraph.capture.record.collectives import noting
from gfxgraph.capture.record.tensor_arguments import is_collective_in_place, written_arguments
from gfxgraph.capture.record.torch_bindings import BINDINGS, NAMED
from gfxgraph.capture.record.unsafe_calls import CONDITIONS
from gfxgraph.core.unsafe import BY_NAME, NO_LAYOUT, UnsafeOp

identity = object.__hash__
"""A number that no two live objects share, like ``id``, but without an audit event.

With an audit hook in the process (filelock sets one, and transformers imports it) each ``id``, each
``sys._getframe`` and each ``frame.f_code`` costs 0.4 us more.
"""
NO_NODE = frozenset(
    "aten::lift_fresh aten::detach aten::alias aten::_reshape_alias aten::as_strided aten::resize_ aten::set_ "
    "aten::_unsafe_view aten::_conj aten::_neg_view aten::lift_fresh_copy".split()
)
"""Operations that launch nothing, though no schema says so."""
_EXACT = frozenset({torch.Tensor, torch.nn.Parameter})
_NO_LAYOUT = re.compile(r"aten::(?!_?fake_|_cslt|.*semi_structured).*(sparse|nested|quantize|mkldnn)").match
"""Operations that make tensors which no address, sizes and strides describe."""
_HOLDS_NO_TENSOR = re.compile(
    r"(Optional\[|List\[)*(int|float|bool|number|complex|str|Device|Layout|MemoryFormat|ScalarType|SymInt|SymFloat"
    r"|SymBool|Scalar|Generator|Stream)\]*"
).fullmatch
"""Argument types, as schemas write them, whose values cannot contain a tensor."""


class OpInfo:
    """What is known about one overload before it runs; made once per overload."""

    __slots__ = (
        "applies",
        "binding",
        "call",
        "draws",
        "func",
        "generator",
        "has_effects",
        "is_composite",
        "is_torchs",
        "is_view",
        "is_watched",
        "launches_nothing",
        "makes_memory",
        "mutates",
        "n_tensors",
        "name",
        "named_binding",
        "names_tensors",
        "relays",
        "stand_in",
        "takes",
        "tensors",
        "unsafe",
    )

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self.func = func
        self.stand_in: object = func
        self.name: str = schema.name
        self.unsafe: UnsafeOp | None = BY_NAME.get(schema.name) or (NO_LAYOUT if _NO_LAYOUT(schema.name) else None)
        self.applies: Callable[..., bool] | None = CONDITIONS[self.unsafe.when] if self.unsafe else None
        arguments = schema.arguments
        self.mutates = written_arguments(schema)
        self.generator: tuple[int, str] | None = next(
            ((i, a.name) for i, a in enumerate(arguments) if "Generator" in str(a.type)), None
        )
        self.is_torchs = schema.name.startswith(("aten::", "prims::", "prim::", "c10d", "_c10d"))
        self.draws = torch.Tag.nondeterministic_seeded in func.tags
        self.has_effects = bool(self.mutates) or self.draws
        may_hold = [i for i, a in enumerate(arguments) if not _HOLDS_NO_TENSOR(str(a.type))]
        self.tensors = tuple(i for i in may_hold if not arguments[i].kwarg_only)
        """Positions of arguments that may be tensors or contain some."""
        self.names_tensors = len(may_hold) > len(self.tensors)
        self.n_tensors = (self.tensors[-1] + 1) if self.tensors else 0
        # Inference mode passes composite operations whole: their parts are recorded instead.
        has = torch._C._dispatch_has_kernel_for_dispatch_key
        full = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
        self.is_composite = has(full, "CompositeImplicitAutograd") and not has(full, "CUDA")
        self.relays = torch.Tag.inplace_view in func.tags
        """Whether it gives its first argument another shape or other strides in place, as ``t_`` does."""
        may_write = bool(self.mutates) and not self.is_torchs
        self.is_watched = self.is_composite or self.draws or self.relays or may_write
        """Whether each call is looked at first, not those alone to which the unsafe table applies."""
        # False where the result shares memory with an argument: views, in-place operations, and the views that torch
        # calls unsafe, of which the schema says nothing: kron writes its out= through one.
        self.makes_memory = not (
            is_collective_in_place(schema)
            or any(r.alias_info is not None for r in schema.returns)
            or schema.name.startswith(("aten::_unsafe_view", "aten::unsafe_"))
        )
        # A view launches nothing, so the graph is not queried after it.
        self.is_view = (
            bool(schema.returns)
            and not self.mutates
            and all(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
        )
        # torch ends a product, or a copy, with this operation.
        self.launches_nothing = self.is_view or schema.name == "aten::_unsafe_view"
        call = noting(schema.name, getattr(func, "_op", func))
        self.call = quiet(schema.name, call)
        self.binding = quiet(schema.name, BINDINGS.get(full, call))
        """What to call with positional arguments only, the first of which is exactly a torch.Tensor."""
        self.takes, named = NAMED.get(full, ("", call))
        self.named_binding = quiet(schema.name, named)
        """What to call with one such tensor and the keyword argument named by ``takes``."""

    def by_name(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Callable[..., Any]:
        """What to call with any other arguments."""
        is_one = len(kwargs) == 1 == len(args) and self.takes in kwargs
        return self.named_binding if is_one and type(args[0]) in _EXACT else self.call


OPS: dict[int, OpInfo] = {}
"""By ``identity`` of the overload, which each entry holds: an overload's own hash is a call into Python."""


def known_as(info: OpInfo) -> object:
    """Make an object that the recorder accepts as an overload and calls as ``info`` says."""
    stand_in = info.stand_in = object()
    OPS[identity(stand_in)] = info
    return stand_in
