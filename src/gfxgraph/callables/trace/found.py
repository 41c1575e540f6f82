"""What Dynamo gave for one frame: its FX graph, where that reads, and why it is not the whole call."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

BROKEN = "Python runs between its graphs"


@dataclass
class Found:
    """What Dynamo gave for one frame."""

    root: Any
    graph: Any
    sources: list[str]
    """Of the graph's inputs, in their order; "" for a number that Dynamo computed."""
    why_not_whole: str = ""
    code: list[Any] = field(default_factory=list)
    """Of every function that was traced on the way."""
    stores: list[tuple[str, str, Any]] = field(default_factory=list)
    """Constants that the frame's code leaves in objects: source of the object, attribute, value."""


def is_outside(source: str) -> bool:
    """True for what a frame does not have as a value of its own: globals, and what objects hold.

    ``L['x']`` and ``L['args'][0]`` are values at hand, another one at each call; ``L['self'].weight`` is an
    object's, and expected to be the same one.
    """
    return source.startswith("G[") or "." in _IN_BRACKETS.sub("", source)


_IN_BRACKETS = re.compile(r"\[[^\[\]]*\]")


def look(graph: Any) -> Found:
    """What Dynamo knows of the frame whose graph it hands to its backend."""
    # lazily: Dynamo takes seconds to import, and is there when it calls this
    from torch._dynamo.side_effects import AttributeMutationNew, ValueMutationNew
    from torch._dynamo.symbolic_convert import InstructionTranslator
    from torch._dynamo.variables import ConstantVariable

    tx = InstructionTranslator.current_tx()
    output = tx.output
    sources = []
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            argument = node.meta.get("grapharg")
            sources.append(_name_of(argument.source) if argument is not None else "")
    found = Found(output.root_tx.f_code, graph, sources, code=list(output.tracing_context.traced_code))
    reason = output.compile_subgraph_reason
    if reason is None or reason.graph_break:
        found.why_not_whole = f"{BROKEN}: {said(str(reason.reason) if reason else '')}"
        return found
    if output.random_calls:
        found.why_not_whole = "it draws random numbers of the host"
        return found
    effects = output.side_effects
    for each in list(effects.id_to_variable.values()):
        if isinstance(each.mutation_type, AttributeMutationNew | ValueMutationNew) or not effects.is_modified(each):
            continue
        stored = effects.store_attr_mutations.get(each)
        is_constant = stored and all(isinstance(value, ConstantVariable) for value in stored.values())
        if each.source is None or not is_constant:
            what = _name_of(each.source) if each.source is not None else type(each).__name__
            found.why_not_whole = f"it changes {what}"
            return found
        for name, value in stored.items():
            found.stores.append((_name_of(each.source), name, value.as_python_constant()))
    if effects.tensor_hooks or effects.save_for_backward:
        found.why_not_whole = "it registers hooks on tensors"
    return found


def _name_of(source: Any) -> str:
    name = source.name
    return str(name() if callable(name) else name)


def said(why: str) -> str:
    """What Dynamo says of a break, in one line: the kind of break, and what it was at."""
    lines = [line.strip() for line in why.splitlines() if line.strip()]
    at = [line.removeprefix("Developer debug context:").strip() for line in lines if line.startswith("Developer")]
    return f"{lines[0]} ({at[0]})" if at and at[0] else lines[0] if lines else "no reason given"
