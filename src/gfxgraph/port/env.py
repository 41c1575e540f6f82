"""The machine a port is brought up on: variables, packages, device files. Phases 0 and 1 of the port.

Facts are gathered once into plain data, so that rules about them are tested without the machine.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from gfxgraph.hardware.access import KFD, container, device_nodes
from gfxgraph.hardware.checks import Site
from gfxgraph.hardware.software import find_torch
from gfxgraph.port.archs import Arch, table
from gfxgraph.port.model import Finding, Severity
from gfxgraph.port.registry import for_kind

_KEPT = re.compile(r"TORCH|INDUCTOR|TRITON|HIP|ROCM|ROCR|HSA|GPU|AMD|CUDA|NCCL|RCCL|MIOPEN|DYNAMO")


@dataclass(frozen=True, slots=True)
class Env:
    """Facts about one machine and one Python environment."""

    variables: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    torch_version: str = ""
    torch_build: str = ""  # "rocm", "cuda", "cpu" or "" where there is no torch
    devices: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    has_kfd: bool = False
    numa_balancing: str = ""
    python: str = ""
    container: str = ""

    def archs(self) -> tuple[Arch, ...]:
        return tuple(a for a in table() if a.name in self.devices)


def from_json(text: str) -> Env:
    """Facts written down, as in a rule's example or in a report from another machine."""
    data: dict[str, Any] = json.loads(text)
    torch = data.get("torch") or {}
    return Env(
        variables=data.get("variables") or {},
        packages=data.get("packages") or {},
        torch_version=torch.get("version", ""),
        torch_build=torch.get("build", ""),
        devices=tuple(data.get("devices") or ()),
        denied=tuple(data.get("denied") or ()),
        has_kfd=bool(data.get("has_kfd")),
        numa_balancing=str(data.get("numa_balancing", "")),
        python=str(data.get("python", "")),
        container=str(data.get("container", "")),
    )


def gather(site: Site | None = None) -> Env:
    """Read this machine's facts through the readers that ``gfxgraph doctor`` uses. torch is not imported.

    Args:
        site: what to look at; this machine where None.
    """
    site = site or Site()
    packages = {}
    for dist in metadata.distributions():
        name = dist.metadata["Name"] if dist.metadata else None
        if name:
            packages[name.lower().replace("_", "-")] = dist.version
    version, build = torch_build(list(site.search) if site.search is not None else None)
    nodes = device_nodes(site.machine)
    return Env(
        variables={k: v for k, v in site.machine.environ.items() if _KEPT.search(k)},
        packages=packages,
        torch_version=version,
        torch_build=build,
        devices=tuple(gpu.arch for gpu in site.gpus),
        denied=tuple(n.path for n in nodes if n.exists and not n.may_open),
        has_kfd=any(n.path == KFD and n.exists for n in nodes),
        numa_balancing=site.machine.text("/proc/sys/kernel/numa_balancing"),
        python=".".join(map(str, sys.version_info[:3])),
        container=container(site.machine),
    )


def torch_build(search: list[str] | None = None) -> tuple[str, str]:
    """Version and build (``rocm``, ``cuda``, ``cpu``, or "" without torch) of the torch that would be imported."""
    found = find_torch(search)
    kind = found.kind
    if kind == "cpu" and "+rocm" in found.version:
        kind = "rocm"
    return (found.version, kind) if found.version else ("", "")


def audit_env(env: Env) -> list[Finding]:
    """Run the rules about the machine."""
    found = []
    for rule, check in for_kind("env"):
        for hit in check(env, None):
            severity = hit.severity if hit.severity is not None else rule.severity
            found.append(
                Finding(
                    rule.id, rule.code, "environment", 0, hit.column, severity, rule.phase, rule.fix,
                    rule.cost, tuple(a.name for a in env.archs() if a in rule.archs), "", dict(hit.values),
                )
            )  # fmt: skip
    found.sort(key=lambda f: (-f.severity, f.rule))
    return found


def worst(findings: list[Finding]) -> Severity:
    return max((f.severity for f in findings), default=Severity.INFO)
