"""vLLM: in every process of a server, and a graph that cannot be captured becomes eager.

vLLM captures at start. An exception there ends the engine core, and the server with it. We give the wrappers that
capture (full, piecewise, breakable) a fallback: the graph that failed is left out, its ranks agree on that, and its
work runs eagerly from then on.

How a process gets here: gfxgraph, which each process switches on as it imports torch (startup/hook.py), sees it
import the wrappers.

Source: vllm/compilation/cuda_graph.py and breakable_cudagraph.py of vLLM 0.33.0, which `make test-engines`
runs unmodified.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from gfxgraph.adapters._eager_fallback import Downgraded, attempt, report
from gfxgraph.adapters._needs import NeededName
from gfxgraph.adapters.adapter import Adapter
from gfxgraph.core.replaced import Replaced
from gfxgraph.core.tape import Args, Kwargs

_FULL = "vllm.compilation.cuda_graph"
_BREAKABLE = "vllm.compilation.breakable_cudagraph"
_CONTEXT = (NeededName("is_forward_context_available"), NeededName("get_forward_context"))


class VllmAdapter(Adapter):
    """Wraps the calls of vLLM's graph wrappers."""

    name = "vllm"
    module = "vllm"
    needs = {
        _FULL: (
            NeededName("CUDAGraphWrapper", keeps="concrete_cudagraph_entries graph_pool runnable runtime_mode"),
            NeededName("CUDAGraphWrapper.clear_graphs"),
            NeededName("CUDAGraphEntry", keeps="cudagraph input_addresses"),
            *_CONTEXT,
        ),
        _BREAKABLE: (
            NeededName("BreakableCUDAGraphWrapper", keeps="entries graph_pool runnable runtime_mode"),
            NeededName("BreakableCUDAGraphWrapper.clear_graphs"),
            NeededName("_BreakableEntry", keeps="capture input_addresses"),
            NeededName("BreakableCUDAGraphCapture", keeps="_tls"),
            *_CONTEXT,
        ),
    }
    tested = "0.33.0"

    def put_in_place(self, undo: Replaced, part: Any) -> None:
        if part.__name__ == _FULL:
            wrapper, entries, graph = part.CUDAGraphWrapper, "concrete_cudagraph_entries", "cudagraph"
            clean: Callable[[], object] = partial(_given, None)  # ``with torch.cuda.graph`` does it
        else:
            wrapper, entries, graph = part.BreakableCUDAGraphWrapper, "entries", "capture"
            clean = partial(_forget_capture, part.BreakableCUDAGraphCapture)
        # Names in the wrapper's own module, through which it makes these calls.
        undo.replace(wrapper, "__call__", _surviving(wrapper.__call__, part, entries, graph, clean))
        undo.replace(wrapper, "clear_graphs", _forgetting(wrapper.clear_graphs))


def _surviving(
    original: Callable[..., object], contexts: object, entries_name: str, graph_name: str, clean: Callable[[], object]
) -> Callable[..., object]:
    """Wrap ``__call__`` of a wrapper, so that it continues after a failed capture.

    Args:
        entries_name: where the wrapper keeps its graphs by batch.
        graph_name: where an entry keeps its graph, None until it is captured.
        clean: cleans up what the engine leaves behind when a capture fails.
    """

    @functools.wraps(original)
    def __call__(self: Any, *args: object, **kwargs: object) -> object:
        entries, n = getattr(self, entries_name), self.__dict__.get("_gfxgraph_captured", 0)
        if n and n == len(entries):  # each has its graph: one more is seen afterwards, without the key and its hash
            try:
                result = original(self, *args, **kwargs)
                if n == len(entries):
                    return result
                call = partial(_given, result)
            except RuntimeError as error:
                if n == len(entries):
                    raise
                call = partial(_given, None, error)
            return captured(self, entries, call, args, kwargs)
        key, eager = _key(self, contexts, args, kwargs), self.__dict__.get("_gfxgraph_eager", {})
        if key in eager:
            return eager[key](*args, **kwargs)
        if key is None or getattr(entries.get(key), graph_name, None) is not None:
            return original(self, *args, **kwargs)
        return captured(self, entries, partial(original, self, *args, **kwargs), args, kwargs)

    def captured(
        self: Any, entries: dict[object, object], call: Callable[[], object], args: Args, kwargs: Kwargs
    ) -> object:
        """The result of a call that captures; or the work done eagerly, as from then on."""
        key, own = _key(self, contexts, args, kwargs), self.__dict__
        eager: dict[object, Downgraded] = own.setdefault("_gfxgraph_eager", {})
        result, error = attempt(
            self,
            self.graph_pool,
            _tp_group(),
            call,
            # vLLM notes the addresses right before a capture.
            began=lambda: getattr(entries.get(key), "input_addresses", None) is not None,
            clean=clean,
        )
        if error is not None:
            entries.pop(key, None)
            report("vLLM", f"{type(self).__name__} {key}", error)
            eager[key] = Downgraded(self.runnable)
        n = sum(getattr(each, graph_name) is not None for each in entries.values())
        own["_gfxgraph_captured"] = 0 if eager else n
        # A capture only records: if it failed, this step's work is still to be done.
        return result if error is None else eager[key](*args, **kwargs)

    return __call__


def _given(result: object, error: RuntimeError | None = None) -> object:
    if error is not None:
        raise error
    return result


def _forgetting(original: Callable[..., object]) -> Callable[..., object]:
    """Wrap ``clear_graphs`` of a wrapper: graphs that became eager may be tried again."""

    @functools.wraps(original)
    def clear_graphs(self: object) -> None:
        self.__dict__.pop("_gfxgraph_eager", None)
        self.__dict__.pop("_gfxgraph_holder", None)
        original(self)

    return clear_graphs


def _key(wrapper: Any, contexts: Any, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """The key of this call's graph in the wrapper; None if it passes the call through."""
    if not contexts.is_forward_context_available():
        return None
    context = contexts.get_forward_context()
    mode = context.cudagraph_runtime_mode
    if mode.name == "NONE" or (wrapper.runtime_mode is not None and mode != wrapper.runtime_mode):
        return None
    key_fn = getattr(wrapper, "key_fn", None) if "key_fn" in vars(wrapper) else None
    return context.batch_descriptor if key_fn is None else (context.batch_descriptor, key_fn(*args, **kwargs))


def _forget_capture(capture: Any) -> None:
    # If its first segment fails to begin, the capture stays "active" for good, and every later one counts as
    # "nested".
    capture._tls.active = None


def _tp_group() -> object:
    return getattr(sys.modules.get("vllm.distributed.parallel_state"), "_TP", None)


ADAPTER = VllmAdapter()
