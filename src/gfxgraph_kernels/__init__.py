"""gfxgraph_kernels: the operations of a decode step in Triton, and swapping them into models.

Problem: a graph removes launch overhead, but each small kernel still costs the device microseconds, and a step of a
small Llama launches several hundred. Idea: kernels that do everything between two reads of weights: a norm is part of
the linear layer after it, a gate and a residual part of the one before.

Enters: torch, tensors, models.
Stays out: graphs. torch and Triton are imported when a name is used; without Triton the operations are composed of
torch's own, counted (`fallbacks`).

Files, in reading order: shapes.py (measured_sizes.toml), launching.py, eager.py, norms.py, layers.py, attention.py,
next_token.py, then the kernels themselves (_norm_kernels.py, _linear_kernels.py, _attention_kernels.py).
model_parts.py recognises modules by their parts, token_steps.py replaces their forwards, modules.py and
timed_choice.py install them in models; generation/ decodes with them. ARCHITECTURE.md is the map. What they compile
to for GPUs that are not present is in tools/compiled_kernels.py; measurements are in docs/compile.md. New in 2.0.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gfxgraph_kernels.attention import rotary_angles, rotary_attention
    from gfxgraph_kernels.launching import fallbacks, has_triton
    from gfxgraph_kernels.layers import linear, linear_three
    from gfxgraph_kernels.modules import Applied, apply
    from gfxgraph_kernels.next_token import greedy, sample
    from gfxgraph_kernels.norms import layer_norm, rms_norm

_PLACES = {
    "Applied": "modules", "apply": "modules", "fallbacks": "launching", "greedy": "next_token",
    "has_triton": "launching", "layer_norm": "norms", "linear": "layers", "linear_three": "layers",
    "rms_norm": "norms", "rotary_angles": "attention", "rotary_attention": "attention", "sample": "next_token",
}  # fmt: skip

__all__ = [
    "Applied",
    "apply",
    "fallbacks",
    "greedy",
    "has_triton",
    "layer_norm",
    "linear",
    "linear_three",
    "rms_norm",
    "rotary_angles",
    "rotary_attention",
    "sample",
]


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # lazily: torch is imported when something is used
    found = getattr(importlib.import_module(f"{__name__}.{place}"), name)
    globals()[name] = found
    return found
