"""Files of an audited tree, which chooses their names, links and kinds; how they are opened is in gfxgraph/files.py.

Enters: a root folder, relative paths, bytes.
Stays out: what the bytes mean.
"""

from __future__ import annotations

import os
import unicodedata

from gfxgraph.files import UnsafePathError, read_inside, write_inside

__all__ = ["UnsafePathError", "printable", "read_inside", "write_inside", "write_out"]


def printable(text: str) -> str:
    """The text with control, format and unpaired surrogate characters spelt out, safe for a terminal and UTF-8."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        c if c == "\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") else ascii(c)[1:-1]
        for c in text
    )


def write_out(path: str, text: str, *, tree: str | None = None) -> None:
    """Write a file that the user named: a patch.

    A name below ``tree``, the audited folder, is written as ``write_inside`` does; elsewhere the folder is the
    user's own, and only the file itself is never reached through a link.

    Raises:
        OSError: it cannot be written.
    """
    data = text.encode("utf-8", "surrogateescape")
    target = os.path.abspath(path)
    root = os.path.realpath(tree) if tree is not None else None
    if root is not None and os.path.isfile(root):
        root = os.path.dirname(root)
    if root is not None:
        for named in {os.path.abspath(tree or ""), root}:
            if target.startswith(named.rstrip(os.sep) + os.sep):
                write_inside(root, os.path.relpath(target, named).replace(os.sep, "/"), data)
                return
    write_inside(os.path.dirname(target), os.path.basename(target), data)
