"""Running a tape eagerly: the reference for validation, and the fallback for replay.

Entries were recorded below autograd and autocast, so they run there again. An input comes from earlier in this run,
from a held external tensor, or from a fixed address that an earlier segment wrote. Results live in fresh memory until
they are copied out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from gfxgraph import torch_names
from gfxgraph.capture.record.streams import works_of
from gfxgraph.capture.replay.graph_tensors import has_layout
from gfxgraph.core.tape import Entry, Tape, TapeValue, leaves, substitute

Env = dict[TapeValue, Any]


@contextmanager
def below_autograd(*given: Tensor) -> Iterator[None]:
    """Run eagerly in the recorder's setting: no autograd, no autocast, in-place writes allowed anywhere.

    Args:
        given: what the work takes. In inference mode torch refuses to transpose a sparse tensor made outside it.
    """
    is_inference = all(map(has_layout, given)) or any(tensor.is_inference() for tensor in given)
    with torch.inference_mode(is_inference), torch.no_grad(), torch_names._DisableAutocast():
        yield


@contextmanager
def other_states() -> Iterator[Callable[[Any, Any], None]]:
    """Make generators draw from the states that the graph draws from; restore their own states at the end.

    A graph keeps using the state that a generator had at capture, even if ``graphsafe_set_state`` has given the
    generator another one since.
    """
    own: dict[int, tuple[Any, Any]] = {}

    def set_state(generator: Any, state: Any) -> None:
        own.setdefault(id(generator), (generator, generator.graphsafe_get_state()))
        generator.graphsafe_set_state(state)

    try:
        yield set_state
    finally:
        for generator, state in own.values():
            generator.graphsafe_set_state(state)


def last_uses(tape: Tape, keep: set[TapeValue]) -> list[list[TapeValue]]:
    """For each entry, and for the end, the values that are not needed after it."""
    last: dict[TapeValue, int] = {}
    for position, entry in enumerate(tape.entries):
        last.update(dict.fromkeys(leaves((entry.args, entry.kwargs, entry.outputs)), position))
    for before, _, base, _ in tape.aliases:
        last[base] = max(before, last.get(base, 0))
    drop: list[list[TapeValue]] = [[] for _ in range(len(tape.entries) + 1)]
    for value, position in last.items():
        if value not in keep:
            drop[position].append(value)
    return drop


def run_tape(
    tape: Tape,
    lookup: Callable[[TapeValue], Tensor],
    keep: set[TapeValue],
    after: Callable[[int, Entry, Env], None] | None = None,
) -> Env:
    """Run every entry in order; return the values of ``keep``.

    Args:
        lookup: gives the tensor of a value made outside this tape.
        keep: values wanted at the end; all others are dropped after their last use.
        after: called after each entry with its position, for comparing as the run goes.
    """
    env: Env = {}
    drop = last_uses(tape, keep)
    aliases: dict[int, list[tuple[int, TapeValue, TapeValue, tuple[Any, ...]]]] = {}
    for row in tape.aliases:
        aliases.setdefault(row[0], []).append(row)

    def value_of(value: TapeValue) -> Tensor:
        found = env.get(value)
        return found if found is not None else lookup(value)

    def make_aliases(position: int) -> None:
        for _, made, base, (dtype, size, stride, offset) in aliases.get(position, ()):
            storage = value_of(base).untyped_storage()
            device = value_of(base).device
            env[made] = torch.empty(0, dtype=dtype, device=device).set_(storage, offset, size, stride)

    with below_autograd(), other_states() as take_state:
        for position, entry in enumerate(tape.entries):
            make_aliases(position)
            if position in tape.generators:
                take_state(*tape.generators[position])
            result = entry.func(*substitute(entry.args, value_of), **substitute(entry.kwargs, value_of))
            if type(result) is tuple:
                wait_for_collective(result)
            bind(entry.outputs, result, env)
            if after is not None:
                after(position, entry, env)
            for value in drop[position]:
                env.pop(value, None)
        make_aliases(len(tape.entries))
    return {value: env[value] for value in keep if value in env}


def wait_for_collective(result: object) -> None:
    """Wait for a collective that was called as an operation: it returns before it has completed.

    Programs wait by calling ``wait`` on the object that ``torch.distributed`` returns, which no dispatch mode sees.
    On the
    device it is the stream that waits, not the host.
    """
    for work in works_of(result):
        work.wait()


def bind(spec: Any, result: Any, env: Env) -> None:
    """Store the tensors of ``result`` in ``env`` under the values named in ``spec``."""
    kind = type(spec)
    if kind is TapeValue:
        if not spec.is_external:
            env[spec] = result
    elif kind is tuple or kind is list:
        for part, item in zip(spec, result):
            bind(part, item, env)
