"""gfxgraph port: audit, fix, build and verify a CUDA codebase for ROCm."""

from __future__ import annotations

from gfxgraph.errors import naming_a_missing_package

with naming_a_missing_package():
    from gfxgraph_port.commands.port import command as command
