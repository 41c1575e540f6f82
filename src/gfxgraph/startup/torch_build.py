"""Whether the torch that is installed can do what is asked of it, before anything is started."""

from __future__ import annotations

from gfxgraph.config import Config
from gfxgraph.errors import ActivationError
from gfxgraph.hardware.software import Torch, find_torch


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
