"""Being called right after a program has imported some module.

The waiting is done by a finder on ``sys.meta_path``: asked for the module, it lets the other finders
answer, and has the loader they return call us once when it has run the module. The loader object stays
the module's own, so that nothing that inspects its ``__spec__`` sees a difference.

Torch-free, because torch is one of those that are waited for.
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
        """Answer for the module with what the other finders say, prepared to call ``then``."""
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
            # Back to the class's own method first: importlib.reload must not call again.
            del loader.exec_module  # type: ignore[union-attr]
            original(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            self.then()

        loader.exec_module = exec_module  # type: ignore[union-attr, method-assign]


def watch(module: str, then: Callable[[], None]) -> None:
    """Have ``then`` called right after ``module`` is imported; at most one call is arranged for a module."""
    if not is_watched(module):
        sys.meta_path.insert(0, ImportWatcher(module, then))


def is_watched(module: str) -> bool:
    """True until the import that ``watch`` waits for is over."""
    return any(isinstance(finder, ImportWatcher) and finder.module == module for finder in sys.meta_path)
