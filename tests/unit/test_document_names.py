"""Names that the documents and the texts for people use are in the code: commands, options, variables, functions."""

from __future__ import annotations

import builtins
import io
import re
import shlex
import tokenize
import tomllib
from functools import cache
from pathlib import Path

import click
import pytest

import gfxgraph
from gfxgraph import config
from gfxgraph.cli.main import Commands

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
MACROS = frozenset(
    re.findall(r"GFXGRAPH_[A-Z_]+", (SRC / "gfxgraph_port/fix/toolkit/cuda_warp.h").read_text("utf-8"))
)
"""What a ported program defines, and no setting of ours."""
PAGES = [
    *(ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md", "reports/README.md")),
    # older-names.md is about 1.1.0's, which tests/conformance/test_older_names.py looks up.
    *(path for path in (ROOT / "docs").rglob("*.md") if not {"decisions", "older-names.md"} & {*path.parts}),
]
CATALOGUE = sorted((SRC / "gfxgraph/diagnostics/catalogue").glob("*.toml"))
SPAN = re.compile(r"`([^`\n]+)`")
FORMER = ("bench", "bisect", "top", "metrics_text")
"""Commands and names of development versions."""
GONE = re.compile(r"\*\*In development versions of 2\.0, and gone again\*\*.*", re.DOTALL)
"""The paragraph of CHANGELOG that lists what is not there."""


@cache
def words_of_the_code() -> frozenset[str]:
    """Every identifier of the package's code; not its comments, nor its texts."""
    found = {field for field in config.VARIABLES}
    for path in SRC.rglob("*.py"):
        tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
        found |= {token.string for token in tokens if token.type == tokenize.NAME}
    for path in (ROOT / "native").glob("*.*"):
        found |= set(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    for path in (ROOT / "tests").rglob("*.py"):
        found |= set(re.findall(r'environ(?:\.get\(|\[)"(\w+)"', path.read_text(encoding="utf-8")))
    torch = pytest.importorskip("torch")
    for other in (builtins, torch, torch.Tensor, torch.nn.Module, torch.linalg, torch.compiler):
        found |= {*dir(other)}
    return frozenset(found)


@cache
def options_of(path: tuple[str, ...]) -> frozenset[str] | None:
    """The options of a command; None where there is no such command."""
    group: click.Command = Commands("gfxgraph")
    for word in path:
        if not isinstance(group, click.Group) or word not in group.list_commands(click.Context(group)):
            return None
        group = group.get_command(click.Context(group), word)
    return frozenset(option for each in group.params for option in [*each.opts, *each.secondary_opts])


def command_of(words: list[str]) -> tuple[str, ...]:
    """The command that a line of ``gfxgraph ...`` begins with, its group's subcommand included."""
    path: tuple[str, ...] = ()
    for word in words:
        if not re.fullmatch(r"[a-z][a-z-]*", word) or (path and options_of((*path, word)) is None):
            break
        path = (*path, word)
    return path


def unknown(text: str) -> list[str]:
    """The names in code spans of ``text`` that the code has not."""
    found, known = [], words_of_the_code()
    variables = set(config.VARIABLES) | config._OTHERS | MACROS
    for span in SPAN.findall(text):
        for name in re.findall(r"\b(?:GFXGRAPH|HGB)_[A-Z_]*[A-Z]\b", span):
            if name not in variables and not any(each.startswith(name) for each in variables) and name not in known:
                found.append(f"{span}: {name}")
        try:
            words = shlex.split(span.replace("...", " "))
        except ValueError:
            words = []
        while words and re.match(r"[A-Z_0-9]+=", words[0]):
            words.pop(0)
        if len(words) > 1 and words[0] == "gfxgraph" and re.fullmatch(r"[a-z][a-z-]*", words[1]):
            path = command_of(words[1:])
            options = options_of(path) if path else None
            if options is None:
                found.append(f"{span}: no such command")
            elif path[0] != "run":
                given = {word.split("=")[0] for word in words if word.startswith("--")}
                found += [f"{span}: {option}" for option in sorted(given - options - {"--help", "--version"})]
        for name in re.findall(r"\bgfxgraph\.(\w+)", span):
            if name not in gfxgraph.__all__ and not list((SRC / "gfxgraph").glob(f"{name}*")) and name != "h":
                found.append(f"{span}: gfxgraph.{name}")
        called = re.fullmatch(r"\.?(?:\w+\.)*(\w+)\(.*\)", span)
        if called and "." not in span.split("(")[0].lstrip(".") and called[1] not in known:
            found.append(f"{span}: {called[1]}()")
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_names_of_a_page_are_in_the_code(path):
    """A command, option, variable or function that a page names and the code has not is a promise of nothing."""
    assert unknown(GONE.sub("", path.read_text(encoding="utf-8"))) == []


def test_commands_that_errors_advise_are_there():
    """``gfxgraph COMMAND --option`` in a text of the catalogue, in either language."""
    wrong = []
    for path in CATALOGUE:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        texts = repr([*table["en"].values(), *table["zh"].values(), *table.get("hint", [])])
        for line in re.findall(r"\bgfxgraph ([a-z]+(?: --[a-z-]+)*)", texts):
            if options_of((line.split()[0],)) is not None:
                wrong += [f"{path.stem}: {each}" for each in unknown(f"`gfxgraph {line}`")]
        if table.get("fields"):  # an error of our own
            own = repr([*table["en"].values(), *table["zh"].values()])
            wrong += [f"{path.stem}: {each}" for each in FORMER if re.search(rf"\b{each}\b", own)]
    assert wrong == []


def test_a_name_that_is_not_there_is_told():
    """Of each kind."""
    text = "`gfxgraph bench` `gfxgraph doctor --matrix` `GFXGRAPH_METRICS` `gfxgraph.trace` `no_such_name()`"
    text += " `gfxgraph doctor --why`"
    assert [each.split(": ")[1] for each in unknown(text)] == [
        "no such command", "--matrix", "GFXGRAPH_METRICS", "gfxgraph.trace", "no_such_name()",
    ]  # fmt: skip
