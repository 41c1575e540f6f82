"""What a program under gfxgraph starts with: its environment, for all of its processes, and a torch that will do."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gfxgraph import config
from gfxgraph.config import Config
from gfxgraph.errors import ActivationError, check_settings
from gfxgraph.hardware.software import Torch, find_torch

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


def refuse_unsuitable(settings: Config, python: str, build: Torch | None = None) -> None:
    """Raise the errors of activation that depend only on the installed torch.

    Called before a program is started, so that none of it runs. Errors that depend on the device
    are found after torch is imported.

    Args:
        settings: the program's settings.
        python: the interpreter, for the message.
        build: the torch that has been imported; None: the one that would be.

    Raises:
        ActivationError: `no_torch`, `not_rocm_cuda_torch` or `not_rocm_cpu_torch`.
    """
    build = build or find_torch()
    if build.kind == "none":
        raise ActivationError("no_torch", python=python)
    if build.hip or settings.simulate:
        return
    if not build.cuda:
        raise ActivationError("not_rocm_cpu_torch", torch_version=build.version)
    if not settings.allow_cuda:
        raise ActivationError("not_rocm_cuda_torch", torch_version=build.version, cuda_version=build.cuda)
