"""Switch gfxgraph on right after a program has imported torch, and never before; adapters, after their engines.

Importing torch takes seconds and memory, so a process that does not use it must not pay for it.
process/imports.py says how the waiting is done.
"""

from __future__ import annotations

import os
import sys


def install_if_asked() -> None:
    """Arrange activation where the environment asks for it: now if torch is loaded, else when it will be.

    Costs a microsecond, and changes nothing, where neither ``GFXGRAPH`` nor SGLang's variable is set.
    """
    # Looked up here, and not through config, because importing that takes longer than all of
    # ``import gfxgraph`` should.
    if not (os.environ.get("GFXGRAPH") or os.environ.get("SGLANG_RDNA2_KERNELS")):  # noqa: TID251
        return
    # lazily: `import gfxgraph` must cost next to nothing
    from gfxgraph import config

    if not config.load().is_on:
        return
    if "torch" in sys.modules:
        if not getattr(sys.modules["torch"].__spec__, "_initializing", False):
            activate()
        return
    # lazily: `import gfxgraph` must cost next to nothing
    from gfxgraph.process.imports import watch

    watch("torch", activate)


def torch_backend() -> None:
    """What ``import torch`` calls as its last step (entry point ``torch.backends``), for any program.

    Does nothing where the environment does not ask, or where our import hook activates right after. Switched off,
    with everybody else's, by torch's own ``TORCH_DEVICE_BACKEND_AUTOLOAD=0``.
    """
    if not (os.environ.get("GFXGRAPH") or os.environ.get("SGLANG_RDNA2_KERNELS")):  # noqa: TID251
        return
    # lazily: without a word for gfxgraph, `import torch` must not pay for it
    from gfxgraph import config
    from gfxgraph.process import imports

    if config.load().is_on and not imports.is_watched("torch"):
        # As `gfxgraph run` does: looking for a GPU initializes the driver, which no forked worker survives.
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # noqa: TID251
        activate()


def activate() -> None:
    """Switch the bridge on as the environment says, or end the process saying why it cannot be.

    Raises:
        SystemExit: status 2, after the reason was written to stderr. A program asked to run with graphs
            made safe must not run without that and look as if it had been. With HGB_LOG_LEVEL=debug the
            error itself is raised, with its traceback.
    """
    # lazily: `import gfxgraph` must cost next to nothing
    from gfxgraph import config
    from gfxgraph.errors import GfxGraphError
    from gfxgraph.startup.activation import activate_from_environment

    try:
        activate_from_environment()
    except GfxGraphError as error:
        if config.load().log_level is config.LogLevel.DEBUG:
            raise
        sys.stderr.write(f"{error}\n")
        raise SystemExit(2) from None
    report_at_exit()
    if config.load().coverage or config.load().report:
        # lazily: it needs torch, and a process that is not watched pays nothing
        from gfxgraph.reporting import leave

        leave.arrange(config.load())
    watch_engines()


def watch_engines() -> None:
    """Have the adapters put in place that this process wants, each when its engine is imported; and its metrics."""
    # lazily: `import gfxgraph` must cost next to nothing
    from gfxgraph import adapters, config

    settings = config.load()
    if settings.metrics:
        # lazily: `import gfxgraph` must cost next to nothing
        from gfxgraph.adapters._metrics import publish

        publish(settings.metrics)
    if settings.opentelemetry:
        # lazily: `import gfxgraph` must cost next to nothing
        from gfxgraph.reporting.opentelemetry import publish_if_there

        publish_if_there()
    for name in adapters.names():
        adapter = adapters.get(name)
        if adapter.wanted(settings):
            adapter.install_when_imported()


def report_at_exit() -> None:
    """Have this process write its statistics when it ends, where ``gfxgraph run --stats`` asked for them."""
    # lazily: `import gfxgraph` must cost next to nothing
    from gfxgraph.startup import stats_file

    stats_file.register()
