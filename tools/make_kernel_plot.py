"""Draw the operations of a results file of bench_kernels.py below the roofline: docs/images/kernels.svg.

    python tools/make_kernel_plot.py [--results FILE] [--out FILE]

Across, the bytes that a call has to move; up, how many it moved in a second: our kernel filled, the best peer hollow.
The roof is what a copy moves; to the left of it the time that a launch takes decides.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "kernels_h200.json"
OUT = ROOT / "docs" / "images" / "kernels.svg"
OURS = "gfxgraph"
LEFT, RIGHT, TOP, BOTTOM = 64, 744, 24, 400
COLORS = {
    "linear": "#d62728", "norm and gate": "#ff7f0e", "norm, q, k and v": "#bcbd22", "attention": "#1f77b4",
    "rotary": "#17becf", "greedy": "#9467bd", "sample": "#9467bd", "rms norm": "#2ca02c", "layer norm": "#2ca02c",
    "residual": "#2ca02c", "softmax": "#8c564b", "swiglu": "#7f7f7f", "geglu": "#7f7f7f",
}  # fmt: skip
NAMES = {
    "#d62728": "linear", "#ff7f0e": "norm and gate", "#bcbd22": "norm, q, k, v", "#1f77b4": "attention",
    "#17becf": "rotary", "#9467bd": "choice", "#2ca02c": "norms", "#8c564b": "softmax", "#7f7f7f": "gates",
}  # fmt: skip


def color(case: str) -> str:
    """Of an operation's kind."""
    return next((value for name, value in COLORS.items() if case.startswith(name)), "#000")


def plot(operations: list[dict[str, Any]], copy_gb_s: float, device: str) -> str:
    """The picture."""
    points = []
    for row in operations:
        us = {way["way"]: way["us"] for way in row["ways"] if "us" in way}
        for name, filled in ((row["best_peer"], False), (OURS, True)):
            if name in us:
                points.append((row["nbytes"], row["nbytes"] / us[name] / 1e3, row["case"], filled))
    least, most = min(p[0] for p in points), max(p[0] for p in points)
    low, high = 10 ** math.floor(math.log10(min(p[1] for p in points))), 2 * copy_gb_s

    def x(nbytes: float) -> float:
        return LEFT + (RIGHT - LEFT) * math.log(nbytes / least) / math.log(most / least)

    def y(gb_s: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * math.log(gb_s / low) / math.log(high / low)

    def line(gb_s: float, text: str, dash: str) -> str:
        at = f"{y(gb_s):.0f}"
        return (
            f'<path d="M{LEFT} {at}H{RIGHT}" stroke="#888" fill="none" stroke-dasharray="{dash}"/>'
            f'<text x="{LEFT + 4}" y="{y(gb_s) - 4:.0f}">{text}</text>'
        )

    drawn = []
    for nbytes, gb_s, case, filled in points:
        fill = color(case) if filled else "none"
        title = f"<title>{case}: {gb_s:.0f} GB/s</title>" if filled else ""
        place = f'cx="{x(nbytes):.0f}" cy="{y(gb_s):.0f}"'
        drawn.append(f'<circle {place} r="3" fill="{fill}" stroke="{color(case)}">{title}</circle>')
    keys = [
        f'<text x="{LEFT + 76 * index}" y="{BOTTOM + 44}" fill="{value}">{name}</text>'
        for index, (value, name) in enumerate(NAMES.items())
    ]
    ticks = [
        f'<text x="{LEFT - 6}" y="{y(value) + 4:.0f}" text-anchor="end">{value:g}</text>'
        for value in (10**power for power in range(-2, 5))
        if low <= value <= high
    ]
    one_us = [(size, size / 1e3) for size in (max(least, low * 1e3), min(most, copy_gb_s * 1e3))]
    slope = " ".join(f"{x(size):.0f},{y(gb_s):.0f}" for size, gb_s in one_us)
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 460" font-family="sans-serif" font-size="11">',
            '<rect width="760" height="460" fill="#fff"/>',
            line(copy_gb_s, f"a copy on the {device}: {copy_gb_s:.0f} GB/s", ""),
            line(0.85 * copy_gb_s, "", "4"),
            f'<polyline points="{slope}" stroke="#888" fill="none" stroke-dasharray="1 3"/>',
            f'<text x="{x(one_us[0][0]) + 8:.0f}" y="{y(one_us[0][1]) - 8:.0f}">1 us a call</text>',
            *drawn,
            *ticks,
            *keys,
            f'<text x="{LEFT}" y="{BOTTOM + 20}">{least / 1e3:.0f} kB</text>',
            f'<text x="{RIGHT}" y="{BOTTOM + 20}" text-anchor="end">{most / 1e6:.0f} MB to move in a call</text>',
            f'<text x="{LEFT - 6}" y="{TOP - 8}" text-anchor="end">GB/s</text>',
            f'<text x="{RIGHT}" y="{TOP - 8}" text-anchor="end">filled: gfxgraph; hollow: the best peer</text>',
            "</svg>\n",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    runs = json.loads(asked.results.read_text(encoding="utf-8"))["runs"]
    run = next(run for run in runs if run["operations"])
    picture = plot(run["operations"], run["copy_gb_s"], run["environment"]["device"])
    asked.out.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
