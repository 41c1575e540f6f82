"""What a graphed callable says of itself: every signature, and how its calls ran, and why."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from gfxgraph.callables.advice import advice, folded, table
from gfxgraph.callables.route import REFUSED

if TYPE_CHECKING:
    from gfxgraph.callables.graphed import Graphed


def explain(graphed: Graphed) -> str:
    """See ``Graphed.explain``."""
    lines = [f"{graphed._name}: {len(graphed._entries)} signatures, {graphed.stats()['replays']} replays"]
    for entry in graphed._entries.values():
        if entry.why_eager:
            how = f"eager: {entry.why_eager}"
        elif entry.first is not None:
            how = f"{entry.n_replays()} replays of {entry.first.graph.steps_text()}"
            if entry.first.moving is not None:
                how += f"; {entry.first.moving}"
            elif entry.why_copied:
                how += f"; arguments are copied: {entry.why_copied}"
            if any(instance.joined is not None for instance in entry.instances()):
                how += "; copies are nodes of the launch"
            elif entry.why_not_joined:
                how += f"; copies are launched on their own: {entry.why_not_joined}"
        else:
            how = "not captured yet, for it has not been called again since its warm-up"
        lines.append(f"  {entry.label}: {how}")
    calls = [key[0] for key in graphed._worlds] or [key[0] for key in graphed._routes]
    lines = folded(lines) + [f"  {each}" for each in advice(graphed._fn, calls)]
    for region in regions(graphed):
        lines += [f"  {line}" for line in region.explain().splitlines()]
    return "\n".join([*lines, *why(graphed).splitlines()[1:]])


def why(graphed: Graphed) -> str:
    """See ``Graphed.why``."""
    lines = [f"{graphed._name}: {graphed._options.mode.value}"]
    if graphed._adaptive is not None:
        lines += [f"  {line}" for line in graphed._adaptive.why().splitlines()]
    lines += [f"  {line}" for line in graphed._padding.explain() if "is not padded" not in line]
    return "\n".join([*lines, *_ways(graphed)])


def regions(graphed: Graphed) -> list[Any]:
    """What captures the pieces of calls that are not one graph."""
    if graphed._front is None or not graphed._pieces:
        return []
    return [piece.region for _, piece in graphed._front.graphs]


def _ways(graphed: Graphed) -> list[str]:
    """A table: how many calls ran which way, and why not by a graph of their own."""
    refused: dict[str, list[str]] = {}
    for label, found in graphed._padding.refusals.items():
        refused.setdefault(f"{REFUSED}: {found.reason}", []).append(label)
    rows = [(graphed._n_replays(), "by a graph", "")]
    stats = graphed.stats()
    has_graphs = bool(stats["captures"])
    rows += [(n, "in pieces" if has_graphs else "eager", why) for why, n in graphed._pieces.most_common()]
    for why, n in graphed._eager.most_common():
        sizes = f" ({', '.join(refused[why])})" if why in refused else ""
        rows.append((n, "eager", why + sizes))
    of_pieces = Counter(stats["eager"]) - graphed._eager
    rows += [(n, "a piece", f"eager: {why}") for why, n in of_pieces.most_common()]
    for why in set(refused) - set(graphed._eager):
        rows.append((0, "eager", f"{why} ({', '.join(refused[why])})"))
    lines = [f"  {line}" for line in table(rows)]
    if graphed._pieces and has_graphs:
        lines.append("  in pieces: Python runs at each call, each graph between is captured on its own")
    return lines
