"""Imported by Python when it starts, in every process under ``gfxgraph run``.

It must cost nothing and break nothing in processes that have nothing to do with torch: shells' helper
scripts, package managers, other virtual environments. So it reads one variable, and any problem
before torch is imported gives a line on stderr, never an exception. Then it runs the
``sitecustomize`` that Python would have imported otherwise.
"""

import importlib.machinery
import importlib.util
import os
import sys


class _GfxgraphFinder:
    """Finds gfxgraph, and nothing else, in the installation that started this process.

    A program may run in its own virtual environment without gfxgraph. The finder comes last, so that an
    environment which has gfxgraph uses its own.
    """

    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != "gfxgraph":
            return None
        init = os.path.join(self.package, "__init__.py")
        return importlib.util.spec_from_file_location(name, init, submodule_search_locations=[self.package])


def _wait_for_torch() -> None:
    asked = os.environ.get("GFXGRAPH") or os.environ.get("SGLANG_RDNA2_KERNELS")  # noqa: TID251  (before any import)
    if not asked:
        return
    if sys.version_info < (3, 11):  # noqa: UP036  (any Python may be started below us)
        sys.stderr.write("gfxgraph: not active in this process: it needs Python 3.11 or newer\n")
        return
    sys.meta_path.append(_GfxgraphFinder())  # type: ignore[arg-type]
    # lazily: a program without gfxgraph on its path continues without it
    from gfxgraph.startup.hook import install_if_asked

    install_if_asked()


def _give_way() -> None:
    """Run the sitecustomize that this one hides, under its own name."""
    here = os.path.dirname(os.path.abspath(__file__))
    others = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    sys.path[:] = others
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


try:
    _wait_for_torch()
except Exception as error:  # noqa: BLE001  (a program that never imports torch must start regardless)
    sys.stderr.write(f"gfxgraph: not active in this process: {error!r}\n")
_give_way()
