"""Files derived from the package's own TOML, so that it need not be read and compiled at each start.

A derived file lies in the user's cache folder, where removing the package leaves nothing to import, named by a
fingerprint of its sources: adding or editing one makes a new file. If the file cannot be written, only the start is
slower.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from gfxgraph import config, files

T = TypeVar("T")
MOST_KEPT = 7
"""Files of one name beside the new one: other installations have theirs."""


def load(
    name: str, version: object, folders: Sequence[Path], make: Callable[[], bytes], understand: Callable[[bytes], T]
) -> T:
    """Return ``understand(data)``, where ``data`` is what ``make()`` returns for the current sources.

    Args:
        name: the file's name.
        version: changed by the caller when the format of ``data`` changes.
        folders: folders with the sources.
        make: reads the sources.
        understand: turns the data into the caller's objects.
    """
    file_name = f"{name}.{_fingerprint(version, folders)}"
    folder = config.cache_folder()
    if folder is None:
        return understand(make())
    try:
        return understand(files.read(folder / file_name))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        data = make()
    with suppress(OSError):
        files.new_folder(folder)
        for old in sorted(folder.glob(f"{name}.*"), key=lambda path: path.stat().st_mtime)[:-MOST_KEPT]:
            old.unlink(missing_ok=True)
        files.write(folder / file_name, data)
    return understand(data)


def _fingerprint(version: object, folders: Sequence[Path]) -> str:
    """Names, sizes and times of all files: enough to notice an edit without reading them."""
    seen = " ".join([str(version), *map(_state, folders)])
    return f"{zlib.crc32(seen.encode()):08x}{len(seen):06x}"


def _state(folder: Path) -> str:
    with os.scandir(folder) as found:
        states = [(file.name, file.stat()) for file in found if file.name.endswith(".toml")]
    return " ".join(sorted(f"{name}:{state.st_size}:{state.st_mtime_ns}" for name, state in states))
