"""The plugin entry points that engines call in each of their processes.

The entry points of an installed package are called even if nobody requested gfxgraph. So nothing
happens unless the user requested it by ``GFXGRAPH``, by the engine's own variable, or in the engine's
list of plugins.

An engine's first process often forks the others and never touches the GPU itself. Looking for a GPU
initializes the driver, which no forked child survives. So the bridge is switched on when torch
initializes the GPU, in whichever process that happens.
"""

from __future__ import annotations

from functools import partial

from gfxgraph import adapters, config
from gfxgraph.adapters.adapter import Adapter
from gfxgraph.process import bridge
from gfxgraph.startup.activation import enable


def vllm() -> None:
    """The entry point that vLLM calls in each of its processes; does nothing unless gfxgraph was requested.

    It is requested by ``GFXGRAPH``, or by its name in ``VLLM_PLUGINS``.
    """
    _activate(adapters.get("vllm"), "VLLM_PLUGINS")


def sglang() -> None:
    """The entry point that SGLang calls in each of its processes; does nothing unless gfxgraph was requested.

    It is requested by ``GFXGRAPH``, by ``SGLANG_RDNA2_KERNELS``, or by its name in ``SGLANG_PLUGINS``.
    """
    _activate(adapters.get("sglang"), "SGLANG_PLUGINS")


def _activate(adapter: Adapter, list_variable: str) -> None:
    """Install ``adapter`` and switch the bridge on in this process, if that was requested.

    Args:
        list_variable: the variable with the names of the plugins that the engine may load.

    Raises:
        ActivationError: when the GPU is initialized, as from ``gfxgraph.enable``.
    """
    settings = config.load()
    is_named = "gfxgraph" in config.variables([list_variable]).get(list_variable, "").split(",")
    if not settings.is_on and (not is_named or settings.is_refused):
        return
    adapter.install_when_imported()
    if settings.simulate or bridge.is_enabled():
        enable()
        _watch(settings)
        return
    # lazily: unless gfxgraph is requested, importing torch is left to the engine
    import torch

    torch.cuda._lazy_call(enable)
    if settings.coverage or settings.report:
        torch.cuda._lazy_call(partial(_watch, settings))


def _watch(settings: config.Config) -> None:
    if settings.coverage or settings.report:
        # lazily: it needs torch
        from gfxgraph.reporting import write_process_file

        write_process_file.arrange(settings)
