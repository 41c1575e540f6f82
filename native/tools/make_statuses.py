"""Write what the preload library says of each status, from the main package's catalogue.

    python make_statuses.py DIAGNOSTICS_FOLDER OUT.inc

Run by the build: the library explains without Python, in the words that ``gfxgraph explain`` uses.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

HEADER = """\
// Made by tools/make_statuses.py from the catalogue; not to be edited.
// GFX_STATUS(number, HIP's name, CUDA's name, meaning, remedy, meaning in Chinese, remedy in Chinese)
"""


def remedy(row: dict[str, Any], entry: dict[str, Any], lang: str) -> str:
    """The row's own advice, or its entry's first that holds no field of an exception of ours."""
    if lang in row.get("do", {}):
        return str(row["do"][lang])
    words = entry[lang].get("seen", entry[lang])
    advice = words["do"] if isinstance(words["do"], list) else [words["do"]]
    return next((line for line in advice if "{" not in line), "")


def literal(text: str) -> str:
    """A C string; UTF-8 goes through as it is."""
    return json.dumps(" ".join(text.split()), ensure_ascii=False)


def lines(folder: Path) -> list[str]:
    made = []
    for row in tomllib.loads((folder / "codes" / "hip.toml").read_text(encoding="utf-8"))["status"]:
        entry = tomllib.loads((folder / "catalogue" / f"{row['entry']}.toml").read_text(encoding="utf-8"))
        cuda = next((name for name in row.get("aka", ()) if name.startswith("cuda")), row["name"])
        words = [text for lang in ("en", "zh") for text in (row[lang].rstrip(".。"), remedy(row, entry, lang))]
        made.append(f"GFX_STATUS({row['number']}, {', '.join(map(literal, (row['name'], cuda, *words)))})\n")
    return made


def main(folder: str, out: str) -> None:
    text = HEADER + "".join(lines(Path(folder))) + "#undef GFX_STATUS\n"
    path = Path(out)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
