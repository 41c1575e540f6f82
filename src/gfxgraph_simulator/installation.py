"""Installs the simulated card in torch, and removes it.

Enters: names of torch that a CUDA build has, or has differently.
Stays out: behaviour; every installed function is defined elsewhere.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from contextlib import suppress
from functools import partial
from typing import Any, Final

import torch
from torch.autograd import graph as autograd_graph

from gfxgraph import torch_names
from gfxgraph.core.replaced import Replaced
from gfxgraph.errors import SimulatorError
from gfxgraph.types import CaptureStatus
from gfxgraph_simulator import process_group, profiles
from gfxgraph_simulator.card import Simulator
from gfxgraph_simulator.kernels import Kernels
from gfxgraph_simulator.pinned_memory import factories_with_pinning, storage_constructor
from gfxgraph_simulator.planted_faults import NODE_ENDINGS
from gfxgraph_simulator.random_state import GeneratorName
from gfxgraph_simulator.special_kernels import host_kernels, special_kernels
from gfxgraph_simulator.torch_classes import make_classes
from gfxgraph_simulator.torch_device import NativeDevice
from gfxgraph_simulator.torch_names import (
    cudart_module,
    device_properties,
    nvtx_module,
    torch_c_names,
)

DEFAULT_MEMORY: Final = 8 << 30
# Modules of torch that bound names of torch._C at import.
_BINDERS: Final = ("torch.cuda", "torch.cuda.graphs", "torch.cuda.memory", "torch.cuda.streams")

_active: Simulator | None = None


def active() -> Simulator | None:
    """The installed simulator, if there is one."""
    return _active


def install(
    profile: str = "cuda",
    *,
    total_memory: int = DEFAULT_MEMORY,
    undo: Replaced | None = None,
    guards_memcpy_and_sync: bool | None = None,
) -> Replaced:
    """Make ``torch.cuda`` one simulated card that behaves like ``profile``.

    Args:
        profile: a name of ``profiles.names()``; a planted failure may follow, as in
            ``hip+fault=aten::gather`` (``faults.NODE_ENDINGS``).
        total_memory: bytes of device memory that programs may reserve.
        undo: takes the steps that remove it, and is returned; a new one by default.
        guards_memcpy_and_sync: False for a torch without its own check on ROCm; None: as the profile says.

    Raises:
        SimulatorError: `simulator_unknown_profile`; `simulator_unsupported` if one is installed, a real device is
        present, or this torch lacks what the simulator needs.
    """
    global _active
    if _active is not None:
        raise SimulatorError("simulator_unsupported", feature="a second simulator", where="this process")
    profile, *plants = profile.split("+")
    chosen = profiles.load(profile)
    if guards_memcpy_and_sync is not None:
        chosen = dataclasses.replace(chosen, guards_memcpy_and_sync=guards_memcpy_and_sync)
    if torch.cuda.is_available():
        raise SimulatorError(
            "simulator_unsupported", feature="a simulated card beside a real one", where="this machine"
        )
    gone = torch_names.missing("simulator")
    if gone:
        raise SimulatorError("simulator_unsupported", feature=", ".join(gone), where="this torch, which lacks it")
    _have_dynamo_look_first()
    undo = undo or Replaced()
    try:
        with torch.inference_mode(False), torch.enable_grad():
            # Autograd's engine starts its threads at its first use: now, while there is no device to start one for.
            torch.zeros(1, requires_grad=True).sum().backward()
        native = NativeDevice(lambda stream: sim.device.stream(stream).status is not CaptureStatus.NONE)
        undo.add(native.undo)
        sim = Simulator(chosen, total_memory)
        _plant(sim, plants)
        kernels = Kernels(sim)
        undo.add(kernels.undo)
        kernels.install(special_kernels(sim, kernels), host_kernels(sim))
        undo.add(process_group.install(sim))
        _patch_names(sim, undo)
        _patch_modules(sim, undo)
        _patch_classes(sim, undo)
        _patch_compile(undo)
        _run_backward_in_callers_thread(undo)
        _tell_dynamo(undo)
    except BaseException:
        undo.undo()
        raise
    _active = sim
    undo.add(lambda: _forget(sim))
    return undo


def _plant(sim: Simulator, plants: list[str]) -> None:
    for text in plants:
        try:
            sim.faults.plant(text)
        except ValueError:
            known = " or ".join(f"{ending}=OPERATION" for ending in NODE_ENDINGS)
            raise SimulatorError("simulator_unknown_profile", profile=f"+{text}", known=known) from None


def _tell_dynamo(undo: Replaced) -> None:
    """Register Dynamo's rules for the replaced torch functions, which it knows by identity.

    Clearing its map would do the same, but looking up all of torch takes 25 ms at each installation.
    """
    table = torch_names.get_torch_obj_rule_map
    if table is None:
        undo.add(_have_dynamo_look_again)
        return
    known = table()
    added = []
    for name in undo.names:
        rule = next((by_name[name] for by_name in torch_names.torch_name_rule_map if name in by_name), None)
        value = rule and torch_names.load_object(name)
        if value is not None and value not in known:
            known[value] = rule
            added.append(value)
    undo.add(lambda: [known.pop(each, None) for each in added])


def _have_dynamo_look_first() -> None:
    """If Dynamo is loaded, make it build its map of torch before anything is replaced."""
    table = torch_names.get_torch_obj_rule_map
    if table is not None:
        table()


def _have_dynamo_look_again() -> None:
    table = torch_names.get_torch_obj_rule_map
    if table is not None:
        table.cache_clear()


def _forget(sim: Simulator) -> None:
    global _active
    _active = None
    # The stream is stored in C++ and would be the next simulator's current one.
    torch_names._accelerator_setStream(torch.Stream(stream_id=0, device_index=0, device_type=1))
    sim.retire()


def _patch_names(sim: Simulator, undo: Replaced) -> None:
    for name, value in torch_c_names(sim).items():
        for binder in _BINDERS:
            module = sys.modules[binder]
            if name in vars(module):
                undo.replace(module, name, value)
        undo.replace(torch_names._C, name, value)


def _patch_modules(sim: Simulator, undo: Replaced) -> None:
    cuda = torch.cuda
    undo.replace(cuda, "_lazy_init", lambda: None)
    undo.replace(cuda, "_initialized", True)
    owner = os.getpid()
    undo.replace(cuda, "_is_in_bad_fork", lambda: os.getpid() != owner)  # a runtime does not survive a fork
    undo.replace(cuda, "_exchange_device", lambda index: 0)
    undo.replace(cuda, "_maybe_exchange_device", lambda index: 0)
    undo.replace(cuda, "_get_device_properties", lambda index: device_properties(sim))
    undo.replace(cuda, "_cudart", cudart_module(sim))
    undo.replace(cuda, "default_generators", (sim.default_generator,))
    undo.replace(cuda, "_cached_device_count", 1)  # what device_count() answers, by whatever name it was imported
    undo.replace(cuda, "is_available", lambda: True)
    undo.replace(torch.backends.cuda, "is_built", lambda: True)
    undo.replace(torch.backends.cudnn, "is_acceptable", lambda tensor: False)  # without its warning
    undo.replace(cuda.nvtx, "_nvtx", nvtx_module())
    undo.replace(torch, "Generator", GeneratorName)
    undo.replace(torch.UntypedStorage, "__new__", storage_constructor(sim))
    # torch.device(...) as a context manager looks up factories in a table built on first use.
    torch_names._device_constructors()
    for name, function in factories_with_pinning(sim).items():
        undo.replace(torch, name, function)
    if torch.version.cuda and not hasattr(torch_names._C, "_ensureCUDADeviceGuardSet"):
        # A CUDA build of torch 2.9 asks the driver whether its card has these, which raises where there is no driver.
        for name in ("flash", "mem_efficient", "cudnn"):
            switch = getattr(torch_names._C, f"_set_sdp_use_{name}")
            undo.add(partial(switch, getattr(torch_names._C, f"_get_{name}_sdp_enabled")()))
            switch(False)
    if sim.profile.platform == "hip":
        undo.replace(torch.version, "hip", sim.profile.torch_hip)
        undo.replace(torch.version, "cuda", None)


def _patch_compile(undo: Replaced) -> None:
    """Make torch.compile trace as usual, and run the result eagerly: there is no device to generate code for."""

    def run_eagerly(self: object, model_: torch.nn.Module, inputs_: object, **kwargs: object) -> object:
        return model_.forward

    undo.replace(torch_names._TorchCompileInductorWrapper, "__call__", run_eagerly)


def _patch_classes(sim: Simulator, undo: Replaced) -> None:
    cuda = torch.cuda
    bases = make_classes(sim)
    for name, base in bases.items():
        undo.replace(torch_names._C, name, base)
    stream = rebase(undo, cuda.Stream, bases["_CudaStreamBase"], [(cuda, "Stream"), (cuda.streams, "Stream")])
    places = [(cuda, "ExternalStream"), (cuda.streams, "ExternalStream")]
    rebase(undo, cuda.ExternalStream, stream, places)
    rebase(undo, cuda.Event, bases["_CudaEventBase"], [(cuda, "Event"), (cuda.streams, "Event")])
    rebase(undo, cuda.CUDAGraph, bases["_CUDAGraph"], [(cuda, "CUDAGraph"), (cuda.graphs, "CUDAGraph")])
    rebase(undo, cuda.MemPool, bases["_MemPool"], [(cuda, "MemPool"), (cuda.memory, "MemPool")])
    undo.replace(cuda.graphs.graph, "default_capture_stream", None)


def rebase(undo: Replaced, cls: type, base: type, places: list[tuple[object, str]]) -> type:
    """Give torch's Python class ``cls`` another base, keeping its code.

    If Python allows it the class remains the same object, so existing subclasses are covered. If the
    old base is a C type with another layout, a new class is made of the same functions, which find it through
    their ``__class__`` cell.
    """
    before = cls.__bases__
    with suppress(TypeError):
        cls.__bases__ = (base,)
        undo.add(lambda: setattr(cls, "__bases__", before))
        return cls
    body = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
    made = type(base)(cls.__name__, (base,), body)
    cells = {
        id(cell): cell
        for value in body.values()
        for function in [getattr(value, "__func__", None) or getattr(value, "fget", None) or value]
        for cell in getattr(function, "__closure__", None) or ()
        if _holds(cell, cls)
    }
    for cell in cells.values():
        cell.cell_contents = made
        undo.add(lambda cell=cell: setattr(cell, "cell_contents", cls))  # type: ignore[misc]
    for module, name in places:
        undo.replace(module, name, made)
    return made


def _holds(cell: Any, value: object) -> bool:
    try:
        return cell.cell_contents is value
    except ValueError:  # an empty cell
        return False


def _run_backward_in_callers_thread(undo: Replaced) -> None:
    """Let backward() run in the thread that calls it, as it must where the engine has no thread for the card."""
    real = torch_names._engine_run_backward

    def run_backward(*args: object, **kwargs: object) -> Any:
        # Not torch's context manager: if its constructor, which switches the mode, is interrupted, the mode stays
        # off.
        before = torch.autograd.is_multithreading_enabled()
        try:
            torch.autograd.set_multithreading_enabled(False)
            return real(*args, **kwargs)
        finally:
            torch.autograd.set_multithreading_enabled(before)

    for module in (autograd_graph, torch.autograd):
        if "_engine_run_backward" in vars(module):
            undo.replace(module, "_engine_run_backward", run_backward)
