"""What the docstrings of public names tell."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

PUBLIC = [
    "gfxgraph",
    *(f"gfxgraph.{room}" for room in ("adapters", "compat", "compile", "errors", "kernels", "rocm")),
]
PUBLIC.append("gfxgraph.native")
DESCRIBES = re.compile(
    r"(The|A|An|All|Every|Each|Whether|True|Which|What|Why|How|Who|Plain|This|GFXGRAPH\w*|[A-Z][a-z]+s)\b|``|\("
)
"""How a summary begins that says what is returned: "The tiers", "Whether", "Bytes that"."""
SHAPE = re.compile(r"\[|shape|elements?\b|\brow\b|\bas `|likewise|values are not read|pairs of")
DTYPE = re.compile(r"dtype|float|int64|boolean|flag")
MEASURES = re.compile(r"timeout|interval|duration|wait|memory|overhead|size|offset|pad|_s$|_ms$|_us$|bytes$|_mb$")
UNITS = re.compile(
    r"second|\bms\b|millisecond|microsecond|byte|MiB|element|\brows?\b|\branks\b|n_pad|weight", re.IGNORECASE
)
SAYS_WHEN = ("Raises:", "raises: as", "errors as")


def functions_of(module: str) -> Iterator[tuple[str, Callable[..., Any], str]]:
    """Name, function and docstring of what a module gives away; a constructor's is its class's."""
    place = importlib.import_module(module)
    for name in getattr(place, "__all__", None) or [each for each in dir(place) if not each.startswith("_")]:
        value = getattr(place, name)
        if not getattr(value, "__module__", "").startswith("gfxgraph"):
            continue
        if inspect.isclass(value):
            for member, held in vars(value).items():
                function = getattr(held, "__func__", None) or getattr(held, "fget", None) or held
                if inspect.isfunction(function) and (member == "__init__" or not member.startswith("_")):
                    of_class = member == "__init__" and not function.__doc__
                    yield f"{name}.{member}", function, (value if of_class else function).__doc__ or ""
        elif inspect.isroutine(value):
            yield name, inspect.unwrap(value), value.__doc__ or ""


def written(function: Callable[..., Any]) -> ast.FunctionDef | None:
    """The function as it stands in its file; None for one that a decorator or a dataclass made."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except OSError:
        return None
    return tree if isinstance(tree, ast.FunctionDef) else None


def arguments_of(tree: ast.FunctionDef) -> list[str]:
    given = tree.args
    several = [each for each in (given.vararg, given.kwarg) if each is not None]
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, *several)]
    return [name for name in names if name not in ("self", "cls")]


@pytest.mark.parametrize("module", PUBLIC)
def test_arguments_and_errors_are_described(module: str) -> None:
    """Each argument is named, in ``Args`` or in a sentence; what the function itself raises is in ``Raises``."""
    lacking = []
    n_read = 0
    for name, function, text in functions_of(module):
        tree = written(function)
        if tree is None:
            continue
        n_read += 1
        unnamed = [each for each in arguments_of(tree) if f"{each}:" not in text and f"``{each}``" not in text]
        lacking += [f"{name}: argument {each}" for each in unnamed]
        raises = any(isinstance(node, ast.Raise) and node.exc is not None for node in ast.walk(tree))
        if raises and not any(words in text for words in SAYS_WHEN):
            lacking.append(f"{name}: what it raises")
        if not text:
            lacking.append(f"{name}: a docstring")
    assert n_read and not lacking


def returned(tree: ast.FunctionDef) -> str:
    """The annotation of the result, "" where there is none to speak of."""
    shown = ast.unparse(tree.returns) if tree.returns is not None else "None"
    return "" if shown in ("None", "NoReturn", "Self") or tree.name == "__init__" else shown


def said_of(name: str, text: str) -> str:
    """What a docstring says of an argument, to the next one's line."""
    found = re.search(rf"^ *(?:\w+, )*{name}(?:, \w+)*: (.*(?:\n {{12,}}.*)*)", text, re.MULTILINE)
    return found[1] if found else text


def described(tree: ast.FunctionDef, text: str) -> Iterator[tuple[str, str, str]]:
    """Name, annotation and description of each argument, then of the result."""
    given = tree.args
    for each in (*given.posonlyargs, *given.args, *given.kwonlyargs):
        if each.annotation is not None:
            yield each.arg, ast.unparse(each.annotation), said_of(each.arg, text)
    if returned(tree):
        head, _, section = text.partition("Returns:")
        yield "the result", returned(tree), section.partition("\n\n")[0] or head.partition("\n\n")[0]


@pytest.mark.parametrize("module", PUBLIC)
def test_results_are_described(module: str) -> None:
    """What is returned is in ``Returns``, or the summary says it: "The gfx name of a device"."""
    lacking = []
    for name, function, text in functions_of(module):
        tree = written(function)
        if tree is not None and returned(tree):
            summary = text.partition("Args:")[0].strip()
            is_said = "Returns:" in text or re.search(r"\b[Rr]eturns? ", summary) or DESCRIBES.match(summary)
            lacking += [] if is_said else [name]
    assert not lacking


@pytest.mark.parametrize("module", PUBLIC)
def test_tensors_have_a_shape_and_a_dtype(module: str) -> None:
    """Each tensor taken or returned has its shape; the docstring speaks of dtypes."""
    lacking = []
    for name, function, text in functions_of(module):
        tree = written(function)
        tensors = [each for each in described(tree, text) if re.search(r"\bTensor\b", each[1])] if tree else []
        lacking += [f"{name}: shape of {which}" for which, _, said in tensors if not SHAPE.search(said)]
        lacking += [f"{name}: dtype"] if tensors and not DTYPE.search(text) else []
    assert not lacking


@pytest.mark.parametrize("module", PUBLIC)
def test_times_and_sizes_have_units(module: str) -> None:
    """A number that is a time or a size is given with its unit."""
    lacking = []
    for name, function, text in functions_of(module):
        tree = written(function)
        for which, kind, said in described(tree, text) if tree else ():
            measured = name.rpartition(".")[2] if which == "the result" else which
            if MEASURES.search(measured) and re.search(r"\b(int|float)\b", kind) and not UNITS.search(said):
                lacking.append(f"{name}: {which}")
    assert not lacking
