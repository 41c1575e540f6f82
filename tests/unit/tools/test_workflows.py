"""Workflows, issue forms and the action: what can be checked of them without a runner."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[3]
FLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
STEP = """
import torch

def step(x):
    y = x.relu()
    if y.sum().item() > 3:
        y = y * 2
    return y
"""


def test_a_push_checks_tests_and_builds_the_documentation():
    """On the oldest Python and the newest that pyproject names, by the Makefile's own targets; each script parses."""
    flows = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in FLOWS}
    on = flows["ci"][True]  # YAML takes `on` for a truth value
    assert {"push", "pull_request"} <= set(on)
    classifiers = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    versions = re.findall(r"Python :: (3\.\d+)\"", classifiers)
    assert flows["ci"]["jobs"]["test"]["strategy"]["matrix"]["python"] == [versions[0], versions[-1]]
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    scripts = [
        step["run"]
        for flow in flows.values()
        for job in flow["jobs"].values()
        for step in job["steps"]
        if "run" in step
    ]
    called = {target for script in scripts for target in re.findall(r"\bmake ([\w-]+)", script)}
    assert {"check", "test", "docs", "release"} <= called <= targets
    for script in scripts:
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    for path in FLOWS:
        assert "has never run" in " ".join(path.read_text(encoding="utf-8").split()), path.name


def test_forms_ask_for_what_each_kind_of_report_needs():
    """A self-test, a bug, a text of a failure, a wrong value; each field has an id of its own and a label."""
    assert {path.stem for path in FORMS} >= {"selftest_report", "bug", "failure_text", "wrong_value"}
    for path in FORMS:
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        fields = [part for part in form["body"] if part["type"] != "markdown"]
        assert form["name"] and form["description"] and all(part["attributes"]["label"] for part in fields)
        assert len({part["id"] for part in fields}) == len(fields), path.name


@pytest.mark.parametrize(("fail", "status"), [("true", 1), ("false", 0)])
def test_the_action_annotates_the_line(tmp_path, fail, status):
    """Its own script, run here: the finding is a warning on file and line, and fails the job only where asked to."""
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    steps = {step.get("name", step.get("uses", "").partition("@")[0]): step for step in action["runs"]["steps"]}
    assert "pip" in steps["actions/cache"]["with"]["path"]
    (tmp_path / "model.py").write_text(STEP)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(sys.executable)
    asked = {"TARGET": "model.py:step", "ARGS": "torch.randn(2, 8, device='cuda')\n", "FAIL": fail}
    environment = {**os.environ, **asked, "PATH": f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), *filter(None, sys.path)])
    script = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", steps["Check"]["run"]]
    done = subprocess.run(script, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    assert (
        "::warning file=model.py,line=6::splits: Tensor.item: a value read by the host; the capture went on with "
        in done.stdout
    )
