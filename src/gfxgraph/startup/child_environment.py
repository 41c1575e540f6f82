"""The environment of a program that runs under gfxgraph, for all of its processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gfxgraph import config
from gfxgraph.errors import check_settings

PATH = Path(__file__).parent / "path"
"""Put first on PYTHONPATH: Python imports its ``sitecustomize`` when it starts."""

REQUIRED = "GFXGRAPH_REQUIRED"
"""Set for a program that was started to run with safe graphs: a process in which it cannot be on ends."""


def program_environment(asked: Mapping[str, str]) -> tuple[dict[str, str], config.Config]:
    """Return this process's environment with ``asked`` and activation added, and the settings that result.

    Raises:
        ConfigError: `bad_setting`.
    """
    environment = dict(os.environ) | dict(asked)  # noqa: TID251  (handed on whole, not read)
    before = config.load(environment)
    check_settings(before)
    if not before.is_on:
        environment["GFXGRAPH"] = "1"
        environment.pop("SGLANG_DISABLE_GFXGRAPH", None)
    environment[REQUIRED] = "1"
    # Activation looks for the GPU, which initializes its driver. vLLM forks its workers by default, and no forked
    # child survives an initialized driver; vLLM itself checks only whether torch has initialized the GPU.
    environment.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    # A process that dies of a signal says where its Python code was.
    environment.setdefault("PYTHONFAULTHANDLER", "1")
    settings = config.load(environment)
    check_settings(settings)
    environment["PYTHONPATH"] = first_on_path(PATH, environment.get("PYTHONPATH", ""))
    return environment, settings


def first_on_path(folder: Path, search_path: str) -> str:
    """Put ``folder`` first on ``search_path``, unless it is there already."""
    if not search_path:
        return str(folder)
    if search_path.split(os.pathsep)[0] == str(folder):
        return search_path
    return f"{folder}{os.pathsep}{search_path}"
