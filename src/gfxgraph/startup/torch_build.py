"""Which torch is installed, read from its version file; torch itself is not imported.

Importing torch takes seconds; ``torch/version.py`` is a page of plain assignments.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from gfxgraph.config import Config
from gfxgraph.errors import ActivationError

_ASSIGNMENT = re.compile(r"^(__version__|hip|cuda)\b[^=\n]*=\s*['\"]([^'\"]*)['\"]", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """An installed torch; ``hip`` and ``cuda`` are the versions it was built for, or ''."""

    version: str
    hip: str
    cuda: str


def installed_torch() -> TorchBuild | None:
    """Return the torch that ``import torch`` would give in this process, or None if it would fail."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    for folder in spec.submodule_search_locations:
        file = Path(folder) / "version.py"
        if file.is_file():
            found = dict(_ASSIGNMENT.findall(file.read_text(encoding="utf-8")))
            return TorchBuild(found.get("__version__", ""), found.get("hip", ""), found.get("cuda", ""))
    return None


def refuse_unsuitable(settings: Config, python: str) -> None:
    """Raise the errors of activation that depend only on the installed torch.

    Called before a program is started, so that none of it runs. Errors that depend on the device
    are found after torch is imported.

    Args:
        settings: the program's settings.
        python: the interpreter, for the message.

    Raises:
        ActivationError: `no_torch`, `not_rocm_cuda_torch` or `not_rocm_cpu_torch`.
    """
    build = installed_torch()
    if build is None:
        raise ActivationError("no_torch", python=python)
    if build.hip or settings.simulate:
        return
    if not build.cuda:
        raise ActivationError("not_rocm_cpu_torch", torch_version=build.version)
    if not settings.allow_cuda:
        raise ActivationError("not_rocm_cuda_torch", torch_version=build.version, cuda_version=build.cuda)
