"""``explain()`` of a graphed callable: every signature, how its calls ran, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gfxgraph import torch_names
from gfxgraph.callables.buckets import parameters_of
from gfxgraph.callables.padding.padding_check import REFUSED

if TYPE_CHECKING:
    from gfxgraph.callables.graphed import Graphed

MANY_CONSTANTS = 6
"""With this many values of one constant argument, advise to pass it in a tensor."""


def explain(graphed: Graphed) -> str:
    """See ``Graphed.explain``."""
    mode, replays = graphed._options.mode.value, graphed.stats()["replays"]
    lines = [f"{graphed._name}: {mode}, {len(graphed._entries)} signatures, {replays} replays"]
    for entry in graphed._entries.values():
        if entry.why_eager:
            how = f"eager: {entry.why_eager}"
        elif entry.capture is not None:
            how = f"{entry.replays()} replays of {entry.capture.first.graph.steps_text()}"
            if any(instance.joined is not None for instance in entry.instances()):
                how += "; copies are nodes of the launch"
            elif entry.why_not_joined:
                how += f"; copies are launched on their own: {entry.why_not_joined}"
        else:
            how = "not captured yet: it has not been called again since its warm-up"
        lines.append(f"  {entry.label}: {how}")
    calls = graphed._worlds.structures or [key[0] for key in graphed._routes]
    lines = [line if n == 1 else f"{line} ({n} signatures)" for line, n in Counter(lines).items()]
    lines += [f"  {each}" for each in advice(graphed._fn, calls)]
    for number in graphed._front.restless() if graphed._front is not None else ():
        lines.append(f"  {number} is another number at each call, so what takes it runs eagerly: keep it in a tensor")
    lines += [f"  {each}" for each in sorted(graphed._front.remarks if graphed._front is not None else ())]
    lines += [f"  {why}" for why in torch_names.off.values()]
    for region in regions(graphed):
        lines += [f"  {line}" for line in region.explain().splitlines()]
    lines += [f"  {each.label}: {each.timed.choice.why()}" for each in graphed._entries.values() if each.timed]
    lines += [f"  {line}" for line in graphed._padding.explain() if "is not padded" not in line]
    return "\n".join([*lines, *_ways(graphed)])


def regions(graphed: Graphed) -> list[Any]:
    """The regions that capture the graphs of calls that Dynamo's code runs."""
    found = graphed._front.graphs if graphed._front is not None else []
    return [region for _, traced in found for region in traced.regions]


AS_STEP = "as gfxgraph.TrainingStep(step) a step of training is one graph, backward and optimizer too"


def is_of_step(why: str) -> bool:
    """Whether a step of training is why calls run in pieces."""
    return "backward()" in why or "zero_grad" in why


def _ways(graphed: Graphed) -> list[str]:
    """A table of how many calls ran in which way, and why not by their own graph."""
    refused: dict[str, list[str]] = {}
    for label, found in graphed._padding.refusals.items():
        refused.setdefault(f"{REFUSED}: {found.reason}", []).append(label)
    account, parts = graphed.account.table(), Counter[str](graphed.stats()["parts"])
    done, of = account["operations"]
    rows = [(account["by_graph"], "by a graph", "")]
    rows += [(n, "in pieces", why) for why, n in graphed._pieces.most_common()]
    for why, n in graphed._eager.most_common():
        sizes = f" ({', '.join(refused[why])})" if why in refused else ""
        rows.append((n, "eager", why + sizes))
    rows += [(n, "raised", f"{why} at {account['places'].get(why, '')}") for why, n in account["raised"].items()]
    rows += [(n, "a piece", f"eager: {why}") for why, n in parts.most_common()]
    for why in set(refused) - set(graphed._eager):
        rows.append((0, "eager", f"{why} ({', '.join(refused[why])})"))
    lines = [f"  {'calls':>7}  way         why"]
    lines += [f"  {n:>7}  {way:<10}  {why}".rstrip() for n, way, why in rows]
    for why, n in graphed._slow_ways.most_common():
        lines.append(f"  {n} of those took the slow way: {why}")
    if graphed._pieces:
        share = f"; {done} of {of} operations ran in graphs" if of else ""
        lines.append(f"  in pieces: Python runs at each call, and each graph in between is its own{share}")
        if any(map(is_of_step, graphed._pieces)):
            lines.append(f"  {AS_STEP}")
    return lines


def advice(fn: Callable[..., Any], calls: Sequence[Any]) -> list[str]:
    """Names of arguments that are a different constant in each call.

    Args:
        calls: the structures of the calls seen (signature.py).
    """
    positional = [structure[1][1:] for structure in calls if isinstance(structure, tuple)]
    names = [each.name for each in parameters_of(fn)]
    found = []
    for i in range(min((len(each) for each in positional), default=0)):
        seen = {each[i] for each in positional if _is_number(each[i])}
        if len(seen) >= MANY_CONSTANTS:
            name = names[i] if i < len(names) else f"number {i + 1}"
            found.append(
                f"argument {name} was {len(seen)} different numbers: pass it as a tensor on the device, "
                "or what takes it is captured anew, or runs eagerly"
            )
    return found


def _is_number(structure: Any) -> bool:
    return isinstance(structure, tuple) and len(structure) == 2 and structure[0] in (int, float)
