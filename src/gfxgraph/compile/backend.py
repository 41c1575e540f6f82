"""``torch.compile(model, backend="gfxgraph")``: Inductor compiles, our graphs capture.

    compiled = torch.compile(model, backend="gfxgraph")
    compiled = torch.compile(model, backend="gfxgraph", dynamic=True, options={"buckets": [1, 2, 4, 8]})

Needs no ``enable()``. Where there is no GPU the compiled code just runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gfxgraph.callables.pieces.region import RegionOptions
from gfxgraph.callables.plans import BucketSizes
from gfxgraph.compile import calls, inductor_hook, simulated
from gfxgraph.errors import ArgumentError

OURS = ("buckets", "max_graphs")
"""Options that are ours; every other is Inductor's."""
NAMES = ("gfxgraph", "hipgraph_bridge")
"""What it is called; the second in gfxgraph 1.x."""


def gfxgraph(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Compile a traced graph. New in 2.0.

    Args:
        gm: what Dynamo traced.
        example_inputs: its inputs, faked.
        mode: Inductor's, for example "max-autotune"; whether that asks for Inductor's own graphs does not matter.
        options: Inductor's, and ours: ``buckets`` (as ``graphed`` takes them; for inference) and ``max_graphs``,
            captured signatures of each region.
    """
    # lazily: Inductor takes seconds to import
    from torch._inductor.compile_fx import compile_fx

    calls.note_what_is_traced()
    asked = dict(options or {})
    _check_ours(asked)
    wanted = RegionOptions(**{name: asked.pop(name) for name in OURS if name in asked})
    config = _inductors(mode, asked)
    with simulated.device():
        return inductor_hook.compile_with(wanted, compile_fx, gm, example_inputs, config)


def _check_ours(asked: Mapping[str, Any]) -> None:
    """Refuse here what would be refused at a call, in a region's own words."""
    BucketSizes(asked.get("buckets"))
    most = asked.get("max_graphs", 1)
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        fields = {"argument": "max_graphs", "value": repr(most), "allowed": "a whole number, 1 or more"}
        raise ArgumentError("bad_argument", function='torch.compile(backend="gfxgraph")', **fields)


def _inductors(mode: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """Inductor's configuration, checked as ``torch.compile`` checks it for Inductor itself."""
    wrapper = torch._TorchCompileInductorWrapper(mode, options, None)
    return {**wrapper.config, **simulated.settings()}


def register() -> None:
    """Make the names known to Dynamo; the entry points do the same where the package is installed."""
    # lazily: Inductor takes seconds to import
    from torch._dynamo.backends import registry

    for name in NAMES:
        if name not in registry._COMPILER_FNS:
            registry.register_backend(compiler_fn=gfxgraph, name=name)
