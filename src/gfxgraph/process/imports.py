"""Callbacks right after a program has imported some module.

A finder on ``sys.meta_path`` waits for the module: it lets the other finders answer for it,
and makes the loader that they return call us once after it has run the module. The loader object remains
the module's own, so that code that inspects its ``__spec__`` sees no difference.

Torch-free, because torch is one of the modules waited for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class ImportWatcher:
    """A meta path finder that finds nothing itself; it notices one module and steps aside.

    Args:
        module: the module's full name.
        then: called once, right after the module has run.
    """

    def __init__(self, module: str, then: Callable[[], None]) -> None:
        self.module = module
        self.then = then

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the other finders' answer for the module, prepared to call ``then``."""
        if name != self.module:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                self._call_back_after(spec)
            if spec is not None:
                return spec
        return None

    def _call_back_after(self, spec: ModuleSpec) -> None:
        loader = spec.loader
        original = getattr(loader, "exec_module", None)
        if original is None:
            return

        def exec_module(module: ModuleType) -> None:
            # Restore the class's own method first: importlib.reload must not call again.
            del loader.exec_module  # type: ignore[union-attr]
            original(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            self.then()

        loader.exec_module = exec_module  # type: ignore[union-attr, method-assign]


def watch(module: str, then: Callable[[], None]) -> None:
    """Call ``then`` right after ``module`` is imported; at most one call is arranged per module."""
    if not is_watched(module):
        sys.meta_path.insert(0, ImportWatcher(module, then))


def is_watched(module: str) -> bool:
    """True until the import that ``watch`` waits for has happened."""
    return any(isinstance(finder, ImportWatcher) and finder.module == module for finder in sys.meta_path)
