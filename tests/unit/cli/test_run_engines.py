"""``gfxgraph run -- vllm serve``: the adapter is in place in every process that imports the engine's graphs."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

STAND_INS = Path(__file__).parents[2] / "conformance" / "adapters" / "stand_ins"
# A server whose worker is a process of its own, started anew, as vLLM and SGLang start theirs.
SERVER = """\
#!{python}
import subprocess, sys
worker = '''
import sys, torch
from {module} import {owner}
call = {owner}.{method}
print(getattr(torch, "switched_on", 0), hasattr(call, "__wrapped__"))
'''
sys.exit(subprocess.run([sys.executable, "-c", worker]).returncode)
"""
ENGINES = {
    "vllm": ("vllm.compilation.cuda_graph", "CUDAGraphWrapper", "__call__"),
    "sglang": (
        "sglang.srt.model_executor.runner_backend.full_cuda_graph_backend",
        "FullCudaGraphBackend",
        "capture_one",
    ),
}


@pytest.fixture(params=ENGINES)
def server(request, sandbox):
    """A command of the engine's name, in an environment that has its stand-in."""
    engine = request.param
    shutil.copytree(STAND_INS / engine / engine, sandbox.folder / "lib" / engine)
    module, owner, method = ENGINES[engine]
    text = SERVER.format(python=sys.executable, module=module, owner=owner, method=method)
    command = sandbox.script(text, f"bin/{engine}")
    command.chmod(0o755)
    return command


def test_workers_are_reached(server, sandbox):
    """The worker of a server has the bridge and the adapter."""
    done = sandbox.gfxgraph("run", "--", server, "serve", "model")
    assert (done.stdout, done.stderr, done.returncode) == ("1 True\n", "", 0)


def test_vllm_starts_its_workers_anew(sandbox):
    """vLLM forks by default, and a driver that activation initialized does not survive it; a choice made is kept."""
    script = sandbox.script("import os; print(os.environ['VLLM_WORKER_MULTIPROC_METHOD'])")
    assert sandbox.gfxgraph("run", script).stdout == "spawn\n"
    assert sandbox.gfxgraph("run", script, VLLM_WORKER_MULTIPROC_METHOD="fork").stdout == "fork\n"


def test_an_engine_of_another_version_is_used(server, sandbox):
    """It is asked for what the adapter needs; the number says nothing."""
    (sandbox.folder / "lib" / server.name / "__init__.py").write_text("__version__ = '99.0'\n")
    done = sandbox.gfxgraph("run", "--", server, "serve")
    assert (done.stdout, done.stderr, done.returncode) == ("1 True\n", "", 0)


def test_an_engine_that_lacks_a_name_is_a_warning(server, sandbox):
    """The bridge is on all the same; the text says what is missing."""
    module, owner, method = ENGINES[server.name]
    file = (sandbox.folder / "lib").joinpath(*module.split(".")).with_suffix(".py")
    (sandbox.folder / "lib" / server.name / "__init__.py").write_text("__version__ = '99.0'\n")
    file.write_text(file.read_text().replace("graph_pool", "gone").replace("_tp_group", "gone"))
    done = sandbox.gfxgraph("run", "--", server, "serve")
    assert (done.stdout, done.returncode) == ("1 False\n", 0)
    assert f"{server.name} 99.0 lacks: {owner}()." in done.stderr.replace("\n", " ")


def test_sglangs_own_variable_asks(sandbox):
    """SGLANG_RDNA2_KERNELS=1 switches the bridge on where gfxgraph is imported; the other two overrule it."""
    script = sandbox.script("import gfxgraph, torch; print(getattr(torch, 'switched_on', 0))")
    for environment, said in (
        ({"SGLANG_RDNA2_KERNELS": "1"}, "1\n"),
        ({"SGLANG_RDNA2_KERNELS": "1", "SGLANG_DISABLE_GFXGRAPH": "1"}, "0\n"),
        ({"SGLANG_RDNA2_KERNELS": "1", "GFXGRAPH": "0"}, "0\n"),
        ({}, "0\n"),
    ):
        done = sandbox.python(script, **environment)
        assert (done.stdout, done.stderr) == (said, "")


def test_run_under_sglangs_own_variable(sandbox):
    """``gfxgraph run`` reaches child processes also where SGLang's variable, not GFXGRAPH, is what is set."""
    script = sandbox.script(
        "import subprocess, sys, torch\n"
        "subprocess.run([sys.executable, '-c', 'import torch; print(getattr(torch, \"switched_on\", 0))'])\n"
    )
    done = sandbox.gfxgraph("run", script, SGLANG_RDNA2_KERNELS="1")
    assert (done.stdout, done.stderr, done.returncode) == ("1\n", "", 0)
