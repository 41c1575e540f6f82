"""How one runtime version behaves during a capture, read from ``profiles/*.toml``.

Enters: TOML rows.
Stays out: torch, devices; runtime.py applies the rules.

A rule says what one call does when it meets a capture, by capture mode:
``records`` (becomes a node), ``runs`` (executes at once, success, nothing recorded),
``refuses CODE`` (error, capture lives on), ``refuses CODE and invalidates``.
"""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gfxgraph.errors import SimulatorError

MODES = ("global", "thread_local", "relaxed")
ALIASES = {"hip": "hip-7.2"}
_FOLDER = Path(__file__).parent / "profiles"
_RULE = re.compile(r"^(records|runs|refuses (\d+)( and invalidates)?)$")


@dataclass(frozen=True, slots=True)
class CallRule:
    """What a call does; ``code`` is 0 if it succeeds."""

    records: bool = False
    code: int = 0
    invalidates: bool = False


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    name: str
    arch: str
    capability: tuple[int, int]
    warp_size: int
    multiprocessors: int


@dataclass(frozen=True)
class Profile:
    name: str
    platform: str  # "cuda" or "hip"
    version: tuple[int, ...]
    torch_hip: str | None  # what torch.version.hip says
    device: DeviceFacts
    nested_begin: int
    # Status code of a failed EndCapture -> the stream's capture status afterwards.
    after_failed_end: dict[int, str]
    stuck_launch: CallRule
    # With as many nodes enabled as at the last launch, but different ones, the old ones run again.
    switched_nodes_go_stale: bool
    # An end of capture follows forks for ever where streams wait for each other, and the process dies...
    mutual_waits_crash: bool
    # ...but a wait for an event of the stream's own fork makes no fork of it.
    joins_make_no_fork: bool
    # torch's memcpy_and_sync calls hipStreamGetCaptureInfo first and raises 900 by itself (ROCm < 7.14, 2.9.1+).
    guards_memcpy_and_sync: bool
    # torch 2.12's capture_end refuses what it has ended, or never came to begin; seen with HIP 7.15.
    ends_a_capture_once: bool
    calls: dict[str, dict[str, CallRule]]

    def rule(self, call: str, mode: str) -> CallRule:
        return self.calls[call][mode]


def names() -> list[str]:
    """Names of all profiles, aliases included."""
    return sorted([path.stem for path in _FOLDER.glob("*.toml")] + list(ALIASES))


@functools.cache
def load(name: str) -> Profile:
    """Read profile ``name``.

    Raises:
        SimulatorError: `simulator_unknown_profile`.
    """
    path = _FOLDER / f"{ALIASES.get(name, name)}.toml"
    if not path.is_file():
        raise SimulatorError("simulator_unknown_profile", profile=name, known=", ".join(names()))
    return _parse(_read(path))


def _read(path: Path) -> dict[str, Any]:
    table = tomllib.loads(path.read_text("utf-8"))
    parent = table.pop("extends", None)
    return table if parent is None else _overlay(_read(path.with_name(f"{parent}.toml")), table)


def _overlay(below: dict[str, Any], above: dict[str, Any]) -> dict[str, object]:
    merged = dict(below)
    for key, value in above.items():
        # A call's row replaces the parent's whole row: modes of two versions must not mix.
        deep = isinstance(value, dict) and key in merged and key in ("device", "calls", "capture")
        merged[key] = _overlay(merged[key], value) if deep else value
    return merged


def _parse(table: dict[str, Any]) -> Profile:
    capture = table["capture"]
    return Profile(
        name=table["name"],
        platform=table["platform"],
        version=tuple(table["version"]),
        torch_hip=table.get("torch_hip"),
        device=DeviceFacts(**table["device"] | {"capability": tuple(table["device"]["capability"])}),
        nested_begin=capture["nested_begin"],
        after_failed_end={int(code): status for code, status in capture["after_failed_end"].items()},
        stuck_launch=_rule(capture["stuck_launch"]),
        switched_nodes_go_stale=table.get("switched_nodes_go_stale", False),
        mutual_waits_crash=table.get("mutual_waits_crash", False),
        joins_make_no_fork=table.get("joins_make_no_fork", False),
        guards_memcpy_and_sync=table["guards_memcpy_and_sync"],
        ends_a_capture_once=table.get("ends_a_capture_once", False),
        calls={k: {m: _rule(row.get(m) or row["all"]) for m in MODES} for k, row in table["calls"].items()},
    )


def _rule(text: str) -> CallRule:
    match = _RULE.match(text)
    if match is None:
        raise ValueError(f"not a rule: {text!r}")
    records = match[1] == "records"
    return CallRule(code=int(match[2]), invalidates=bool(match[3])) if match[2] else CallRule(records=records)
