"""A call larger than every bucket, split into chunks that fit.

Only a function that treats rows independently gives the same results in chunks. That is decided from its graph, as
for padding. The first call of a size then runs both whole, eagerly, and in chunks, and the results must agree. The
dim along which a result's chunks are joined is found by comparing their sizes with the whole's: the verdict
guarantees that there is one, or that the result does not depend on the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gfxgraph.callables.outputs import builder
from gfxgraph.callables.signature import flatten

if TYPE_CHECKING:
    from gfxgraph.callables.padding.verdicts import PaddingRefusal

Dims = Mapping[int, Mapping[int, str]]


class TooLarge:
    """A call above the largest bucket: the dim, every dim's size, and how chunks are joined, once known."""

    __slots__ = ("dims", "joints", "name", "pieces", "refusal", "sizes")

    def __init__(self, name: str, sizes: Mapping[str, int]) -> None:
        self.name = name
        self.sizes = sizes
        self.pieces: tuple[int, ...] = ()
        self.dims: Mapping[int, Mapping[int, str]] = {}
        self.joints: list[int] | None = None
        self.refusal: PaddingRefusal | None = None


class NotInPieces(Exception):
    """The results of the chunks cannot be joined; ``args[0]`` says why."""


def split(tensors: Sequence[Tensor], dims: Dims, name: str, sizes: Sequence[int]) -> list[list[Tensor]]:
    """Split the call's tensors into chunks; tensors without the dim are passed whole."""
    pieces: list[list[Tensor]] = []
    begin = 0
    for size in sizes:
        piece = []
        for i, tensor in enumerate(tensors):
            for dim, each in dims.get(i, {}).items():
                if each == name:
                    tensor = tensor.narrow(dim, begin, size)
            piece.append(tensor)
        pieces.append(piece)
        begin += size
    return pieces


def joints(whole: Sequence[Sequence[int]], parts: Sequence[Sequence[Tensor]]) -> list[int]:
    """For each result the dim along which to join its chunks; -1 if every chunk gave the whole.

    Raises:
        NotInPieces: for the first result that is neither.
    """
    found = []
    for i, size in enumerate(whole):
        pieces = [part[i] for part in parts]
        if all(tuple(piece.size()) == tuple(size) for piece in pieces):
            found.append(-1)
            continue
        dim = next((d for d in range(len(size)) if _fits(pieces, size, d)), None)
        if dim is None:
            raise NotInPieces(f"result {i} of the pieces does not add up to {list(size)}")
        found.append(dim)
    return found


def join(results: Sequence[Any], dims: Sequence[int]) -> Any:
    """Join the results of the chunks."""
    parts: list[list[Tensor]] = []
    for result in results:
        made: list[Tensor] = []
        flatten(result, made)
        parts.append(made)
    whole = [parts[0][i] if dim < 0 else torch.cat([part[i] for part in parts], dim) for i, dim in enumerate(dims)]
    return builder(results[0])(iter(whole))


def _fits(pieces: Sequence[Tensor], size: Sequence[int], dim: int) -> bool:
    if any(piece.dim() != len(size) for piece in pieces):
        return False
    rest = [d for d in range(len(size)) if d != dim]
    same = all(piece.size(d) == size[d] for piece in pieces for d in rest)
    return same and sum(piece.size(dim) for piece in pieces) == size[dim]
