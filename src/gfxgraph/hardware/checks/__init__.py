"""Health checks for doctor. Each is a function of a ``Site``; ``ALL`` is the order of the screen.

A check reads files only. It never opens a device or imports torch, and it is run with a time limit all the same: a
read from sysfs can hang on a wedged GPU.

    check.py      what a check is given and returns (findings.toml); time limits
    host.py       GPUs, kernel driver, permissions, containers, PCIe
    installed.py  ROCm, PyTorch, wheels, engines, accelerators
    settings.py   environment variables that hurt (harmful_variables.toml); settings of ours that were refused
"""

from __future__ import annotations

from gfxgraph.hardware.checks import host, installed, settings
from gfxgraph.hardware.checks.check import LIMIT_S, Check, CheckResult, CheckState, Site, hung, run

ALL: tuple[Check, ...] = (*host.CHECKS, *installed.CHECKS, *settings.CHECKS)

__all__ = ["ALL", "LIMIT_S", "Check", "CheckResult", "Site", "CheckState", "hung", "run"]
