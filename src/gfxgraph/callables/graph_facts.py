"""Facts about a captured graph, from its tape: what it reads, writes and draws."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from gfxgraph.capture.replay.graph_tensors import Layout
from gfxgraph.core.tape import leaves


def writes_of(graph: Any) -> list[Tensor | Layout]:
    """External tensors that a replay of a captured graph writes, as tensors or layouts."""
    program = graph._program
    return [place for step in program.steps for place in step.mutated]


def reads_of(graph: Any) -> list[Tensor | Layout]:
    """Everything that a replay reads from outside its own memory."""
    program = graph._program
    found: list[Tensor | Layout] = []
    for step in program.segments:
        for entry in step.tape.entries:
            for value in itertools.chain(leaves(entry.args), leaves(entry.kwargs)):
                if value.is_external and value in program.externals:
                    found.append(program.externals[value])
    return found


def draws(graph: Any) -> bool:
    """True if a replay draws random numbers, as far as the tape shows."""
    program = graph._program
    return any(step.tape.generators for step in program.segments) or any(
        True for step in program.steps for _ in step.random_states()
    )


def span(place: Tensor | Layout) -> tuple[int, int]:
    """First address and the one past the last."""
    layout = place if isinstance(place, Layout) else Layout.of(place)
    return layout.address, layout.address + layout.span_nbytes


def overlap(one: Iterable[tuple[int, int]], other: Iterable[tuple[int, int]]) -> bool:
    theirs = list(other)
    return any(a < d and c < b for a, b in one for c, d in theirs)


def written_inputs(graph: Any, inputs: list[Tensor]) -> list[int]:
    """Positions of the static inputs that a replay writes."""
    places = [span(place) for place in writes_of(graph)]
    return [at for at, tensor in enumerate(inputs) if overlap([span(tensor)], places)]
