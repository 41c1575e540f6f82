"""Every code block of the documentation runs: Python, transcripts and command lines, page by page, in this process.

Each ``python`` block is a program, whole as it is pasted; those with a title are files that transcripts run.
``console`` blocks are transcripts: a command and what it prints, ``...`` standing for anything. ``sh`` blocks are not
started, for they need a GPU, a network or minutes: each command of ours must be one that the command line accepts,
each make target must be there. ``text`` is output, ``c`` is compiled by tests/native/test_bridge.py.
"""

from __future__ import annotations

import copy
import importlib
import re
import runpy
import shlex
import sys
from pathlib import Path

import click
import pytest
import torch

import gfxgraph
from gfxgraph.cli import _contract
from gfxgraph.cli.main import cli, main

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the pages run in the simulator")
ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w*)(?: title=\"([\w.]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in (ROOT, ROOT / "docs")
    for path in (folder.rglob("*.md") if folder != ROOT else folder.glob("*.md"))
    if "decisions" not in path.parts
)
BLOCKS = {page: FENCE.findall((ROOT / page).read_text(encoding="utf-8")) for page in PAGES}
# What a block needs and a test has no room for: engines, a file of the reader's.
ONNX = """
import onnx
from onnx import helper
info = lambda name: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 3])
graph = helper.make_graph([helper.make_node("Relu", ["input"], ["y"])], "g", [info("input")], [info("y")])
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), "model.onnx")
"""
# Replaced for a run in seconds.
INSTEAD = {"max_new_tokens=128": "max_new_tokens=4"}
# Programs that a reader has, beside ours.
OTHERS = {
    "pip", "git", "python", "make", "vllm", "llama-server", "some-engine", "eval", "some", "gfxgraph", "program",
    "llama-cli", "torchrun", "x", "ln", "cc", "cmake", "ctest",
}  # fmt: skip


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder of its own, the simulator where a GPU is asked for, and everything put back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GFXGRAPH_SIMULATE", "hip")
    monkeypatch.setenv("GFXGRAPH_LANG", "en")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    modules = set(sys.modules)
    yield tmp_path
    gfxgraph.disable()
    torch.set_grad_enabled(True)
    for name in set(sys.modules) - modules:
        if name.partition(".")[0] in ("migraphx", "vllm", "sglang"):
            del sys.modules[name]


@pytest.mark.parametrize("page", [page for page in PAGES if any(kind == "python" for kind, *_ in BLOCKS[page])])
def test_python_runs_as_pasted(page, place, monkeypatch, capsys):
    """Each block alone, as ``gfxgraph run --simulate`` runs a file of it; what the page shows as output is printed."""
    blocks, whole = BLOCKS[page], (ROOT / page).read_text(encoding="utf-8")
    gfxgraph.enable(simulate="hip")
    importlib.import_module("gfxgraph.compile.backend").register()  # by an entry point, where gfxgraph is installed
    if page.endswith("engines.md"):
        _stand_ins(monkeypatch)
        pytest.importorskip("onnx")
        exec(ONNX, {})
    for number, (kind, _, text) in enumerate(blocks):
        if kind != "python":
            continue
        source = text
        for long, short in INSTEAD.items():
            text = text.replace(long, short)
        capsys.readouterr()
        exec(compile(text, f"{page}, block {number}", "exec"), {"__name__": "__main__"})
        printed = capsys.readouterr().out
        kind, _, shown = blocks[number + 1] if number + 1 < len(blocks) else ("", "", "")
        if kind == "text" and f"{source}```\n\n```text\n{shown}" in whole:
            assert printed == shown


def _stand_ins(monkeypatch):
    from tests.conformance.adapters.test_migraphx import STAND_IN, Machine

    for name in ("migraphx", "vllm"):
        monkeypatch.syspath_prepend(STAND_IN.parent / name)
    import migraphx

    machine = Machine(migraphx)
    shapes = {"x": machine.shape}, [machine.shape]
    monkeypatch.setattr(migraphx, "parse_onnx", lambda path: migraphx.program(machine.step, *shapes), raising=False)
    params = machine.params(1)
    monkeypatch.setattr(migraphx, "generate_argument", lambda shape: params["x"], raising=False)
    monkeypatch.setattr(migraphx, "to_gpu", lambda argument: argument, raising=False)


@pytest.mark.parametrize("page", [page for page in PAGES if any(kind == "console" for kind, *_ in BLOCKS[page])])
def test_transcripts_are_what_is_printed(page, place, capfd, monkeypatch):
    """Each command, run in this process, prints what the page shows."""
    for kind, title, text in BLOCKS[page]:
        if title:
            (place / title).write_text(text, encoding="utf-8")
        if kind != "console":
            continue
        for line, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
            words = shlex.split(line)
            assert words.pop(0) == "gfxgraph"
            monkeypatch.setenv("GFXGRAPH_LANG", "en")
            if words[:2] == ["run", "--simulate"]:
                gfxgraph.enable(simulate="hip")
                runpy.run_path(words[2])
                gfxgraph.disable()
            else:
                with pytest.raises(SystemExit) as ended:
                    main(words)
                assert ended.value.code == 0
            wanted = re.escape(expected).replace(re.escape("...\n"), r"(?s:.*)")
            printed = capfd.readouterr().out
            assert re.fullmatch(wanted, printed), printed


@pytest.mark.parametrize("page", [page for page in PAGES if any(kind == "sh" for kind, *_ in BLOCKS[page])])
def test_command_lines_are_accepted(page, place):
    """Our commands and options exist; make has the targets; the rest are programs that a reader has."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for kind, _, text in BLOCKS[page]:
        for line in text.splitlines() if kind == "sh" else ():
            for part in re.split(r"&&|\||>", line.split("#")[0]):
                words = shlex.split(part.replace("...", "x"))
                while words and re.match(r"[A-Z_0-9]+=", words[0]):
                    words.pop(0)
                if not words or words[0] not in OTHERS:
                    assert not words or re.search(r"[|>]", line), line
                    continue
                if words[0] == "make":
                    assert set(word for word in words[1:] if "=" not in word) <= targets, line
                if words[0] == "gfxgraph" and len(words) > 1:
                    parse(words[1:])


def parse(words: list[str]) -> None:
    """Parse a command line as far as files are not asked for; what is not accepted raises."""
    command, context = cli, click.Context(cli, info_name="gfxgraph")
    while isinstance(command, click.Group):
        name = words.pop(0)
        found = command.get_command(context, name)
        assert found is not None, name
        command, context = found, click.Context(found, info_name=name, parent=context)
    command = copy.copy(command)
    command.params = [copy.copy(parameter) for parameter in command.params]
    for parameter in command.params:
        parameter.type = click.STRING if isinstance(parameter.type, click.Path) else parameter.type
        parameter.callback = None if parameter.name == "path" else parameter.callback
    command.parse_args(context, _contract.with_profiles(words))


def test_every_block_says_what_it_is():
    """A block without a language, or of a kind that no test here knows, would not be run by anything."""
    for page, blocks in BLOCKS.items():
        text = (ROOT / page).read_text(encoding="utf-8")
        assert {kind for kind, *_ in blocks} <= {"python", "console", "sh", "text", "c", "yaml"}, page
        assert len(blocks) * 2 == len(re.findall(r"^```", text, re.MULTILINE)), page
        indented = re.findall(r"(?<=\n)\n {4}\S.*", FENCE.sub("", text))
        assert not indented, f"{page}: code without a fence, which no test runs: {indented}"
    assert [page for page, blocks in BLOCKS.items() if any(kind == "c" for kind, *_ in blocks)] == ["docs/native.md"]
