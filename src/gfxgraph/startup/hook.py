"""Switch gfxgraph on right after a program has imported torch, never before; adapters after their engines.

Importing torch takes seconds and memory, so a process that does not use it must not pay for it.
process/imports.py explains how it waits.
"""

from __future__ import annotations

import os
import sys

_warned: list[str] = []
"""Why it could not be on, once said: torch's import and ours each ask."""


def install_if_asked() -> None:
    """Arrange activation if the environment asks for it: now if torch is loaded, else when it is imported.

    Costs a microsecond, and changes nothing, if neither ``GFXGRAPH`` nor SGLang's variable is set.
    """
    # Read here and not through config, because importing config takes longer than ``import gfxgraph`` may take in
    # all.
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
    _explain_until_then()


def _explain_until_then() -> None:
    """Explain the error that ends the program before torch is there: a library that is missing, most often."""
    before = sys.excepthook
    if getattr(before, "__module__", "") == __name__:
        return

    def hook(kind: type[BaseException], error: BaseException, trace: object) -> None:
        before(kind, error, trace)  # type: ignore[arg-type]
        if "torch" not in sys.modules and isinstance(error, (OSError, ImportError, RuntimeError)):
            # lazily: for failures alone
            from gfxgraph.hardware import advice

            advice.report(error)

    sys.excepthook = hook


def torch_backend() -> None:
    """The entry point ``torch.backends``, which ``import torch`` calls as its last step in any program.

    Does nothing if the environment does not ask for it, or if the import hook activates right afterwards. Disabled,
    with all other such entry points, by torch's own ``TORCH_DEVICE_BACKEND_AUTOLOAD=0``.
    """
    if not (os.environ.get("GFXGRAPH") or os.environ.get("SGLANG_RDNA2_KERNELS")):  # noqa: TID251
        return
    # lazily: unless gfxgraph is requested, `import torch` must not pay for it
    from gfxgraph import config
    from gfxgraph.process import imports

    if config.load().is_on and not imports.is_watched("torch"):
        # As `gfxgraph run` does: looking for a GPU initializes the driver, which no forked worker survives.
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # noqa: TID251
        activate()


def activate() -> None:
    """Switch the bridge on as the environment says; where that is impossible, warn, and let the program go on.

    ``GFXGRAPH=1`` stands in images, whose build steps, tests and nodes without a GPU import torch, too.

    Raises:
        SystemExit: status 2, with the reason on stderr, where the bridge is required: ``GFXGRAPH=require``, or a
            program under ``gfxgraph run``, which must not run without safe graphs unnoticed.
    """
    # lazily: `import gfxgraph` must cost next to nothing
    from gfxgraph import config
    from gfxgraph.errors import GfxGraphError
    from gfxgraph.startup import stats_file
    from gfxgraph.startup.activation import activate_from_environment
    from gfxgraph.startup.child_environment import REQUIRED

    try:
        activate_from_environment()
    except GfxGraphError as error:
        settings, text = config.load(), str(error)
        is_required = settings.activation is config.Activation.REQUIRE or bool(config.variables([REQUIRED]))
        if settings.log_level is config.LogLevel.DEBUG:
            # lazily: for failures alone. Here, since once `import gfxgraph` has failed the error finds no text.
            import traceback

            traceback.print_exc()
        elif is_required:
            sys.stderr.write(f"{text}\n")
        elif not _warned:
            _warned.append(error.code)
            first = text.partition("\n")[0]
            sys.stderr.write(
                f"gfxgraph: WARNING: not on in this process, which goes on without it: {first} "
                f"(what to do: gfxgraph explain {error.code}; to end instead: GFXGRAPH=require)\n"
            )
        if is_required:
            raise SystemExit(2) from None
        return
    stats_file.register()
    if config.load().report:
        # lazily: it needs torch, and a process that is not watched pays nothing
        from gfxgraph.reporting import write_process_file

        write_process_file.arrange(config.load())
    watch_engines()


def watch_engines() -> None:
    """Arrange for the adapters of this process to be installed when their engines are imported."""
    # lazily: `import gfxgraph` must cost next to nothing
    from gfxgraph import adapters, config

    settings = config.load()
    for name in adapters.names():
        adapter = adapters.get(name)
        if adapter.wanted(settings):
            adapter.install_when_imported()
