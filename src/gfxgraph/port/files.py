"""Reading and writing inside a tree that may be hostile.

Problem: an audited repository chooses the names, the links and the kinds of its files. A planted link turns a
write into a write elsewhere, and opening a FIFO waits for ever. Idea: every file is opened through its folders one
by one, none of which may be a link, and must be a regular file.

Invariants:
1. ``read_inside`` and ``write_inside`` follow no link below the root, whoever swaps one in meanwhile.
2. A temporary file has a name nobody can foresee and is created, never opened (``O_EXCL``).
3. What is put on a terminal holds no control characters.

Enters: a root folder, relative paths, bytes.
Stays out: what the bytes mean.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import unicodedata
from collections.abc import Iterator

_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_FILE = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


class UnsafePathError(OSError):
    """A path leads out of the tree, through a link, or to something that is no regular file."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(errno.EPERM, why, path)


def printable(text: str) -> str:
    """The text with control, format and unpaired surrogate characters spelt out, safe for a terminal and UTF-8."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        c if c == "\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") else ascii(c)[1:-1]
        for c in text
    )


@contextlib.contextmanager
def _folder_of(root: str, path: str) -> Iterator[tuple[int, str]]:
    """The folder of ``path`` as a descriptor, and the file's name in it."""
    *folders, name = path.split("/")
    if not name or os.path.isabs(path) or any(part in ("", ".", "..") for part in (*folders, name)):
        raise UnsafePathError(path, "not a path inside the audited folder")
    folder = os.open(root, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        for part in folders:
            try:
                deeper = os.open(part, _FOLDER, dir_fd=folder)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise UnsafePathError(path, f"{part} is a link or no folder") from error
                raise
            os.close(folder)
            folder = deeper
        yield folder, name
    finally:
        os.close(folder)


def read_inside(root: str, path: str, limit: int) -> bytes:
    """The bytes of a regular file below ``root``.

    Raises:
        UnsafePathError: a link on the way, or no regular file.
        OSError: it cannot be read, or holds more than ``limit`` bytes (``EFBIG``).
    """
    with _folder_of(root, path) as (folder, name):
        try:
            handle = os.open(name, _FILE, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise UnsafePathError(path, "a link, not a regular file") from error
            raise
    with os.fdopen(handle, "rb") as source:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise UnsafePathError(path, "not a regular file")
        data = source.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"more than {limit} bytes", path)
    return data


def write_inside(root: str, path: str, data: bytes) -> None:
    """Replace a file below ``root`` in one step; a link in its place is refused, not followed.

    Raises:
        UnsafePathError: a link on the way or in the file's place, or something that is no regular file.
        OSError: it cannot be written.
    """
    with _folder_of(root, path) as (folder, name):
        mode = 0o666 & ~_umask()
        try:
            now = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            pass
        else:
            if not stat.S_ISREG(now.st_mode):
                raise UnsafePathError(path, "a link or no regular file stands in its place")
            mode = stat.S_IMODE(now.st_mode)
        temporary = f".{name[:80]}.{secrets.token_hex(8)}"
        handle = os.open(temporary, _NEW, 0o600, dir_fd=folder)
        try:
            with os.fdopen(handle, "wb") as out:
                out.write(data)
                os.fchmod(handle, mode)
            os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise


def write_out(path: str, text: str, *, tree: str | None = None) -> None:
    """Write a file that the user named: a patch, a baseline, a report.

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


def _umask() -> int:
    now = os.umask(0o077)
    os.umask(now)
    return now
