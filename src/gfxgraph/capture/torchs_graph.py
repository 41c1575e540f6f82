"""torch's CUDAGraph by version: its error messages word for word, its arguments, its ``with`` block, its launch."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gfxgraph import torch_names
from gfxgraph.capture.undo import Baseline, is_interrupt
from gfxgraph.errors import CaptureError
from gfxgraph.process import process

STOCK_ALREADY = (
    "This CUDAGraph instance already owns a captured graph. To capture a new graph, create a new instance."
)
STOCK_DEFAULT_STREAM = (
    "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them "
    "on the default stream.)"
)
STOCK_NOT_BEGUN = "Capture must end on the same stream it began on."
STOCK_NOT_CAPTURED = "Called CUDAGraph::replay without a preceding successful capture."
STOCK_NO_RAW_GRAPH = (  # of 2.14 and newer: "No {api}Graph_t is available"
    "You cannot access the raw {api}Graph_t instance unless CUDAGraph was initialized with keep_graph=true"
)
STOCK_INSTANTIATE = "instantiate() is intended to be called by the user only when keep_graph=true"


def bare_launch(base: type) -> Callable[[Any], None]:
    """torch's replay of one instantiated graph, without hooks."""
    bound = torch_names._CUDAGraph
    if bound is not None and issubclass(base, bound) and hasattr(bound, "replay"):
        return bound.replay  # type: ignore[no-any-return]
    return base.replay  # type: ignore[no-any-return, attr-defined]


def launch_of(base: Any) -> Any:
    """torch's replay in its cheapest form that skips nothing.

    Up to 2.12 ``CUDAGraph.replay`` only calls the C method; later versions check and run hooks.
    """
    return bare_launch(base) if torch_names.version() < (2, 13) else base.replay


def liveness_check(
    args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[bool, tuple[tuple[Any, ...], dict[str, Any]]]:
    """Whether capture_begin is asked for ``check_input_liveness`` (torch 2.13 and later; here of any torch), and its
    arguments without it.

    The check is ours, since a capture of ours keeps its inputs alive: torch's would find nothing. And torch ends it
    by popping the top of the stack of modes, which would be the recorder.
    """
    is_torchs = torch_names.version() >= (2, 13)
    asked = bool(args[0] if args and is_torchs else kwargs.get("check_input_liveness", False))
    named = {name: item for name, item in kwargs.items() if name != "check_input_liveness"}
    return asked, ((False, *args[1:]) if args and is_torchs else args, named)


def checked_pool(pool: object) -> Any:
    """Return the pool in a form that torch accepts. Raises CaptureError `wrong_pool` if torch would abort on it."""
    if pool is None or hasattr(pool, "id"):
        return pool
    if not (isinstance(pool, tuple) and len(pool) == 2 and all(isinstance(part, int) for part in pool)):
        raise CaptureError(
            "wrong_pool", pool=pool, problem="a pool is what graph.pool() or graph_pool_handle() gives"
        )
    if pool[0] and pool[1]:
        raise CaptureError("wrong_pool", pool=pool, problem="one of the two numbers of a pool id is always 0")
    return pool


class _Block:
    """One ``with torch.cuda.graph`` block. An interrupt may strike before the first line of its exit, which ends the
    capture. Then this object, dropped with the traceback, ends it: what the program does later is not to be captured.
    """

    _before: Baseline | None = None

    def __init__(self) -> None:
        self._before = Baseline()
        self._thread = threading.get_ident()
        self.ref = weakref.ref(self)

    def leave(self, broken: bool) -> None:
        """The block is left; if ``broken``, end the captures begun inside it, and restore the thread's state."""
        before, self._before = self._before, None
        if broken and before is not None:
            for problem in before.undo_all():
                process.log.error("while leaving a capture's block: %s", str(problem))

    def __del__(self) -> None:
        if self._before is not None and self._thread == threading.get_ident() and not sys.is_finalizing():
            self.leave(any(session.block is self.ref for session in process.sessions()))


def enter_of_graph(original: Callable[..., object]) -> Callable[..., Any]:
    """Wrap ``torch.cuda.graph.__enter__``, which up to torch 2.14 leaves the capture stream current where
    ``capture_begin`` fails.
    """

    def __enter__(self: Any) -> Any:
        block = self._gfxgraph_block = _Block()
        try:
            result = original(self)
            session = getattr(self.cuda_graph, "_session", None)
            if session is not None:
                session.block = block.ref
            return result
        except BaseException:
            block.leave(broken=True)
            raise

    return __enter__


def exit_of_graph(original: Callable[..., object]) -> Callable[..., Any]:
    """Wrap ``torch.cuda.graph.__exit__``, which likewise leaves the stream where ``capture_end`` fails."""

    def __exit__(self: object, kind: object, error: BaseException | None, traceback: object) -> Any:
        block = self.__dict__.get("_gfxgraph_block")  # none if the bridge was switched on in between
        is_broken = True
        try:
            result = original(self, kind, error, traceback)
            # A generator's end may come much later, where the thread's state is another's.
            is_broken = error is not None and not isinstance(error, GeneratorExit) and is_interrupt(error)
            return result
        finally:
            if block is not None:
                block.leave(is_broken)

    return __exit__


# -- replay hooks (torch 2.14 and later): once per replay, however many segments it has ---------------------
#
# torch's ``CUDAGraph.replay`` runs the hooks around the launch of one graph. A program may launch several, or none if
# its tape runs, so its steps use the bare launch, and the hooks are run here.


@contextmanager
def run_replay_hooks(graph: object) -> Iterator[None]:
    """Run the hooks that torch runs before and after a replay of ``graph``, as torch does."""
    retained = getattr(graph, "_retained", None)
    if retained is not None and retained.sync_before_fire:
        retained.replay_streams.add(torch.cuda.current_stream())
    _run(torch_names._global_replay_start_hooks, getattr(graph, "_replay_start_hooks", None), graph)
    try:
        yield
    finally:
        _run(torch_names._global_replay_end_hooks, getattr(graph, "_replay_end_hooks", None), graph)


def _run(everywhere: object, own: Any, graph: Any) -> None:
    if everywhere:
        torch_names._run_global_hooks(everywhere, graph)  # type: ignore[attr-defined]
    if own:
        for hook in list(own.values()):
            hook(graph)


# -- the fast path of a replay: count down and launch --------------------------------------------------------


def decrement(graph: str) -> str:
    """The source line that takes one replay off the count; ``left < 0`` means that none was left."""
    return f"left = {graph}._left - 1"


def store_n(graph: str) -> str:
    """The source line that stores the new count."""
    return f"{graph}._left = left"


def replay_lines(graph: str, checked: str, unless: str = "") -> list[str]:
    """The source lines that replay ``graph``, for a namespace that has ``launch``.

    Args:
        graph: the expression that names it.
        checked: the statement to run instead when the count is used up.
        unless: a condition that also leads to ``checked``.
    """
    return [
        decrement(graph),
        f"if left < 0{f' or {unless}' if unless else ''}: {checked}",
        "else:",
        f"    {store_n(graph)}",
        f"    try: launch({graph})",
        f"    except RuntimeError as error: {graph}._replay_failed(error)",
    ]


_DOC = '''"""Replay the captured work on the current stream.

    Raises:
        ReplayError: `replay_before_capture`, `use_after_reset`, `graph_in_forked_child`, `no_fallback_left`.
        GuardMismatch: a value that the capture read has changed.
    """'''


def fast_replay(launch: Callable[[object], None], unless: str = "") -> Callable[..., None]:
    """Make the ``replay`` method of a graph that is launched by ``launch``; ``unless`` as above."""
    # A nested function, so that ``launch`` is a closure cell: a global would be looked up at every replay.
    body = replay_lines("self", "self._checked_replay()", unless)
    inner = "\n        ".join(["def replay(self):", _DOC, *body])
    source = f"def make(launch):\n    {inner}\n    return replay\n"
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(source, "<gfxgraph replay>", "exec"), names)
    return names["make"](launch)  # type: ignore[no-any-return]
