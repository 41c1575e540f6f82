"""compile: torch.compile with graphs of ours in the place of Inductor's.

Enters: what Inductor compiled, and what it knows of it: which inputs stay in place, which are written.
Stays out: tracing and code generation, which are torch's; capture and replay, which are ``callables``'.

    backend.py    torch.compile(backend="gfxgraph")
    torch_compile_patch.py
                  mode="reduce-overhead" after enable(): ours, and ROCm's safe settings
    inductor_hook.py
                  where Inductor hands over what is to be captured, in every torch that we know
    calls.py      whole calls of compiled code as one graph, where that is asked for
    simulated.py  Inductor where there is no device to generate code for

A compiled callable that is captured and replayed is in callables/trace/region.py.
"""

from __future__ import annotations

from typing import Any

from gfxgraph.callables.pieces import region


def regions() -> list[Any]:
    """Every compiled region of this process that is captured by us; ``explain()`` of each says how it runs."""
    return region.living()
