"""What stands in the place of torch's and Python's functions still works when the last capture ends under it."""

from __future__ import annotations

import functools
import gc
import threading

import pytest
import torch

import gfxgraph
from gfxgraph.capture.patches import patch_table


def for_sigmoid(x: torch.Tensor) -> torch.Tensor:
    """TorchScript knows it by its address once a test has told of it: it lives as long as the process."""
    return x


def test_a_call_that_is_on_its_way_as_the_last_capture_ends() -> None:
    """It finds Python's own function, though another thread gave everything back meanwhile."""
    ran = threading.Event()
    gfxgraph.enable(simulate="hip")
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.ones(1, device="cuda") + 1
    finally:
        gfxgraph.disable()
    thread = threading.Thread(target=ran.set)
    patch_table._start_thread(thread)
    thread.join(10)
    assert ran.is_set() and not patch_table.INSTALLED
    assert isinstance(patch_table._collect(), int)


def test_torchs_table_of_constructors_holds_torchs_own() -> None:
    """It is made once, perhaps inside a capture: ``with torch.device("cuda")`` knows ``torch.tensor`` afterwards."""
    table = torch.utils._device._device_constructors
    gfxgraph.enable(simulate="hip")
    table.cache_clear()
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()), torch.device("cuda"):
            torch.ones(1)
        assert not {object.__hash__(each) for each in table()} & patch_table._hidden.keys()
    finally:
        gfxgraph.disable()
        table.cache_clear()


def test_an_end_that_an_interrupt_stopped_is_ended_by_the_clean_up() -> None:
    """The interrupt is raised when torch's functions are in their places again."""

    class Interrupted:
        n_tries = 0

        def __setattr__(self, name: str, value: object) -> None:
            Interrupted.n_tries += 1
            if Interrupted.n_tries == 1:
                raise KeyboardInterrupt

    holder = object()
    gfxgraph.enable(simulate="hip")
    try:
        known = patch_table.captures_here()
        patch_table.begin_capture(holder)
        assert not gc.isenabled()
        patch_table.INSTALLED.note(functools.partial(patch_table._restore, Interrupted(), "name", 1))
        with pytest.raises(KeyboardInterrupt):
            patch_table.end_capture(holder)
        patch_table.end_other_captures(known)
        assert not patch_table.INSTALLED and gc.isenabled() and Interrupted.n_tries == 2
    finally:
        gfxgraph.disable()


def test_dynamo_and_torchscript_are_told_of_a_replacement_once(monkeypatch) -> None:
    """It is the original to TorchScript from the first capture on, and stays: TorchScript knows it by its address."""
    told = []
    monkeypatch.setattr(patch_table, "_hidden", {})
    monkeypatch.setattr(patch_table, "keep_from_dynamo", told.append)

    class Owner:
        pass

    def lasting() -> None: ...

    Owner.sigmoid = torch.sigmoid
    for _ in range(2):
        patch_table._install_one(Owner, "one", lasting)
        patch_table._install_one(Owner, "sigmoid", for_sigmoid)
        patch_table.INSTALLED.undo_all()
    assert told == [lasting, for_sigmoid]
    assert torch.jit._builtins._find_builtin(for_sigmoid) == "aten::sigmoid"
