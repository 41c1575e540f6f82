"""files: every file that gfxgraph writes, and how it reads those that others may have written.

Problem: a name in a folder may already be a link, a FIFO or another user's file, and what a file holds may be
anything. A write through a planted link is a write elsewhere; opening a FIFO waits for ever; JSON may be nested
deeper than Python's stack. Idea: one writer and one reader, which ask the file itself once it is open.

Invariants (tools/check_writes.py holds the first, in `make check`):
1. Nothing else in this package opens a file for writing, makes a folder or moves a file.
2. What is written has a new, unpredictable name, is created (``O_EXCL``), and is moved into place whole.
3. No link is followed below the folder that was meant, even if one is swapped in meanwhile.
4. Whatever a file holds, reading it ends in an ``OSError`` or a ``ValueError``, or in what it says.

Enters: folders, names, bytes.
Stays out: what the bytes mean; where the folders are (config.py).
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import math
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NoReturn

MOST_NBYTES = 64 << 20
"""More than any file of ours ever holds."""

_CLOSES = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _CLOSES
_FILE = os.O_RDONLY | _NO_LINK | getattr(os, "O_NONBLOCK", 0) | _CLOSES
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK | _CLOSES
_CAN_WALK = os.open in os.supports_dir_fd


class UnsafePathError(OSError):
    """A path leads out of the folder, through a link, or to something that is no regular file of ours."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(errno.EPERM, why, path)


# -- below a folder that may be hostile ---------------------------------------------------------------


@contextlib.contextmanager
def _folder_of(root: str, path: str, *, makes: bool = False) -> Iterator[tuple[int | None, str]]:
    """The folder of ``path`` as a descriptor, and the file's name in it; None and a path where there are none."""
    *folders, name = path.split("/")
    if not name or os.path.isabs(path) or any(part in ("", ".", "..") for part in (*folders, name)):
        raise UnsafePathError(path, "not a path inside the folder")
    if not _CAN_WALK:  # Windows
        if makes:
            os.makedirs(os.path.join(root, *folders), exist_ok=True)
        yield None, os.path.join(root, *folders, name)
        return
    folder = os.open(root, _FOLDER)
    try:
        for part in folders:
            try:
                if makes:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=folder)
                deeper = os.open(part, _FOLDER | _NO_LINK, dir_fd=folder)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise UnsafePathError(path, f"{part} is a link or not a folder") from error
                raise
            os.close(folder)
            folder = deeper
        yield folder, name
    finally:
        os.close(folder)


def read_inside(root: str, path: str, limit: int, *, is_ours: bool = False) -> bytes:
    """The bytes of a regular file below ``root``.

    Args:
        is_ours: refuse a file that neither this user nor root owns.

    Raises:
        UnsafePathError: a link on the way, not a regular file, or another user's.
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
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise UnsafePathError(path, "not a regular file")
        if is_ours and not _is_ours(found):
            raise UnsafePathError(path, f"it belongs to user {found.st_uid}, not to this one")
        return _most(source, limit, path)


def write_inside(
    root: str, path: str, data: bytes, *, is_lasting: bool = False, makes: bool = False, is_executable: bool = False
) -> None:
    """Replace a file below ``root`` in one step; a link in its place is refused, not followed.

    Args:
        is_lasting: it is on the disk when this returns.
        makes: its folders are made where they are not there.
        is_executable: a new file may be run.

    Raises:
        UnsafePathError: a link on the way or in the file's place, or something that is no regular file.
        OSError: it cannot be written.
    """
    with _folder_of(root, path, makes=makes) as (folder, name):
        mode = (0o777 if is_executable else 0o666) & ~umask()
        try:
            now = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            pass
        else:
            if not stat.S_ISREG(now.st_mode):
                raise UnsafePathError(path, "its path is a link or not a regular file")
            mode = stat.S_IMODE(now.st_mode) & 0o777  # the new file is this user's: no other's rights move to it
        head, last = os.path.split(name)
        temporary = os.path.join(head, f".{last[:80]}.{secrets.token_hex(8)}")
        handle = os.open(temporary, _NEW, 0o600, dir_fd=folder)
        try:
            with os.fdopen(handle, "wb") as out:
                out.write(data)
                out.flush()
                if hasattr(os, "fchmod"):
                    os.fchmod(handle, mode)
                if is_lasting:
                    os.fsync(handle)
            os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise


# -- folders of ours, and files that the user named ----------------------------------------------------


def new_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder and those above it; one that is there is left as it is.

    Raises:
        OSError: it cannot be made, or no folder can have that name.
    """
    try:
        path.mkdir(parents=True, exist_ok=True, mode=mode)
    except ValueError as error:  # a NUL, or half of a surrogate pair
        raise OSError(errno.EINVAL, str(error)) from error


def write(path: Path, data: str | bytes, *, is_lasting: bool = False) -> None:
    """Write a file of ours, or one that the user named: whole or not at all, and never through a link.

    A device or a pipe, which cannot be replaced, is written to; a pipe without a reader is not waited for.

    Raises:
        OSError: it cannot be written.
    """
    content = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data
    try:
        _write(path.absolute(), content, is_lasting)
    except OSError as error:
        error.filename = str(path)  # what the user named, not the temporary file beside it
        raise


def _write(target: Path, content: bytes, is_lasting: bool) -> None:
    if target.exists() and not (target.is_file() or target.is_dir()):
        handle = os.open(target, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0) | _CLOSES)
        with os.fdopen(handle, "wb") as out:
            if hasattr(os, "set_blocking"):
                os.set_blocking(handle, True)
            out.write(content)
        return
    write_inside(str(target.parent), target.name, content, is_lasting=is_lasting)


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write NumPy's arrays by name, as .npz."""
    # lazily: torch may be installed without it
    import numpy

    made = io.BytesIO()
    numpy.savez(made, **arrays)
    write(path, made.getvalue())


def append(path: Path, line: str) -> None:
    """Add to the end of a file of ours, in one write: processes that end together do not mix lines.

    Raises:
        OSError: it cannot be written, or a link stands in its place.
    """
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | _NO_LINK | _CLOSES, 0o666)
    with os.fdopen(handle, "ab", buffering=0) as out:
        out.write(line.encode("utf-8", "surrogateescape"))


def create(path: Path, mode: int = 0o666) -> IO[bytes]:
    """Open a file that is not there yet, for writing.

    Raises:
        FileExistsError: something is there.
    """
    return os.fdopen(os.open(path, _NEW, mode), "wb")


def move(source: Path, target: Path) -> None:
    """Put a file of ours in the place of another in the same folder."""
    os.replace(source, target)


def copy_tree(tree: str, folder: str) -> None:
    """Copy a tree, without git's own folder, to a new one; links stay links."""
    shutil.copytree(tree, folder, symlinks=True, ignore=shutil.ignore_patterns(".git"))


def read(path: Path, limit: int = MOST_NBYTES) -> bytes:
    """Read a file that ours may have written: a regular one of this user's.

    Raises:
        OSError: it cannot be read, is too large, a link, no regular file, or another user's.
    """
    target = path.absolute()
    return read_inside(str(target.parent), target.name, limit, is_ours=True)


def read_named(path: str | Path, limit: int = MOST_NBYTES) -> bytes:
    """Read a file that the user named, of whatever kind: a pipe without a writer is not waited for.

    Raises:
        OSError: it cannot be read, or holds more than ``limit`` bytes (``EFBIG``).
    """
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _CLOSES)
    except ValueError as error:  # a NUL, or half of a surrogate pair
        raise OSError(errno.EINVAL, str(error), str(path)) from error
    with os.fdopen(handle, "rb") as source:
        if hasattr(os, "set_blocking"):
            os.set_blocking(handle, True)
        return _most(source, limit, str(path))


def _most(source: IO[bytes], limit: int, path: str) -> bytes:
    data = source.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"more than {limit} bytes", path)
    return data


def parse_json(data: str | bytes) -> Any:
    """Understand JSON that anybody may have written.

    Raises:
        ValueError: it is not JSON (infinities are not), or nested deeper than any of ours.
    """
    try:
        return json.loads(data, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path: Path, limit: int = MOST_NBYTES) -> Any:
    """Read and understand a JSON file of ours.

    Raises:
        OSError: as ``read``.
        ValueError: as ``parse_json``.
    """
    return parse_json(read(path, limit))


def is_private(path: Path) -> bool:
    """Whether a file may be run: regular, this user's or root's, and not writable by others, nor is its folder."""
    try:
        found, folder = os.lstat(path), os.stat(path.parent)
    except OSError:
        return False
    ours = _is_ours(found) and _is_ours(folder) and not (found.st_mode | folder.st_mode) & 0o022
    return stat.S_ISREG(found.st_mode) and (ours or not hasattr(os, "geteuid"))


def _is_ours(found: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or found.st_uid in (os.geteuid(), 0)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse_constant(text)  # 1e999, which is written back as Infinity


def umask() -> int:
    os.umask(now := os.umask(0o077))
    return now
