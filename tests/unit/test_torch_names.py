"""The table of torch's private names: each line in the torch installed, what is missing, and the check."""

from __future__ import annotations

import ast
import logging
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tools import check_torch_names

import gfxgraph
from gfxgraph import torch_names
from gfxgraph.cli import doctor
from gfxgraph.errors import MissingTorchName

NAMES = list(torch_names.entries())


@pytest.fixture
def device() -> Iterator[None]:
    gfxgraph.enable(simulate="hip")
    yield
    gfxgraph.disable()


@pytest.fixture
def renamed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Has a line of the table name something that no torch has."""

    def rename(key: str) -> str:
        was = torch_names.NAMES[key]
        path = f"{was.path}_of_no_torch"
        now = torch_names.Name(key, path, was.feature, was.marks, was.since, was.until)
        monkeypatch.setitem(torch_names.NAMES, key, now)
        vars(torch_names).pop(key, None)
        torch_names._live.pop(key, None)
        torch_names.why_off.cache_clear()
        return path

    yield rename
    torch_names.why_off.cache_clear()
    torch_names.off.clear()
    for key in set(torch_names.NAMES) & set(vars(torch_names)):
        del vars(torch_names)[key]


def test_no_two_lines_have_one_name() -> None:
    assert len(NAMES) == len(torch_names.NAMES) > 100


def test_this_torch_has_each_line_of_its_version(device: None) -> None:
    """Nothing is missing, but what the table says this version does not have; that, it does not have."""
    assert torch_names.all_missing() == {}
    parts = [name.path.split(".")[1:] for name in NAMES if not name.since <= torch_names.version() <= name.until]
    for each in parts:
        with pytest.raises((AttributeError, ImportError)):
            torch_names._below(torch, each)


def test_a_name_is_looked_up_once_and_a_live_one_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name is an attribute of the module after its first use; a live one follows what is put in its place."""
    assert torch_names._pop_mode is torch.utils._python_dispatch._pop_mode
    assert "_pop_mode" in vars(torch_names)
    assert torch_names._current_level == -1
    monkeypatch.setattr(torch.autograd.forward_ad, "_current_level", 3)
    assert torch_names._current_level == 3
    with pytest.raises(AttributeError, match="not in the table"):
        torch_names.nothing_of_the_kind  # noqa: B018


def test_a_missing_name_raises_where_it_is_used(renamed: Any) -> None:
    """Modules that mention it can be imported; each use names the name and the feature."""
    path = renamed("TorchDispatchMode")
    found = torch_names.TorchDispatchMode

    class Mode(found):  # type: ignore[misc, valid-type]
        pass

    for use in (found, Mode, lambda: isinstance(1, found), lambda: found.attribute()):
        with pytest.raises(MissingTorchName) as raised:
            use()
        assert path in str(raised.value) and "capture" in str(raised.value)


@pytest.mark.parametrize(
    ("key", "feature"),
    (("call_isinstance", "tracing"), ("TensorGuards", "graphed"), ("GlobalStateGuard", "fast path")),
)
def test_what_lacks_it_is_off(
    key: str, feature: str, renamed: Any, device: None, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning and ``explain()`` name it; the results are right."""
    path = renamed(key)
    logging.getLogger("gfxgraph").propagate = True
    with caplog.at_level(logging.WARNING, "gfxgraph"):
        f = gfxgraph.graphed(lambda x: x * 2 + 1)
        for i in range(4):
            assert f(torch.full((2,), float(i), device="cuda")).tolist() == [2.0 * i + 1] * 2
    assert [each.args for each in caplog.records if path in each.getMessage()] != []
    assert len([each for each in caplog.records if path in each.getMessage()]) == 1
    assert path in f.explain() and path in torch_names.off[feature]
    assert bool(f.stats()["replays"]) is (feature == "fast path")


def test_doctor_names_it(renamed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = renamed("call_isinstance")
    doctor._torch_names("en")
    assert f"tracing: off, without {path}" in capsys.readouterr().out


def test_the_table_needs_no_torch() -> None:
    """Importing it imports no torch, and no line of it is looked up."""
    program = "import sys; from gfxgraph import torch_names; assert len(torch_names.NAMES) > 100; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "torch" not in done.stdout.split()


@pytest.mark.parametrize(
    "line",
    (
        "import torch._dynamo",
        "from torch._C import _set_grad_enabled",
        "from torch.utils import _pytree",
        "import torch\ntorch._C._cuda_getDevice()",
        "from torch import autograd\nautograd.graph._engine_run_backward",
        "import sys\nsys.modules.get('torch._dynamo.utils')",
    ),
)
def test_a_private_name_elsewhere_is_refused(line: str) -> None:
    assert list(check_torch_names.of_torch(ast.parse(line)))


def test_public_names_are_not() -> None:
    text = (
        "import torch\nfrom torch import nn\ntorch.cuda.graph.__enter__, nn.Linear, torch.__version__, 'torch.cuda'"
    )
    assert not list(check_torch_names.of_torch(ast.parse(text)))


def test_private_attributes_are_found() -> None:
    """Also by ``getattr``."""
    tree = ast.parse("graph._retained, getattr(graph, '_hooks'), self.public, x.__dict__")
    assert {name for _, name in check_torch_names.attributes(tree)} == {"_retained", "_hooks"}


def test_the_package_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=print))
    assert check_torch_names.main() == 0
