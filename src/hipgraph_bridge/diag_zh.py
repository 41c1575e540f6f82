"""The Chinese texts of 1.1.0's conditions; the catalogue's."""

from gfxgraph.compat.diagnosis import CODES, words_of

__all__ = ["MESSAGES"]

MESSAGES = {code: words_of(code, "zh") for code in CODES}
