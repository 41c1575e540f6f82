"""Which of two variants is faster on this device: measured once, stored for later processes.

Both are captured and their replays alternate, so that launch overhead, which a graph removes, does not decide.
Results
are stored in ``kernels.json`` in the user's state folder, by device, versions and what was compared. A file that
cannot
be read or written is not an error: it is reported once and the trial is repeated.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from gfxgraph import config, files
from gfxgraph.process import process

VERSION = 2
"""Increased when the timed kernels change."""
N_CALLS, N_TURNS = 10, 7
MARGIN = 0.98
"""Ours must take less than this share of the time: a difference too small to be sure changes nothing."""
MOST_ROWS = 2048


@dataclass(frozen=True, slots=True)
class TrialTimes:
    """Microseconds per call, the median of the turns."""

    ours_us: float
    theirs_us: float

    @property
    def is_ours(self) -> bool:
        """Whether to use ours."""
        return self.ours_us < MARGIN * self.theirs_us


class Kept:
    """Verdicts on disk: one JSON file, replaced as a whole.

    Args:
        folder: "" to keep nothing.
    """

    def __init__(self, folder: str) -> None:
        self.path = Path(folder) / "kernels.json" if folder else None

    def get(self, about: dict[str, Any]) -> TrialTimes | None:
        """The stored result for this key, if it can be read."""
        row = self._rows().get(_key(about))
        try:
            return TrialTimes(float(row["ours_us"]), float(row["theirs_us"])) if isinstance(row, dict) else None
        except (KeyError, TypeError, ValueError, OverflowError):
            return None

    def put(self, about: dict[str, Any], verdict: TrialTimes) -> None:
        """Store a verdict; what other processes have stored meanwhile is kept."""
        if self.path is None:
            return
        rows = self._rows()
        rows[_key(about)] = {**asdict(verdict), "about": about, "at": round(time.time())}
        newest = sorted(rows.items(), key=lambda item: _time(item[1]))[-MOST_ROWS:]
        try:
            files.new_folder(self.path.parent, 0o700)
            files.write(self.path, json.dumps({"version": VERSION, "rows": dict(newest)}, indent=1))
        except OSError as error:
            _report("verdicts_not_kept", f"{self.path}: {error.strerror}")

    def _rows(self) -> dict[str, Any]:
        if self.path is None:
            return {}
        try:
            data = files.read_json(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError) as error:
            _report("verdicts_not_read", f"{self.path}: {error}")
            return {}
        rows = data.get("rows") if isinstance(data, dict) and data.get("version") == VERSION else None
        return rows if isinstance(rows, dict) else {}


def kept() -> Kept:
    """The store in the folder from the settings."""
    state = process.current()
    return Kept(state.settings.state_dir if state is not None else config.load().state_dir)


def compare(
    about: dict[str, Any], ours: Callable[[], Any], theirs: Callable[[], Any], device: torch.device, store: Kept
) -> TrialTimes:
    """The stored result for the two variants, or a new measurement.

    Args:
        about: the verdict's key, apart from the device and the versions.
        ours, theirs: have run once on the device; can be captured.
    """
    about = {**about, **_platform(device)}
    found = store.get(about)
    if found is None:
        found = measured(ours, theirs, device)
        store.put(about, found)
    return found


def measured(ours: Callable[[], Any], theirs: Callable[[], Any], device: torch.device) -> TrialTimes:
    """Time both alternately: as graphs on a GPU, by the clock elsewhere."""
    timers = [timer(way, device) for way in (ours, theirs)]
    turns = [[timer() for timer in timers] for _ in range(N_TURNS)]
    mine, other = (statistics.median(column) for column in zip(*turns))
    return TrialTimes(mine, other)


def timer(way: Callable[[], Any], device: torch.device, n_calls: int = N_CALLS) -> Callable[[], float]:
    """A function that returns the microseconds of one call, timed over ``n_calls`` in a graph."""
    if device.type != "cuda":

        def by_clock() -> float:
            began = time.perf_counter()
            way()
            return (time.perf_counter() - began) * 1e6

        way()
        return by_clock
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(3):
            way()
    torch.cuda.current_stream(device).wait_stream(stream)
    with torch.cuda.graph(graph):
        for _ in range(n_calls):
            way()

    def by_events() -> float:
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        graph.replay()
        begun.record()
        graph.replay()
        ended.record()
        ended.synchronize()
        return begun.elapsed_time(ended) * 1e3 / n_calls

    return by_events


def _platform(device: torch.device) -> dict[str, Any]:
    # lazily: Triton need not be there
    from importlib.metadata import PackageNotFoundError, version

    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = ""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {
        "device": name,
        "torch": torch.__version__,
        "runtime": torch.version.hip or torch.version.cuda,
        "triton": triton,
    }


def _key(about: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]


def _time(row: Any) -> float:
    at = row.get("at") if isinstance(row, dict) else None
    return at if isinstance(at, (int, float)) else 0.0


def _report(kind: str, reason: str) -> None:
    reason = reason.encode("utf-8", "backslashreplace").decode()  # a path may hold what no terminal takes
    state = process.current()
    if state is not None:
        state.report(kind, reason)
    else:
        process.log.warning("%s: %s", kind.replace("_", " "), reason)
