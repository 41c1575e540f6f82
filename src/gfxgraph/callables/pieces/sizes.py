"""Which dim of which tensor a number among the inputs is.

A callable compiled for dynamic shapes takes its sizes as numbers besides the tensors. To run it on padded
tensors the numbers must match, so each must be known to be some tensor's dim. That is found by observation:
the dims that equal the number in every call seen, with at least two different values.
"""

from __future__ import annotations

from typing import Any

Place = tuple[int, int]
"""Position of a tensor among the inputs, and its dim."""


class Sizes:
    """The observations of the calls seen so far."""

    def __init__(self) -> None:
        self._candidates: dict[int, set[Place]] = {}
        self._seen: set[tuple[int, ...]] = set()
        self._where: dict[int, Place] | None = None
        self.is_hopeless = False

    def look(self, inputs: list[Any], numbers: list[int], tensors: list[int]) -> dict[int, Place] | None:
        """Each number's place; None until every number has been seen with two values, or if one has no place."""
        if self.is_hopeless:
            return None
        values = tuple([inputs[i] for i in numbers])
        if values in self._seen:
            return self._where
        self._seen.add(values)
        for number in numbers:
            found = {
                (at, dim) for at in tensors for dim, size in enumerate(inputs[at].size()) if size == inputs[number]
            }
            known = self._candidates.get(number)
            self._candidates[number] = found if known is None else known & found
        self.is_hopeless = not all(self._candidates[number] for number in numbers)
        if self.is_hopeless:
            self._where = None
        elif all(len({seen[at] for seen in self._seen}) > 1 for at in range(len(numbers))):
            self._where = {number: min(self._candidates[number]) for number in numbers}
        return self._where
