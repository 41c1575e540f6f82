"""Write native/bridge/errors.inc from the catalogue, so that the C libraries say what Python says.

``--check`` writes nothing and exits with 1 where the file is not up to date.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
CATALOGUE = ROOT / "src/gfxgraph/diagnostics/catalogue"
OUT = ROOT / "native/bridge/errors.inc"
# Said by Python, about files that C never sees.
LEFT_OUT = {"native_library_unusable"}


def literal(text: str | list[str]) -> str:
    joined = text if isinstance(text, str) else "; ".join(text)
    return json.dumps(joined, ensure_ascii=False)


def render() -> str:
    lines = [
        "// Made by tools/make_native.py from the catalogue; not edited by hand.",
        "// GFX_ERROR(code, title, what, why, do, and the same four in Chinese)",
    ]
    for path in sorted(CATALOGUE.glob("native_*.toml")):
        if path.stem in LEFT_OUT:
            continue
        entry = tomllib.loads(path.read_text(encoding="utf-8"))
        texts = [literal(entry[language][key]) for language in ("en", "zh") for key in ("title", "what", "why", "do")]
        lines.append(f'GFX_ERROR("{entry["code"]}",')
        lines += [f"          {text}{',' if i < len(texts) - 1 else ')'}" for i, text in enumerate(texts)]
    lines.append("#undef GFX_ERROR")
    return "\n".join(lines) + "\n"


def main() -> int:
    made = render()
    if "--check" in sys.argv[1:]:
        return int(OUT.read_text(encoding="utf-8") != made)
    OUT.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
