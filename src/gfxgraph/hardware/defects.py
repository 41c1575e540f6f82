"""Known defects of GPU graphs: which apply here, and what they change.

The table is data (``defects.toml``); this module is its meaning. A row that may apply does: an
unknown version or architecture counts as affected. Both functions are pure, so every ROCm row can
be tested on a machine without ROCm.
"""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from gfxgraph.hardware import bad_versions
from gfxgraph.hardware.defect_environment import Environment
from gfxgraph.hardware.versions import may_match


@dataclass(frozen=True, slots=True)
class DefectRow:
    """One defect. ``action`` holds fields of ``Decisions``, and ``env``, ``advice`` and ``always`` for people."""

    id: str
    status: str
    sources: tuple[str, ...]
    symptom: Mapping[str, str]
    platform: str = "hip"
    rocm: str = ""
    hip: str = ""
    torch: str = ""
    arch: str = "*"
    min_gpus: int = 0
    cured_by: Mapping[str, str] = field(default_factory=dict)
    action: Mapping[str, Any] = field(default_factory=dict)

    def where(self) -> str:
        """The row's range in words."""
        parts = [
            f"{name} {spec}" for name, spec in (("rocm", self.rocm), ("hip", self.hip), ("torch", self.torch)) if spec
        ]
        if self.arch != "*":
            parts.append(self.arch)
        if self.min_gpus:
            parts.append(f"{self.min_gpus}+ GPUs")
        return ", ".join(parts) or {"any": "everywhere", "hip": "every ROCm"}.get(self.platform, "every CUDA")


@dataclass(frozen=True, slots=True)
class Reason:
    """Why one decision is what it is: the rows that asked for it."""

    decision: str
    value: object
    rows: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Decisions:
    """What the runtime does differently because of defects.

    Attributes:
        capture_error_mode: mode to use where the caller left torch's default; None keeps it.
        relaxed_capture_mode: mode to use where a program asks for relaxed captures; None keeps it.
        validate_replays: how many first replays of each graph are compared with eager.
        max_nodes: split a graph that grows past this; None for no limit.
        update_budget: node updates of one graph exec before it is instantiated anew; None: no limit.
        drain_watchdog: before a capture, wait until NCCL's watchdog has no event left to ask about.
        join_copies: wait, on the device, for host copies issued before a replay.
        keep_graphs: do not destroy graph execs before the process ends.
        synchronize_after_destroy: synchronize the device after destroying a graph exec.
        destroy_before_exit: destroy graphs in order at exit, before the runtime unloads.
        node_walk_resets: launch with every node off between two sets of nodes that a walk enables.
        node_walk: may be used at all.
        inductor_graphs: "ours" where graphs that torch.compile is asked for must not be Inductor's; None: as asked.
        inductor: settings of Inductor in force while torch.compile compiles, where the user set nothing else.
        set_env: variables that ``run`` sets before HIP starts, where the user has not.
        env: variables worth setting before the process starts.
        advice: sentences for people.
        reasons: for each field that differs from its default, the rows behind it.
    """

    capture_error_mode: str | None = None
    relaxed_capture_mode: str | None = None
    validate_replays: int = 0
    max_nodes: int | None = None
    update_budget: int | None = None
    drain_watchdog: bool = False
    join_copies: bool = False
    keep_graphs: bool = False
    synchronize_after_destroy: bool = False
    destroy_before_exit: bool = False
    node_walk: bool = True
    node_walk_resets: bool = False
    inductor_graphs: str | None = None
    inductor: Mapping[str, Any] = field(default_factory=dict)
    set_env: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    advice: tuple[str, ...] = ()
    reasons: tuple[Reason, ...] = ()

    def because(self, decision: str) -> tuple[str, ...]:
        """The rows behind one decision; () where it is the default."""
        return next((reason.rows for reason in self.reasons if reason.decision == decision), ())


# How two rows that speak of the same decision are reconciled: always towards caution.
_least: Callable[[Any, Any], Any] = min
_most: Callable[[Any, Any], Any] = max
_MERGE: dict[str, Callable[[Any, Any], Any]] = {
    "validate_replays": _most,
    "max_nodes": _least,
    "update_budget": _least,
    "inductor": lambda old, new: old | new,
    "set_env": lambda old, new: old | new,
}


@lru_cache(maxsize=1)
def rows() -> tuple[DefectRow, ...]:
    """Return the whole table, in file order."""
    with (Path(__file__).parent / "defects.toml").open("rb") as file:
        table = tomllib.load(file)
    bad = [
        {"id": row.id, "sources": row.sources, "symptom": {"en": row.en["why"], "zh": row.zh["why"]}, **row.graph}
        for row in bad_versions.rows()
        if row.graph
    ]
    return tuple(DefectRow(**(row | {"sources": tuple(row["sources"])})) for row in [*table["row"], *bad])


def applicable(environment: Environment) -> list[DefectRow]:
    """Return the rows that may apply in ``environment``, in file order, cured ones left out."""
    return [row for row in rows() if applies(row, environment) and not is_cured(row, environment)]


def applies(row: DefectRow, environment: Environment) -> bool:
    """True where ``row`` may apply, whether or not a variable cures it."""
    if environment.platform == "none" or row.platform not in ("any", environment.platform):
        return False
    if row.min_gpus and environment.n_gpus < row.min_gpus:
        return False
    known = environment.archs
    if known and not any(fnmatch.fnmatchcase(arch, row.arch) for arch in known):
        return False
    return (
        may_match(environment.rocm, row.rocm)
        and may_match(environment.hip, row.hip)
        and may_match(environment.torch, row.torch)
    )


def is_cured(row: DefectRow, environment: Environment) -> bool:
    """True where one of the variables that cure the defect is set so."""
    return any(environment.environ.get(name) == value for name, value in row.cured_by.items())


def decide(environment: Environment) -> Decisions:
    """Return what the applicable rows ask for together, with the rows behind each decision."""
    plain = {item.name for item in fields(Decisions)} - {"env", "advice", "reasons"}
    values: dict[str, Any] = {}
    because: dict[str, list[str]] = {}
    env: dict[str, str] = {}
    advice: list[str] = []
    for row in applicable(environment):
        for name, value in row.action.items():
            if name == "env":
                env |= value
            elif name == "advice":
                advice.append(value)
            elif name in plain:
                merge = _MERGE.get(name, lambda old, new: new)
                values[name] = merge(values[name], value) if name in values else value
                because.setdefault(name, []).append(row.id)
    wanted = {name: value for name, value in env.items() if environment.environ.get(name) != value}
    reasons = tuple(Reason(name, values[name], tuple(ids)) for name, ids in because.items())
    return replace(Decisions(), **values, env=wanted, advice=tuple(advice), reasons=reasons)
