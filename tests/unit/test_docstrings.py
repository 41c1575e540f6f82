"""What the docstrings of public names tell."""

from __future__ import annotations

import ast
import importlib
import inspect
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
