"""The end of a step as a torch operation: choosing the next token. New in 2.0.

``torch.ops.gfxgraph_kernels.choose``. It chooses the same token as torch: the first of the highest; NaN is higher
than all.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gfxgraph_kernels import eager
from gfxgraph_kernels.launching import flat_rows, launch, target, why_not
from gfxgraph_kernels.shapes import power_of_two

BLOCK = 2048
"""Scores that one workgroup compares."""


def greedy(scores: Tensor) -> Tensor:
    """The place of the highest score of each row.

    Args:
        scores: [..., vocabulary], float32, float16 or bfloat16.

    Returns:
        [...] int64, as ``torch.argmax(scores, -1)``.

    Raises:
        TypeError: another dtype.
        ValueError: there are no scores to choose from.
    """
    return choose(scores, None, 1.0)


def sample(scores: Tensor, temperature: float = 1.0, *, generator: torch.Generator | None = None) -> Tensor:
    """Draw a place from softmax(scores / temperature), with one number of the generator for each score.

    The draw is that of ``torch.multinomial(..., 1)``: the same generator draws the same place wherever rounding does
    not decide between two. Minus infinity is never drawn; infinities and NaN are not looked for.

    Args:
        scores: [..., vocabulary], float32, float16 or bfloat16.
        temperature: above 0; below 1 the likelier places become likelier still.
        generator: on the scores' device; torch's default one where None.

    Returns:
        [...] int64.

    Raises:
        TypeError: another dtype.
        ValueError: the temperature is not above 0, or there are no scores to choose from.
    """
    if not temperature > 0:
        raise ValueError(f"the temperature is {temperature} and must be above 0; greedy() chooses the highest score")
    noise = torch.empty(scores.shape, dtype=torch.float32, device=scores.device).exponential_(1, generator=generator)
    return choose(scores, noise, temperature)


@torch.library.custom_op("gfxgraph_kernels::choose", mutates_args=())
def choose(scores: Tensor, noise: Tensor | None, temperature: float) -> Tensor:
    """The operation that implements `greedy` and `sample`."""
    if scores.dim() == 0 or not scores.shape[-1]:
        raise ValueError(f"nothing can be chosen from scores of {tuple(scores.shape)}")
    if why_not("choose", scores, noise):
        return eager.choose(scores, noise, temperature)
    out = torch.empty(scores.shape[:-1], dtype=torch.int64, device=scores.device)
    if not out.numel():
        return out
    # lazily: Triton need not be there
    from gfxgraph_kernels._attention_kernels import choice_finish, choice_parts

    flat = flat_rows(scores)
    drawn = flat if noise is None else flat_rows(noise)
    m, n = flat.shape
    parts = -(-n // BLOCK)
    keys, places = torch.empty((2, m, parts), dtype=torch.int32, device=scores.device).unbind(0)
    launch(choice_parts, (m, parts),
        flat, drawn, keys, places, n, parts, flat.stride(0), drawn.stride(0), temperature,
        HAS_NOISE=noise is not None, BLOCK=BLOCK, num_warps=256 // target(scores.device).wavefront,
    )  # fmt: skip
    launch(choice_finish, (m,), keys, places, out, parts, BLOCK=power_of_two(parts), num_warps=1)
    return out


@choose.register_fake
def _(scores: Tensor, noise: object, temperature: float) -> Tensor:
    return scores.new_empty(scores.shape[:-1], dtype=torch.int64)
