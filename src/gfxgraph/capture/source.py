"""Finds the syntax tree around a running instruction, to see what the program does with a value."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterator
from itertools import islice
from types import CodeType, FrameType
from typing import Any, TypeVar

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_MAX_TREES = 16
_MOST_ANSWERS = 512
_T = TypeVar("_T")
_trees: dict[str, tuple[list[str], ast.Module | None]] = {}  # by file name, with the lines of each


def remembered(find: Callable[[ast.Module | None, list[ast.AST], FrameType], _T]) -> Callable[[FrameType], _T]:
    """Ask once for each running instruction, and again if its file has got new source."""
    answers: dict[tuple[CodeType, int], tuple[ast.Module | None, _T]] = {}

    def answer(frame: FrameType) -> _T:
        tree, key = tree_of(frame.f_code.co_filename), (frame.f_code, frame.f_lasti)
        known = answers.get(key)
        if known is None or known[0] is not tree:
            if len(answers) >= _MOST_ANSWERS:
                answers.clear()
            known = answers[key] = tree, find(tree, path_at(tree, *key), frame)
        return known[1]

    return answer


def running(frame: FrameType) -> list[ast.AST]:
    """The nodes around the instruction that a frame is running."""
    return path_at(tree_of(frame.f_code.co_filename), frame.f_code, frame.f_lasti)


def path_at(tree: ast.Module | None, code: CodeType, lasti: int) -> list[ast.AST]:
    """The nodes around an instruction, outermost first; empty if there is no source."""
    position = next(islice(code.co_positions(), lasti // 2, None), (None,) * 4)
    line, end_line, column, end_column = position
    if tree is None or line is None or end_line is None or column is None or end_column is None:
        return []
    return path_to(tree, (line, column), (end_line, end_column))


def name_of(call: ast.Call) -> str:
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def tree_of(filename: str) -> ast.Module | None:
    """The tree of what ``linecache`` holds for that name now: a name may get new source."""
    lines = linecache.getlines(filename)
    if not lines:
        return None
    known = _trees.pop(filename, None)
    if known is None or known[0] is not lines:
        try:
            known = lines, ast.parse("".join(lines))
        except (SyntaxError, ValueError):
            known = lines, None
    _trees[filename] = known  # the most recent comes last
    while len(_trees) > _MAX_TREES:
        _trees.pop(next(iter(_trees), filename), None)
    return known[1]


def path_to(tree: ast.AST, start: tuple[int, int], end: tuple[int, int]) -> list[ast.AST]:
    """The nodes around a stretch of source, outermost first."""
    path: list[ast.AST] = [tree]
    while True:
        if isinstance(path[-1], ast.JoinedStr):  # up to Python 3.11 its values all have its own position
            found = (path_to(value, start, end) for value in path[-1].values if _covers(value, start, end))
            return path + max(found, key=len, default=[])
        for child in ast.iter_child_nodes(path[-1]):
            if _covers(child, start, end):
                path.append(child)
                break
        else:
            return path


def _covers(node: ast.AST, start: tuple[int, int], end: tuple[int, int]) -> bool:
    if not hasattr(node, "lineno"):
        return any(_covers(child, start, end) for child in ast.iter_child_nodes(node))
    where: Any = node
    return bool((where.lineno, where.col_offset) <= start and end <= (where.end_lineno, where.end_col_offset))


def scope_of(path: list[ast.AST]) -> Any:
    return next((node for node in reversed(path) if isinstance(node, SCOPES)), path[0] if path else None)


def path_in(scope: Any, node: Any) -> list[ast.AST]:
    return path_to(scope, (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))


def loads(scope: ast.AST, name: str) -> Iterator[ast.Name]:
    """Where a name is read, including nested functions that do not shadow it."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, SCOPES) and name in parameters_of(child):
            continue
        if isinstance(child, ast.Name) and child.id == name and isinstance(child.ctx, ast.Load):
            yield child
        yield from loads(child, name)


def parameters_of(scope: Any) -> list[str]:
    given = scope.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return [each.arg for each in every if each is not None]


def parameter_of(scope: Any, call: ast.Call, node: ast.AST, n_bound: int) -> str | None:
    """The parameter that receives an argument of a call."""
    if isinstance(node, ast.keyword):
        return node.arg if node.arg in parameters_of(scope) else getattr(scope.args.kwarg, "arg", None)
    position = next((i for i, each in enumerate(call.args) if each is node), -1)
    names = [each.arg for each in (*scope.args.posonlyargs, *scope.args.args)][n_bound:]
    if position < 0 or isinstance(node, ast.Starred) or any(isinstance(each, ast.Starred) for each in call.args):
        return None
    return names[position] if position < len(names) else getattr(scope.args.vararg, "arg", None)


def definition(tree: ast.Module, code: CodeType) -> Any:
    """The function's definition, found by its name and first line."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == code.co_name:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return None
