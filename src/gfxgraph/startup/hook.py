"""Switch gfxgraph on right after a program has imported torch, and never before.

Importing torch takes seconds and memory, so a process that does not use it must not pay for it. The
waiting is done by a finder on ``sys.meta_path``: asked for "torch", it lets the other finders answer, and
has the loader they return call us once when it has run the module. The loader object stays torch's own,
so that nothing that inspects ``torch.__spec__`` sees a difference.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class TorchWatcher:
    """A meta path finder that finds nothing itself; it notices torch and steps aside."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Answer for "torch" with what the other finders say, prepared to call ``activate``."""
        if name != "torch":
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
            # Back to the class's own method first: importlib.reload(torch) must not activate again.
            del loader.exec_module  # type: ignore[union-attr]
            original(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            activate()

        loader.exec_module = exec_module  # type: ignore[union-attr, method-assign]


def install_if_asked() -> None:
    """Arrange activation where the environment asks for it: now if torch is loaded, else when it will be.

    Costs a microsecond, and changes nothing, where ``GFXGRAPH`` is not set.
    """
    # Looked up here, and not through config, because importing that takes longer than all of
    # ``import gfxgraph`` should.
    if not os.environ.get("GFXGRAPH"):  # noqa: TID251
        return
    from gfxgraph import config

    if not config.load().is_on:
        return
    if "torch" in sys.modules:
        if not getattr(sys.modules["torch"].__spec__, "_initializing", False):
            activate()
        return
    if not any(isinstance(finder, TorchWatcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, TorchWatcher())


def activate() -> None:
    """Switch the bridge on as the environment says, or end the process saying why it cannot be.

    Raises:
        SystemExit: status 2, after the reason was written to stderr. A program asked to run with graphs
            made safe must not run without that and look as if it had been. With HGB_LOG_LEVEL=debug the
            error itself is raised, with its traceback.
    """
    from gfxgraph import config
    from gfxgraph.errors import GfxGraphError
    from gfxgraph.runtime.activation import activate_from_environment

    try:
        activate_from_environment()
    except GfxGraphError as error:
        if config.load().log_level is config.LogLevel.DEBUG:
            raise
        sys.stderr.write(f"{error}\n")
        raise SystemExit(2) from None
    report_at_exit()


def report_at_exit() -> None:
    """Have this process write its statistics when it ends, where ``gfxgraph run --stats`` asked for them."""
    from gfxgraph.startup import stats_file

    stats_file.register()
