"""compile: torch.compile with our graphs instead of Inductor's.

Enters: what Inductor compiled, and which inputs it knows to be static or written.
Stays out: tracing and code generation, which are torch's; capture and replay, which are ``callables``'.

    backend.py    torch.compile(backend="gfxgraph")
    torch_compile_patch.py
                  mode="reduce-overhead" after enable(): our graphs, and safe settings for ROCm
    inductor_hook.py
                  receives Inductor's callables for capture, in every supported torch
    simulated.py  Inductor without a device to generate code for

A compiled callable that is captured and replayed is in callables/pieces/region.py.
"""

from __future__ import annotations

from gfxgraph.callables.pieces import region


def regions() -> list[region.Region]:
    """Every live compiled region of this process that we capture; ``explain()`` of each says how it runs."""
    return region.live_regions()
