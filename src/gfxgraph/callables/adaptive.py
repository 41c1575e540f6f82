"""``adaptive``: each signature runs as graph or eagerly, whichever was measured to be faster, and says why.

Timings are taken while a signature is undecided: a pair of events on the stream around the call. Nothing waits for
them; a later call that finds them completed reads the time. A call that is not timed pays for one comparison.

On an idle stream the time between two events is what the caller waits for, launch overhead included; on a
busy stream, what the device needs. Both are what matters in their case.

Decisions are stored in the user's state folder by torch, ROCm or CUDA, device, function and
signature, so that the next process starts with them. A file that cannot be read or written is not
an error: it is reported once and left alone.
"""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch

from gfxgraph.capture.capture_lock import is_capturing_anywhere
from gfxgraph.core.eager_or_graph import Choice, Decision, Way
from gfxgraph.process import process
from gfxgraph.process.measurements import Kept, key_of

VERSION = 1
MOST_ROWS = 4096
MOST_WAITING = 64


def store() -> Kept:
    """Decisions on disk."""
    return Kept("decisions", "decisions", VERSION, MOST_ROWS, logging.INFO)


class Adaptive:
    """The choices of one graphed callable.

    Args:
        fn: the function, identified by its name and its code, so that a changed body gets new timings.
        device_index: the device whose timings these are.
    """

    def __init__(self, fn: Callable[..., Any], device_index: int, store: Kept) -> None:
        self.store = store
        self.about = {**_platform(device_index), "function": _function(fn)}
        self._choices: dict[Any, _Timed] = {}

    def of(self, signature: str) -> _Timed:
        """The choice for one signature, taken from an earlier run if one is stored."""
        timed = self._choices.get(signature)
        if timed is None:
            about = {**self.about, "signature": signature}
            timed = self._choices[signature] = _Timed(self.store, key_of(about), about)
        return timed

    def why(self) -> str:
        """One line per signature: what was decided, and from which timings."""
        lines = [f"{signature}: {timed.why()}" for signature, timed in self._choices.items()]
        return "\n".join(lines) or "no signature has been captured yet"


class _Timed:
    """One signature: how its next call runs, and the events not read yet."""

    def __init__(self, store: Kept, key: str, about: dict[str, str]) -> None:
        self._store, self._key, self._about = store, key, about
        self.choice = Choice(decision=kept_decision(store, key))
        self.is_from_disk = self.choice.decision is not None
        self._n_timed = 0
        self._waiting: deque[tuple[Way, Any, Any]] = deque()

    def decided(self) -> Way | None:
        """How to run a call that need not be timed; None if this one is to be timed."""
        if self._waiting:
            self.collect()
        decision = self.choice.decision
        return decision.way if decision is not None else None

    def next_way(self) -> Way:
        """How the next timed call runs."""
        return self.choice.next_way(self._n_timed)

    def timed(self, way: Way, run: Callable[[], Any]) -> Any:
        """Run the call between two events, which are read later."""
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begun.record()
        result = run()
        ended.record()
        self._n_timed += 1
        if len(self._waiting) < MOST_WAITING:
            self._waiting.append((way, begun, ended))
        return result

    def collect(self) -> None:
        """Read the completed events without waiting for any."""
        if is_capturing_anywhere():
            return
        while self._waiting and self._waiting[0][2].query():
            way, begun, ended = self._waiting.popleft()
            decision = self.choice.add(way, begun.elapsed_time(ended) * 1e3)
            if decision is not None:
                self._waiting.clear()
                self._store.put(self._key, {"decision": decision.as_dict(), "about": self._about})
                _report("adaptive", f"{self._about['function']} {self._about['signature']}: {decision}")
                return

    def why(self) -> str:
        said = self.choice.why()
        return f"{said}; measured in an earlier run" if self.is_from_disk and not self._n_timed else said


def kept_decision(store: Kept, key: str) -> Decision | None:
    """The decision kept under a key, if it can be read."""
    try:
        return Decision.from_dict(store.get(key)["decision"])
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return None


def _platform(device_index: int) -> dict[str, str]:
    properties = torch.cuda.get_device_properties(device_index)
    arch = getattr(properties, "gcnArchName", "") or f"sm_{properties.major}{properties.minor}"
    toolkit = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    return {"torch": str(torch.__version__), "toolkit": toolkit, "device": properties.name, "arch": arch}


def _function(fn: Any) -> str:
    """The function's name and a digest of its code; for a module, of its class and parameters."""
    if isinstance(fn, torch.nn.Module):
        kinds = sorted(f"{name}:{list(p.shape)}:{p.dtype}" for name, p in fn.named_parameters())
        layers = [type(module).__qualname__ for module in fn.modules()]
        return f"{type(fn).__module__}.{type(fn).__qualname__}#{_digest([*kinds, *layers])}"
    inner = getattr(fn, "__func__", fn)
    inner = getattr(inner, "_torchdynamo_orig_callable", inner)
    code = getattr(inner, "__code__", None)
    owner = getattr(fn, "__self__", None)
    parts = _of_code(code) if code is not None else [type(inner).__qualname__]
    if isinstance(owner, torch.nn.Module):
        parts.append(_function(owner))
    name = getattr(fn, "__qualname__", type(fn).__qualname__)
    return f"{getattr(fn, '__module__', '')}.{name}#{_digest(parts)}"


def _of_code(code: CodeType) -> list[str]:
    parts = [code.co_code.hex(), repr(code.co_names)]
    for constant in code.co_consts:
        parts += _of_code(constant) if isinstance(constant, CodeType) else [repr(constant)]
    return parts


def _digest(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _report(kind: str, reason: str) -> None:
    state = process.current()
    if state is not None:
        state.report(kind, reason, level=logging.INFO)
