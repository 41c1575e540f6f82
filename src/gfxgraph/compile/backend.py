"""``torch.compile(model, backend="gfxgraph")``: Inductor compiles, we capture.

    compiled = torch.compile(model, backend="gfxgraph")
    step = gfxgraph.graphed(torch.compile(model), dynamic="infer", buckets=[1, 2, 4, 8])

Needs no ``enable()``. Without a GPU the compiled code just runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from gfxgraph import torch_names
from gfxgraph.compile import inductor_hook, simulated
from gfxgraph.errors import ArgumentError

MAX_GRAPHS = 64
"""Most captured signatures of a region, by default."""
NAMES = ("gfxgraph", "hipgraph_bridge")
"""Names of the backend; the second is from gfxgraph 1.x."""


def gfxgraph(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[object],
    *,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
) -> object:
    """Compile a traced graph. New in 2.0.

    Args:
        gm: what Dynamo traced.
        example_inputs: its inputs, faked.
        mode: Inductor's, for example "max-autotune"; it does not matter whether it asks for Inductor's own graphs.
        options: Inductor's, and ours: ``max_graphs``, captured signatures of each region.
    """

    if inductor_hook.why_off():
        return gm.forward
    asked = dict(options or {})
    wanted = _max_graphs(asked.pop("max_graphs", MAX_GRAPHS))
    config = _inductors(mode, asked)
    with simulated.device():
        return inductor_hook.compile_with(wanted, torch_names.compile_fx, gm, example_inputs, config)


def _max_graphs(most: object) -> int:
    """The option, refused now if invalid: at a call it would be refused in a region's terms."""
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        fields = {"argument": "max_graphs", "value": repr(most), "allowed": "a whole number, 1 or more"}
        raise ArgumentError("bad_argument", function='torch.compile(backend="gfxgraph")', **fields)
    return most


def _inductors(mode: str | None, options: dict[str, object]) -> dict[str, object]:
    """Inductor's configuration, checked as ``torch.compile`` does for Inductor itself."""
    wrapper = torch_names._TorchCompileInductorWrapper(mode, options, None)
    return {**wrapper.config, **simulated.settings()}


def register() -> None:
    """Register the names with Dynamo; for an installed package the entry points do the same."""

    for name in NAMES if not inductor_hook.why_off() else ():
        if name not in torch_names._COMPILER_FNS:
            torch_names.register_backend(compiler_fn=gfxgraph, name=name)
