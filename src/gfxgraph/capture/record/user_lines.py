"""Finds the running line of the user's program: frames of torch and of this package are skipped."""

from __future__ import annotations

import contextlib
import inspect
import linecache
import os
import sys
import traceback
import types
from types import CodeType, FrameType
from typing import Any

import torch

from gfxgraph.core.tape import Place, where_of
from gfxgraph.types import OUR_MODULES

LIBRARIES: set[str] = set()  # names of modules; a frame's globals are read without an audit event, its code is not
SKIP: dict[str, bool] = {}  # by file name: hashing a code object reads all of its bytecode
_OWN_DIR = __file__.rsplit("/", 3)[0]
_STANDARD_DIR = types.__file__.rsplit("/", 1)[0] + "/"
_TORCH_DIR = torch.__file__.rsplit("/", 1)[0]
_CALLABLES = f"{_OWN_DIR}/callables/"
_TYPED = ("<stdin>", "<input>", "<console>", "<ipython", "<python-input", "<doctest", "<cell", "<command")
# Programs that come with the package: their lines are reported like a user's.
_PROGRAMS = (f"{_OWN_DIR}/examples/", f"{_OWN_DIR}/selftest/cases/")


def is_library_code(code: CodeType) -> bool:
    """True for code of torch and of this package, which is never the user's line."""
    return is_library_file(code.co_filename)


def is_library_file(name: str) -> bool:
    """True for source files of torch and of this package."""
    known = SKIP.get(name)
    if known is None:
        known = (
            name.startswith((_TORCH_DIR, _OWN_DIR, contextlib.__file__, "<frozen", "<graphed>", "<gfxgraph"))
            or "/triton/" in name
        )
        known = SKIP[name] = known and not name.startswith(_PROGRAMS)
    return known


def note_library(module: object) -> None:
    """Remember the module as a library's, unless a program may have the same name (``__main__``)."""
    if type(module) is str and module.startswith(("torch.", "triton.", *OUR_MODULES)):
        LIBRARIES.add(module)


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is neither torch's nor ours."""
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if module not in LIBRARIES:
            if not is_library_code(frame.f_code):
                return frame
            note_library(module)
        frame = frame.f_back
    return None


def line_of_error(error: BaseException) -> str:
    """The program's innermost line that an error passed."""
    found = [each for each in traceback.walk_tb(error.__traceback__) if user_frame(each[0]) is each[0]]
    frame, line = found[-1] if found else (None, 0)
    return f"{frame.f_code.co_filename}:{line}" if frame is not None else ""


def cause_of(op: str) -> str:
    """An operation with what of torch called it, if that has a remedy of its own; with the program's line that led to
    a library's.
    """
    frame = user_frame(sys._getframe(1))
    caller: FrameType | None = sys._getframe(1)
    while caller is not None and caller is not frame:
        if caller.f_code.co_filename.endswith("/torch/amp/grad_scaler.py"):
            return f"{op} of torch.amp.GradScaler"
        caller = caller.f_back
    outer = frame
    while outer is not None and "-packages/" in outer.f_code.co_filename:
        outer = user_frame(outer.f_back)
    if outer is None or outer is frame or _has_no_line(outer):
        return op
    return f"{op} of a call at {outer.f_code.co_filename}:{outer.f_lineno}"


def line_of(fn: Any) -> str:
    """Where a function, or a module's forward, is written; "" where it has no code."""
    code = getattr(inspect.unwrap(getattr(fn, "forward", fn)), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""


def wants_plain_numbers() -> bool:
    """True where the running code of the program is what Dynamo made of it, or may ask for a number's exact type."""
    frame = user_frame(sys._getframe(1))
    names = frame.f_code.co_names if frame is not None else ()
    return "type" in names or any(name.startswith("__resume_at_") for name in names)


def place() -> Place:
    """Code object and instruction of the program's line: cheap to take, resolved to a line when shown.

    Neither Python's own library and NumPy nor code that something has written has one, as dataclasses and torch.fx
    do: the line is that of its call.
    """
    frame = first = user_frame(sys._getframe(1))
    while frame is not None and _has_no_line(frame):
        if frame.f_code.co_filename.startswith(_CALLABLES):
            frame = None
            break
        frame = frame.f_back
    frame = frame or first
    return (frame.f_code, frame.f_lasti) if frame is not None else (None, -1)


def _has_no_line(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    if is_library_file(name) or "/numpy/" in name or (name.startswith(_STANDARD_DIR) and "-packages/" not in name):
        return True
    if name[:1] == "<":  # nobody typed it
        return not name.startswith(_TYPED)
    # One with a loader comes out of an archive.
    return not (name in linecache.cache or "__loader__" in frame.f_globals or os.path.exists(name))


def shown(where: Place) -> str:
    """Format a result of ``place`` as text."""
    return str(where_of(*where))
