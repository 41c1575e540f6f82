"""Buckets: the sizes that are captured, and which of them serves a call.

A captured graph has one size; a smaller input is padded up to it. Many buckets waste little work
but cost memory and capture time; few do the reverse.

Invariants: sizes ascend and are positive; ``pick`` gives the smallest bucket that holds the size.

Source: tests/property/test_buckets.py; vLLM's ladder as in its 0.33.0, ``config/vllm.py``: 1, 2, 4, then steps of 8
below 256, then of 16.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from dataclasses import dataclass

from gfxgraph.errors import ConfigError

LADDER_MAX = 512
"""The largest size of vLLM's ladder on most devices."""


@dataclass(frozen=True)
class Buckets:
    """The captured sizes of one dynamic dimension.

    Args:
        sizes: in any order, repeats allowed; kept ascending, each once.

    Raises:
        ConfigError: `bad_buckets`, a size is not a whole number above zero, or there is none.
    """

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        for size in self.sizes:
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ConfigError("bad_buckets", given=repr(size), problem="it is not a whole number above zero")
        if not self.sizes:
            raise ConfigError("bad_buckets", given="()", problem="it contains no size")
        object.__setattr__(self, "sizes", tuple(sorted(set(self.sizes))))

    def pick(self, n: int) -> int | None:
        """The smallest bucket holding ``n``; None above the largest."""
        at = bisect_left(self.sizes, n)
        return self.sizes[at] if at < len(self.sizes) else None


@dataclass(frozen=True)
class Octaves:
    """So many buckets from each power of two to the next (four for "auto", callables/buckets.py), without limit; one
    row in ``parts + 1`` at most is padding.

    Args:
        parts: a power of two; 1 for powers of two alone.
    """

    parts: int

    def pick(self, n: int) -> int:
        """The smallest bucket holding ``n``, which is at least 1."""
        step = max(1, (1 << (n - 1).bit_length()) // (2 * self.parts))
        return -(-n // step) * step


def ladder(largest: int = LADDER_MAX) -> Buckets:
    """vLLM's capture sizes up to ``largest``, which is a bucket itself."""
    steps = itertools.chain((1, 2, 4), range(8, 256, 8), range(256, largest + 1, 16))
    return Buckets((*(size for size in steps if size <= largest), largest))
