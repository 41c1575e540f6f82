"""torch.cuda.make_graphed_callables, warmed up on the stream that will capture."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gfxgraph import torch_names
from gfxgraph.callables.buffers import tensors_of
from gfxgraph.capture.undo import restoring_state
from gfxgraph.process import bridge


@restoring_state
def make_graphed_callables(
    callables: Any,
    sample_args: Any,
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: Any = None,
    **kwargs: Any,
) -> Any:
    """torch's function of that name, warmed up on the stream that will capture.

    Up to torch 2.13 it warms up on another stream. ROCm's libraries make a handle for each stream at its first use,
    which a capture refuses. And the last iteration's results, which torch keeps, tie the gradients of leaves to that
    stream: two of one leaf, from different parts of a split backward, ended its capture (H200).

    Args:
        callables: a function or module, or a tuple of them; as torch takes them, like all that follow.
        sample_args: a tuple of tensors for each, with ``requires_grad`` as in the calls to come.
        num_warmup_iters: eager iterations before the capture.
        allow_unused_input: allow inputs without gradient.
        pool: memory to share with other captures.
        kwargs: arguments of later versions of torch.

    Returns:
        One callable for each given, with a forward and a backward graph.
    """
    stock = _stock[-1] if _stock else torch.cuda.make_graphed_callables
    if torch_names.version() < (2, 14) and num_warmup_iters > 0 and _can_warm(callables, sample_args):
        several = callables if isinstance(callables, tuple) else (callables,)
        samples = sample_args if isinstance(callables, tuple) else (sample_args,)
        torch.cuda.synchronize()
        with torch.cuda.stream(_torchs_capture_stream()):
            for call, sample in zip(several, samples):
                for _ in range(num_warmup_iters):
                    _warm(call, sample, allow_unused_input)
        torch.cuda.synchronize()
        num_warmup_iters = 0
    made = stock(callables, sample_args, num_warmup_iters, allow_unused_input, pool, **kwargs)
    lent: set[int] = set()
    several = made if type(made) is tuple else (made,)
    known = [p for each in several if isinstance(each, torch.nn.Module) for p in each.parameters()]
    several = tuple(_accumulating(each, lent, known) for each in several)
    return several if type(made) is tuple else several[0]


def _accumulating(call: Callable[..., object], lent: set[int], known: list[Tensor]) -> Callable[..., object]:
    """Let gradients add up over several backwards, as eager's do.

    torch hands autograd the memory to which its backward graph writes, and a first gradient keeps it: the next replay
    would overwrite what has been added up. A forward would too: the graphs share one pool.

    Args:
        lent: addresses of gradients that backward graphs write.
        known: parameters of all that share the pool.
    """
    forward = call.forward if isinstance(call, torch.nn.Module) else call

    def part(leaves: list[Tensor]) -> None:
        for grad in [leaf.grad for leaf in leaves]:
            if grad is not None and grad.layout is torch.strided and grad.data_ptr() in lent:
                grad.data = grad.detach().clone()

    @functools.wraps(forward)
    def accumulating(*args: object, **kwargs: object) -> object:
        part(known)
        result = forward(*args, **kwargs)
        node = next((t.grad_fn for t in tensors_of(result) if t.grad_fn is not None), None)
        if node is not None and node.name() == "GraphedBackward":
            leaves = [each.variable for each, _ in node.next_functions if hasattr(each, "variable")]
            node.register_prehook(lambda _: part([*known, *leaves]))
            node.register_hook(lambda made, _: lent.update(t.data_ptr() for t in made if t is not None))
        return result

    if not isinstance(call, torch.nn.Module):
        return accumulating
    call.forward = accumulating
    return call


# torch's original function; empty while the bridge is off.
_stock: list[Any] = []


def install() -> None:
    """Replace ``torch.cuda.make_graphed_callables`` by ours until the bridge is switched off."""
    bridge.undo.append(_stock.clear)
    _stock[:] = [torch.cuda.make_graphed_callables]
    for owner in (torch.cuda, torch.cuda.graphs):
        bridge.replace(owner, "make_graphed_callables", make_graphed_callables)


def _torchs_capture_stream() -> Any:
    """The default stream on which ``torch.cuda.graph`` captures."""
    if torch.cuda.graph.default_capture_stream is None:
        torch.cuda.graph.default_capture_stream = torch.cuda.Stream()
    return torch.cuda.graph.default_capture_stream


def _can_warm(callables: Any, sample_args: Any) -> bool:
    """False for calls that torch is about to refuse: they must not run first."""
    several = callables if isinstance(callables, tuple) else (callables,)
    samples = sample_args if isinstance(callables, tuple) else (sample_args,)
    return all(isinstance(sample, tuple) for sample in samples) and all(
        not (call._forward_hooks or call._forward_pre_hooks or call._backward_hooks)
        for call in several
        if isinstance(call, torch.nn.Module)
    )


def _warm(call: Any, sample: tuple[Any, ...], allow_unused_input: bool) -> None:
    outputs = [out for out in torch_names.tree_leaves(call(*sample)) if isinstance(out, Tensor) and out.requires_grad]
    inputs = [t for t in tensors_of(sample) if t.requires_grad]
    if isinstance(call, torch.nn.Module):
        inputs += [p for p in call.parameters() if p.requires_grad]
    if outputs and inputs:
        torch.autograd.grad(
            outputs, inputs, [torch.empty_like(out) for out in outputs], allow_unused=allow_unused_input
        )
