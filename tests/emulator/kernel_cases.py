"""Operations of gfxgraph_kernels at sizes that an emulator gets through, each with its answer in NumPy's float64.

Imports torch and Triton, so it is for the process that compiles, not for the one that is emulated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import gfxgraph_kernels as kernels
from gfxgraph_kernels import next_token, shapes

FLOAT, HALF, BRAIN = torch.float32, torch.float16, torch.bfloat16
NEAR = {FLOAT: 1e-5, HALF: 2e-3, BRAIN: 1.6e-2}
Tensors = dict[str, torch.Tensor]
Arrays = dict[str, Any]


class Draw:
    """Numbers of one set of inputs; every call the next."""

    def __init__(self, dtype: torch.dtype, seed: int) -> None:
        self.dtype, self.seed = dtype, seed
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape, generator=self.generator) * scale).to(self.dtype)


@dataclass(frozen=True)
class Case:
    """One operation, or several behind each other.

    Attributes:
        inputs: draws them; what is drawn again for the next replay goes to the same places.
        call: the operation on those.
        wanted: the answers to inputs of float64, in the order of `call`'s.
        factor: of the distance that one operation may have.
        gather: the answers, from `call`'s and what was launched, where something is computed after the launches.
    """

    inputs: Callable[[Draw], Tensors]
    call: Callable[[Tensors], Any]
    wanted: Callable[[Arrays], Any]
    factor: float = 1.0
    gather: Callable[[Any, list[Any]], Any] | None = None


def rounded(x: Any, like: torch.dtype) -> Any:
    return torch.from_numpy(np.ascontiguousarray(x)).to(like).double().numpy()


def normed(
    x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-6, offset: float = 0.0, is_rms: bool = True
) -> Any:
    if not is_rms:
        x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    x = x if weight is None else x * (weight + offset)
    return x if bias is None else x + bias


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def active(x: Any, kind: str) -> Any:
    if kind == "silu":
        return x / (1 + np.exp(-x))
    if kind == "gelu":
        return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def turned(x: Any, cos: Any, sin: Any) -> Any:
    """[batch, tokens, heads, width], by halves of as much as the angles have."""
    n = cos.shape[-1]
    a, b, c, s = x[..., : n // 2], x[..., n // 2 : n], cos[:, :, None], sin[:, :, None]
    return np.concatenate([np.concatenate([a, b], -1) * c + np.concatenate([-b, a], -1) * s, x[..., n:]], -1)


def attended(q: Any, keys: Any, values: Any, mask: Any, last: Any, softcap: float = 0.0) -> Any:
    n = q.shape[1] // keys.shape[1]
    scores = q @ np.repeat(keys, n, 1).swapaxes(2, 3) / math.sqrt(q.shape[-1])
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    scores = np.where(np.arange(keys.shape[2]) > last[0], -np.inf, scores)
    return softmax(scores) @ np.repeat(values, n, 1)


# -- norms -----------------------------------------------------------------------------------------------


def _norm(m: int, n: int, is_rms: bool, offset: float = 0.0) -> Case:
    def call(t: Tensors) -> Any:
        return (
            kernels.rms_norm(t["x"], t["w"], offset=offset) if is_rms else kernels.layer_norm(t["x"], t["w"], t["b"])
        )

    def wanted(a: Arrays) -> Any:
        return normed(a["x"], a["w"], None if is_rms else a["b"], 1e-6 if is_rms else 1e-5, offset, is_rms)

    return Case(lambda d: {"x": d(m, n), "w": d(n), "b": d(n)}, call, wanted)


# -- linear layers ---------------------------------------------------------------------------------------


def _linear(m: int, k: int, n: int) -> Case:
    """Nothing but the weight and a residual."""
    return Case(
        lambda d: {"x": d(m, k), "w": d(n, k), "r": d(m, n)},
        lambda t: kernels.linear(t["x"], t["w"], residual=t["r"]),
        lambda a: a["x"] @ a["w"].T + a["r"],
    )


def _linear_with_everything(m: int, k: int, n: int) -> Case:
    """Norm, bias, activation, the other half of a gate and residual."""

    def call(t: Tensors) -> Any:
        more = {"up": t["u"], "residual": t["r"], "norm_weight": t["g"], "norm_eps": 1e-6}
        return kernels.linear(t["x"], t["w"], t["b"], activation="silu", **more)

    def wanted(a: Arrays) -> Any:
        v = normed(a["x"], a["g"])
        # From more rows on the norm is an operation of its own, rounded in between.
        v = v if m <= shapes.MOST_VECTOR_ROWS else rounded(v, a["dtype"])
        return active(v @ a["w"].T + a["b"], "silu") * (v @ a["u"].T) + a["r"]

    def inputs(d: Draw) -> Tensors:
        return {"x": d(m, k), "w": d(n, k), "u": d(n, k), "b": d(n), "r": d(m, n), "g": d(k)}

    return Case(inputs, call, wanted)


def _linear_three(m: int, k: int, sizes: tuple[int, int, int]) -> Case:
    def call(t: Tensors) -> Any:
        weights = (t["w0"], t["w1"], t["w2"])
        return kernels.linear_three(t["x"], weights, norm_weight=t["g"], norm_eps=1e-5, norm_offset=1.0)

    def wanted(a: Arrays) -> Any:
        v = normed(a["x"], a["g"], eps=1e-5, offset=1.0)
        return tuple(v @ a[f"w{i}"].T for i in range(3))

    return Case(lambda d: {"x": d(m, k), "g": d(k), **{f"w{i}": d(n, k) for i, n in enumerate(sizes)}}, call, wanted)


# -- rotary embedding, attention, the choice of a token --------------------------------------------------


def _rotary_attention(heads: int, shared: int, length: int, width: int, mask: str = "", softcap: float = 0.0) -> Case:
    """The slot differs between replays, the first and the last among them."""

    def inputs(d: Draw) -> Tensors:
        made = {
            "q": d(1, 1, heads, width), "k": d(1, 1, shared, width), "v": d(1, 1, shared, width),
            "cos": d(1, 1, width), "sin": d(1, 1, width), "keys": d(1, shared, length, width),
            "values": d(1, shared, length, width), "position": torch.tensor([(d.seed * (length - 1)) // 2 + 1]),
        }  # fmt: skip
        if mask == "bool":
            made["mask"] = d(1, 1, 1, length) > -1
            made["mask"][..., 0] = True
        elif mask:
            made["mask"] = d(1, 1, 1, length)
        return made

    def call(t: Tensors) -> Any:
        given = {name: t[name] for name in ("q", "k", "v", "cos", "sin", "keys", "values", "position")}
        made = kernels.rotary_attention(**given, behind=1, mask=t.get("mask"), softcap=softcap)
        return made, t["keys"], t["values"]

    def wanted(a: Arrays) -> Any:
        keys, values, slot = a["keys"].copy(), a["values"].copy(), a["position"] - 1
        keys[:, :, slot[0]] = rounded(turned(a["k"], a["cos"], a["sin"])[:, 0], a["dtype"])
        values[:, :, slot[0]] = a["v"][:, 0]
        query = rounded(turned(a["q"], a["cos"], a["sin"]), a["dtype"]).swapaxes(1, 2)
        return attended(query, keys, values, a.get("mask"), slot, softcap), keys, values

    return Case(inputs, call, wanted, 1.5)


def _angles() -> Case:
    def call(t: Tensors) -> Any:
        return kernels.rotary_angles(t["positions"], t["frequencies"], 1.25, t["like"].dtype)

    def wanted(a: Arrays) -> Any:
        angles = a["positions"][..., None] * a["frequencies"]
        angles = np.concatenate((angles, angles), -1)
        return np.cos(angles) * 1.25, np.sin(angles) * 1.25

    def inputs(d: Draw) -> Tensors:
        return {
            "positions": torch.tensor([[d.seed, 7 + d.seed], [100, 3]]),
            "frequencies": torch.tensor([1.0, 0.5, 0.25, 0.015625, 2.0**-10]),
            "like": d(1),
        }

    return Case(inputs, call, wanted)


def _choice(m: int, n: int, is_sampled: bool) -> Case:
    temperature = 0.8

    def inputs(d: Draw) -> Tensors:
        made = {"scores": d(m, n, scale=3)}
        if is_sampled:
            made["noise"] = torch.empty(m, n).exponential_(1, generator=d.generator)
        return made

    def call(t: Tensors) -> Any:
        return next_token.choose(t["scores"], t.get("noise"), temperature)

    def wanted(a: Arrays) -> Any:
        return np.argmax(a["scores"] / temperature - np.log(a["noise"]) if is_sampled else a["scores"], -1)

    return Case(inputs, call, wanted)


# -- a whole step ----------------------------------------------------------------------------------------

HIDDEN, HEADS, SHARED, WIDTH, LENGTH, WIDE, WORDS = 128, 4, 2, 32, 40, 192, 300


def _step() -> Case:
    """One layer of a Llama and the choice of a token, in one graph: each launch reads what another wrote."""

    def inputs(d: Draw) -> Tensors:
        weight = HIDDEN**-0.5
        position = 5 + 11 * d.seed
        angles = position / 10000 ** (torch.arange(WIDTH // 2) * 2 / WIDTH)
        angles = torch.cat((angles, angles))[None, None]
        return {
            "x": d(1, HIDDEN), "g0": d(HIDDEN), "g1": d(HIDDEN), "g2": d(HIDDEN),
            "q": d(HEADS * WIDTH, HIDDEN, scale=weight), "k": d(SHARED * WIDTH, HIDDEN, scale=weight),
            "v": d(SHARED * WIDTH, HIDDEN, scale=weight), "o": d(HIDDEN, HEADS * WIDTH, scale=weight),
            "gate": d(WIDE, HIDDEN, scale=weight), "up": d(WIDE, HIDDEN, scale=weight),
            "down": d(HIDDEN, WIDE, scale=WIDE**-0.5), "words": d(WORDS, HIDDEN, scale=weight),
            "cos": angles.cos().to(d.dtype), "sin": angles.sin().to(d.dtype),
            "keys": d(1, SHARED, LENGTH, WIDTH), "values": d(1, SHARED, LENGTH, WIDTH),
            "last": torch.tensor([position]),
        }  # fmt: skip

    def call(t: Tensors) -> Any:
        norm = {"norm_eps": 1e-6}
        q, k, v = kernels.linear_three(t["x"], (t["q"], t["k"], t["v"]), norm_weight=t["g0"], **norm)
        split = [each.view(1, 1, -1, WIDTH) for each in (q, k, v)]
        seen = kernels.rotary_attention(*split, t["cos"], t["sin"], t["keys"], t["values"], t["last"])
        x = kernels.linear(seen.view(1, -1), t["o"], residual=t["x"])
        wide = kernels.linear(x, t["gate"], activation="silu", up=t["up"], norm_weight=t["g1"], **norm)
        x = kernels.linear(wide, t["down"], residual=x)
        scores = kernels.linear(x, t["words"], norm_weight=t["g2"], **norm)
        return x, scores, kernels.greedy(scores)

    def wanted(a: Arrays) -> Any:
        v = normed(a["x"], a["g0"])
        q, k, new = ((v @ a[name].T).reshape(1, 1, -1, WIDTH) for name in "qkv")
        keys, values, at = a["keys"].copy(), a["values"].copy(), int(a["last"][0])
        keys[:, :, at], values[:, :, at] = turned(k, a["cos"], a["sin"])[:, 0], new[:, 0]
        seen = attended(turned(q, a["cos"], a["sin"]).swapaxes(1, 2), keys, values, None, a["last"])
        x = a["x"] + seen.reshape(1, -1) @ a["o"].T
        v = normed(x, a["g1"])
        x = x + (active(v @ a["gate"].T, "silu") * (v @ a["up"].T)) @ a["down"].T
        scores = normed(x, a["g2"]) @ a["words"].T
        return x, scores, np.array([True])

    def gather(answer: Any, _: list[Any]) -> Any:
        x, scores, token = answer
        # Of its own scores: rounded to bfloat16 two may be alike.
        return x, scores, token == scores.argmax(-1)

    return Case(inputs, call, wanted, 4, gather)


CASES = {
    "rms norm, 3 x 1024": _norm(3, 1024, True),
    "rms norm, 2 x 77, offset": _norm(2, 77, True, 1.0),
    "layer norm, 5 x 130": _norm(5, 130, False),
    "linear and residual, 1 x 512 to 96": _linear(1, 512, 96),
    "linear and residual in parts, 1 x 4096 to 8": _linear(1, 4096, 8),
    "linear with everything, 1 x 256 to 64": _linear_with_everything(1, 256, 64),
    "linear with everything, 3 x 75 to 21": _linear_with_everything(3, 75, 21),
    "linear with everything, 9 x 75 to 21": _linear_with_everything(9, 75, 21),
    "tiled linear and residual, 16 x 128 to 64": _linear(16, 128, 64),
    "q, k and v behind a norm, 1 x 256": _linear_three(1, 256, (128, 32, 32)),
    "q, k and v behind a norm, 9 x 96": _linear_three(9, 96, (64, 21, 21)),
    "angles, 2 x 2 positions": _angles(),
    "rotary and attention, 8 heads on 2, 96 x 64": _rotary_attention(8, 2, 96, 64),
    "rotary and attention with mask and softcap, 4 heads on 4, 33 x 20": _rotary_attention(
        4, 4, 33, 20, "bool", 30.0
    ),
    "rotary and attention in parts, 2 heads on 1, 512 x 32": _rotary_attention(2, 1, 512, 32, "added"),
    "greedy, 2 x 5000": _choice(2, 5000, False),
    "sample, 2 x 5000": _choice(2, 5000, True),
    "a step of one layer": _step(),
}
