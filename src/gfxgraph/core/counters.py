"""Counters: what was captured, replayed, split, validated, and every fallback with its reason.

Thread-safe where several threads write. A graph counts its own replays; ``snapshot`` adds
these counts, so the hot path takes no lock.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gfxgraph.core.locks import new_lock


@dataclass(slots=True)
class Counters:
    """Counts of one process."""

    _lock: threading.RLock = field(default_factory=new_lock)
    _counts: Counter[str] = field(default_factory=Counter)
    events: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    """By kind, reason, operation and line."""
    _replay_us: tuple[float, int] = (0.0, 0)

    def add(self, name: str, n: int = 1) -> None:
        with self._lock:
            self._counts[name] += n

    def set(self, name: str, n: int) -> None:
        with self._lock:
            self._counts[name] = n

    def event(self, kind: str, reason: str, op: str = "", where: str = "") -> bool:
        """Count an event. Returns True the first time this kind, op and reason is seen (log it then)."""
        key = (kind, reason, op, where)
        with self._lock:
            first = key not in self.events
            self.events[key] += 1
            self._counts[kind] += 1
            return first

    def replay_took(self, us: float, n: int = 1) -> None:
        # Without the lock: replays run in autograd's threads, too. A sample lost to another thread does no harm.
        total, timed = self._replay_us
        self._replay_us = total + us, timed + n

    def reset(self) -> None:
        with self._lock:
            self._counts.clear()
            self.events.clear()
            self._replay_us = (0.0, 0)

    def snapshot(self, live_replays: Callable[[], Iterable[int]] = tuple) -> dict[str, object]:
        """All counts, with ``avg_replay_us`` over the replays that were timed (None before the first)."""
        with self._lock:
            counts, events = Counter(self._counts), list(self.events.items())
            total, timed = self._replay_us
        fallbacks: Counter[str] = Counter()
        for (kind, reason, *_), n in events:
            if kind == "fallback":
                fallbacks[reason] += n
        return {
            "capture_count": counts["capture"],
            "capture_failures": counts["capture_failed"],
            "replay_count": counts["replay"] + sum(live_replays()),
            "fallback_count": counts["fallback"],
            "fallbacks": dict(fallbacks),
            "split_count": counts["split"],
            "guard_mismatches": counts["guard_mismatch"],
            "validations": counts["validated"],
            "validation_failures": counts["validation_failed"],
            "validations_skipped": counts["validation_skipped"],
            "graphs_retired": counts["retired"],
            "reloads_followed": counts["reload_followed"],
            "reloads_refused": counts["reload_refused"],
            "tensors_followed": counts["reload_tensors"],
            "reload_bytes_kept": counts["reload_nbytes"],
            "inputs_only_graphs_hold": counts["input_let_go"],
            "opaque_launches": counts["opaque"],
            "not_recorded": counts["not_recorded"],
            "effects_not_undone": counts["effects_not_undone"],
            "guard_repairs": counts["guard_repaired"],
            "guard_refusals": counts["guard_refused"],
            "guard_faults": counts["guard_faults"],
            "guard_unchecked_nodes": counts["guard_unchecked"],
            "avg_replay_us": round(total / timed, 2) if timed else None,
            "events": [dict(zip(("kind", "reason", "op", "where"), what)) | {"count": n} for what, n in events],
        }
