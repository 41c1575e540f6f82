"""Write the measured figures into docs/evidence.md from the files under benchmarks/results.

    python tools/update_evidence.py [--check]

Its tables of figures stand between markers; nothing between them is typed by hand. With
``--check`` nothing is written, and the exit status is 1 where the page is not what the results say.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def load(name: str) -> dict[str, Any] | None:
    path = RESULTS / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def speed() -> str:
    """The drop-in's cost against stock torch."""
    found = load("core_h100.json")
    if found is None:
        return "Not measured yet."
    where = found["environment"]
    rows = ["| | stock | gfxgraph | ratio (spread) | target | |", "| --- | --- | --- | --- | --- | --- |"]
    for figure in found["figures"]:
        rows.append(
            f"| {figure['figure']} | {' | '.join(cells(figure))} | {'met' if figure['reached'] else '**missed**'} |"
        )
    device = f"{where['device']}, torch {where['torch']}, Python {where['python']}, commit {where['commit'][:10]}"
    return (
        "\n".join(rows) + f"\n\nPaired in one run on one {device}; medians, with the least and the most of the pairs."
    )


def cells(figure: dict[str, Any]) -> list[str]:
    unit = figure.get("unit", "")
    if "ratio" in figure:
        ratio, stock, ours = figure["ratio"], figure["stock"], figure["gfxgraph"]
        return [
            f"{stock['median']:.2f} {unit}",
            f"{ours['median']:.2f} {unit}",
            f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f}, {ratio['repeats']} pairs)",
            f"at most {figure['target']}",
        ]
    if "largest_difference" in figure:
        return [
            f"{max(figure['stock']) / 2**20:.0f} MiB",
            f"{max(figure['gfxgraph']) / 2**20:.0f} MiB",
            f"difference {figure['largest_difference'] / 2**20:.1f} MiB",
            "within 2 MiB",
        ]
    ours = figure["gfxgraph"]
    if isinstance(ours, dict):
        spread = f"{ours['min']:.1f} to {ours['max']:.1f} {unit}"
        return ["-", f"{ours['median']:.1f} {unit}", spread, f"under {figure['target']} {unit}"]
    return ["-", str(ours), "-", str(figure["target"])]


def upstream() -> str:
    """PyTorch's own graph tests."""
    found = load("upstream_h100.json")
    if found is None:
        return "Not run yet."
    machine, counts = found["machine"], found["counts"]
    lifted = [t.rsplit("::", 1)[-1] for t in found["lost_but_pass_under_raise"]]
    text = (
        f"On one {machine['device']} with torch {machine['torch']}: of {found['n_selected']} tests selected, "
        f"{counts['stock'].get('passed', 0)} pass on stock torch (the others need a newer torch or are skipped), "
        f"{counts['gfxgraph'].get('passed', 0)} under gfxgraph; lost: {len(found['lost'])}."
    )
    if lifted:
        text += (
            " These assert a limit that gfxgraph lifts, and pass under `GFXGRAPH_ON_UNSAFE=raise`: "
            + ", ".join(f"`{name}`" for name in lifted)
            + "."
        )
    if found["lost"]:
        text += " Lost: " + ", ".join(f"`{name.rsplit('::', 1)[-1]}`" for name in found["lost"]) + "."
    return text


def fuzz() -> str:
    """Random programs on the GPU."""
    found = load("fuzz_h100.json")
    if found is None:
        return "Not run on a GPU yet."
    return found["sentence"]


BLOCKS = {"speed": speed, "upstream": upstream, "fuzz": fuzz}


def main() -> None:
    path = ROOT / "docs" / "evidence.md"
    old = new = path.read_text(encoding="utf-8")
    for name, text in BLOCKS.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        new = pattern.sub(lambda m, text=text: m.group(1) + text() + "\n" + m.group(2), new)
    if "--check" in sys.argv:
        sys.exit(0 if new == old else 1)
    path.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
