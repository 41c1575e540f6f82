"""The Chinese texts of 1.1.0's conditions; the catalogue's, looked up when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gfxgraph.compat.diagnosis import CODES, words_of

__all__ = ["MESSAGES"]


class _Messages(Mapping[str, dict[str, str]]):
    def __getitem__(self, code: str) -> dict[str, str]:
        if code not in CODES:
            raise KeyError(code)
        return words_of(code, "zh")

    def __iter__(self) -> Iterator[str]:
        return iter(CODES)

    def __len__(self) -> int:
        return len(CODES)


MESSAGES = _Messages()
