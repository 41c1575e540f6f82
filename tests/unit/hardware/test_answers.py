"""hardware.answers: the machine proves a cause, or removes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gfxgraph.diagnostics.explain import explain
from gfxgraph.diagnostics.explanation import Explanation
from gfxgraph.diagnostics.situation import FACTS
from gfxgraph.hardware.answers import facts, with_answers
from gfxgraph.hardware.checks import Site
from tests.unit.hardware.trees import LAPTOP, build, machine

NO_GPU = "/usr/lib: RuntimeError: No HIP GPUs are available"


def answered(site: Site, text: str = NO_GPU, arch: str = "") -> Explanation:
    return with_answers(explain(text, lang="en"), arch, site)


def allow(root: Path, mode: int) -> None:
    for name in ("dev/kfd", "dev/dri/renderD128", "dev/dri/renderD129"):
        (root / name).chmod(mode)


def test_what_is_wrong_here_comes_first_with_its_fix(tmp_path: Path) -> None:
    """The user is not in the group of the device files: said, with the command that mends it."""
    build(tmp_path, LAPTOP)
    allow(tmp_path, 0o600)
    text = answered(Site(machine(tmp_path), [])).format()
    assert "  here: this user may not open /dev/kfd" in text
    assert text.partition("  do:   ")[2].startswith("sudo usermod -aG ")


def test_what_is_right_here_is_not_advised(tmp_path: Path) -> None:
    """Rights and driver are fine: neither is among the advice; a variable hides the GPU, and that is."""
    build(tmp_path, LAPTOP)
    allow(tmp_path, 0o666)
    fine = answered(Site(machine(tmp_path), [])).format(more=True)
    assert "usermod" not in fine and "modprobe" not in fine
    hidden = answered(Site(machine(tmp_path, HIP_VISIBLE_DEVICES="-1"), [])).format()
    assert "HIP_VISIBLE_DEVICES=-1: hides every GPU" in hidden and "unset HIP_VISIBLE_DEVICES" in hidden


@pytest.mark.parametrize("what", ["another GPU", "no GPU of AMD"])
def test_a_failure_elsewhere_is_not_asked_about_here(tmp_path: Path, what: str) -> None:
    """The text names a GPU that is not here, or nothing here could fail so."""
    build(tmp_path, LAPTOP if what == "another GPU" else [], devices=False)
    found = answered(Site(machine(tmp_path), []), arch="gfx906" if what == "another GPU" else "")
    assert not found.findings and not found.situation.facts


def test_facts_are_those_that_cases_may_name(tmp_path: Path) -> None:
    """Each fact of this machine is one that a known case can ask for."""
    build(tmp_path, LAPTOP)
    assert set(facts(Site(machine(tmp_path), []))) <= FACTS
