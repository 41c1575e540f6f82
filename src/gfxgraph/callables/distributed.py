"""Modules that communicate around each call, and so are left as they are."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from gfxgraph.callables.buckets import called
from gfxgraph.callables.signature import Args, Kwargs

DDP = "its reducer is C++: graph the model inside, DistributedDataParallel(graphed(model))"
FSDP = "FSDP gathers its parameters before, and frees them after each of its calls: graph what has none of them"


def why_apart(fn: Any) -> str:
    """Why calls of a module run eagerly whatever they are given; "" for any other function."""
    module = called(fn)
    if not isinstance(module, torch.nn.Module) or "_modules" not in vars(module):  # a copy in the making has none yet
        return ""
    if isinstance(module, torch.nn.parallel.DistributedDataParallel):
        return DDP
    fsdp = sys.modules.get("torch.distributed.fsdp")
    kinds = tuple(getattr(fsdp, name) for name in ("FSDPModule", "FullyShardedDataParallel") if hasattr(fsdp, name))
    return FSDP if any(isinstance(each, kinds) for each in module.modules()) else ""


def run_apart(
    fn: Callable[..., Any], why: str, eager: Counter[str], report: Callable[..., Any], args: Args, kwargs: Kwargs
) -> Any:
    """The fast path of such a module: the call itself, counted with the reason, which is reported once."""
    if why not in eager:
        report(why, for_good=False)
    eager[why] += 1
    return fn(*args, **kwargs)
