"""Run the demo and write what it prints as a picture: docs/images/demo.svg.

python tools/make_picture.py
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

from rich.console import Console

from gfxgraph.cli import demo

TARGET = Path(__file__).parent.parent / "docs" / "images" / "demo.svg"


def main() -> None:
    place = demo.choose_place()
    n_tokens = demo.N_TOKENS_SIMULATED if place.is_simulated else demo.N_TOKENS
    result, stats = demo.run_example(place, ["--prompt", demo.DEFAULT_PROMPT, "--tokens", str(n_tokens)])
    console = Console(record=True, width=84, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print("[bold]$ make demo[/bold]")
    console.print(f"[bold]{place.sentence}[/bold]")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        demo.show(place, result, stats)
    console.print(printed.getvalue(), markup=False)
    picture = console.export_svg(title="gfxgraph demo")
    # No fonts from elsewhere: the reader's own serve.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
