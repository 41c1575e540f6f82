"""The adapter interface: an engine's name, what the adapter needs from it, install and uninstall.

Problem: an adapter depends on names inside an engine, which change with every release. Idea: it declares what it
needs, whatever the version (_needs.py), refuses an engine that lacks any of it before it changes anything, and
records the original of everything it replaces.

    absent ──install──> in place ──uninstall──> absent
       └── refused: the engine, or something needed, is missing: nothing was changed

The test kit in tests/conformance/adapters runs on every adapter found.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import ClassVar

from gfxgraph.adapters._needs import NeededName, missing
from gfxgraph.config import Config
from gfxgraph.core.replaced import Replaced
from gfxgraph.errors import ActivationError
from gfxgraph.process import process
from gfxgraph.process.imports import watch

log = logging.getLogger("gfxgraph")


def installed_version(module: str) -> str:
    """The version of an installed engine, "" if it is not installed; imports it only if there is no other way.

    Looks for the package of the same name first; builds under other names (onnxruntime-migraphx) are imported.
    """
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(module)
    if module not in sys.modules and importlib.util.find_spec(module) is None:
        return ""
    return str(getattr(import_module(module), "__version__", "")) or "unknown"


class GraphedObject:
    """What stands for an engine's own object and runs it as graphs: every other name is the object's.

    Attributes:
        inner: the attribute with the engine's object.
    """

    inner: ClassVar[str]

    def __getattr__(self, name: str) -> object:
        if name == self.inner:  # not set yet, as during unpickling
            raise AttributeError(name)
        return getattr(getattr(self, self.inner), name)


class OwnMethods:
    """An engine's object with the methods that an adapter has replaced; holds it weakly."""

    def __init__(self, held: object, **methods: Callable[..., object]) -> None:
        self._held, self._methods = weakref.ref(held), methods

    def __getattr__(self, name: str) -> object:
        held = self._held()
        return partial(self._methods[name], held) if name in self._methods else getattr(held, name)

    def __repr__(self) -> str:
        return repr(self._held())


class Adapter(ABC):
    """One engine. A subclass names it and installs its replacements.

    Attributes:
        name: the name for users, and of the file.
        module: what is imported.
        needs: by module of the engine in which it replaces something: what must exist.
        tested: the versions that `make test-versions` and `make test-engines` ran; others are not refused.
    """

    name: ClassVar[str]
    module: ClassVar[str]
    needs: ClassVar[dict[str, tuple[NeededName, ...]]]
    tested: ClassVar[str]

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._undo = Replaced()
        self._done: set[str] = set()

    @property
    def is_installed(self) -> bool:
        """True while it, or a part of it, is installed in this process."""
        return bool(self._done)

    def version(self) -> str:
        """The engine's version, "" if it is not installed."""
        return installed_version(self.module)

    def available(self) -> bool:
        """True if the engine is installed and, as far as is known yet, has what is needed."""
        return bool(self.version()) and self.name not in _refused.values()

    def wanted(self, settings: Config) -> bool:
        """Whether enabling a process should install this adapter automatically.

        Args:
            settings: the process's settings.
        """
        return True

    def install(self) -> None:
        """Import the engine and install the adapter; does nothing if it is installed.

        Raises:
            ActivationError: `engine_missing`, `engine_layout`; nothing is changed then.
        """
        self._install(list(self.needs))

    def install_when_imported(self) -> None:
        """Install each part as soon as the engine imports it, or now if it has.

        A refusal is then only a warning, and counted: the engine's graphs still run on the bridge.
        """
        for part in self.needs:
            then = partial(self._install_or_warn, part)
            module = sys.modules.get(part)
            if module is not None and not getattr(module.__spec__, "_initializing", False):
                then()
            else:
                watch(part, then)

    def uninstall(self) -> None:
        """Restore every object that ``install`` replaced; does nothing if it is not installed."""
        with self._lock:
            self._done.clear()
            self._undo.undo()
            for why in [why for why, name in _refused.items() if name == self.name]:
                del _refused[why]

    @abstractmethod
    def put_in_place(self, undo: Replaced, part: object) -> None:
        """Make the replacements in one of the engine's modules.

        Args:
            undo: makes replacements and records the originals.
            part: the module, one of ``needs``.
        """

    def _install(self, parts: Sequence[str]) -> None:
        with self._lock:
            left = [part for part in parts if part not in self._done]
            if not left:
                return
            version = self.version()
            if not version:
                raise ActivationError("engine_missing", engine=self.name, module=self.module)
            undo = Replaced()
            try:
                modules = [import_module(part) for part in left]
                lacking = [name for module in modules for name in missing(module, self.needs[module.__name__])]
                if lacking:
                    raise AttributeError(", ".join(lacking))
                for module in modules:
                    self.put_in_place(undo, module)
            except BaseException as error:
                undo.undo()
                if not isinstance(error, (AttributeError, ImportError)):
                    raise
                raise ActivationError(
                    "engine_layout", engine=self.name, version=version, missing=str(error), tested=self.tested
                ) from error
            self._undo.add(undo.undo)
            self._done.update(left)
            log.info("%s %s: adapter in place (%s)", self.name, version, ", ".join(left))

    def _install_or_warn(self, part: str) -> None:
        try:
            self._install([part])
        except ActivationError as error:
            self.refuse(error)

    def refuse(self, error: ActivationError) -> None:
        """Leave a part of the engine alone: reported in full once, and counted as a fallback of this process.

        Args:
            error: why its adapter does not fit; ``engine_layout`` or ``engine_missing``.
        """
        why = f"{self.name} {self.version()} runs without its adapter: {error.fields.get('missing', error.code)}"
        if why in _refused:
            return
        _refused[why] = self.name
        log.warning("%s", error)
        if (state := process.current()) is not None:
            state.counters.event("fallback", why, self.name)


_refused: dict[str, str] = {}
"""Why adapters were refused in this process, with their names."""
