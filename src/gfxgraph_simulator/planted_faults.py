"""Planted failures: which call fails, with which code, and which replay gives wrong results.

Enters: counts and codes, set by tests.
Stays out: the calls themselves; runtime.py and allocator.py consult this file before they act.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

# Calls whose Nth occurrence can fail.
CALLS = ("begin", "op", "end", "instantiate", "launch", "malloc", "synchronize", "exec_params", "copy_kernel")

# How a node may end: sticky error 700; ROCr's text on stderr and SIGABRT; never; with one wrong element.
NODE_ENDINGS = ("fault", "abort", "hang", "wrong")


@dataclass
class WrongReplay:
    """Corrupt the output of one node of one graph exec.

    Args:
        node: index of the node in the graph, in recording order; negative counts from the end.
        replay: 1 for the first launch of an exec, 0 for every launch.
        graph: index of the exec among those instantiated since install; None means every one.
        add: the amount to add to the first element of the first tensor that the node writes.
    """

    node: int = -1
    replay: int = 0
    graph: int | None = None
    add: float = 1.0


@dataclass
class Faults:
    """The simulator's fault plan; a new one is empty. Counts start when the plan is set."""

    # call name (one of CALLS) -> {n: code}: the n-th such call from now fails with the code.
    fail: dict[str, dict[int, int]] = field(default_factory=dict)
    oom_at_allocation: int | None = None  # the Nth allocation raises torch.OutOfMemoryError
    wrong_replays: list[WrongReplay] = field(default_factory=list)
    # Operation -> what happens when a graph runs it: one of NODE_ENDINGS.
    at_nodes: dict[str, str] = field(default_factory=dict)
    slow_launch_s: float = 0.0  # every graph launch takes this much longer
    calls: Counter[str] = field(default_factory=Counter)
    changed: Callable[[], None] = lambda: None  # the device rereads the plan only when told to

    def fail_nth(self, call: str, n: int, code: int) -> None:
        """Make the ``n``-th ``call`` from now fail with ``code``."""
        if call not in CALLS:
            raise ValueError(f"{call!r} is not one of {', '.join(CALLS)}")
        self.fail.setdefault(call, {})[self.calls[call] + n] = code
        self.changed()

    def plant(self, text: str) -> None:
        """Plant a failure written as in ``fault=aten::gather``, the form used after a profile's name.

        Raises:
            ValueError: it is not one of ``NODE_ENDINGS`` with an operation.
        """
        ending, _, op = text.partition("=")
        if ending not in NODE_ENDINGS or not op:
            raise ValueError(text)
        self.at_nodes[op] = ending

    def ending_of(self, node_name: str) -> str:
        """The failure planted for a node, by the operation's name with or without its overload."""
        plain = node_name.removeprefix("sim::")
        return self.at_nodes.get(plain) or self.at_nodes.get(plain.rsplit(".", 1)[0], "")

    def oom_nth(self, n: int) -> None:
        """Make the ``n``-th allocation from now run out of memory."""
        self.oom_at_allocation = self.calls["allocate"] + n

    def strike(self, call: str) -> int:
        """Count one ``call``; return the code it must fail with, or 0."""
        self.calls[call] += 1
        planned = self.fail.get(call)
        return planned.pop(self.calls[call], 0) if planned else 0

    def strike_allocation(self) -> bool:
        self.calls["allocate"] += 1
        return self.oom_at_allocation == self.calls["allocate"]
