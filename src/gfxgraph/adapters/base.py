"""What an adapter is: an engine's name, the versions it is made for, and a way in and out.

Problem: an adapter stands on names inside an engine, which moves with every release. Idea: it says which
versions it knows, refuses the others before it touches anything, and keeps, for everything it replaces,
the way back.

    absent ──install──> in place ──uninstall──> absent
       └── refused: engine missing, version unknown, a name not there: nothing was changed

The kit in tests/conformance/adapters runs on every adapter found.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, ClassVar

from gfxgraph.config import Config
from gfxgraph.errors import ActivationError
from gfxgraph.hardware.versions import may_match, parse
from gfxgraph.process.imports import watch

log = logging.getLogger("gfxgraph")


class Undo:
    """What an adapter replaced, in order, and what stood there before."""

    def __init__(self) -> None:
        self._steps: list[Callable[[], None]] = []

    def replace(self, owner: Any, name: str, new: Any) -> None:
        """Set an attribute; put back exactly what the owner itself had, an inherited one by removing ours."""
        own = vars(owner).get(name, _ABSENT)
        setattr(owner, name, new)
        self.add((lambda: delattr(owner, name)) if own is _ABSENT else (lambda: setattr(owner, name, own)))

    def add(self, step: Callable[[], None]) -> None:
        self._steps.append(step)

    def all(self) -> None:
        """Take back everything, the last first."""
        while self._steps:
            self._steps.pop()()


_ABSENT = object()


def installed_version(distribution: str, module: str) -> str:
    """The version of an installed engine, "" where it is not there; it is imported only if nothing else says."""
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(distribution)
    if module not in sys.modules and importlib.util.find_spec(module) is None:
        return ""
    return str(getattr(import_module(module), "__version__", "")) or "unknown"


class Adapter(ABC):
    """One engine. A subclass names it and puts its replacements in place.

    Attributes:
        name: what users and the file are called.
        module: what is imported.
        distribution: what package metadata call it.
        supported: the versions whose names it knows, as ``>=1.2,<1.4``.
        parts: the engine's modules that it replaces something in.
    """

    name: ClassVar[str]
    module: ClassVar[str]
    distribution: ClassVar[str]
    supported: ClassVar[str]
    parts: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._undo = Undo()
        self._done: set[str] = set()

    @property
    def is_installed(self) -> bool:
        """True while it, or a part of it, is in place in this process."""
        return bool(self._done)

    def version(self) -> str:
        """The engine's version, "" where it is not installed."""
        return installed_version(self.distribution, self.module)

    def available(self) -> bool:
        """True where the engine is there in a version that the adapter knows."""
        version = self.version()
        return bool(version) and self._knows(version)

    def wanted(self, settings: Config) -> bool:
        """True where a process that was switched on with these settings is to install it by itself."""
        return True

    def install(self) -> None:
        """Put it in place, importing the engine; once more does nothing.

        Raises:
            ActivationError: `engine_missing`, `engine_version`, `engine_layout`; nothing is changed then.
        """
        self._install(self.parts)

    def install_when_imported(self) -> None:
        """Put each part in place as soon as the engine itself imports it; now, where it has.

        A refusal is a warning then: the engine's graphs still run on the bridge.
        """
        for part in self.parts:
            then = partial(self._install_or_warn, part)
            module = sys.modules.get(part)
            if module is not None and not getattr(module.__spec__, "_initializing", False):
                then()
            else:
                watch(part, then)

    def uninstall(self) -> None:
        """Put back every object that ``install`` replaced; does nothing where it is not in place."""
        with self._lock:
            self._done.clear()
            self._undo.all()

    @abstractmethod
    def put_in_place(self, undo: Undo, part: Any) -> None:
        """Replace, through ``undo``, what is to be replaced in one of ``parts``, the module itself."""

    def _install(self, parts: Sequence[str]) -> None:
        with self._lock:
            missing = [part for part in parts if part not in self._done]
            if not missing:
                return
            version = self.version()
            if not version:
                raise ActivationError(
                    "engine_missing", engine=self.name, module=self.module, supported=self.supported
                )
            if not self._knows(version):
                raise ActivationError("engine_version", engine=self.name, version=version, supported=self.supported)
            undo = Undo()
            try:
                for part in missing:
                    self.put_in_place(undo, import_module(part))
            except (AttributeError, ImportError) as error:
                undo.all()
                raise ActivationError(
                    "engine_layout", engine=self.name, version=version, supported=self.supported, quote=str(error)
                ) from error
            except BaseException:
                undo.all()
                raise
            self._undo.add(undo.all)
            self._done.update(missing)
            log.info("%s %s: adapter in place (%s)", self.name, version, ", ".join(missing))

    def _install_or_warn(self, part: str) -> None:
        try:
            self._install([part])
        except ActivationError as error:
            log.warning("%s", error)

    def _knows(self, version: str) -> bool:
        # A version that cannot be read fits every range; a name that is not there is noticed all the same.
        return may_match(parse(version), self.supported)
