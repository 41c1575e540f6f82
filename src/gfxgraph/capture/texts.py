"""Whether a program goes by a text that it makes of a number.

Text is free: a log line may show what it likes, and nothing that is replayed follows from it. A text
that serves as a key, is compared or is made a number again decides something, and a ``str`` carries no
expression. So the expression that the text stands in is read: the syntax tree of the line that runs.
Where there is no source to read, the answer is yes.
"""

from __future__ import annotations

import ast
import functools
import linecache
from itertools import islice
from types import CodeType, FrameType
from typing import Any

from gfxgraph.capture.places import user_frame

_OUTPUT_MODULES = frozenset("logging warnings traceback pprint reprlib tqdm rich unittest _pytest".split())
# The text goes through these and on.
_GO_ON = frozenset(
    "str repr format ascii join strip lstrip rstrip ljust rjust center zfill upper lower title replace "
    "list tuple".split()
)
_OUTPUT = frozenset(
    "print info debug warning warn error exception critical log write writelines append extend".split()
)
_MAX_TREES = 16
_trees: dict[str, tuple[list[str], ast.Module | None]] = {}  # by file name, with the lines of each
_KEEP = frozenset("add setdefault get pop update fromkeys".split())  # of a set or a dict: keys


def decides(frame: FrameType | None) -> bool:
    """True where something may follow from the text that the frame is making."""
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] in _OUTPUT_MODULES:
            return False
        answer = _answer(_tree(frame.f_code.co_filename), frame.f_code, frame.f_lasti)
        if answer is not None:
            return answer
        frame = frame.f_back  # it is what the function returns
    return True


@functools.lru_cache(maxsize=512)
def _answer(tree: ast.Module | None, code: CodeType, lasti: int) -> bool | None:
    """None where the function returns the text."""
    path = _path_at(tree, code, lasti)
    return _climb(path, 3) if path else True


def stands_in_call(frame: FrameType | None, names: frozenset[str]) -> bool:
    """True where the program's running call may be an argument of one to a function of these names."""
    frame = user_frame(frame)
    path = _path_at(_tree(frame.f_code.co_filename), frame.f_code, frame.f_lasti) if frame is not None else []
    calls = (node for node in path[:-1] if isinstance(node, ast.Call))
    return not path or any(_name_of(call) in names for call in calls)


def _path_at(tree: ast.Module | None, code: CodeType, lasti: int) -> list[ast.AST]:
    """The nodes round an instruction, outermost first; none where there is no source."""
    position = next(islice(code.co_positions(), lasti // 2, None), (None,) * 4)
    line, end_line, column, end_column = position
    if tree is None or line is None or end_line is None or column is None or end_column is None:
        return []
    return _path(tree, (line, column), (end_line, end_column))


def _name_of(call: ast.Call) -> str:
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def _tree(filename: str) -> ast.Module | None:
    """The tree of what ``linecache`` holds for that name now: a name may get another source."""
    lines = linecache.getlines(filename)
    if not lines:
        return None
    known = _trees.pop(filename, None)
    if known is None or known[0] is not lines:
        try:
            known = lines, ast.parse("".join(lines))
        except (SyntaxError, ValueError):
            known = lines, None
    _trees[filename] = known  # the latest last
    while len(_trees) > _MAX_TREES:
        _trees.pop(next(iter(_trees), filename), None)
    return known[1]


def _path(tree: ast.AST, start: tuple[int, int], end: tuple[int, int]) -> list[ast.AST]:
    """The nodes round a stretch of source, outermost first."""
    path: list[ast.AST] = [tree]
    while True:
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


def _climb(path: list[ast.AST], depth: int) -> bool | None:
    """Follow the text from the node where it is made outwards."""
    for index in range(len(path) - 1, 0, -1):
        node, parent = path[index], path[index - 1]
        if isinstance(parent, ast.Call):
            if node is parent.func:
                continue  # "...".format(value), text.strip()
            name = _name_of(parent)
            if name in _GO_ON:
                continue
            if name in _OUTPUT:
                return False
            is_dropped = isinstance(path[index - 2], ast.Expr)
            return not is_dropped or name in _KEEP
        if isinstance(parent, ast.Attribute):
            continue
        if isinstance(parent, ast.Subscript):
            if node is parent.slice:
                return True
            continue
        if isinstance(parent, ast.Dict):
            return node in parent.keys
        if isinstance(parent, ast.IfExp) and node is not parent.test:
            continue
        if isinstance(parent, ast.Assert):
            return node is parent.test
        if isinstance(parent, (ast.Return, ast.Lambda)):
            return None
        if isinstance(parent, (ast.Expr, ast.Raise)):
            return False
        if isinstance(parent, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            return _decides_later(path[: index - 1], parent, depth)
        if not isinstance(parent, _GROUPS):
            return True
    return True


def _decides_later(path: list[ast.AST], assignment: ast.stmt, depth: int) -> bool | None:
    targets: list[Any] = getattr(assignment, "targets", None) or [getattr(assignment, "target", None)]
    if not all(isinstance(target, ast.Name) for target in targets) or not depth:
        return bool(not depth or any(isinstance(target, (ast.Tuple, ast.List)) for target in targets))
    names = {target.id for target in targets}
    scope = next((node for node in reversed(path) if isinstance(node, _SCOPES)), path[0])
    answers: set[bool | None] = set()
    for node in ast.walk(scope):
        if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load):
            start, end = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
            answers.add(_climb(_path(scope, start, end), depth - 1))
    return True if True in answers else (None if None in answers else False)


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_GROUPS = (
    ast.JoinedStr, ast.FormattedValue, ast.BinOp, ast.List, ast.Tuple, ast.Starred, ast.keyword,
    ast.ListComp, ast.GeneratorExp, ast.comprehension,
)  # fmt: skip
