"""Suggested replacements for operations that cannot be captured: by operation, else by the kind of refusal."""

from __future__ import annotations

import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Any

from gfxgraph.core.unsafe import BY_NAME, Kind


@lru_cache(maxsize=1)
def _table() -> dict[str, dict[str, Any]]:
    """``rewrites.toml``."""
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def in_chinese() -> list[tuple[str, str]]:
    """The page's texts about operations, in both languages; longest first, as one may contain another."""
    table = _table()
    known = {row["en"]: row["zh"] for row in (*table["by_op"].values(), *table["by_kind"].values())}
    return sorted({**table["phrases"], **known}.items(), key=lambda pair: -len(pair[0]))


def rewrite(op: str, kind: str = "") -> str:
    """What to write instead of ``op``; "" if nothing is known.

    Args:
        kind: the refusal's kind as ``core.unsafe.Kind`` writes it, for operations that are not in the table.
    """
    op, _, cause = op.partition(" of ")
    found = _table()["by_op"].get(cause) or _table()["by_op"].get(op)
    if found is None and (op in BY_NAME or kind in set(Kind)):
        found = _table()["by_kind"][(BY_NAME[op].kind if op in BY_NAME else Kind(kind)).name]
    return str(found["en"]) if found is not None else ""


def why_unsafe(op: str) -> str:
    """Why ``op`` cannot be captured; "" if the table does not know it."""
    row = BY_NAME.get(op.partition(" of ")[0])
    return f"{row.kind.value}: {row.reason}" if row is not None else ""
