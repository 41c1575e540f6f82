"""Whole calls of compiled code as one graph, without Dynamo's guards before a replay.

Problem: before anything is launched, a call of compiled code spends its time in Dynamo: it compares everything that
the function read when it was traced, and loads every parameter. For a 16-layer Llama that is more than a
hundred times a replay. Idea: if ``GFXGRAPH_COMPILE=calls`` asks for it, the compiled function becomes a graphed
callable, which compares its arguments and watches modules, and what the function itself names.

That is less than Dynamo compares. So it must be requested, and it is done only for functions that Dynamo traced in
one
piece and found to change nothing in Python: no list grown, no attribute set. Any other function keeps Dynamo's path,
in
which each compiled region is a graph. A context variable that is set and reset does not count as a change.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from gfxgraph.callables.graphed import Graphed
from gfxgraph.callables.options import Options
from gfxgraph.process import bridge
from gfxgraph.types import ReplayMode

CONTEXT_VARIABLES = frozenset({"ContextVar", "CompileableContextVar"})
"""Classes of objects that a call sets and resets; the second is from transformers."""
_running = threading.local()


class CompiledCallable:
    """The compiled function, and what is learned about it while Dynamo traces it."""

    def __init__(self, compiled: Callable[..., Any]) -> None:
        functools.update_wrapper(self, compiled, updated=())
        self._compiled = compiled
        # A graphed callable watches what the function inside the compiled one names.
        self._torchdynamo_orig_callable = getattr(compiled, "_torchdynamo_orig_callable", compiled)
        self.why_not = ""
        self.is_known = False

    def __call__(self, *args: object, **kwargs: object) -> Any:
        before, n_breaks = getattr(_running, "traced", None), _n_breaks()
        _running.traced = self
        try:
            return self._compiled(*args, **kwargs)
        finally:
            _running.traced = before
            if _n_breaks() != n_breaks:
                self.why_not = self.why_not or "Dynamo traces it in several pieces"
            if not self.is_known:
                self.why_not = self.why_not or "it was compiled before, so what it changes in Python is not known"


class WholeCalls:
    """A compiled function whose calls are replayed whole if nothing prevents it."""

    def __init__(self, compiled: Callable[..., Any]) -> None:
        functools.update_wrapper(self, compiled, updated=())
        self._compiled = compiled
        self._traced = CompiledCallable(compiled)
        self.graphed = Graphed(self._traced, Options(mode=ReplayMode.HOT, assume_pure=True))

    def __call__(self, *args: object, **kwargs: object) -> Any:
        if self._traced.why_not:
            return self._compiled(*args, **kwargs)
        return self.graphed(*args, **kwargs)

    @property
    def compiled(self) -> Callable[..., Any]:
        """The compiled function, whose regions are graphs."""
        return self._compiled

    @property
    def why_not(self) -> str:
        """Why calls are not replayed whole; empty if they are."""
        return self._traced.why_not

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._compiled, name)


WholeCalls.__call__._torchdynamo_disable = True  # type: ignore[attr-defined]  # inside compiled code it is a break


def _n_breaks() -> int:
    # lazily: Dynamo takes seconds to import
    from torch._dynamo.utils import counters

    return sum(counters["graph_break"].values())


def note_what_is_traced() -> None:
    """Called while Inductor compiles what Dynamo has just traced: note whether the function changes anything in
    Python.
    """
    traced: CompiledCallable | None = getattr(_running, "traced", None)
    if traced is None or traced.why_not:
        return
    # lazily: Dynamo takes seconds to import
    from torch._dynamo.symbolic_convert import InstructionTranslator

    try:
        changed = InstructionTranslator.current_tx().output.side_effects._get_modified_vars()
    except AttributeError:
        traced.why_not = "this torch does not report what a traced function changes"
        return
    traced.is_known = True
    for variable in changed:
        kind = type(variable.mutation_type).__name__
        if kind.endswith("New") or type(getattr(variable, "value", None)).__name__ in CONTEXT_VARIABLES:
            continue
        traced.why_not = f"it changes {getattr(variable.source, 'name', 'an object')} in Python"


def take_name(torch: Any, is_asked: Callable[[dict[str, Any]], bool]) -> None:
    """Make ``torch.compile`` return `WholeCalls` if graphs are asked for, until the bridge is switched off.

    Args:
        is_asked: whether these arguments of ``torch.compile`` ask for graphs.
    """
    stock = torch.compile

    @functools.wraps(stock)
    def compile(model: object = None, **kwargs: object) -> Any:
        made = stock(model, **kwargs)
        if model is None or not is_asked(kwargs) or isinstance(made, WholeCalls):
            return made
        if isinstance(made, torch.nn.Module):
            made.forward = WholeCalls(made.forward)
            return made
        return WholeCalls(made)

    bridge.replace(torch, "compile", compile)
