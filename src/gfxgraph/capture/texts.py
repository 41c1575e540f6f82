"""Whether a program branches on text that it makes from a number.

Text is free: a log line may show what it likes, and nothing that is replayed follows from it. A text
that serves as a key, is compared or is made a number again decides something, and a ``str`` carries no
expression. So the text is followed through the source from the line that runs: through names, attributes,
containers and the program's own functions. Where there is no source to read, the answer is yes.
"""

from __future__ import annotations

import ast
import builtins
import io
import linecache
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType, ModuleType
from typing import Any

from gfxgraph.capture.places import is_installed_file, user_frame
from gfxgraph.capture.source import (
    name_of,
    parameters_of,
    path_at,
    path_to,
    remembered,
    running,
    scope_of,
    tree_of,
)
from gfxgraph.capture.uses import entry_of, looked_up, looked_up_in, resolved
from gfxgraph.process import process

_OUTPUT_MODULES = frozenset("logging warnings traceback pprint reprlib tqdm rich unittest _pytest".split())
# Functions that return their text, perhaps changed.
_GO_ON = frozenset(
    "str repr format ascii join strip lstrip rstrip ljust rjust center zfill upper lower title replace "
    "list tuple dict".split()
)
_OUTPUT = frozenset(
    "print info debug warning warn error exception critical log write writelines append extend".split()
)
_WRITING = frozenset("print write writelines writerow writerows append extend".split())  # what may be read back
# Keys of a set, a dict or an object; what another reader takes.
_KEEP = frozenset(
    "add setdefault get pop update fromkeys setattr delattr insert appendleft put put_nowait send".split()
)
_DEPTH = 4


def decides(frame: FrameType | None) -> bool:
    """True where something may follow from the text that the frame is making."""
    is_output = False
    while frame is not None:
        room = frame.f_globals.get("__name__", "").partition(".")[0]
        if room in ("gfxgraph", "torch"):  # between the program's call and its answer: as a mode hands it on
            frame = frame.f_back
            continue
        if room == "json" and frame.f_code.co_name == "dump":
            return True  # a file may be read back
        if room in _OUTPUT_MODULES or room == "json":
            is_output = room != "json"
            frame = frame.f_back
            continue
        if is_output and _called(frame) not in _HANDLING:
            return False
        answer = _answer(frame)
        if answer is not None:
            return answer
        is_output = False
        frame = frame.f_back  # it is what the function returns
    return not is_output


_HANDLING = frozenset({"getMessage", "format", "formatMessage", "pformat", "format_exc", "format_exception"})
"""Functions of those modules that give the text to their caller."""


def _called(frame: FrameType) -> str:
    """The name of the function that a frame is calling."""
    path = running(frame)
    return next((name_of(node) for node in reversed(path) if isinstance(node, ast.Call)), "")


@remembered
def _decides(tree: ast.Module | None, path: list[ast.AST], frame: FrameType) -> bool | None:
    if tree is None or not path:
        return True
    return _TextSearch(tree, frame.f_code.co_filename, looked_up(frame), _DEPTH, _outside(frame)).climb(path)


def _answer(frame: FrameType) -> bool | None:
    """None where the function returns the text."""
    answer = _decides(frame)
    if answer is False and isinstance(sys.stdout, io.StringIO):  # what is printed may be read back
        return any(isinstance(node, ast.Call) and name_of(node) == "print" for node in running(frame))
    return answer


def calls_around(frame: FrameType | None, names: frozenset[str]) -> set[tuple[CodeType, int, int]] | None:
    """Calls of named functions, Python's ``sum`` aside, whose arguments are being computed; None without source."""
    found: set[tuple[CodeType, int, int]] = set()
    frame = user_frame(frame)
    for depth in range(_DEPTH):
        path = running(frame) if frame is not None else []
        if frame is None or not path:
            return found if depth else None
        calls = (node for node in path[:-1] if isinstance(node, ast.Call))
        found.update(
            (frame.f_code, call.lineno, call.col_offset)
            for call in calls
            if name_of(call) in names and not _is_pythons(call, frame)
        )
        frame = user_frame(frame.f_back)
    return found


def _is_pythons(call: ast.Call, frame: FrameType) -> bool:
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    return hasattr(builtins, name) and looked_up(frame)(name) is getattr(builtins, name)


class _TextSearch:
    """Follows a text through the source of one module.

    Args:
        find: an object by its name, as the function sees it in which the text is made.
        depth: how many functions may still be entered.
        outside: functions that run round the capture: what they do with a text, no replay does.
    """

    def __init__(
        self,
        tree: ast.Module,
        filename: str,
        find: Callable[[str], object],
        depth: int,
        outside: _Outside,
        seen: set[tuple[object, str]] | None = None,
    ) -> None:
        self._tree = tree
        self._filename = filename
        self._outside = outside
        self._find = find
        self._depth = depth
        self._seen = set() if seen is None else seen
        self._origin: Any = None

    def climb(self, path: list[ast.AST]) -> bool | None:
        """Follow the text from the node where it is made; None where the function returns it."""
        self._origin = scope_of(path)
        return self._climb(path)

    def parameter(self, scope: ast.AST, name: str) -> bool | None:
        """Follow it from the parameter of a function that is given it."""
        self._origin = scope
        return self._name(scope, name)

    def _climb(self, path: list[ast.AST]) -> bool | None:
        is_asked = False
        for index in range(len(path) - 1, 0, -1):
            node, parent = path[index], path[index - 1]
            if isinstance(parent, ast.Call) and node is parent.func:
                is_asked = True  # "...".format(value), text.strip()
            elif isinstance(parent, ast.Call):
                answer = self._given(parent, node, path[:index])
                if answer is not None:
                    return answer
            elif isinstance(parent, ast.stmt) or isinstance(parent, ast.Lambda):
                return self._ends(parent, node, path[:index], is_asked)
            elif _is_deciding(parent, node):
                return True
        return True

    def _ends(self, statement: ast.AST, node: ast.AST, path: list[ast.AST], is_asked: bool) -> bool | None:
        """What follows from a text in a statement."""
        if isinstance(statement, (ast.Return, ast.Lambda)):
            return self._returned(path)
        if isinstance(statement, ast.Assert):
            return node is statement.test
        if (
            isinstance(statement, ast.Expr)
            and isinstance(node, ast.Call)
            and name_of(node) in _WRITING
            and not is_asked
        ):
            return self._read_back(path, node)
        if isinstance(statement, (ast.Expr, ast.Raise)):
            return False
        if isinstance(statement, ast.For) and node is statement.iter:
            return self._put(statement.target, path)
        if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            targets: list[Any] = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
            return _worst(self._put(target, path) for target in targets)
        return True

    def _given(self, call: ast.Call, node: ast.AST, path: list[ast.AST]) -> bool | None:
        """What follows from a text that a call is given; None where the call's result holds it."""
        name = name_of(call)
        entry = entry_of(call, node, scope_of(path), self._find)
        if entry is not None and not is_installed_file(entry.filename):
            if not self._depth:
                return True
            inner = _TextSearch(entry.tree, entry.filename, entry.find, self._depth - 1, self._outside)
            return inner.parameter(entry.scope, entry.parameter)
        if name in _GO_ON:
            return None
        if name in _WRITING:
            return self._read_back(path, call)
        if name in _OUTPUT:
            return False
        is_dropped = isinstance(path[-2], ast.Expr)
        return not is_dropped or name in _KEEP or _is_standard(resolved(call.func, scope_of(path), self._find))

    def _returned(self, path: list[ast.AST]) -> bool | None:
        scope = scope_of(path)
        if scope is self._origin or not isinstance(scope, _NAMED):
            return None
        loads = [node for node in ast.walk(self._tree) if _named(node) == scope.name]
        room = self._own_room() if scope in self._tree.body else None
        return _worst([self._of(loads, scope.name, scope), self._elsewhere(scope.name, room)])

    # -- where a text is kept -------------------------------------------------------------------------

    def _put(self, target: object, path: list[ast.AST], apart: Iterable[ast.AST] = ()) -> bool | None:
        """The text is put somewhere, or into something: follow it from there."""
        if isinstance(target, ast.Subscript):
            return self._put(target.value, path, apart)
        if isinstance(target, ast.Attribute):
            loads = [node for node in ast.walk(self._tree) if _named(node) == target.attr and node is not target]
            owner = resolved(target.value, scope_of(path), self._find)
            room = vars(owner) if isinstance(owner, ModuleType) else None
            return _worst([self._of(loads, target.attr, self._tree, apart), self._elsewhere(target.attr, room)])
        if isinstance(target, ast.Name):
            home = _home_of(path, target.id)
            here = self._name(home, target.id, apart)
            return here if home is not self._tree else _worst([here, self._elsewhere(target.id, self._own_room())])
        return isinstance(target, (ast.Tuple, ast.List, ast.Starred))

    def _own_room(self) -> dict[str, object]:
        return next((room for filename, room in _own_modules() if filename == self._filename), {})

    def _elsewhere(self, name: str, owner: dict[str, object] | None) -> bool | None:
        """Follow a name through the program's other modules.

        Args:
            owner: what the module holds whose variable it is; None for an attribute of any other object.
        """
        answers: list[bool | None] = [False]
        for filename, room in _own_modules():
            key = (filename, owner is None), name
            if filename == self._filename or key in self._seen:
                continue
            self._seen.add(key)
            tree = tree_of(filename) if any(name in line for line in linecache.getlines(filename)) else None
            if tree is None:
                continue
            find = looked_up_in(room)
            aliases = [
                each
                for node in ast.walk(tree)
                if isinstance(node, (ast.Import, ast.ImportFrom))
                for each in node.names
            ]
            is_imported = owner is not None and any(each.name == name for each in aliases)
            modules = {each.asname or each.name for each in aliases}
            loads = [
                node
                for node in ast.walk(tree)
                if _named(node) == name
                and (
                    _may_be_of(node.value, owner, name, find, modules)
                    if isinstance(node, ast.Attribute)
                    else is_imported and isinstance(node, ast.Name)
                )
            ]
            inner = _TextSearch(tree, filename, find, self._depth, self._outside, self._seen)
            answers.append(inner._of(loads, name, tree))
        return _worst(answers)

    def _name(self, scope: ast.AST, name: str, apart: Iterable[ast.AST] = ()) -> bool | None:
        loads = [node for node in ast.walk(scope) if isinstance(node, ast.Name) and _named(node) == name]
        return self._of(loads, name, scope, apart)

    def _of(self, loads: list[Any], name: str, scope: object, apart: Iterable[ast.AST] = ()) -> bool | None:
        if (id(scope), name) in self._seen:
            return False
        self._seen.add((id(scope), name))
        others = {id(node) for each in apart for node in ast.walk(each)}
        paths = (_path_in(self._tree, node) for node in loads if id(node) not in others)
        return _worst(self._climb(path) for path in paths if not self._is_outside(path))

    def _is_outside(self, path: list[ast.AST]) -> bool:
        scope = scope_of(path)
        if scope is self._origin or any(_place_of(self._filename, node) == self._outside.block for node in path):
            return False
        return _place_of(self._filename, scope) in self._outside.functions

    def _read_back(self, path: list[ast.AST], call: ast.Call) -> bool | None:
        """The text is put into a list or a file: what follows from what the program does with that?"""
        kept_by: list[Any] = [keyword.value for keyword in call.keywords if keyword.arg == "file"]
        kept_by += [call.func.value] if isinstance(call.func, ast.Attribute) else []
        kept_by = [each for each in kept_by if not self._is_file(each, path)]
        names = {each.id for each in kept_by if isinstance(each, ast.Name)}
        makers = [  # writer = csv.writer(file)
            node
            for node in ast.walk(scope_of(path))
            if isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and names & {target.id for target in node.targets if isinstance(target, ast.Name)}
        ]
        kept_by += [part for maker in makers for part in getattr(maker.value, "args", ())]
        return _worst(self._put(each, path, [call, *makers]) for each in kept_by)

    def _is_file(self, expression: ast.AST, path: list[ast.AST]) -> bool:
        """Whether nothing can be read back from there."""
        found = resolved(expression, scope_of(path), self._find)
        if isinstance(found, io.TextIOWrapper):
            return found.closed or not found.readable()
        return isinstance(found, ModuleType)


@dataclass(frozen=True)
class _Outside:
    """What runs round the capture."""

    functions: frozenset[tuple[str, int]] = frozenset()
    """By file and line."""
    block: tuple[str, int] | None = None
    """The ``with`` statement that began it."""


def _outside(frame: FrameType) -> _Outside:
    session: Any = process.active_session()
    if session is None:
        return _Outside()
    code, lasti = session.begun_at
    round_it: FrameType | None = frame
    while round_it is not None and round_it.f_code is not code:
        round_it = round_it.f_back
    found = []
    while round_it is not None:
        line = 0 if round_it.f_code.co_name == "<module>" else round_it.f_code.co_firstlineno
        found.append((round_it.f_code.co_filename, line))
        round_it = round_it.f_back
    blocks = (node for node in path_at(tree_of(code.co_filename), code, lasti) if isinstance(node, ast.With))
    block = max((node.lineno for node in blocks), default=None)
    return _Outside(frozenset(found), (code.co_filename, -block) if block else None)


def _is_standard(found: object) -> bool:
    """Whether a function is one of Python's own, which may keep what it is given; those that log are not."""
    func = getattr(found, "func", found)  # of a method
    owner = getattr(func, "__objclass__", func)
    room = str(getattr(owner, "__module__", "")).partition(".")[0]
    return callable(func) and room in sys.stdlib_module_names and room not in _OUTPUT_MODULES


def _may_be_of(
    base: ast.expr, owner: dict[str, object] | None, name: str, find: Callable[[str], object], modules: set[str]
) -> bool:
    """Whether ``base.name`` may be the attribute in question; see ``_TextSearch._elsewhere``."""
    found = resolved(base, None, find)
    if isinstance(found, ModuleType):
        held = vars(found)
        return owner is not None and (held is owner or (name in held and held[name] is owner.get(name)))
    return owner is None or (isinstance(base, ast.Name) and base.id in modules)


def _own_modules() -> Iterator[tuple[str, dict[str, object]]]:
    """The program's own modules: their files and what they hold."""
    for module in list(sys.modules.values()):
        room = getattr(module, "__dict__", {})
        filename = room.get("__file__")
        if type(filename) is str and not is_installed_file(filename):
            yield filename, room


def _place_of(filename: str, node: object) -> tuple[str, int]:
    """As in ``_Outside``: a function's first line, a statement's negated."""
    if isinstance(node, _NAMED):
        return filename, min([node.lineno, *(each.lineno for each in node.decorator_list)])
    return filename, -node.lineno if isinstance(node, ast.With) else 0


def _is_deciding(parent: ast.AST, node: ast.AST) -> bool:
    """Whether an expression round a text goes by it."""
    if isinstance(parent, ast.Subscript):
        return node is parent.slice
    if isinstance(parent, ast.Dict):
        return node in parent.keys
    if isinstance(parent, ast.IfExp):
        return node is parent.test
    return not isinstance(parent, _GROUPS)


def _worst(answers: Iterable[bool | None]) -> bool | None:
    found = set(answers)
    return True if True in found else (None if None in found else False)


def _named(node: ast.AST) -> str | None:
    """The name that is read there."""
    if not isinstance(getattr(node, "ctx", None), ast.Load):
        return None
    return getattr(node, "id", None) or getattr(node, "attr", None)


def _home_of(path: list[ast.AST], name: str) -> Any:
    """The scope that a name belongs to."""
    for scope in reversed(path):
        if isinstance(scope, _NAMED) and not any(
            name in node.names for node in ast.walk(scope) if isinstance(node, _FAR)
        ):
            stored = (
                node for node in ast.walk(scope) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            )
            if name in parameters_of(scope) or any(node.id == name for node in stored):
                return scope
    return path[0]


def _path_in(tree: ast.Module, node: Any) -> list[ast.AST]:
    return path_to(tree, (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))


_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef)
_FAR = (ast.Global, ast.Nonlocal)
_GROUPS = (
    ast.JoinedStr, ast.FormattedValue, ast.BinOp, ast.List, ast.Tuple, ast.Starred, ast.keyword, ast.Attribute,
    ast.ListComp, ast.GeneratorExp, ast.comprehension,
)  # fmt: skip
