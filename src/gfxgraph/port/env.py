"""The machine a port is brought up on: variables, packages, device files. Phases 0 and 1 of the port.

Facts are gathered once into plain data, so that rules about them are tested without the machine.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

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
    )


def gather(variables: Mapping[str, str]) -> Env:
    """Read this machine's facts. torch's version file is read, torch is not imported.

    Args:
        variables: the process environment, as ``config`` gives it.
    """
    packages = {}
    for dist in metadata.distributions():
        name = dist.metadata["Name"] if dist.metadata else None
        if name:
            packages[name.lower().replace("_", "-")] = dist.version
    version, build = torch_build()
    denied = tuple(
        p
        for p in ["/dev/kfd", *(str(x) for x in sorted(Path("/dev/dri").glob("renderD*")))]
        if os.path.exists(p) and not os.access(p, os.R_OK | os.W_OK)
    )
    return Env(
        variables={k: v for k, v in variables.items() if _KEPT.search(k)},
        packages=packages,
        torch_version=version,
        torch_build=build,
        devices=tuple(_kfd_devices()),
        denied=denied,
        has_kfd=os.path.exists("/dev/kfd"),
        numa_balancing=_read("/proc/sys/kernel/numa_balancing"),
        python=".".join(map(str, __import__("sys").version_info[:3])),
    )


def torch_build(search: list[str] | None = None) -> tuple[str, str]:
    """Version and build of the installed torch from its own ``version.py``, without importing it."""
    try:
        dists = metadata.distributions(name="torch", path=search) if search else metadata.distributions(name="torch")
        dist = next(iter(dists), None)
    except OSError:
        dist = None
    if dist is None:
        return "", ""
    text = ""
    located = dist.locate_file("torch/version.py")
    try:
        text = Path(str(located)).read_text(encoding="utf-8")
    except OSError:
        pass  # an editable or broken install: judge by the version alone
    if re.search(r"^hip\s*(?::[^=]+)?=\s*['\"]", text, re.M) or "+rocm" in dist.version:
        return dist.version, "rocm"
    if re.search(r"^cuda\s*(?::[^=]+)?=\s*['\"]", text, re.M) or "+cu" in dist.version:
        return dist.version, "cuda"
    return dist.version, "cpu"


def _kfd_devices() -> Iterator[str]:
    """gfx names of the kernel driver's topology."""
    for node in sorted(Path("/sys/class/kfd/kfd/topology/nodes").glob("*/properties")):
        match = re.search(r"^gfx_target_version\s+(\d+)$", _read(str(node)), re.M)
        if match and int(match.group(1)):
            version = int(match.group(1))
            yield f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


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
