"""Recognises the modules of a model by their parts and results, not by the names of their classes.

A part is accepted as what it looks like only after its numbers agreed with ours on random inputs. That detects a norm
that adds 1 to its weight, or a layer that scales its residual or rotates heads in another way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gfxgraph_kernels import eager

TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}
"""How much a part may differ from the model's own, relative to its largest number: a few roundings of its dtype."""
ROTARIES = ("default", "linear", "llama3", "yarn")
"""Transformers' kinds that read their frequencies and never write them ("dynamic" and "longrope" do)."""
_EPS = ("variance_epsilon", "eps")


@dataclass(frozen=True, slots=True)
class Norm:
    """An RMS norm, or with ``is_rms`` False a layer norm."""

    eps: float
    offset: float = 0.0
    is_rms: bool = True


@dataclass(frozen=True, slots=True)
class Mlp:
    """A gated MLP without biases."""

    activation: str


@dataclass(frozen=True, slots=True)
class AttentionModules:
    """An attention with four linear layers and rotary embedding by halves."""

    heads: int
    shared: int
    width: int
    scale: float
    softcap: float
    index: int = field(compare=False, repr=False)
    q_norm: Norm | None
    k_norm: Norm | None


@dataclass(frozen=True, slots=True)
class Layer:
    """Norm, attention, sum, norm, MLP, sum."""

    before: Norm
    attention: AttentionModules
    between: Norm
    mlp: Mlp


@dataclass(frozen=True, slots=True)
class Rotary:
    """Cosines and sines of positions, with constant frequencies."""

    scaling: float


def are_near(ours: Tensor, theirs: Tensor) -> bool:
    """True if within `TOLERANCE` of the largest number, with the same elements finite."""
    a, b = ours.double(), theirs.double()
    if a.shape != b.shape or not torch.equal(a.isfinite(), b.isfinite()):
        return False
    a, b = a.nan_to_num(0, 0, 0), b.nan_to_num(0, 0, 0)
    return bool((a - b).abs().max() <= TOLERANCE.get(theirs.dtype, 1e-4) * b.abs().max().clamp_min(1e-6))


def random(*shape: int, like: Tensor, seed: int = 0) -> Tensor:
    """Normally distributed numbers, the same each time."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cpu").to(like.device, like.dtype)


def norm_of(module: nn.Module) -> Norm | None:
    """The kind of norm that a module is; None if it is no known kind."""
    weights = dict(module.named_parameters(recurse=False))
    if list(module.children()) or not set(weights) <= {"weight", "bias"} or "weight" not in weights:
        return None
    weight, bias = weights["weight"], weights.get("bias")
    eps = next((getattr(module, name) for name in _EPS if isinstance(getattr(module, name, None), float)), None)
    if weight.dim() != 1 or eps is None or weight.dtype not in TOLERANCE or list(module.buffers()):
        return None
    x = random(3, weight.shape[0], like=weight)
    kinds = [Norm(eps, 0.0), Norm(eps, 1.0)] if bias is None else []
    for kind in (*kinds, Norm(eps, 0.0, False)):
        try:
            theirs = module(x)
        except (RuntimeError, TypeError, ValueError):  # it takes other arguments, so it is not a norm
            return None
        if not isinstance(theirs, Tensor) or theirs.dtype is not x.dtype:
            return None
        if are_near(eager.norm(x, weight, bias, kind.eps, kind.offset, kind.is_rms), theirs):
            return kind
    return None


def is_plain(module: Any) -> bool:
    """True for torch's own linear layer with weights in one of our dtypes, and without hooks."""
    return type(module) is nn.Linear and module.weight.dtype in TOLERANCE and not has_hooks(module)


def has_hooks(module: nn.Module) -> bool:
    """True if something else is called together with the module."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def activation_of(function: Any) -> str:
    """The name of an activation, by its results; "" if it is not one of ours."""
    x = torch.linspace(-6, 6, 241, dtype=torch.float64)
    ways = {"silu": F.silu(x), "gelu": F.gelu(x), "gelu_tanh": F.gelu(x, approximate="tanh")}
    try:
        made = function(x)
    except (RuntimeError, TypeError, ValueError):
        return ""
    if not isinstance(made, Tensor) or made.shape != x.shape:
        return ""
    return next((name for name, wanted in ways.items() if torch.allclose(made, wanted, rtol=0, atol=1e-6)), "")


def mlp_of(module: nn.Module) -> Mlp | None:
    """Recognise a gated MLP by its parts."""
    parts = dict(module.named_children())
    linears: list[Any] = [parts.get(name) for name in ("gate_proj", "up_proj", "down_proj")]
    if not all(is_plain(each) and each.bias is None for each in linears):
        return None
    if set(parts) - {"gate_proj", "up_proj", "down_proj", "act_fn"}:
        return None
    kind = activation_of(getattr(module, "act_fn", None))
    return Mlp(kind) if kind else None


def rotary_of(module: nn.Module) -> Rotary | None:
    """Recognise a rotary embedding by halves, with frequencies that do not depend on the sequence length."""
    frequencies, scaling = getattr(module, "inv_freq", None), getattr(module, "attention_scaling", None)
    if not isinstance(frequencies, Tensor) or frequencies.dim() != 1 or not isinstance(scaling, (int, float)):
        return None
    if getattr(module, "rope_type", "") not in ROTARIES or list(module.parameters()) or has_hooks(module):
        return None
    return Rotary(float(scaling))


def attention_of(module: nn.Module) -> AttentionModules | None:
    """Recognise an attention by its parts and attributes."""
    parts = dict(module.named_children())
    if not all(is_plain(parts.get(name)) for name in ("q_proj", "k_proj", "v_proj", "o_proj")):
        return None
    q, k, v = (parts[name] for name in ("q_proj", "k_proj", "v_proj"))
    if set(parts) - {"q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"}:
        return None
    norms = [norm_of(parts[name]) if name in parts else None for name in ("q_norm", "k_norm")]
    if any(name in parts and norm is None for name, norm in zip(("q_norm", "k_norm"), norms)):
        return None
    width, scale = getattr(module, "head_dim", None), getattr(module, "scaling", None)
    index = getattr(module, "layer_idx", None)
    if not isinstance(width, int) or not isinstance(scale, float) or not isinstance(index, int):
        return None
    if q.out_features % width or k.out_features % width or k.out_features != v.out_features:
        return None
    if len({each.bias is None for each in (q, k, v)}) > 1:
        return None
    heads, shared = q.out_features // width, k.out_features // width
    if any(
        norm is not None and parts[name].weight.shape != (width,) for name, norm in zip(("q_norm", "k_norm"), norms)
    ):
        return None
    softcap = getattr(module, "attn_logit_softcapping", None) or 0.0
    return (
        AttentionModules(heads, shared, width, scale, float(softcap), index, *norms) if heads % shared == 0 else None
    )


def layer_of(module: nn.Module) -> Layer | None:
    """Recognise a decoder layer by its parts: exactly two norms, an attention and an MLP."""
    parts = dict(module.named_children())
    if set(parts) != {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}:
        return None
    before, between = norm_of(parts["input_layernorm"]), norm_of(parts["post_attention_layernorm"])
    attention, mlp = attention_of(parts["self_attn"]), mlp_of(parts["mlp"])
    if before is None or between is None or attention is None or mlp is None:
        return None
    return Layer(before, attention, between, mlp) if before.is_rms and between.is_rms else None
