"""Whether a program branches on text that it makes from a number.

Text is not guarded: a log line may show any value, and nothing replayed depends on it. Text that is used as a key,
compared or converted back to a number does matter, and a ``str`` carries no expression. So the expression around the
text is read: the syntax tree of the running line. Without source, the answer is yes.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable
from types import CodeType, FrameType
from typing import Any

from gfxgraph.capture.places import user_frame
from gfxgraph.capture.source import SCOPES, name_of, path_at, path_to, tree_of

_OUTPUT_MODULES = frozenset("logging warnings traceback pprint reprlib tqdm rich unittest _pytest".split())
# Functions that return their text, perhaps changed.
_GO_ON = frozenset(
    "str repr format ascii join strip lstrip rstrip ljust rjust center zfill upper lower title replace "
    "list tuple".split()
)
_OUTPUT = frozenset(
    "print info debug warning warn error exception critical log write writelines append extend".split()
)
_WRITING = frozenset("print write writelines writerow writerows append extend".split())  # what may be read back
_KEEP = frozenset("add setdefault get pop update fromkeys".split())  # may be read back


def decides(frame: FrameType | None) -> bool:
    """True if something may depend on the text that the frame is making."""
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] in _OUTPUT_MODULES:
            return False
        answer = _answer(tree_of(frame.f_code.co_filename), frame.f_code, frame.f_lasti)
        if answer is not None:
            return answer
        frame = frame.f_back  # the function returns the text
    return True


@functools.lru_cache(maxsize=512)
def _answer(tree: ast.Module | None, code: CodeType, lasti: int) -> bool | None:
    """None if the function returns the text."""
    path = path_at(tree, code, lasti)
    return _climb(path, 3) if path else True


def stands_in_call(frame: FrameType | None, names: frozenset[str]) -> bool:
    """True if the running call may be an argument of a call to one of the named functions."""
    frame = user_frame(frame)
    path = path_at(tree_of(frame.f_code.co_filename), frame.f_code, frame.f_lasti) if frame is not None else []
    calls = (node for node in path[:-1] if isinstance(node, ast.Call))
    return not path or any(name_of(call) in names for call in calls)


def _climb(path: list[ast.AST], depth: int) -> bool | None:
    """Follow the text outwards from the node that makes it."""
    is_asked = False
    for index in range(len(path) - 1, 0, -1):
        node, parent = path[index], path[index - 1]
        if isinstance(parent, ast.Call):
            if node is parent.func:
                is_asked = True
                continue  # "...".format(value), text.strip()
            name = name_of(parent)
            if name in _GO_ON:
                continue
            if name in _WRITING:
                return _read_back(path[:index], parent, depth)
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
        if isinstance(parent, ast.Expr) and isinstance(node, ast.Call) and name_of(node) in _WRITING and not is_asked:
            return _read_back(path[:index], node, depth)
        if isinstance(parent, (ast.Expr, ast.Raise)):
            return False
        if isinstance(parent, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            return _decides_later(path[: index - 1], parent, depth)
        if isinstance(parent, ast.For) and node is parent.iter:
            return _decides_later(path[: index - 1], parent, depth)
        if not isinstance(parent, _GROUPS):
            return True
    return True


def _decides_later(path: list[ast.AST], assignment: ast.stmt, depth: int) -> bool | None:
    targets: list[Any] = getattr(assignment, "targets", None) or [getattr(assignment, "target", None)]
    if not all(isinstance(target, ast.Name) for target in targets) or not depth:
        return bool(not depth or any(isinstance(target, (ast.Tuple, ast.List)) for target in targets))
    scope = next((node for node in reversed(path) if isinstance(node, SCOPES)), path[0])
    return _of_names(scope, {target.id for target in targets}, depth, [])


def _of_names(scope: ast.AST, names: set[str], depth: int, apart_from: list[ast.AST]) -> bool | None:
    apart = {id(node) for each in apart_from for node in ast.walk(each)}
    answers: set[bool | None] = set()
    for node in ast.walk(scope):
        if (
            isinstance(node, ast.Name)
            and node.id in names
            and isinstance(node.ctx, ast.Load)
            and id(node) not in apart
        ):
            start, end = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
            answers.add(_climb(path_to(scope, start, end), depth - 1))
    return True if True in answers else (None if None in answers else False)


def _read_back(path: list[ast.AST], call: ast.Call, depth: int) -> bool | None:
    """The text goes into a list or a file: follow what the function does with that."""
    if not depth:
        return True
    scope = next((node for node in reversed(path) if isinstance(node, SCOPES)), path[0])
    stored = {node.id for node in ast.walk(scope) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    kept_by = [keyword.value for keyword in call.keywords if keyword.arg == "file"]
    kept_by += [call.func.value] if isinstance(call.func, ast.Attribute) else []
    names = _names_in(kept_by) & stored
    makers = [  # writer = csv.writer(file)
        node
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _names_in(node.targets) & names
    ]
    names |= _names_in([part for maker in makers for part in getattr(maker.value, "args", ())]) & stored
    return _of_names(scope, names, depth, [call, *makers])


def _names_in(nodes: Iterable[ast.AST]) -> set[str]:
    return {node.id for each in nodes for node in ast.walk(each) if isinstance(node, ast.Name)}


_GROUPS = (
    ast.JoinedStr, ast.FormattedValue, ast.BinOp, ast.List, ast.Tuple, ast.Starred, ast.keyword,
    ast.ListComp, ast.GeneratorExp, ast.comprehension,
)  # fmt: skip
